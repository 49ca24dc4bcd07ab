//! A real server process, and a client that speaks the protocol byte by byte.

#![allow(dead_code, unreachable_pub)] // each test binary uses its own part of this

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use kvasir::control::ControlView;
use kvasir::geometry::ObjectKind;
use kvasir::keys::ChunkKey;
use kvasir::object::*;
use kvasir::shm::fdpass::{recv_with_fds, send_with_fds};
use kvasir::shm::lock::try_lock_byte;
use kvasir::wire::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Longer than anything here takes on the slowest machine; reaching it is a failure, not a measurement.
pub const WATCHDOG: Duration = Duration::from_secs(60);

/// The program under test.
pub const KVASIR: &str = env!("CARGO_BIN_EXE_kvasir");

/// Has a process begin with the signals that stop a server as the system sets them. Who runs the tests in the background of a shell
/// has it ignore some of them, which a server takes over.
#[allow(unsafe_code)]
fn default_signals(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    let reset = || {
        for which in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            // SAFETY: no handler is set, only the default.
            unsafe { nix::sys::signal::signal(which, nix::sys::signal::SigHandler::SigDfl)? };
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls only, which is allowed there, and takes no memory.
    unsafe { command.pre_exec(reset) };
}

/// A `kvasir serve` process in a directory of its own. Ends with the value.
pub struct ServerProcess {
    child: Child,
    directory: tempfile::TempDir,
    socket: PathBuf,
}

impl ServerProcess {
    /// Starts a server with a small pool and waits until it answers.
    pub fn start() -> Self {
        Self::with_args(&["--pool-size", "16MiB"])
    }

    pub fn with_args(args: &[&str]) -> Self {
        Self::with(args, |_| {})
    }

    pub fn with(args: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        Self::launch(Command::new(KVASIR), args, prepare)
    }

    /// A server that may have so many open files and no more.
    pub fn with_open_files(limit: usize, args: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        let script = format!("ulimit -n {limit} && exec \"$0\" \"$@\"");
        shell.arg("-c").arg(script).arg(KVASIR);
        Self::launch(shell, args, |_| {})
    }

    /// A server that a shell starts after doing something else, with a standard error of its own if it wants one.
    pub fn after(prelude: &str, args: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let mut shell = Command::new("sh");
        let script = format!("{prelude} exec \"$0\" \"$@\"");
        shell.arg("-c").arg(script).arg(KVASIR);
        Self::launch(shell, args, prepare)
    }

    fn launch(mut command: Command, args: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("k.sock");
        let log = fs::File::create(directory.path().join("log")).unwrap();
        command
            .arg("serve")
            .arg("--socket")
            .arg(&socket)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        clear_environment(&mut command);
        default_signals(&mut command);
        prepare(&mut command);
        let child = command.spawn().unwrap();
        let mut server = Self {
            child,
            directory,
            socket,
        };
        server.wait_ready();
        server
    }

    fn wait_ready(&mut self) {
        let begin = Instant::now();
        while UnixStream::connect(&self.socket).is_err() {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("server ended with {status}:\n{}", self.log());
            }
            assert!(
                begin.elapsed() < WATCHDOG,
                "server does not start:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Waits for a line of the log.
    pub fn wait_log(&self, text: &str) {
        eventually(text, || self.log().contains(text));
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < WATCHDOG, "server does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn connect(&self) -> RawClient {
        RawClient::connect(&self.socket)
    }

    /// A client that has said hello without asking for the pool.
    pub fn tool(&self) -> RawClient {
        let mut client = self.connect();
        client.hello(false);
        client
    }

    /// A client that maps the pool, holds its lock byte, has negotiated and registered [`registration`].
    pub fn worker(&self) -> RawClient {
        let mut client = self.connect();
        client.become_worker();
        client
    }

    pub fn status(&self) -> Value {
        let mut client = self.tool();
        client.status()
    }

    /// Waits until the whole pool may be granted.
    pub fn wait_prefaulted(&self) {
        eventually("prefault", || {
            let pool = &self.status()["pool"];
            pool["prefaulted"] == pool["total"]
        });
    }

    /// What every refusal has to leave behind: a server that serves this client and a new one.
    pub fn assert_serves(&mut self, other: &mut RawClient) {
        assert!(self.is_running(), "{}", self.log());
        assert!(matches!(other.call(&Request::Status), Reply::Status { .. }));
        let mut fresh = self.worker();
        store(&mut fresh, rand::random());
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Fails when it has ended, and then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Settings of the machine's user must not reach a test.
pub fn clear_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVASIR_") {
            command.env_remove(name);
        }
    }
    command.env_remove("NOTIFY_SOCKET");
}

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < WATCHDOG, "waited for {what} in vain");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the program to its end.
pub fn run(args: &[&str], prepare: impl FnOnce(&mut Command)) -> (Option<i32>, String, String) {
    let mut command = Command::new(KVASIR);
    command.args(args).stdin(Stdio::null());
    clear_environment(&mut command);
    prepare(&mut command);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A connection without any cleverness.
pub struct RawClient {
    stream: UnixStream,
    reader: FrameReader,
    fds: Vec<OwnedFd>,
    next_id: u64,
    pub hello: Option<HelloReply>,
    pub seed: Option<ChunkKey>,
}

impl RawClient {
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        stream.set_write_timeout(Some(WATCHDOG)).unwrap();
        Self {
            stream,
            reader: FrameReader::new(),
            fds: Vec::new(),
            next_id: 1,
            hello: None,
            seed: None,
        }
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub fn send_with_fds(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        assert_eq!(send_with_fds(&self.stream, bytes, fds).unwrap(), bytes.len());
    }

    pub fn frame(&mut self, request: &Request) -> (u64, Vec<u8>) {
        let id = self.next_id;
        self.next_id += 1;
        (id, Encoder::new().request(id, request).unwrap().to_vec())
    }

    pub fn send(&mut self, request: &Request) -> u64 {
        let (id, frame) = self.frame(request);
        self.send_bytes(&frame).unwrap();
        id
    }

    /// The next reply; `None` when the server has closed the connection.
    pub fn receive(&mut self) -> Option<(u64, Reply)> {
        loop {
            if let Some(frame) = self.reader.next_frame().unwrap() {
                return Some(decode_reply(frame).unwrap());
            }
            let space = self.reader.space().unwrap();
            match recv_with_fds(&self.stream, space, MAX_FDS_PER_FRAME) {
                Ok(received) if received.bytes == 0 => return None,
                Ok(received) => {
                    self.fds.extend(received.fds);
                    self.reader.received(received.bytes);
                }
                // What a close looks like when the server had not read everything.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn call(&mut self, request: &Request) -> Reply {
        let id = self.send(request);
        let (answered, reply) = self.receive().expect("the connection is open");
        assert_eq!(answered, id);
        reply
    }

    /// A request that has to be refused.
    pub fn refused(&mut self, request: &Request) -> WireError {
        match self.call(request) {
            Reply::Error(error) => error,
            other => panic!("{request:?} was answered with {other:?}"),
        }
    }

    pub fn expect_error(&mut self) -> WireError {
        match self.receive() {
            Some((_, Reply::Error(error))) => error,
            other => panic!("{other:?} instead of an error"),
        }
    }

    pub fn expect_closed(&mut self) {
        assert!(self.receive().is_none(), "the connection should be closed");
    }

    pub fn hello(&mut self, wants_pool: bool) -> &HelloReply {
        let request = hello(wants_pool);
        match self.call(&request) {
            Reply::Hello(reply) => self.hello.insert(reply),
            other => panic!("{other:?}"),
        }
    }

    /// The descriptor of a region.
    pub fn region(&self, kind: RegionKind) -> BorrowedFd<'_> {
        let regions = &self.hello.as_ref().unwrap().regions;
        assert_eq!(regions.len(), self.fds.len(), "one descriptor per region");
        let position = regions.iter().position(|region| region.kind == kind).unwrap();
        self.fds[position].as_fd()
    }

    pub fn control(&self) -> ControlView {
        ControlView::open(self.region(RegionKind::Control)).unwrap()
    }

    pub fn attach(&mut self) {
        let slab = self.hello.as_ref().unwrap().slab;
        assert!(try_lock_byte(self.region(RegionKind::Liveness), u64::from(slab)).unwrap());
        assert_eq!(self.call(&Request::Attach), Reply::Ack);
    }

    pub fn negotiate(&mut self, alignment: u64) -> Reply {
        self.call(&negotiate(alignment))
    }

    pub fn become_worker(&mut self) {
        self.hello(true);
        self.attach();
        assert!(matches!(self.negotiate(ALIGNMENT), Reply::Negotiate(_)));
        match self.call(&Request::RegisterKvCache(registration())) {
            Reply::Register(reply) => self.seed = Some(reply.domain_seed),
            other => panic!("{other:?}"),
        }
    }

    pub fn grant(&mut self, bytes: u64) -> Vec<Extent> {
        match self.call(&Request::Grant(GrantRequest::of(bytes))) {
            Reply::Grant { extents } => extents,
            other => panic!("{other:?}"),
        }
    }

    pub fn status(&mut self) -> Value {
        match self.call(&Request::Status) {
            Reply::Status { json } => serde_json::from_str(&json).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Reads whatever comes until the connection ends.
    pub fn drain(&mut self) {
        let mut sink = [0; 4096];
        while matches!(self.stream.read(&mut sink), Ok(bytes) if bytes > 0) {}
    }
}

/// What [`registration`] is aligned to.
pub const ALIGNMENT: u64 = 64;
/// The chunk size that [`ALIGNMENT`] leads to with the default minimum.
pub const CHUNK: u64 = 256;
/// Bytes of one full chunk by [`registration`]: one frame.
pub const CHUNK_BYTES: u64 = 65536;

pub fn hello(wants_pool: bool) -> Request {
    Request::Hello(Hello {
        protocol_version: PROTOCOL_VERSION,
        features: 0,
        kind: ClientKind::Worker,
        name: "test".into(),
        engine_instance: [5; 16],
        wants_pool,
        ring_bytes: 0,
        named: false,
    })
}

pub fn negotiate(alignment: u64) -> Request {
    Request::Negotiate(Negotiate {
        required_alignment: alignment,
        spans: vec![GroupSpan {
            group: 0,
            tokens: alignment,
        }],
        preferred_base: 0,
        previous_size: 0,
        binding_domain: None,
    })
}

/// One rank, one full-attention group, one frame per chunk.
pub fn registration() -> RegisterKvCache {
    RegisterKvCache {
        domain: Domain {
            model: "test/model".into(),
            weights_id: vec![1; 32],
            kv_dtype: "bfloat16".into(),
            fingerprint: vec![2; 32],
            parallel_shape: "tp=1".into(),
        },
        rank: 0,
        world_size: 1,
        required_alignment: ALIGNMENT,
        spans: vec![GroupSpan {
            group: 0,
            tokens: ALIGNMENT,
        }],
        groups: vec![GroupRegistration {
            group: 0,
            kind: ObjectKind::Full,
            parts: 1,
            part: 0,
            unit_bytes: CHUNK_BYTES / (CHUNK / ALIGNMENT),
        }],
        layers: 2,
        blocks: 100,
        payload_path: PayloadPath::ShmDirect,
        stores: true,
        copy_path: String::new(),
    }
}

pub fn key(number: u64) -> ChunkKey {
    let mut bytes = [0x5a; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    ChunkKey::from_bytes(bytes)
}

pub fn object(number: u64) -> ObjectId {
    ObjectId {
        key: key(number),
        group: 0,
    }
}

/// A commit of one whole first chunk in the given extent.
pub fn commit_of(client: &RawClient, number: u64, extent: Extent) -> CommitRequest {
    CommitRequest {
        domain_seed: client.seed.unwrap(),
        items: vec![StoreItem {
            id: object(number),
            parent: None,
            skipped: false,
            part: 0,
            tokens: CHUNK as u32,
            held_from: 0,
            bytes: CHUNK_BYTES,
            checksum: 0,
            first_extent: 0,
            extent_count: 1,
        }],
        extents: vec![extent],
        supersedes: vec![],
        grant_bytes: 0,
    }
}

/// One granted frame, once the pool has it.
pub fn grant_one(client: &mut RawClient) -> Extent {
    let begin = Instant::now();
    loop {
        if let [first, ..] = client.grant(CHUNK_BYTES)[..] {
            return Extent {
                frame: first.frame,
                count: 1,
            };
        }
        assert!(begin.elapsed() < WATCHDOG, "no space is granted");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Stores one object and returns where.
pub fn store(client: &mut RawClient, number: u64) -> Extent {
    let extent = grant_one(client);
    let commit = commit_of(client, number, extent);
    match client.call(&Request::Commit(commit)) {
        Reply::Commit(reply) => assert_eq!(reply.outcomes, [CommitOutcome::Published]),
        other => panic!("{other:?}"),
    }
    extent
}

pub fn lookup(client: &RawClient, keys: &[u64]) -> Request {
    Request::Lookup(Lookup {
        domain_seed: client.seed.unwrap(),
        label: 1,
        keys: keys.iter().map(|&number| key(number)).collect(),
        tails: TailList::default(),
        max_tokens: u64::MAX,
        local_tokens: 0,
        pin: true,
        describe: false,
    })
}

/// Checks that every frame of the pool is in exactly one class.
pub fn assert_balanced(status: &Value) {
    let pool = &status["pool"];
    let sum: u64 = ["free", "used", "granted", "quarantined"]
        .iter()
        .map(|class| pool[class].as_u64().unwrap())
        .sum();
    assert_eq!(Some(sum), pool["total"].as_u64(), "{pool}");
    let counters = &status["counters"];
    let of = |name: &str| counters[name].as_u64().unwrap();
    assert_eq!(of("hit") + of("miss"), of("requested"), "{counters}");
}
