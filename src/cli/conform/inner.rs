//! The real server behind the kit, and the kit's own engine in it.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use serde_json::Value;

use super::script::{CHUNKS, MINIMUM_CHUNK, Prompt, Script};
use crate::control::Minimum;
use crate::copy::Checksum;
use crate::object::{
    ClientKind, CommitOutcome, CommitRequest, Extent, FRAME_BYTES, GrantRequest, ObjectId, StoreItem,
};
use crate::server::{self, ByteSize, ChunkSize, Config, ServerError};
use crate::shm::fdpass::{recv_with_fds, send_with_fds};
use crate::shm::lock::try_lock_byte;
use crate::shm::process::random_id;
use crate::shm::{Mapping, ReadWrite};
use crate::wire::{
    Encoder, FrameReader, Hello, MAX_FDS_PER_FRAME, PROTOCOL_VERSION, RegionKind, RegisterKvCache, Reply,
    Request, decode_reply,
};

/// The pool: large enough that nothing is evicted.
const POOL_BYTES: u64 = 64 << 20;
/// How long the server may take to start, and for one answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server in this process, with a socket in a directory of its own.
pub(super) struct Inner {
    directory: PathBuf,
    socket: PathBuf,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Inner {
    pub(super) fn start() -> Result<Self, String> {
        let id = random_id().map_err(|error| error.to_string())?;
        let name = id
            .iter()
            .take(6)
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>();
        let directory = std::env::temp_dir().join(format!("kvasir-conform-{name}"));
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|error| format!("the directory {} cannot be made: {error}", directory.display()))?;
        let socket = directory.join("server.sock");
        let mut inner = Self {
            directory,
            socket,
            thread: None,
        };
        inner.launch()?;
        Ok(inner)
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Starts a server, with another pool and boot than the one before.
    pub(super) fn launch(&mut self) -> Result<(), String> {
        let mut config = Config::with_defaults(self.socket.clone());
        config.pool_size = ByteSize(POOL_BYTES);
        config.chunk_size = ChunkSize(Minimum::Tokens(MINIMUM_CHUNK));
        let thread = thread::Builder::new().name("kvasir-conform".into());
        let thread = thread.spawn(move || server::run(config, Instant::now()));
        self.thread =
            Some(thread.map_err(|error| format!("the server's thread cannot be started: {error}"))?);
        let begin = Instant::now();
        loop {
            if !self.is_running() {
                return Err(self.end_of_thread());
            }
            // Space is granted once the pool is present.
            let present = Line::connect(&self.socket).and_then(|mut line| line.pool_is_present());
            match present {
                Ok(true) => return Ok(()),
                Ok(false) | Err(_) if begin.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(5)),
                Ok(false) => return Err("the server's pool did not become present in time".into()),
                Err(error) => return Err(format!("the server does not answer: {error}")),
            }
        }
    }

    /// Whether the server runs; a signal to this process ends it.
    pub(super) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Stops the server. Its connections should be closed already.
    pub(super) fn stop(&mut self) {
        if self.is_running() {
            // It listens for the signal as long as it runs, so this process survives it.
            let _ = raise(Signal::SIGTERM);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn end_of_thread(&mut self) -> String {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => format!("the server could not be started: {error}"),
            _ => "the server was told to stop".into(),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
        // A directory of this process's own, with nothing in it that is of any use now.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A connection to the server on which one waits for each answer.
pub(super) struct Line {
    stream: UnixStream,
    reader: FrameReader,
    encoder: Encoder,
    next_id: u64,
    fds: VecDeque<OwnedFd>,
}

impl Line {
    fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            reader: FrameReader::new(),
            encoder: Encoder::new(),
            next_id: 1,
            fds: VecDeque::new(),
        })
    }

    fn call(&mut self, request: &Request) -> io::Result<Reply> {
        let id = self.next_id;
        self.next_id += 1;
        let frame = self.encoder.request(id, request).map_err(io::Error::other)?;
        let mut left = frame;
        while !left.is_empty() {
            let sent = send_with_fds(&self.stream, left, &[])?;
            left = &left[sent..];
        }
        loop {
            if let Some(frame) = self.reader.next_frame().map_err(io::Error::other)? {
                let (_, reply) = decode_reply(frame).map_err(io::Error::other)?;
                return Ok(reply);
            }
            let space = self.reader.space().map_err(io::Error::other)?;
            let received = recv_with_fds(&self.stream, space, MAX_FDS_PER_FRAME)?;
            if received.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.fds.extend(received.fds);
            self.reader.received(received.bytes);
        }
    }

    fn hello(&mut self, wants_pool: bool) -> io::Result<Reply> {
        self.call(&Request::Hello(Hello {
            protocol_version: PROTOCOL_VERSION,
            features: 0,
            kind: if wants_pool {
                ClientKind::Worker
            } else {
                ClientKind::Tool
            },
            name: "kvasir conform".into(),
            engine_instance: if wants_pool { [0x5a; 16] } else { [0; 16] },
            wants_pool,
            ring_bytes: 0,
            named: false,
        }))
    }

    fn pool_is_present(&mut self) -> io::Result<bool> {
        self.hello(false)?;
        let Reply::Status { json } = self.call(&Request::Status)? else {
            return Ok(false);
        };
        let status: Value = serde_json::from_str(&json).map_err(io::Error::other)?;
        Ok(status["pool"]["prefaulted"] == status["pool"]["total"])
    }
}

/// The kit's own engine: it sees the pool, and has stored the second prompt.
pub(super) struct Engine {
    line: Line,
    pool: Mapping<ReadWrite>,
    /// Drawn anew for each run: nobody can know the second prompt's bytes who has not read them.
    secret: [u8; 16],
    _liveness: OwnedFd,
}

impl Engine {
    pub(super) fn start(socket: &Path) -> Result<Self, String> {
        Self::open(socket).map_err(|error| format!("the kit's own engine: {error}"))
    }

