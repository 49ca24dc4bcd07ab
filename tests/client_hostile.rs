//! Servers that lie, fall silent or break the protocol: the client says why it is degraded, and nothing else happens.
//!
//! The server here is a thread of the test that owns the regions and answers as it is told.

mod client_support;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client_support::*;
use kvasir::cache::Index;
use kvasir::client::{Client, ClientConfig, KvMemory, StoreOutcome};
use kvasir::control::{BootInfo, ControlRegion};
use kvasir::copy::HostMemory;
use kvasir::geometry::ObjectKind;
use kvasir::index::layout::ABI_VERSION;
use kvasir::keys::{ChunkKey, DomainFields};
use kvasir::object::*;
use kvasir::shm::fdpass::send_with_fds;
use kvasir::shm::{Mapping, Memfd, OwnerAccess, ReadWrite};
use kvasir::sync::shared::Ordering;
use kvasir::wire::*;

const FRAME: u64 = 65536;
const FRAMES: u64 = 16;
const EPOCHS_MAGIC: u64 = u64::from_le_bytes(*b"KVASIRE1");
const BOOT: u64 = 3;

/// The regions of a server, with its epochs writable.
struct Regions {
    control: Arc<ControlRegion>,
    index: Index,
    epochs: Memfd,
    words: Mapping<ReadWrite>,
    slab: Memfd,
    liveness: Memfd,
    pool: Memfd,
}

impl Regions {
    fn new() -> Self {
        let memfd = |name, bytes| Memfd::create(name, bytes, OwnerAccess::ReadWrite).unwrap();
        let epochs = memfd("epochs", 4096 + 8 * FRAMES);
        let words = epochs.map().unwrap();
        words
            .store_words(0, &[EPOCHS_MAGIC, 4096 << 32 | u64::from(ABI_VERSION), FRAMES])
            .unwrap();
        words.store_words(64, &[BOOT]).unwrap();
        Self {
            control: Arc::new(ControlRegion::create(BootInfo::fresh(BOOT).unwrap()).unwrap()),
            index: Index::create(FRAMES as u32).unwrap(),
            epochs,
            words,
            slab: memfd("slab", 65536),
            liveness: memfd("liveness", 256),
            pool: memfd("pool", FRAMES * FRAME),
        }
    }

    fn set_epoch(&self, frame: usize, incarnation: u64) {
        self.words
            .atomic_u64(4096 + 8 * frame)
            .unwrap()
            .store(incarnation, Ordering::Release);
    }

    fn hello(&self) -> HelloReply {
        let region = |kind, bytes| Region {
            kind,
            offset: 0,
            bytes,
        };
        HelloReply {
            protocol_version: PROTOCOL_VERSION,
            features: 0,
            boot_id: self.control.boot().boot_id,
            boot_seq: BOOT,
            pool_id: [1; 16],
            frame_bytes: FRAME as u32,
            slab: 0,
            regions: vec![
                region(RegionKind::Control, 4096),
                region(RegionKind::Index, self.index.bytes()),
                region(RegionKind::Epochs, 4096 + 8 * FRAMES),
                region(RegionKind::PinSlab, 65536),
                region(RegionKind::Liveness, 1),
                region(RegionKind::Pool, FRAMES * FRAME),
            ],
        }
    }

    fn descriptors(&self) -> Vec<OwnedFd> {
        vec![
            self.control.client_fd().unwrap(),
            self.index.read_only().unwrap(),
            self.epochs.reopen_read_only().unwrap(),
            self.slab.reopen_read_write().unwrap(),
            self.liveness.reopen_read_write().unwrap(),
            self.pool.reopen_read_write().unwrap(),
        ]
    }
}

/// What the fake answers a request with: a reply and descriptors, raw bytes, or nothing at all.
enum Answer {
    Reply(Reply, Vec<OwnedFd>),
    WrongId(Reply),
    Bytes(Vec<u8>),
    Silence,
    Close,
}

type Script = dyn Fn(&Request, &Regions) -> Option<Answer> + Send + Sync;

/// A listening fake. What its script leaves out it answers as a good server would.
struct Fake {
    directory: tempfile::TempDir,
    regions: Arc<Regions>,
    script: Arc<Mutex<Box<Script>>>,
}

