//! The server's own memory: bounded by frames, objects, pins, marks and connections, each with the bytes that
//! docs/operations.md gives it, whatever a peer sends.

mod common;

use common::*;
use kvasir::geometry::ObjectKind;
use kvasir::object::*;
use kvasir::wire::*;

/// Bytes of the formula in docs/operations.md, "Memory of the server".
const OBJECT: u64 = 512;
const PART: u64 = 768;
const PIN: u64 = 320;
const NAMED: u64 = 16;
const MARK: u64 = 512;
const MARKS_MAX: u64 = 65_536;
const REGISTERED_PART: u64 = 64;
const REGISTERED_PARTS_MAX: u64 = 65_536;
const CONNECTION: u64 = 256 << 10;
/// What is not told apart at all: pages that the allocator holds, the longest message of each kind.
const SLACK: u64 = 16 << 20;

/// Bytes of anonymous memory.
fn anonymous(server: &ServerProcess) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// The longest messages of a connection, received and sent.
const MESSAGES: u64 = (4 + 8) << 20;

/// What something made the server grow by.
fn growth(server: &ServerProcess, what: &str, bound: u64, act: impl FnOnce()) {
    let before = anonymous(server);
    act();
    let grown = anonymous(server).saturating_sub(before);
    println!("{what}: {} KiB of at most {} KiB", grown >> 10, bound >> 10);
    assert!(
        grown <= bound,
        "{what}: the server has grown by {grown} bytes, at most {bound} are right"
    );
}

fn register(client: &mut RawClient, change: impl FnOnce(&mut RegisterKvCache)) {
    let mut request = registration();
    change(&mut request);
    match client.call(&Request::RegisterKvCache(request)) {
        Reply::Register(reply) => client.seed = Some(reply.domain_seed),
        other => panic!("{other:?}"),
    }
}

fn attached(server: &ServerProcess) -> RawClient {
    let mut client = server.connect();
    client.hello(true);
    client.attach();
    assert!(matches!(client.negotiate(ALIGNMENT), Reply::Negotiate(_)));
    client
}

/// Commits parts of one frame each, as many as are named, and says what became of them.
fn commit(
    client: &mut RawClient,
    numbers: std::ops::Range<u64>,
    change: impl Fn(u64, &mut StoreItem),
) -> Vec<CommitOutcome> {
    let mut outcomes = Vec::new();
    let all: Vec<u64> = numbers.collect();
    for some in all.chunks(1024) {
        let mut commit = commit_of(client, 0, Extent { frame: 0, count: 1 });
        let template = commit.items.remove(0);
        commit.extents.clear();
        let mut items = Vec::new();
        for (at, number) in (0..).zip(some) {
            let mut item = StoreItem {
                id: object(*number),
                first_extent: at,
                ..template
            };
            change(*number, &mut item);
            items.push(item);
        }
        let needed = items.iter().filter(|item| !item.skipped).count() as u64;
        if needed > 0 {
            let granted = client.grant(needed * CHUNK_BYTES);
            let frames = granted
                .iter()
                .flat_map(|extent| extent.frame..extent.frame + extent.count);
            commit.extents = frames.map(|frame| Extent { frame, count: 1 }).collect();
            assert_eq!(commit.extents.len() as u64, needed);
        }
        commit.items = items;
        match client.call(&Request::Commit(commit)) {
            Reply::Commit(reply) => outcomes.extend(reply.outcomes),
            other => panic!("{other:?}"),
        }
    }
    outcomes
}

#[test]
fn pins_take_memory_for_what_they_name() {
    const CHUNKS: u64 = 4096;
    const PINS: u64 = 4000;
    let server = ServerProcess::with_args(&["--pool-size", "1100MiB"]);
    server.wait_prefaulted();
    let mut client = server.worker();
    growth(&server, "a chain of objects", CHUNKS * OBJECT + SLACK, || {
        let outcomes = commit(&mut client, 100..100 + CHUNKS, |number, item| {
            item.parent = (number > 100).then(|| key(number - 1));
        });
        assert!(
            outcomes
                .iter()
                .all(|outcome| *outcome == CommitOutcome::Published)
        );
    });
    let retrieve = |client: &mut RawClient, label, ids: Vec<ObjectId>| {
        let request = Request::Retrieve(RetrieveRequest {
            domain_seed: client.seed.unwrap(),
            label,
            part: 0,
            ids,
        });
        match client.call(&request) {
            Reply::Retrieve(reply) => assert_ne!(reply.pin, 0),
            other => panic!("{other:?}"),
        }
    };
    let deepest = object(100 + CHUNKS - 1);
    growth(
        &server,
        "pins of one deep object",
        PINS * (PIN + NAMED) + SLACK / 8,
        || {
            for _ in 0..PINS {
                retrieve(&mut client, 1, vec![deepest]);
            }
        },
    );
    growth(
        &server,
        "pins with labels of their own",
        PINS * (PIN + NAMED) + SLACK / 8,
        || {
            for label in 0..PINS {
                retrieve(&mut client, 2 + label, vec![deepest]);
            }
        },
    );
    // The first ones bring what messages of this length take, which stays and is used again.
    for (what, labels, slack) in [
        ("pins of many", 0..20, SLACK + MESSAGES),
        ("more pins of many", 20..40, SLACK / 4),
    ] {
        let bound = 20 * (PIN + NAMED * 16_384) + slack;
        growth(&server, what, bound, || {
            for label in labels {
                retrieve(&mut client, label, vec![deepest; 16_384]);
            }
        });
    }
    assert_balanced(&client.status());
}

