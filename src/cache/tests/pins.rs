//! How much of the pool the pins of one client may keep.

use std::borrow::Cow;

use super::*;
use CommitOutcome::*;

const FULL: &[ObjectKind] = &[ObjectKind::Full];

fn pinned(rig: &Rig) -> u64 {
    rig.core.status().pool.pinned / FRAME_BYTES
}

fn kept(rig: &Rig, peer: &Peer) -> u64 {
    let status = rig.core.status();
    let row = status.clients.iter().find(|client| client.id == peer.id).unwrap();
    row.kept / FRAME_BYTES
}

#[test]
fn one_client_pins_a_quarter_of_the_pool_and_the_others_can_still_store() {
    // Sixteen chunks of four frames; a quarter are four of them.
    let mut rig = Rig::with_pins_of(64, 25);
    let (hog, other) = (rig.engine(1, FULL), rig.engine(2, FULL));
    for prompt in 0..8 {
        rig.put_chain(&hog, prompt, 2);
    }
    let mut promised = Vec::new();
    for prompt in 0..8 {
        let answer = rig.lookup(&hog, prompt, 2, &[]);
        assert_eq!(answer.loads.len() as u64 * u64::from(CHUNK), answer.hit_tokens);
        promised.push(answer.hit_tokens);
    }
    assert_eq!(promised, [128, 128, 0, 0, 0, 0, 0, 0]);
    assert_eq!((pinned(&rig), kept(&rig, &hog)), (16, 16));
    assert_eq!(rig.core.status().counters.shortened, 6);
    rig.audit();
    // Another client still gets hits of its own, and room for three quarters of the pool.
    assert_eq!(rig.lookup(&other, 0, 2, &[]).hit_tokens, 128);
    for prompt in 100..106 {
        rig.put_chain(&other, prompt, 2);
    }
    for prompt in [0, 1, 100, 101, 102, 103, 104, 105] {
        assert_eq!(rig.resident(prompt, 2), [0, 1], "{prompt}");
    }
    rig.audit();
    // What is released may be pinned anew.
    rig.core.release_label(hog.id, 0).unwrap();
    assert_eq!(kept(&rig, &hog), 8);
    assert_eq!(rig.lookup(&hog, 100, 2, &[]).hit_tokens, 128);
    rig.core.disconnected(hog.id).unwrap();
    assert_eq!(kept(&rig, &hog), 0);
    rig.audit();
}

#[test]
fn a_hit_is_cut_to_the_longest_prefix_that_fits() {
    let mut rig = Rig::with_pins_of(128, 25);
    let engine = rig.engine(1, &[ObjectKind::Full, ObjectKind::Recurrent]);
    for c in 0..12 {
        let (key, parent) = chain(1, c);
        assert_eq!(rig.put(&engine, key, 0, parent, CHUNK), Published);
        let state = ObjectId { key, group: 1 };
        assert_eq!(
            rig.try_put(&engine, state, parent, CHUNK, 0, UNIT),
            Some(Published)
        );
    }
    // Seven chunks of four frames and the last state are 29 of 32 frames; eight would be 33.
    let answer = rig.lookup(&engine, 1, 12, &[]);
    assert_eq!(answer.hit_tokens, 7 * u64::from(CHUNK));
    assert_eq!(answer.loads.len(), 8);
    assert_eq!(
        answer.loads[7].id,
        ObjectId {
            key: key(1, 6, CHUNK),
            group: 1
        }
    );
    assert_eq!(kept(&rig, &engine), 29);
    let counters = rig.core.status().counters;
    assert_eq!(
        (counters.shortened, counters.requested, counters.hit),
        (1, 48, 28)
    );
    rig.audit();
    // The same objects once more cost nothing, as when a worker loads what its scheduler was promised.
    assert_eq!(rig.lookup(&engine, 1, 7, &[]).hit_tokens, 7 * u64::from(CHUNK));
    assert_eq!(kept(&rig, &engine), 29);
    // Without a pin nothing is promised, so nothing is cut.
    let keys: Vec<_> = (0..12).map(|c| key(1, c, CHUNK)).collect();
    let request = LookupRequest {
        domain_seed: rig.seed,
        label: 0,
        keys: &keys,
        tails: &TailList::default(),
        max_tokens: u64::MAX,
        local_tokens: 0,
        pin: false,
        describe: false,
    };
    let answer = rig.core.lookup(engine.id, &request).unwrap();
    assert_eq!(answer.hit_tokens, 12 * u64::from(CHUNK));
    rig.audit();
}

