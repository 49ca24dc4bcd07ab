//! Servers that lie, fall silent or break the protocol while a client connects: it says why it is degraded, and nothing
//! else happens. (What they answer later: client_hostile_replies.rs.)

mod client_support;
mod hostile_support;

use std::time::Duration;

use client_support::*;
use hostile_support::*;
use kvasir::cache::Index;
use kvasir::client::{Client, ClientConfig};
use kvasir::keys::ChunkKey;
use kvasir::object::*;
use kvasir::wire::*;

/// Hellos that are wrong, and a word of what the client says about each.
#[test]
fn a_hello_that_is_wrong_leaves_the_client_degraded_until_it_is_right() {
    type Wrong = fn(&Regions) -> Answer;
    let cases: [(&str, Wrong); 17] = [
        ("closed", |_| Answer::Close),
        ("in time", |_| Answer::Silence),
        ("begins with \"\\x08\\x00\\x00\\x00\\x01\\x02", |_| {
            Answer::Bytes(vec![8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8])
        }),
        ("begins with \"\\xff\\xff", |_| Answer::Bytes(vec![0xff; 64])),
        ("begins with \"\\x00\\x00", |_| Answer::Bytes(vec![0; 64])),
        ("instead of", |regions| {
            Answer::WrongId(Reply::Hello(regions.hello()))
        }),
        ("Ack", |_| plain(Reply::Ack)),
        ("0 descriptors", |regions| plain(Reply::Hello(regions.hello()))),
        ("Pool", |regions| {
            let mut hello = regions.hello();
            let mut fds = regions.descriptors();
            hello.regions.truncate(5);
            fds.truncate(5);
            Answer::Reply(Reply::Hello(hello), fds)
        }),
        ("frames", |regions| {
            let mut hello = regions.hello();
            hello.frame_bytes = 0;
            Answer::Reply(Reply::Hello(hello), regions.descriptors())
        }),
        ("bytes", |regions| {
            let mut hello = regions.hello();
            hello.regions[5].bytes *= 2; // more than the file has: would be SIGBUS at the first touch
            Answer::Reply(Reply::Hello(hello), regions.descriptors())
        }),
        ("another server's", |regions| {
            let mut hello = regions.hello();
            hello.boot_id = [9; 16];
            Answer::Reply(Reply::Hello(hello), regions.descriptors())
        }),
        ("the index", |regions| {
            let mut fds = regions.descriptors();
            fds.swap(1, 2);
            Answer::Reply(Reply::Hello(regions.hello()), fds)
        }),
        ("the index is not", |regions| {
            let mut fds = regions.descriptors();
            fds[1] = regions.pool.reopen_read_only().unwrap();
            Answer::Reply(Reply::Hello(regions.hello()), fds)
        }),
        ("epochs region", |regions| {
            let mut fds = regions.descriptors();
            fds[2] = regions.pool.reopen_read_only().unwrap();
            Answer::Reply(Reply::Hello(regions.hello()), fds)
        }),
        ("epochs of 16 frames beside", |regions| {
            let (mut hello, mut fds) = (regions.hello(), regions.descriptors());
            let larger = Index::create(2 * FRAMES as u32).unwrap();
            hello.regions[1].bytes = larger.bytes();
            fds[1] = larger.read_only().unwrap();
            Answer::Reply(Reply::Hello(hello), fds)
        }),
        ("a pin slab of", |regions| {
            let mut hello = regions.hello();
            hello.regions[3].bytes = 4096;
            Answer::Reply(Reply::Hello(hello), regions.descriptors())
        }),
    ];
    for (word, wrong) in cases {
        let fake =
            Fake::new(move |request, regions| matches!(request, Request::Hello(_)).then(|| wrong(regions)));
        let client = client(&fake.socket());
        assert!(!client.is_healthy(), "{word}");
        eventually(word, || client.state_text().contains(word));
        fake.set(|_, _| None);
        eventually("a good server", || client.is_healthy());
        assert_eq!(client.state_text(), "healthy");
    }
}