/// Engines of two ranks, of which one never stores: as many incomplete objects as their shares of the pool have frames, each with
/// a place of its own in everything that they are found by.
#[test]
fn many_incomplete_objects_take_no_more_memory_than_the_formula_says() {
    // A rank of two has a quarter of the pool, and all of them three quarters.
    const EACH: u64 = 2300;
    const ENGINES: u64 = 3;
    let server = ServerProcess::with_args(&["--pool-size", "600MiB"]);
    server.wait_prefaulted();
    let mut clients: Vec<RawClient> = (0..ENGINES).map(|_| attached(&server)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        register(client, |request| {
            request.domain.model = format!("test/{number}");
            request.world_size = 2;
            request.groups[0].parts = 2;
            request.groups[0].unit_bytes = 64;
        });
    }
    let bytes = 64 * CHUNK / ALIGNMENT;
    // With little slack, so that what takes twice as much is seen.
    growth(
        &server,
        "objects with one of two parts",
        EACH * ENGINES * (OBJECT + PART) + SLACK / 16,
        || {
            for (at, client) in (1..).zip(&mut clients) {
                let numbers = at * 10_000..at * 10_000 + EACH;
                let outcomes = commit(client, numbers, |_, item| item.bytes = bytes);
                assert!(
                    outcomes
                        .iter()
                        .all(|outcome| *outcome == CommitOutcome::PartAccepted)
                );
            }
        },
    );
    assert_eq!(clients[0].status()["incomplete"], EACH * ENGINES);
}

#[test]
fn parts_that_are_missing_and_marks_of_what_ended_take_no_memory_of_their_own() {
    // The share of the pool of one rank of 1,024 is no more.
    const INCOMPLETE: u64 = 4;
    let server = ServerProcess::with_args(&["--pool-size", "600MiB"]);
    server.wait_prefaulted();
    let mut client = attached(&server);
    register(&mut client, |request| {
        request.world_size = 1024;
        request.groups[0].parts = 1024;
        // So that an object of all parts fits: each part is a frame all the same.
        request.groups[0].unit_bytes = 64;
    });
    let bytes = 64 * CHUNK / ALIGNMENT;
    growth(
        &server,
        "parts of objects of 1,024",
        INCOMPLETE * (OBJECT + PART) + SLACK / 4,
        || {
            let outcomes = commit(&mut client, 100..100 + INCOMPLETE, |_, item| item.bytes = bytes);
            assert!(
                outcomes
                    .iter()
                    .all(|outcome| *outcome == CommitOutcome::PartAccepted)
            );
        },
    );
    assert_eq!(client.status()["incomplete"], INCOMPLETE);
    growth(
        &server,
        "marks of what was skipped",
        MARKS_MAX * MARK + SLACK / 4,
        || {
            let outcomes = commit(&mut client, 10_000..90_000, |_, item| {
                (item.skipped, item.bytes, item.first_extent, item.extent_count) = (true, 0, 0, 0);
            });
            assert!(outcomes.iter().all(|outcome| *outcome == CommitOutcome::Skipped));
        },
    );
    // As many again take nothing more.
    growth(&server, "more of them", SLACK / 4, || {
        commit(&mut client, 100_000..180_000, |_, item| {
            (item.skipped, item.bytes, item.first_extent, item.extent_count) = (true, 0, 0, 0);
        });
    });
}

