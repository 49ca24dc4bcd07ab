//! Servers that break the protocol once a client is connected, and loads whose frames were reused: no wrong byte is taken
//! for the engine's.

mod client_support;
mod hostile_support;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use client_support::*;
use hostile_support::*;
use kvasir::client::StoreOutcome;
use kvasir::geometry::ObjectKind;
use kvasir::object::*;
use kvasir::sync::shared::Ordering;
use kvasir::wire::*;

#[test]
fn a_reply_that_is_wrong_drops_the_connection_and_not_the_engine() {
    let shape = Shape::plain(64, 0);
    let wrongs: [fn() -> Answer; 5] = [
        || plain(Reply::Status { json: "{}".into() }),
        || Answer::WrongId(Reply::Ack),
        || Answer::Bytes(vec![0xff; 4096]),
        || Answer::Close,
        || {
            plain(Reply::Commit(CommitAnswer {
                outcomes: vec![CommitOutcome::Published; 7], // for one item
                granted: vec![],
            }))
        },
    ];
    for wrong in wrongs {
        let fake = Fake::new(|_, _| None);
        let client = ready(&fake.socket(), &shape);
        let seed = client.domain_seed().unwrap();
        let chain = chain(seed, CHUNK + 1, 1);
        let grant = |request: &Request| match request {
            Request::Grant(_) => Some(plain(Reply::Grant {
                extents: vec![Extent { frame: 0, count: 2 }],
            })),
            _ => None,
        };
        fake.set(move |request, _| match request {
            Request::Lookup(_) | Request::Retrieve(_) | Request::Commit(_) => Some(wrong()),
            request => grant(request),
        });
        let before = client.stats().reconnects;
        assert!(
            client
                .lookup(&lookup(seed, &chain, 1, 16).as_request())
                .unwrap()
                .degraded
        );
        eventually("recovery", || client.is_healthy());
        assert_eq!(
            client.load(1, 0, &[load_chunk(&chain, 0, four(1))]).unwrap(),
            [false]
        );
        eventually("recovery", || client.is_healthy());
        let stored = client.store(&[store_chunk(&chain, 0, 0, four(1))], &[]).unwrap();
        assert_eq!(stored, [StoreOutcome::Unavailable]);
        eventually("recovery", || client.is_healthy());
        assert_eq!(client.stats().reconnects, before + 3);
    }
}

/// Frames of a commit that may have happened hold objects: the next store must not write over them.
#[test]
fn only_a_commit_that_was_refused_as_a_whole_leaves_its_frames_to_the_client() {
    let shape = Shape::plain(64, 0);
    let codes = [
        (ErrorCode::Internal, false),
        (ErrorCode::LimitExceeded, false),
        (ErrorCode::ExtentNotGranted, false),
        (ErrorCode::SizeMismatch, true),
        (ErrorCode::InvalidArgument, true),
    ];
    for (code, still_ours) in codes {
        let fake = Fake::new(|_, _| None);
        let client = ready(&fake.socket(), &shape);
        // Of another prompt: what hangs under a chunk that was refused is not even sent.
        let [one, other] = [1, 2].map(|first| chain(client.domain_seed().unwrap(), CHUNK + 1, first));
        let named: Arc<Mutex<Vec<u32>>> = Arc::default();
        let seen = Arc::clone(&named);
        let granted = Mutex::new(false);
        fake.set(move |request, _| match request {
            // Once: what the client writes into later is what it thinks is still its own.
            Request::Grant { .. } if !std::mem::replace(&mut *granted.lock().unwrap(), true) => {
                Some(plain(Reply::Grant {
                    extents: vec![Extent { frame: 3, count: 1 }],
                }))
            }
            Request::Commit(commit) => {
                let frames = commit.extents.iter().map(|extent| extent.frame);
                seen.lock().unwrap().extend(frames);
                Some(plain(Reply::Error(WireError::new(
                    code,
                    "half of it is stored",
                    [],
                ))))
            }
            _ => None,
        });
        let before = client.stats().reconnects;
        let first = client.store(&[store_chunk(&one, 0, 0, four(1))], &[]);
        assert_eq!(first.is_err(), still_ours, "{code:?}: {first:?}");
        eventually("recovery", || client.is_healthy());
        assert_eq!(client.stats().reconnects > before, !still_ours, "{code:?}");
        let _ = client.store(&[store_chunk(&other, 0, 0, four(5))], &[]);
        let named = named.lock().unwrap().clone();
        assert_eq!(named, if still_ours { vec![3, 3] } else { vec![3] }, "{code:?}");
    }
}

