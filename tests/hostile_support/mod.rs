//! A server that answers as it is told: a thread of the test that owns the regions.

#![allow(dead_code, unreachable_pub)] // each test binary uses its own part of this

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::client_support::*;
use kvasir::cache::Index;
use kvasir::client::{Client, ClientConfig, KvMemory};
use kvasir::control::{BootInfo, ControlRegion};
use kvasir::copy::HostMemory;
use kvasir::index::layout::ABI_VERSION;
use kvasir::keys::ChunkKey;
use kvasir::object::*;
use kvasir::shm::fdpass::send_with_fds;
use kvasir::shm::{Mapping, Memfd, OwnerAccess, ReadWrite};
use kvasir::sync::shared::Ordering;
use kvasir::wire::*;

pub const FRAME: u64 = 65536;
pub const FRAMES: u64 = 16;
pub const EPOCHS_MAGIC: u64 = u64::from_le_bytes(*b"KVASIRE1");
pub const BOOT: u64 = 3;

/// The regions of a server, with its epochs writable.
pub struct Regions {
    pub control: Arc<ControlRegion>,
    pub index: Index,
    pub epochs: Memfd,
    pub words: Mapping<ReadWrite>,
    pub slab: Memfd,
    pub liveness: Memfd,
    pub pool: Memfd,
}

impl Regions {
    pub fn new() -> Self {
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

    pub fn set_epoch(&self, frame: usize, incarnation: u64) {
        self.words
            .atomic_u64(4096 + 8 * frame)
            .unwrap()
            .store(incarnation, Ordering::Release);
    }

    pub fn hello(&self) -> HelloReply {
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
            named: vec![],
        }
    }

    pub fn descriptors(&self) -> Vec<OwnedFd> {
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
pub enum Answer {
    Reply(Reply, Vec<OwnedFd>),
    /// A reply that is sent with the next one.
    Held(Reply),
    WrongId(Reply),
    Bytes(Vec<u8>),
    Silence,
    Close,
}

pub type Script = dyn Fn(&Request, &Regions) -> Option<Answer> + Send + Sync;

/// A listening fake. What its script leaves out it answers as a good server would.
pub struct Fake {
    pub directory: tempfile::TempDir,
    pub regions: Arc<Regions>,
    pub script: Arc<Mutex<Box<Script>>>,
}

impl Fake {
    pub fn new(script: impl Fn(&Request, &Regions) -> Option<Answer> + Send + Sync + 'static) -> Self {
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

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("k.sock")
    }

    pub fn set(&self, script: impl Fn(&Request, &Regions) -> Option<Answer> + Send + Sync + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }
}

pub fn serve(mut stream: UnixStream, regions: &Regions, script: &Mutex<Box<Script>>) -> Option<()> {
    use std::io::{Read, Write};
    let mut encoder = Encoder::new();
    let mut held = Vec::new();
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
            Answer::Held(reply) => {
                held.extend_from_slice(encoder.reply(id, &reply).unwrap());
                continue;
            }
            Answer::WrongId(reply) => (id + 1, reply, vec![]),
            Answer::Bytes(bytes) => {
                stream.write_all(&bytes).ok()?;
                continue;
            }
            Answer::Silence => continue,
            Answer::Close => return None,
        };
        stream.write_all(&std::mem::take(&mut held)).ok()?;
        let bytes = encoder.reply(id, &reply).unwrap();
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = send_with_fds(&stream, bytes, &fds).ok()?;
        stream.write_all(&bytes[sent..]).ok()?;
    }
}

pub fn plain(reply: Reply) -> Answer {
    Answer::Reply(reply, vec![])
}

pub fn well_behaved(request: &Request, regions: &Regions) -> Answer {
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

pub fn seed(request: &RegisterKvCache) -> ChunkKey {
    request.domain.seed(CHUNK as u64).unwrap()
}

pub fn client(socket: &Path) -> Client {
    let mut config = ClientConfig::new(socket, ClientKind::Worker, "test", [1; 16]);
    config.deadline = Duration::from_millis(300);
    config.heartbeat = Duration::from_millis(50);
    config.grant_bytes = FRAME;
    Client::new(config).unwrap()
}

pub fn ready(socket: &Path, shape: &Shape) -> Client {
    ready_with(socket, shape, |_| {})
}

pub fn ready_with(socket: &Path, shape: &Shape, configure: impl FnOnce(&mut ClientConfig)) -> Client {
    let mut config = ClientConfig::new(socket, ClientKind::Worker, "test", [1; 16]);
    config.deadline = WATCHDOG;
    config.heartbeat = Duration::from_millis(50);
    configure(&mut config);
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