#[test]
fn what_a_pinned_object_hangs_under_counts_too() {
    let mut rig = Rig::with_pins_of(64, 25);
    let engine = rig.engine(1, FULL);
    rig.put_chain(&engine, 1, 6);
    rig.put_chain(&engine, 2, 1);
    let object = |prompt, chunk| ObjectId {
        key: key(prompt, chunk, CHUNK),
        group: 0,
    };
    // The fourth chunk alone keeps three others; with the fifth it would be too much.
    let ids = [object(1, 3), object(1, 4), object(1, 0), object(2, 0)];
    let answer = rig
        .core
        .retrieve(engine.id, &parts(rig.seed, 7, 0, &ids))
        .unwrap();
    let there: Vec<bool> = answer
        .locations
        .iter()
        .map(|location| location.incarnation != 0)
        .collect();
    assert_eq!(there, [true, false, true, false]);
    assert_eq!((pinned(&rig), kept(&rig, &engine)), (8, 16));
    assert_eq!(rig.core.status().counters.shortened, 1);
    // A prefix that the engine holds itself is kept for what it loads behind it.
    rig.core.release_label(engine.id, 7).unwrap();
    let answer = rig.lookup_at(&engine, 1, 6, &[], u64::MAX, 3 * u64::from(CHUNK));
    assert_eq!((answer.hit_tokens, answer.loads.len()), (4 * u64::from(CHUNK), 1));
    assert_eq!((pinned(&rig), kept(&rig, &engine)), (4, 16));
    rig.audit();
}

#[test]
fn one_chunk_may_always_be_pinned() {
    // A quarter is two frames, a chunk of both groups eight.
    let mut rig = Rig::with_pins_of(8, 25);
    let engine = rig.engine(1, &[ObjectKind::Full, ObjectKind::Window { tokens: 32 }]);
    let (key, parent) = chain(1, 0);
    for group in [0, 1] {
        assert_eq!(rig.put(&engine, key, group, parent, CHUNK), Published);
    }
    let answer = rig.lookup(&engine, 1, 1, &[]);
    assert_eq!((answer.hit_tokens, answer.loads.len()), (u64::from(CHUNK), 2));
    assert_eq!(kept(&rig, &engine), 8);
    assert_eq!(rig.core.status().counters.shortened, 0);
    rig.audit();
}

/// What a reader finds counts only if it is still so once its pins can be seen.
#[test]
fn a_reader_who_finds_a_change_after_pinning_starts_anew_and_holds_nothing() {
    let mut rig = Rig::new(64);
    let mut peer = rig.peer(1);
    rig.register(&peer, 0, 1, &[group(0, ObjectKind::Full, 1, 0)])
        .unwrap();
    rig.put_chain(&peer, 1, 3);
    let keys: Vec<_> = (0..3).map(|c| key(1, c, CHUNK)).collect();
    let request = LookupRequest {
        domain_seed: rig.seed,
        label: 7,
        keys: &keys,
        tails: &TailList::default(),
        max_tokens: u64::MAX,
        local_tokens: 0,
        pin: true,
        describe: false,
    };
    let (number, domain) = rig.core.registry.find(&rig.seed).unwrap();
    let shape = domain.shape(number, u64::MAX);
    let reader = rig.core.index.reader();
    let frames = rig.core.pool.frames();
    let pinned = |id: ClientId| rig.core.slabs.pinned_by(id.slab(), frames).len();

    let asked = std::cell::Cell::new(0);
    let never = || {
        asked.set(asked.get() + 1);
        assert_eq!(
            pinned(peer.id),
            1,
            "the deepest object is pinned while it is looked at again"
        );
        false
    };
    let missed = local::lookup(&reader, &shape, &request, &mut peer.words, never).unwrap();
    assert_eq!(
        (asked.get(), missed.answer.hit_tokens, missed.answer.pin),
        (3, 0, 0)
    );
    assert_eq!((pinned(peer.id), missed.hit), (0, 0));

    asked.set(0);
    let at_last = || {
        asked.set(asked.get() + 1);
        asked.get() == 2
    };
    let found = local::lookup(&reader, &shape, &request, &mut peer.words, at_last).unwrap();
    assert_eq!((asked.get(), found.answer.hit_tokens), (2, 3 * u64::from(CHUNK)));
    assert_eq!(pinned(peer.id), 1);
    peer.words.release_label(7);
    assert_eq!(pinned(peer.id), 0);

    // A domain that came back under another number: the reader has to ask what it looks like now.
    let old = DomainShape {
        domain: number + 1,
        ..shape
    };
    let other = local::lookup(&reader, &old, &request, &mut peer.words, || true);
    assert_eq!(other, Err(local::OtherDomain));
    assert_eq!(pinned(peer.id), 0);
}