/// The final check: a load counts only if the frames were the object's to the end.
#[test]
fn loads_whose_frames_were_reused_fail() {
    let shape = Shape::plain(64, 0);
    let fake = Fake::new(|_, _| None);
    let client = ready(&fake.socket(), &shape);
    let chain = chain(client.domain_seed().unwrap(), CHUNK + 1, 1);
    let bytes = 2 * 4 * 1024;
    let place = PartLocation {
        incarnation: 77,
        bytes,
        checksum: 0,
        first_extent: 0,
        extent_count: 1,
        tokens: CHUNK as u32,
        held_from: 0,
    };
    let load = |place: PartLocation, extent: Extent| {
        fake.set(move |request, _| match request {
            Request::Retrieve(_) => Some(plain(Reply::Retrieve(RetrieveAnswer {
                pin: 1,
                locations: vec![place],
                extents: vec![extent],
            }))),
            _ => None,
        });
        client.load(1, 0, &[load_chunk(&chain, 0, four(1))]).unwrap()[0]
    };
    let extent = Extent { frame: 4, count: 1 };
    fake.regions.set_epoch(4, 77);
    assert!(load(place, extent));
    assert_eq!(client.stats().stale_loads, 0);
    fake.regions.set_epoch(4, 78); // another object's by now
    assert!(!load(place, extent));
    fake.regions.set_epoch(4, 0); // evicted
    assert!(!load(place, extent));
    assert_eq!(client.stats().stale_loads, 2);
    fake.regions.set_epoch(4, 77);
    for (wrong, extent) in [
        (
            PartLocation {
                incarnation: 0,
                ..place
            },
            extent,
        ),
        (
            PartLocation {
                bytes: bytes - 1,
                ..place
            },
            extent,
        ),
        (PartLocation { tokens: 32, ..place }, extent),
        (
            place,
            Extent {
                frame: FRAMES as u32,
                count: 1,
            },
        ),
        (
            place,
            Extent {
                frame: u32::MAX,
                count: u32::MAX,
            },
        ),
        (place, Extent { frame: 4, count: 0 }),
        (
            PartLocation {
                extent_count: 0,
                ..place
            },
            extent,
        ),
    ] {
        assert!(!load(wrong, extent), "{wrong:?} {extent:?}");
    }
    assert_eq!(client.stats().stale_loads, 2, "those were never copied");
    assert!(client.is_healthy());
    // The server restarts under the same pool: the boot word says so before any message does.
    fake.regions
        .words
        .atomic_u64(64)
        .unwrap()
        .store(BOOT + 1, Ordering::Release);
    assert!(!load(place, extent));
    eventually("the restart to be seen", || !client.is_healthy());
}

/// A description of a domain that cannot be is not looked up with, and not taken for a miss.
#[test]
fn a_domain_that_cannot_be_drops_the_connection() {
    let group = |group, bit, kind| GroupShape { group, kind, bit };
    let sound = DomainShape {
        domain: 0,
        chunk_size: CHUNK as u32,
        alignment: 16,
        anchor: Some(0),
        groups: vec![
            group(0, 1, ObjectKind::Full),
            group(1, 2, ObjectKind::Window { tokens: 32 }),
        ],
        kept_frames_max: FRAMES,
    };
    let with = |change: fn(&mut DomainShape)| {
        let mut shape = sound.clone();
        change(&mut shape);
        shape
    };
    let wrongs = [
        with(|shape| shape.groups.clear()),
        with(|shape| shape.groups.reverse()),
        with(|shape| shape.groups[1].bit = 1),
        with(|shape| shape.groups[1].bit = 6),
        with(|shape| shape.groups[1].kind = ObjectKind::Window { tokens: 0 }),
        with(|shape| shape.anchor = Some(1)),
        with(|shape| shape.anchor = Some(9)),
        with(|shape| shape.alignment = 0),
        with(|shape| shape.alignment = 48),
        with(|shape| shape.chunk_size = 0),
    ];
    let described = |shape: DomainShape| {
        let fake = Fake::new(move |request, _| {
            matches!(request, Request::Lookup(_)).then(|| {
                plain(Reply::Lookup(LookupAnswer {
                    shape: Some(shape.clone()),
                    ..LookupAnswer::default()
                }))
            })
        });
        let client = ready(&fake.socket(), &Shape::plain(64, 0));
        let seed = client.domain_seed().unwrap();
        let hit = client
            .lookup(&lookup(seed, &chain(seed, CHUNK + 1, 1), 1, 16).as_request())
            .unwrap();
        (hit.hit_tokens, hit.degraded)
    };
    assert_eq!(described(sound.clone()), (0, false), "an empty index");
    for wrong in wrongs {
        assert_eq!(described(wrong.clone()), (0, true), "{wrong:?}");
    }
}

/// The answer that says so comes before the end of the connection, and both are seen: by the call, and by the thread that looks
/// after the connection.
#[test]
fn a_kick_that_a_call_reads_of_is_counted_once() {
    for _ in 0..20 {
        let fake = Fake::new(|_, _| None);
        let client = ready(&fake.socket(), &Shape::plain(64, 0));
        let kicked = AtomicBool::new(false);
        fake.set(move |request, _| match request {
            Request::Grant(_) if !kicked.swap(true, Ordering::Relaxed) => {
                let error = WireError::new(ErrorCode::Kicked, "an operator", []);
                Some(plain(Reply::Error(error)))
            }
            _ => None,
        });
        let chain = chain(client.domain_seed().unwrap(), CHUNK + 1, 1);
        let stored = client.store(&[store_chunk(&chain, 0, 0, four(1))], &[]).unwrap();
        assert_eq!(stored, [StoreOutcome::Unavailable]);
        eventually("the end of it", || {
            client.stats().reconnects >= 1 && client.is_healthy()
        });
        let said = client.state_text();
        assert_eq!(
            said,
            "healthy; an operator ended a connection of it (kvasir clients --kick)"
        );
    }
}
