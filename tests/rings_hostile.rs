//! Clients that break their ring, or ask through it for what is not theirs: each is told, the ones that broke it are dropped,
//! and nobody else notices.

mod common;

use std::sync::Arc;

use common::*;
use kvasir::object::*;
use kvasir::shm::ring::*;
use kvasir::shm::{Mapping, ReadWrite};
use kvasir::sync::shared::Ordering;
use kvasir::wire::*;

const LANE: u64 = 1 << 20;
/// Where the words are (docs/shm-layout.md, "Payload ring").
const STORE_WRITTEN: usize = 128;
const LOAD_READ: usize = 512;

/// A client that can put anything into its ring.
struct Rogue {
    client: RawClient,
    ring: Arc<Mapping<ReadWrite>>,
    /// What it has written and read honestly.
    written: u64,
    read: u64,
}

fn ring_hello(ring_bytes: u64) -> Request {
    match hello(false) {
        Request::Hello(hello) => Request::Hello(Hello { ring_bytes, ..hello }),
        other => panic!("{other:?}"),
    }
}

impl Rogue {
    fn connect(server: &ServerProcess) -> Self {
        let mut client = server.connect();
        match client.call(&ring_hello(LANE)) {
            Reply::Hello(reply) => client.hello = Some(reply),
            other => panic!("{other:?}"),
        }
        let kinds: Vec<_> = client
            .hello
            .as_ref()
            .unwrap()
            .regions
            .iter()
            .map(|r| r.kind)
            .collect();
        assert_eq!(kinds, [RegionKind::Control, RegionKind::Ring]);
        let bytes = client.hello.as_ref().unwrap().regions[1].bytes;
        let ring =
            Mapping::<ReadWrite>::map_foreign(client.region(RegionKind::Ring), bytes as usize).unwrap();
        assert_eq!(RingLayout::read(&ring).unwrap().lane_bytes(), LANE);
        assert!(matches!(client.negotiate(ALIGNMENT), Reply::Negotiate(_)));
        let registration = RegisterKvCache {
            payload_path: PayloadPath::ShmRing,
            ..registration()
        };
        match client.call(&Request::RegisterKvCache(registration)) {
            Reply::Register(reply) => client.seed = Some(reply.domain_seed),
            other => panic!("{other:?}"),
        }
        Self {
            client,
            ring: Arc::new(ring),
            written: 0,
            read: 0,
        }
    }

    fn set(&self, word: usize, value: u64) {
        self.ring
            .atomic_u64(word)
            .unwrap()
            .store(value, Ordering::Release);
    }

    /// Puts bytes that follow from `number` into the lane.
    fn put(&mut self, number: u64, bytes: u64) {
        let at = RING_HEADER_BYTES + self.written % LANE;
        self.ring
            .write_bytes(at as usize, &content(number)[..bytes as usize])
            .unwrap();
        self.written += lane_bytes(bytes);
        self.set(STORE_WRITTEN, self.written);
    }

    fn write(&mut self, runs: &[(u32, u32, u64)]) -> Reply {
        let runs = runs
            .iter()
            .map(|&(frame, offset, bytes)| RingRun { frame, offset, bytes });
        self.client.call(&Request::RingWrite { runs: runs.collect() })
    }

    fn read(&mut self, pin: u64, parts: &[(u32, u64, u64)]) -> Reply {
        let parts = parts
            .iter()
            .map(|&(place, offset, bytes)| RingPart { place, offset, bytes });
        self.client.call(&Request::RingRead {
            pin,
            parts: parts.collect(),
        })
    }

    /// Stores one object, and returns where.
    fn store(&mut self, number: u64) -> Extent {
        let extent = grant_one(&mut self.client);
        self.put(number, CHUNK_BYTES);
        assert_eq!(self.write(&[(extent.frame, 0, CHUNK_BYTES)]), Reply::Ack);
        let commit = commit_of(&self.client, number, extent);
        match self.client.call(&Request::Commit(commit)) {
            Reply::Commit(reply) => assert_eq!(reply.outcomes, [CommitOutcome::Published]),
            other => panic!("{other:?}"),
        }
        extent
    }

    fn retrieve(&mut self, numbers: &[u64]) -> RetrieveAnswer {
        let request = RetrieveRequest {
            domain_seed: self.client.seed.unwrap(),
            label: 3,
            part: 0,
            ids: numbers.iter().map(|&number| object(number)).collect(),
        };
        match self.client.call(&Request::Retrieve(request)) {
            Reply::Retrieve(found) => found,
            other => panic!("{other:?}"),
        }
    }