#[test]
fn registered_parts_take_memory_and_are_bounded() {
    let server = ServerProcess::with_args(&["--pool-size", "80MiB"]);
    server.wait_prefaulted();
    // All ranks of one domain, each with a part of every group.
    let groups: Vec<GroupRegistration> = (0..32)
        .map(|group| GroupRegistration {
            group,
            parts: 1024,
            unit_bytes: 1,
            kind: ObjectKind::Window { tokens: 1 << 20 },
            ..registration().groups[0]
        })
        .collect();
    let (mut refused, mut stay) = (0, Vec::new());
    growth(
        &server,
        "registered parts",
        REGISTERED_PARTS_MAX * REGISTERED_PART + SLACK / 4,
        || {
            for model in 0..4 {
                let mut one_more = attached(&server);
                for rank in 0..1024 {
                    let mut request = registration();
                    request.domain.model = format!("test/{model}");
                    (request.rank, request.world_size) = (rank, 1024);
                    request.groups = groups.clone();
                    for group in &mut request.groups {
                        group.part = rank as u16;
                        group.unit_bytes = u64::from(rank) + 1;
                    }
                    match one_more.call(&Request::RegisterKvCache(request)) {
                        Reply::Register(_) => {}
                        Reply::Error(error) => {
                            assert_eq!(error.code, ErrorCode::LimitExceeded, "{error:?}");
                            refused += 1;
                        }
                        other => panic!("{other:?}"),
                    }
                }
                stay.push(one_more);
            }
        },
    );
    assert!(refused > 0, "four times 32,768 parts are more than there may be");
}

#[test]
fn connections_take_memory_for_what_they_say() {
    let server = ServerProcess::start();
    growth(
        &server,
        "connections with long names",
        64 * CONNECTION + SLACK / 4,
        || {
            let mut all = Vec::new();
            for number in 0..64 {
                let mut client = attached(&server);
                register(&mut client, |request| {
                    request.domain.model = format!("{number:04000}");
                    request.domain.fingerprint = vec![number as u8; 4096];
                    request.domain.weights_id = vec![number as u8; 4096];
                });
                all.push(client);
            }
            let status = server.status();
            assert!(
                status["clients"].as_array().unwrap().len() >= 64,
                "{}",
                status["clients"]
            );
        },
    );
}

/// What half-sent messages took stays with the server, and serves the next ones.
#[test]
fn messages_take_as_much_as_the_most_at_a_time_and_not_more() {
    const AT_ONCE: u64 = 40;
    let server = ServerProcess::start();
    let mut frame = vec![0_u8; 3_900_000];
    frame[..4].copy_from_slice(&4_194_304_u32.to_le_bytes());
    let round = || {
        let mut all = Vec::new();
        for _ in 0..AT_ONCE {
            let mut client = server.connect();
            client.hello(false);
            client.send_bytes(&frame).unwrap();
            all.push(client);
        }
        drop(all);
        eventually("the end of the connections", || {
            server.status()["clients"].as_array().unwrap().is_empty()
        });
    };
    growth(&server, "half-sent messages", AT_ONCE * (4 << 20) + SLACK, round);
    for _ in 0..3 {
        growth(&server, "half-sent messages, again", SLACK, round);
    }
}

/// Two tails as far apart as numbers go: what is named is looked at, not what is between.
#[test]
fn tails_far_apart_are_refused_at_once() {
    let mut server = ServerProcess::start();
    server.wait_prefaulted();
    let (mut evil, mut good) = (server.worker(), server.worker());
    let tail = |chunk| Tail {
        key: key(1),
        chunk,
        tokens: ALIGNMENT as u32,
    };
    for (first, last) in [(0, u32::MAX - 1), (0, u32::MAX), (u32::MAX - 1, 1)] {
        let request = Request::Lookup(Lookup {
            domain_seed: evil.seed.unwrap(),
            label: 1,
            keys: vec![],
            tails: [tail(first), tail(last)].into_iter().collect(),
            max_tokens: u64::MAX,
            local_tokens: u64::MAX,
            pin: true,
            describe: false,
        });
        let error = evil.refused(&request);
        assert_eq!(error.code, ErrorCode::InvalidKey, "{}", error.message);
    }
    server.assert_serves(&mut good);
}

#[test]
fn a_registration_says_what_it_lacks() {
    let server = ServerProcess::start();
    let mut client = attached(&server);
    type Change = fn(&mut RegisterKvCache);
    let cases: [(&str, Change); 4] = [
        ("number of object groups is 0", |r| r.groups.clear()),
        ("rank is 4000000000", |r| r.rank = 4_000_000_000),
        ("rank is 1", |r| r.rank = 1),
        ("number of parts is 2", |r| r.groups[0].parts = 2),
    ];
    for (expected, change) in cases {
        let mut request = registration();
        change(&mut request);
        let error = client.refused(&Request::RegisterKvCache(request));
        assert!(error.message.contains(expected), "{}", error.message);
    }
    register(&mut client, |_| {});
    match client.call(&lookup(&client, &[1, 2])) {
        Reply::Lookup(found) => assert_eq!((found.hit_tokens, found.pin), (0, 0)),
        other => panic!("{other:?}"),
    }
}