/// Tails of which there are none. Who asks for them is past the chunks of the prompt: then states go.
#[derive(Debug)]
struct Vanishing<'a> {
    index: &'a Index,
    chunks: &'a [u32],
}

impl Tails for Vanishing<'_> {
    fn last_chunk(&self, _: u32) -> Option<u32> {
        for chunk in self.chunks {
            let id = ObjectId {
                key: key(1, *chunk, CHUNK),
                group: 1,
            };
            if let Some(record) = self.index.reader().probe(&id) {
                self.index.kill(record, &id);
            }
        }
        None
    }

    fn all(&self) -> Cow<'_, [Tail]> {
        Cow::Borrowed(&[])
    }

    fn of(&self, _: u32) -> Cow<'_, [Tail]> {
        Cow::Borrowed(&[])
    }

    fn end(&self, _: u32) -> u64 {
        0
    }
}

#[test]
fn a_vanished_object_shrinks_the_hit_and_too_many_end_it() {
    // Of each plan the state at its end is gone: two plans fail and the third holds, or three fail. The last one begins
    // with half of the prompt, since all of it is more than pins may keep.
    for (gone, chunks, kept_frames_max) in [
        (&[5, 4][..], 4, u64::MAX),
        (&[5, 4, 3], 0, u64::MAX),
        (&[2, 1, 0], 0, 20),
    ] {
        let mut rig = Rig::new(64);
        let mut peer = rig.engine(1, &[ObjectKind::Full, ObjectKind::Recurrent]);
        rig.put_chain(&peer, 1, 6);
        for chunk in 0..6 {
            let (key, parent) = chain(1, chunk);
            let state = ObjectId { key, group: 1 };
            assert_eq!(rig.try_put(&peer, state, parent, CHUNK, 0, UNIT), Some(Published));
        }
        let keys: Vec<_> = (0..6).map(|c| key(1, c, CHUNK)).collect();
        let request = LookupRequest {
            domain_seed: rig.seed,
            label: 7,
            keys: &keys,
            tails: &Vanishing {
                index: &rig.core.index,
                chunks: gone,
            },
            max_tokens: u64::MAX,
            local_tokens: 0,
            pin: true,
            describe: false,
        };
        let (number, domain) = rig.core.registry.find(&rig.seed).unwrap();
        let shape = domain.shape(number, kept_frames_max);
        let reader = rig.core.index.reader();
        let found = local::lookup(&reader, &shape, &request, &mut peer.words, || true).unwrap();
        assert_eq!(found.answer.hit_tokens, chunks * u64::from(CHUNK));
        let named: Vec<(u16, u32)> = found
            .answer
            .loads
            .iter()
            .map(|load| (load.id.group, load.chunk))
            .collect();
        match chunks {
            0 => assert!(named.is_empty() && found.answer.pin == 0),
            _ => assert_eq!(named, [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3)]),
        }
    }
}