    /// The bytes of an object, through the ring.
    fn load(&mut self, number: u64) -> Vec<u8> {
        let found = self.retrieve(&[number]);
        assert_eq!(self.read(found.pin, &[(0, 0, CHUNK_BYTES)]), Reply::Ack);
        let mut bytes = vec![0; CHUNK_BYTES as usize];
        let at = RING_HEADER_BYTES + LANE + self.read % LANE;
        self.ring.read_bytes(at as usize, &mut bytes).unwrap();
        self.read += CHUNK_BYTES;
        self.set(LOAD_READ, self.read);
        assert_eq!(
            self.client.call(&Request::Release {
                pins: vec![found.pin]
            }),
            Reply::Ack
        );
        bytes
    }
}

/// The bytes of an object: they follow from its number.
fn content(number: u64) -> Vec<u8> {
    let byte = |at: u64| ((at ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    (0..CHUNK_BYTES).map(byte).collect()
}

fn code(reply: &Reply) -> ErrorCode {
    match reply {
        Reply::Error(error) => error.code,
        other => panic!("{other:?} instead of an error"),
    }
}

#[test]
fn whoever_breaks_its_ring_is_dropped_and_nobody_else_notices() {
    let mut server = ServerProcess::start();
    server.wait_prefaulted();
    let mut bystander = Rogue::connect(&server);
    bystander.store(1);
    let mut mapped = server.worker();
    let mut broken = 0;
    for value in [1, 63, 65, LANE + 64, LANE * 2, 1 << 63, u64::MAX, u64::MAX - 63] {
        for lane in ["store", "load"] {
            let mut rogue = Rogue::connect(&server);
            let extent = grant_one(&mut rogue.client);
            let answer = match lane {
                "store" => {
                    rogue.set(STORE_WRITTEN, value);
                    rogue.write(&[(extent.frame, 0, 64)])
                }
                _ => {
                    let found = rogue.retrieve(&[1]);
                    rogue.set(LOAD_READ, value);
                    rogue.read(found.pin, &[(0, 0, 64)])
                }
            };
            broken += 1;
            let Reply::Error(error) = answer else {
                panic!("{lane} {value}: {answer:?}");
            };
            assert_eq!(error.code, ErrorCode::RingBroken, "{lane} {value}: {error}");
            assert_eq!(error.numbers[0], value);
            rogue.client.expect_closed();
            assert_eq!(bystander.load(1), content(1), "after {lane} {value}");
        }
    }
    // A count that goes back, more than was written, and more than there is room for.
    let mut rogue = Rogue::connect(&server);
    let extent = grant_one(&mut rogue.client);
    rogue.put(2, 4096);
    assert_eq!(rogue.write(&[(extent.frame, 0, 1024)]), Reply::Ack);
    rogue.set(STORE_WRITTEN, 2048);
    assert_eq!(
        code(&rogue.write(&[(extent.frame, 1024, 64)])),
        ErrorCode::RingBroken
    );
    let mut rogue = Rogue::connect(&server);
    let extent = grant_one(&mut rogue.client);
    rogue.put(2, 4096);
    assert_eq!(
        code(&rogue.write(&[(extent.frame, 0, 4160)])),
        ErrorCode::RingBroken
    );
    let mut rogue = Rogue::connect(&server);
    let pin = rogue.retrieve(&[1]).pin;
    let parts = [(0, 0, CHUNK_BYTES); LANE as usize / CHUNK_BYTES as usize];
    assert_eq!(rogue.read(pin, &parts), Reply::Ack, "all of the lane");
    assert_eq!(code(&rogue.read(pin, &[(0, 0, 1)])), ErrorCode::RingBroken);
    let mut rogue = Rogue::connect(&server);
    grant_one(&mut rogue.client);
    assert_eq!(code(&rogue.write(&[(0, 0, u64::MAX)])), ErrorCode::RingBroken);
    broken += 4;
    let status = server.status();
    assert_eq!(status["rings"]["broken"], broken);
    assert_eq!(bystander.load(1), content(1));
    bystander.store(3);
    server.assert_serves(&mut mapped);
    eventually("what they held to come back", || {
        let status = server.status();
        assert_balanced(&status);
        status["rings"]["bytes"] == RING_HEADER_BYTES + 2 * LANE
    });
}

#[test]
fn frames_that_are_not_granted_are_not_written() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut owner = Rogue::connect(&server);
    let stored = owner.store(1);
    let granted = grant_one(&mut owner.client);
    let mut rogue = Rogue::connect(&server);
    let own = grant_one(&mut rogue.client);
    rogue.put(9, 4096);
    for (run, expected) in [
        ((stored.frame, 0, 4096), ErrorCode::ExtentNotGranted),
        ((granted.frame, 0, 4096), ErrorCode::ExtentNotGranted),
        ((u32::MAX, 0, 4096), ErrorCode::InvalidExtent),
        ((256, 0, 64), ErrorCode::InvalidExtent),
        ((own.frame, 65536, 64), ErrorCode::InvalidArgument),
        ((own.frame, u32::MAX, 64), ErrorCode::InvalidArgument),
        ((own.frame, 64, 64), ErrorCode::InvalidArgument),
        ((own.frame, 0, 0), ErrorCode::InvalidArgument),
    ] {
        assert_eq!(code(&rogue.write(&[run])), expected, "{run:?}");
    }
    // The second run of a message is checked as the first is, and then nothing of either was moved.
    let answer = rogue.write(&[(own.frame, 0, 64), (stored.frame, 0, 64)]);
    assert_eq!(code(&answer), ErrorCode::ExtentNotGranted);
    assert_eq!(
        rogue.write(&[(own.frame, 0, 64), (own.frame, 64, 64)]),
        Reply::Ack
    );
    assert_eq!(owner.load(1), content(1));
    assert_eq!(server.status()["rings"]["broken"], 0);
}

/// A run may name four billion frames, and a message very many runs. What that costs is what is there of it.
#[test]
fn runs_that_name_every_number_are_refused_at_once() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut rogue = Rogue::connect(&server);
    let own = grant_one(&mut rogue.client);
    rogue.put(1, CHUNK_BYTES);
    assert_eq!(rogue.write(&[(own.frame, 0, CHUNK_BYTES)]), Reply::Ack);
    let all = vec![Extent::new(0, u32::MAX); MAX_EXTENTS];
    let error = rogue.client.refused(&Request::Abort { extents: all.clone() });
    assert_eq!(error.code, ErrorCode::InvalidExtent, "{error}");
    for bytes in [0, CHUNK_BYTES, u64::MAX] {
        let mut commit = commit_of(&rogue.client, 1, own);
        commit.items[0].bytes = bytes;
        commit.items[0].extent_count = MAX_EXTENTS as u32;
        commit.extents.clone_from(&all);
        rogue.client.refused(&Request::Commit(commit));
    }
    // Two items of one frame, which has come through the ring once.
    rogue.put(1, CHUNK_BYTES);
    assert_eq!(rogue.write(&[(own.frame, 0, CHUNK_BYTES)]), Reply::Ack);
    let mut commit = commit_of(&rogue.client, 1, own);
    commit.items.push(StoreItem {
        id: object(2),
        ..commit.items[0]
    });
    let error = rogue.client.refused(&Request::Commit(commit));
    assert_eq!(
        (error.code, &error.numbers[..]),
        (ErrorCode::InvalidExtent, &[own.frame.into(), 1][..])
    );
    rogue.store(3);
    assert_eq!(rogue.load(3), content(3));
}