    fn open(socket: &Path) -> io::Result<Self> {
        let mut line = Line::connect(socket)?;
        let Reply::Hello(hello) = line.hello(true)? else {
            return Err(io::Error::other("its hello was refused"));
        };
        let (mut pool, mut liveness) = (None, None);
        for region in &hello.regions {
            let fd = line.fds.pop_front().ok_or(io::ErrorKind::UnexpectedEof)?;
            match region.kind {
                RegionKind::Pool => {
                    pool = Some(
                        Mapping::map_foreign(fd.as_fd(), region.bytes as usize).map_err(io::Error::other)?,
                    );
                }
                RegionKind::Liveness => {
                    try_lock_byte(fd.as_fd(), region.offset).map_err(io::Error::other)?;
                    liveness = Some(fd);
                }
                _ => {}
            }
        }
        line.call(&Request::Attach)?;
        let (Some(pool), Some(liveness)) = (pool, liveness) else {
            return Err(io::Error::other("it got no pool"));
        };
        Ok(Self {
            line,
            pool,
            secret: random_id().map_err(io::Error::other)?,
            _liveness: liveness,
        })
    }

    /// The bytes of an object of the second prompt.
    pub(super) fn content(&self, key: &[u8; 32], bytes: u64) -> Vec<u8> {
        let mut content = vec![0; bytes as usize];
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.secret);
        hasher.update(key);
        hasher.finalize_xof().fill(&mut content);
        content
    }

    /// What lies in some extents, up to a length.
    pub(super) fn read(&self, extents: &[Extent], bytes: u64) -> Option<Vec<u8>> {
        let mut out = vec![0; bytes as usize];
        let mut done = 0;
        for extent in extents {
            let length = (out.len() - done).min(extent.count as usize * FRAME_BYTES as usize);
            let offset = extent.frame as usize * FRAME_BYTES as usize;
            self.pool.read_bytes(offset, &mut out[done..done + length]).ok()?;
            done += length;
        }
        (done == out.len()).then_some(out)
    }

    /// Frames of the pool.
    pub(super) fn frames(&self) -> u32 {
        (self.pool.len() as u64 / FRAME_BYTES) as u32
    }

    /// Registers what the client has registered and stores the second prompt, as another engine of the same model does.
    /// Returns where each object lies.
    pub(super) fn store_second(
        &mut self,
        register: &RegisterKvCache,
        script: &Script,
    ) -> Result<Vec<(ObjectId, Vec<Extent>, u64)>, String> {
        self.store(register, script)
            .map_err(|error| format!("the kit's own engine could not store the second prompt: {error}"))
    }

    fn store(
        &mut self,
        register: &RegisterKvCache,
        script: &Script,
    ) -> io::Result<Vec<(ObjectId, Vec<Extent>, u64)>> {
        let register = RegisterKvCache {
            payload_path: crate::object::PayloadPath::ShmDirect,
            stores: true,
            ..register.clone()
        };
        let reply = self.line.call(&Request::RegisterKvCache(register))?;
        if !matches!(reply, Reply::Register(_)) {
            return Err(io::Error::other(format!("{reply:?}")));
        }
        let keys = script.keys(Prompt::Second);
        let full = keys.iter().map(|key| (*key, script.chunk_size));
        let tail = script.last_tail(Prompt::Second);
        let tail = tail.map(|key| (key, script.alignment as u32));
        let (mut items, mut extents, mut stored) = (Vec::new(), Vec::new(), Vec::new());
        for (chunk, (key, tokens)) in full.chain(tail).enumerate() {
            let bytes = script.bytes_of(tokens);
            let Reply::Grant { extents: granted } =
                self.line.call(&Request::Grant(GrantRequest::of(bytes)))?
            else {
                return Err(io::Error::other("no space was granted"));
            };
            let content = self.content(key.as_bytes(), bytes);
            self.write(&granted, &content)?;
            let mut sum = Checksum::new();
            sum.update(&content);
            let id = ObjectId {
                key,
                group: script.group,
            };
            items.push(StoreItem {
                id,
                parent: chunk.checked_sub(1).map(|before| keys[before.min(CHUNKS - 1)]),
                skipped: false,
                part: 0,
                tokens,
                held_from: 0,
                bytes,
                checksum: sum.value(),
                first_extent: extents.len() as u32,
                extent_count: granted.len() as u32,
            });
            extents.extend(granted.iter().copied());
            stored.push((id, granted, bytes));
        }
        let commit = CommitRequest {
            domain_seed: script.seed,
            items,
            extents,
            supersedes: vec![],
            grant_bytes: 0,
        };
        match self.line.call(&Request::Commit(commit))? {
            Reply::Commit(answer) if answer.outcomes.iter().all(|one| *one == CommitOutcome::Published) => {
                Ok(stored)
            }
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    fn write(&self, extents: &[Extent], content: &[u8]) -> io::Result<()> {
        let mut done = 0;
        for extent in extents {
            let length = (content.len() - done).min(extent.count as usize * FRAME_BYTES as usize);
            let offset = extent.frame as usize * FRAME_BYTES as usize;
            let written = self.pool.write_bytes(offset, &content[done..done + length]);
            written.map_err(io::Error::other)?;
            done += length;
        }
        if done < content.len() {
            return Err(io::Error::other("less space was granted than asked for"));
        }
        Ok(())
    }
}