/// A server that is full or has failed is away, at whatever step it says so: the engine starts, and has it once it can.
#[test]
fn a_server_that_cannot_serve_for_now_is_away() {
    let shape = Shape::plain(64, 0);
    let stages: [fn(&Request) -> bool; 4] = [
        |request| matches!(request, Request::Hello(_)),
        |request| matches!(request, Request::Attach),
        |request| matches!(request, Request::Negotiate(_)),
        |request| matches!(request, Request::RegisterKvCache(_)),
    ];
    for code in [ErrorCode::LimitExceeded, ErrorCode::Internal, ErrorCode::Draining] {
        for (stage, fails) in stages.into_iter().enumerate() {
            let refusal = move || plain(Reply::Error(WireError::new(code, "not now: 12 of 12", [12, 12])));
            let fake = Fake::new(move |request, _| fails(request).then(refusal));
            let mut config = ClientConfig::new(fake.socket(), ClientKind::Worker, "test", [1; 16]);
            config.deadline = WATCHDOG;
            config.heartbeat = Duration::from_millis(50);
            let client = Client::new(config).unwrap();
            for asked in [
                client.negotiate(shape.negotiation()).map(drop),
                client.register(shape.registration()).map(drop),
            ] {
                let told = asked.err().map(|error| (error.kind(), error.to_string()));
                let away =
                    |(kind, text): &(String, String)| kind == "Unavailable" && text.contains("12 of 12");
                assert!(
                    told.as_ref().map_or(stage == 3, away),
                    "{code:?} at {stage}: {told:?}"
                );
            }
            assert!(!client.is_healthy());
            assert!(
                client.state_text().contains("12 of 12"),
                "{}",
                client.state_text()
            );
            fake.set(|_, _| None);
            eventually("what was asked", || client.is_healthy());
            assert_eq!(client.chunk_size(), Some(CHUNK as u64));
            assert!(client.domain_seed().is_some());
        }
    }
    // A server of another protocol or another user is none for this client, and no time will cure that.
    for code in [ErrorCode::ProtocolVersion, ErrorCode::PermissionDenied] {
        let refusal = move || plain(Reply::Error(WireError::new(code, "you 1, the server 2", [1, 2])));
        let fake = Fake::new(move |request, _| matches!(request, Request::Hello(_)).then(refusal));
        let client = client(&fake.socket());
        assert_eq!(
            client.negotiate(shape.negotiation()).unwrap_err().kind(),
            format!("{code:?}")
        );
        assert!(client.state_text().contains("you 1, the server 2"));
        fake.set(|_, _| None);
        eventually("another server", || client.is_healthy());
    }
    // So is a geometry that it cannot take: told, and not remembered.
    let fake = Fake::new(|request, _| {
        let refusal = || {
            plain(Reply::Error(WireError::new(
                ErrorCode::IncompatibleChunkSize,
                "48 and 64",
                [48, 64],
            )))
        };
        matches!(request, Request::Negotiate(_)).then(refusal)
    });
    let client = client(&fake.socket());
    assert_eq!(
        client.negotiate(shape.negotiation()).unwrap_err().kind(),
        "IncompatibleChunkSize"
    );
    eventually("a client without a geometry", || client.is_healthy());
}

/// A server that is stopping is one that is not there yet: what was asked of it the next one is asked, and soon.
#[test]
fn a_server_that_is_stopping_is_away() {
    let shape = Shape::plain(64, 0);
    let stages: [fn(&Request) -> bool; 4] = [
        |request| matches!(request, Request::Hello(_)),
        |request| matches!(request, Request::Attach),
        |request| matches!(request, Request::Negotiate(_)),
        |request| matches!(request, Request::RegisterKvCache(_)),
    ];
    let stopping = || {
        let error = WireError::new(ErrorCode::Draining, "the server is stopping", []);
        plain(Reply::Error(error))
    };
    for (stage, stops) in stages.into_iter().enumerate() {
        let fake = Fake::new(move |request, _| stops(request).then(stopping));
        let mut config = ClientConfig::new(fake.socket(), ClientKind::Worker, "test", [1; 16]);
        config.deadline = WATCHDOG;
        config.heartbeat = 100 * WATCHDOG; // too late to help
        let client = Client::new(config).unwrap();
        let negotiated = client.negotiate(shape.negotiation()).map(drop);
        let registered = client.register(shape.registration()).map(drop);
        assert_eq!(negotiated.is_ok(), stage == 3, "{negotiated:?}");
        for result in [negotiated, registered] {
            let error = result.err().map(|error| (error.kind(), error.to_string()));
            let stopping = error
                .as_ref()
                .is_none_or(|(kind, text)| kind == "Unavailable" && text.contains("is stopping"));
            assert!(stopping, "stage {stage}: {error:?}");
        }
        assert!(!client.is_healthy());
        fake.set(|_, _| None);
        eventually("the next server", || client.is_healthy());
        assert_eq!(client.chunk_size(), Some(CHUNK as u64));
        let seed = client.domain_seed().unwrap();

        // And one that begins to stop while it is used.
        fake.set(move |request, _| matches!(request, Request::Lookup(_)).then(stopping));
        let question = lookup(seed, &chain(seed, CHUNK + 1, 1), 1, 16);
        let before = client.stats().reconnects;
        assert!(client.lookup(&question.as_request()).unwrap().degraded);
        eventually("the server after it", || client.is_healthy());
        assert_eq!(client.stats().reconnects, before + 1);
    }
}

#[test]
fn a_seed_of_its_own_is_a_server_that_cannot_be_used() {
    let fake = Fake::new(|request, _| match request {
        Request::RegisterKvCache(_) => Some(plain(Reply::Register(RegisterReply {
            domain_seed: ChunkKey::from_bytes([7; 32]),
            chunk_size: CHUNK as u64,
            domain: None,
            kept_frames_max: 0,
        }))),
        _ => None,
    });
    let client = client(&fake.socket());
    let shape = Shape::plain(64, 0);
    client.negotiate(shape.negotiation()).unwrap();
    let error = client.register(shape.registration()).unwrap_err();
    assert_eq!(error.kind(), "SeedMismatch");
    assert_eq!(client.domain_seed(), None);
}