/// What is in a frame that was granted is somebody's old bytes.
#[test]
fn bytes_that_did_not_come_through_the_ring_are_not_committed() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut owner = Rogue::connect(&server);
    let secret = owner.store(1);
    assert_eq!(owner.client.call(&Request::Clear), Reply::Ack);
    drop(owner);
    let mut rogue = Rogue::connect(&server);
    // It gets the frame that held them.
    let mut granted = Vec::new();
    while !granted.contains(&secret.frame) {
        granted.extend(rogue.client.grant(CHUNK_BYTES).iter().flat_map(|e| e.frames()));
    }
    let extent = Extent::new(secret.frame, 1);
    let commit = Request::Commit(commit_of(&rogue.client, 2, extent));
    let error = rogue.client.refused(&commit);
    assert_eq!(
        (error.code, &error.numbers[..]),
        (
            ErrorCode::InvalidArgument,
            &[secret.frame.into(), CHUNK_BYTES, 0][..]
        )
    );
    rogue.put(2, CHUNK_BYTES - 64);
    assert_eq!(rogue.write(&[(secret.frame, 0, CHUNK_BYTES - 64)]), Reply::Ack);
    let error = rogue.client.refused(&commit);
    assert_eq!(error.numbers[2], CHUNK_BYTES - 64, "all but the last");
    // What was refused is written anew, from the front on.
    rogue.put(2, 64);
    let rest = (secret.frame, (CHUNK_BYTES - 64) as u32, 64);
    assert_eq!(code(&rogue.write(&[rest])), ErrorCode::InvalidArgument);
    assert_eq!(rogue.write(&[(secret.frame, 0, 64)]), Reply::Ack);
    // So is a frame that was given back and granted again.
    assert_eq!(
        rogue.client.call(&Request::Abort {
            extents: vec![extent]
        }),
        Reply::Ack
    );
    loop {
        let again = rogue.client.grant(CHUNK_BYTES);
        if again.iter().any(|e| e.frames().contains(&secret.frame)) {
            break;
        }
    }
    assert_eq!(rogue.client.refused(&commit).numbers[2], 0);
    assert_eq!(server.status()["objects"], 0);
}