impl Fake {
    fn new(script: impl Fn(&Request, &Regions) -> Option<Answer> + Send + Sync + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("k.sock")).unwrap();
        let fake = Self {
            directory,
            regions: Arc::new(Regions::new()),
            script: Arc::new(Mutex::new(Box::new(script))),
        };
        let (regions, script) = (Arc::clone(&fake.regions), Arc::clone(&fake.script));
        std::thread::spawn(move || {
            // Ends with the process: a listener that nobody connects to costs nothing.
            for stream in listener.incoming().flatten() {
                let (regions, script) = (Arc::clone(&regions), Arc::clone(&script));
                std::thread::spawn(move || serve(stream, &regions, &script));
            }
        });
        fake
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("k.sock")
    }

    fn set(&self, script: impl Fn(&Request, &Regions) -> Option<Answer> + Send + Sync + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }
}

fn serve(mut stream: UnixStream, regions: &Regions, script: &Mutex<Box<Script>>) -> Option<()> {
    use std::io::{Read, Write};
    let mut encoder = Encoder::new();
    loop {
        let mut prefix = [0; 4];
        stream.read_exact(&mut prefix).ok()?;
        let mut frame = prefix.to_vec();
        frame.resize(4 + u32::from_le_bytes(prefix) as usize, 0);
        stream.read_exact(&mut frame[4..]).ok()?;
        let (id, request) = decode_request(&frame).unwrap();
        let scripted = script.lock().unwrap()(&request, regions);
        let (id, reply, fds) = match scripted.unwrap_or_else(|| well_behaved(&request, regions)) {
            Answer::Reply(reply, fds) => (id, reply, fds),
            Answer::WrongId(reply) => (id + 1, reply, vec![]),
            Answer::Bytes(bytes) => {
                stream.write_all(&bytes).ok()?;
                continue;
            }
            Answer::Silence => continue,
            Answer::Close => return None,
        };
        let bytes = encoder.reply(id, &reply).unwrap();
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = send_with_fds(&stream, bytes, &fds).ok()?;
        stream.write_all(&bytes[sent..]).ok()?;
    }
}

fn plain(reply: Reply) -> Answer {
    Answer::Reply(reply, vec![])
}

fn well_behaved(request: &Request, regions: &Regions) -> Answer {
    match request {
        Request::Hello(_) => Answer::Reply(Reply::Hello(regions.hello()), regions.descriptors()),
        Request::Negotiate(_) => plain(Reply::Negotiate(NegotiateReply {
            chunk_size: CHUNK as u64,
            warnings: vec![],
        })),
        Request::RegisterKvCache(request) => plain(Reply::Register(RegisterReply {
            domain_seed: seed(request),
            chunk_size: CHUNK as u64,
            domain: None,
            kept_frames_max: 0,
        })),
        Request::Grant(_) => plain(Reply::Grant { extents: vec![] }),
        _ => plain(Reply::Ack),
    }
}

fn seed(request: &RegisterKvCache) -> ChunkKey {
    let domain = request.domain.clone();
    let fields = DomainFields {
        model: domain.model,
        weights_id: domain.weights_id,
        kv_dtype: domain.kv_dtype,
        fingerprint: domain.fingerprint,
        parallel_shape: domain.parallel_shape,
        chunk_size: CHUNK as u64,
    };
    fields.domain_seed().unwrap()
}

fn client(socket: &Path) -> Client {
    let mut config = ClientConfig::new(socket, ClientKind::Worker, "test", [1; 16]);
    config.deadline = Duration::from_millis(300);
    config.heartbeat = Duration::from_millis(50);
    config.grant_bytes = FRAME;
    Client::new(config).unwrap()
}

fn ready(socket: &Path, shape: &Shape) -> Client {
    let mut config = ClientConfig::new(socket, ClientKind::Worker, "test", [1; 16]);
    config.deadline = WATCHDOG;
    config.heartbeat = Duration::from_millis(50);
    let client = Client::new(config).unwrap();
    let regions = shape
        .regions
        .iter()
        .map(|&bytes| HostMemory::zeroed(bytes as usize));
    let pages = shape.groups.iter().map(|group| group.pages.clone());
    client.set_memory(KvMemory::new(regions.collect(), pages.collect(), shape.blocks).unwrap());
    client.negotiate(shape.negotiation()).unwrap();
    client.register(shape.registration()).unwrap();
    client
}

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