#[test]
fn only_what_a_pin_holds_is_read() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut owner = Rogue::connect(&server);
    owner.store(1);
    let theirs = owner.retrieve(&[1]).pin;
    let mut rogue = Rogue::connect(&server);
    for pin in [0, theirs, theirs + 1, u64::MAX] {
        assert_eq!(
            code(&rogue.read(pin, &[(0, 0, 64)])),
            ErrorCode::UnknownPin,
            "{pin}"
        );
    }
    let found = rogue.retrieve(&[1, 2]);
    assert_eq!(found.locations[1].incarnation, 0);
    for part in [
        (1, 0, 64),
        (2, 0, 64),
        (u32::MAX, 0, 64),
        (0, 0, 0),
        (0, 0, CHUNK_BYTES + 1),
        (0, CHUNK_BYTES, 64),
        (0, u64::MAX, 64),
        (0, 64, u64::MAX - 128),
    ] {
        let answer = rogue.read(found.pin, &[part]);
        let expected = match part.2 {
            bytes if bytes > LANE => ErrorCode::RingBroken, // more than any lane has
            _ => ErrorCode::InvalidArgument,
        };
        assert_eq!(code(&answer), expected, "{part:?}");
    }
    let mut rogue = Rogue::connect(&server);
    let pins = [rogue.retrieve(&[1]).pin, rogue.retrieve(&[1]).pin];
    assert_eq!(
        rogue.client.call(&Request::Release { pins: vec![pins[0]] }),
        Reply::Ack
    );
    assert_eq!(code(&rogue.read(pins[0], &[(0, 0, 64)])), ErrorCode::UnknownPin);
    assert_eq!(rogue.read(pins[1], &[(0, 0, 64)]), Reply::Ack);
    assert_eq!(rogue.client.call(&Request::ReleaseLabel { label: 3 }), Reply::Ack);
    assert_eq!(code(&rogue.read(pins[1], &[(0, 0, 64)])), ErrorCode::UnknownPin);
}

#[test]
fn rings_and_pools_are_not_had_together_and_moves_need_a_ring() {
    let server = ServerProcess::start();
    let Request::Hello(hello) = ring_hello(LANE) else {
        panic!("a hello")
    };
    for hello in [
        Hello {
            wants_pool: true,
            ..hello.clone()
        },
        Hello {
            ring_bytes: MAX_LANE_BYTES + 1,
            ..hello.clone()
        },
        Hello {
            ring_bytes: u64::MAX,
            ..hello.clone()
        },
        Hello {
            ring_bytes: 0,
            named: true,
            ..hello.clone()
        },
        Hello { named: true, ..hello },
    ] {
        let mut client = server.connect();
        assert_eq!(
            client.refused(&Request::Hello(hello)).code,
            ErrorCode::InvalidArgument
        );
        client.expect_closed();
    }
    let mut worker = server.worker();
    for request in [
        Request::RingWrite { runs: vec![] },
        Request::RingRead {
            pin: 1,
            parts: vec![],
        },
        Request::RegisterKvCache(RegisterKvCache {
            payload_path: PayloadPath::ShmRing,
            ..registration()
        }),
    ] {
        assert_eq!(worker.refused(&request).code, ErrorCode::InvalidArgument);
    }
    let mut rogue = Rogue::connect(&server);
    assert_eq!(rogue.write(&[]), Reply::Ack, "nothing is moved for nothing");
    let direct = Request::RegisterKvCache(registration());
    assert_eq!(rogue.client.refused(&direct).code, ErrorCode::InvalidArgument);
    assert_eq!(server.status()["rings"]["bytes"], RING_HEADER_BYTES + 2 * LANE);
}

/// A client that writes its lane while the server copies it harms its own objects only.
#[test]
fn bytes_that_change_during_the_copy_are_the_writers_own_trouble() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut bystander = Rogue::connect(&server);
    bystander.store(1);
    let mut rogue = Rogue::connect(&server);
    let ring = Arc::clone(&rogue.ring);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let noise = content(77);
            while !stop.load(Ordering::Relaxed) {
                for lane in 0..2 * LANE / CHUNK_BYTES {
                    let at = RING_HEADER_BYTES + lane * CHUNK_BYTES;
                    ring.write_bytes(at as usize, &noise).unwrap();
                }
            }
        });
        for number in 10..40 {
            rogue.store(number);
            let _ = rogue.load(number);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(bystander.load(1), content(1));
    bystander.store(2);
    assert_eq!(bystander.load(2), content(2));
    assert_balanced(&server.status());
}

/// A part in frames that do not follow each other, read from any byte on, over the end of the lane.
#[test]
fn parts_in_scattered_frames_are_read_in_their_order() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut rogue = Rogue::connect(&server);
    let mut double = RegisterKvCache {
        payload_path: PayloadPath::ShmRing,
        ..registration()
    };
    double.domain.model = "test/double".into();
    double.groups[0].unit_bytes *= 2;
    match rogue.client.call(&Request::RegisterKvCache(double)) {
        Reply::Register(reply) => rogue.client.seed = Some(reply.domain_seed),
        other => panic!("{other:?}"),
    }
    let mut frames = Vec::new();
    while frames.len() < 3 {
        frames.extend(
            rogue
                .client
                .grant(3 * CHUNK_BYTES)
                .iter()
                .flat_map(|e| e.frames()),
        );
    }
    let (first, second) = (Extent::new(frames[2], 1), Extent::new(frames[0], 1));
    let whole: Vec<u8> = [content(1), content(2)].concat();
    // In pieces, the second of which begins inside of a frame.
    for (number, extent) in [(1, first), (2, second)] {
        let bytes = content(number);
        let half = CHUNK_BYTES / 2;
        for (offset, half) in [(0, &bytes[..half as usize]), (half, &bytes[half as usize..])] {
            let at = RING_HEADER_BYTES + rogue.written % LANE;
            rogue.ring.write_bytes(at as usize, half).unwrap();
            rogue.written += half.len() as u64;
            rogue.set(STORE_WRITTEN, rogue.written);
            assert_eq!(
                rogue.write(&[(extent.frame, offset as u32, half.len() as u64)]),
                Reply::Ack
            );
        }
    }
    let mut commit = commit_of(&rogue.client, 7, first);
    commit.extents.push(second);
    commit.items[0].extent_count = 2;
    commit.items[0].bytes = 2 * CHUNK_BYTES;
    match rogue.client.call(&Request::Commit(commit)) {
        Reply::Commit(reply) => assert_eq!(reply.outcomes, [CommitOutcome::Published]),
        other => panic!("{other:?}"),
    }
    let pin = rogue.retrieve(&[7]).pin;
    for round in 0..40 {
        let offset = round * 3277 % (2 * CHUNK_BYTES);
        let bytes = (2 * CHUNK_BYTES - offset).min(100_003);
        assert_eq!(rogue.read(pin, &[(0, offset, bytes)]), Reply::Ack);
        let mut found = vec![0; bytes as usize];
        let at = rogue.read % LANE;
        let front = bytes.min(LANE - at) as usize;
        let lane = (RING_HEADER_BYTES + LANE) as usize;
        rogue
            .ring
            .read_bytes(lane + at as usize, &mut found[..front])
            .unwrap();
        rogue.ring.read_bytes(lane, &mut found[front..]).unwrap();
        assert!(
            found == whole[offset as usize..][..bytes as usize],
            "from byte {offset}"
        );
        rogue.read += lane_bytes(bytes);
        rogue.set(LOAD_READ, rogue.read);
    }
    assert!(rogue.read > LANE, "it went round");
}
