//! A real server that can be killed and started again on its path, and engines that store and load real pages.

#![allow(dead_code, unreachable_pub)] // each test binary uses its own part of this
#![cfg_attr(feature = "cuda", allow(unsafe_code))] // what engines promise of their memory

#[cfg(feature = "cuda")]
pub mod device;
pub mod pages;

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvasir::client::{
    Client, ClientConfig, KvGroupPages, LayerPages, LoadRequest, LookupAnswer, ObjectGroupPages,
    StoreOutcome, StoreRequest,
};
use kvasir::geometry::ObjectKind;
use kvasir::keys::{ChunkKey, Extras, KeyChain};
use kvasir::object::{ClientKind, GroupRegistration, GroupSpan, Lookup, ObjectId, PayloadPath, Tail};
use kvasir::wire::{Domain, Negotiate, RegisterKvCache};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

#[allow(unused_imports)]
pub use pages::{EngineRegion, copy_path, payload_path};

/// Longer than anything here takes on the slowest machine; reaching it is a failure, not a measurement.
pub const WATCHDOG: Duration = Duration::from_secs(120);

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < WATCHDOG, "waited for {what} in vain");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A place for servers: one path, one server after another.
pub struct Place {
    directory: tempfile::TempDir,
    arguments: Vec<String>,
    server: Option<Child>,
}

impl Place {
    /// A place without a server.
    pub fn empty(arguments: &[&str]) -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            arguments: arguments.iter().map(ToString::to_string).collect(),
            server: None,
        }
    }

    /// A place with a server of 64 MiB and chunks of 64 tokens.
    pub fn with_server() -> Self {
        let mut place = Self::empty(&["--pool-size", "64MiB", "--chunk-size", "64"]);
        place.start();
        // Only prefaulted space is granted, and a store that comes before it is dropped.
        place.wait_prefaulted();
        place
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("k.sock")
    }

    /// What the next server here is started with.
    pub fn set_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
    }

    /// What the servers here have logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Starts a server and waits until it takes connections.
    pub fn start(&mut self) {
        assert!(self.server.is_none());
        let log = self.directory.path().join("log");
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command
            .arg("serve")
            .arg("--socket")
            .arg(self.socket())
            .args(&self.arguments);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("KVASIR_") {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut child = command.spawn().unwrap();
        let begin = Instant::now();
        while UnixStream::connect(self.socket()).is_err() {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("server ended with {status}:\n{}", self.log());
            }
            assert!(
                begin.elapsed() < WATCHDOG,
                "server does not start:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        self.server = Some(child);
    }

    pub fn signal(&self, signal: Signal) {
        let child = self.server.as_ref().expect("a server runs here");
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    }

    /// kill -9, and waits for the end.
    pub fn kill(&mut self) {
        let mut child = self.server.take().expect("a server runs here");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Waits for the end of a server that was told to stop.
    pub fn wait_end(&mut self) {
        let status = self.server.take().expect("a server runs here").wait().unwrap();
        assert!(status.success(), "{status}:\n{}", self.log());
    }

    /// A client without any geometry.
    pub fn tool(&self) -> Client {
        let mut config = ClientConfig::new(self.socket(), ClientKind::Tool, "test tool", [0; 16]);
        config.deadline = WATCHDOG;
        Client::new(config).unwrap()
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.tool().status().unwrap()).unwrap()
    }

    /// Waits until all of the pool may be granted.
    pub fn wait_prefaulted(&self) {
        eventually("prefault", || {
            let pool = &self.status()["pool"];
            pool["prefaulted"] == pool["total"]
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut child) = self.server.take() {
            // Fails when it has ended, and then there is nothing to end.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("server log:\n{}", self.log());
        }
    }
}

/// One object group of a test's engine.
#[derive(Clone)]
pub struct Group {
    pub kind: ObjectKind,
    pub pages: ObjectGroupPages,
}

/// A test's engine: what it registers and the memory behind it.
#[derive(Clone)]
pub struct Shape {
    pub alignment: u64,
    pub groups: Vec<Group>,
    pub regions: Vec<u64>,
    pub blocks: u64,
    pub model: String,
    pub rank: u32,
    pub world: u32,
    pub parts: u16,
}

/// Tokens per block of the plain shape.
pub const BLOCK: u64 = 16;
/// Tokens per chunk that the servers here start with.
pub const CHUNK: usize = 64;

impl Shape {
    /// One full-attention group of two layers with `row` bytes per token, pages `gap` bytes apart.
    pub fn plain(row: u64, gap: u64) -> Self {
        let page_bytes = row * BLOCK;
        let block_stride = page_bytes + gap;
        let blocks = 64;
        let layer = |region, offset| LayerPages {
            region,
            offset,
            block_stride,
            page_bytes,
        };
        Self {
            alignment: BLOCK,
            groups: vec![Group {
                kind: ObjectKind::Full,
                pages: ObjectGroupPages {
                    group: 0,
                    kv_groups: vec![KvGroupPages {
                        tokens_per_block: BLOCK,
                        layers: vec![layer(0, 3), layer(1, 0)],
                    }],
                },
            }],
            regions: vec![3 + blocks * block_stride, blocks * block_stride],
            blocks,
            model: "test/model".into(),
            rank: 0,
            world: 1,
            parts: 1,
        }
    }

    /// Two KV cache groups of different spans in one object group, a window group and a recurrent one.
    pub fn hybrid() -> Self {
        let layer = |region, offset, page_bytes, gap| LayerPages {
            region,
            offset,
            block_stride: page_bytes + gap,
            page_bytes,
        };
        let kv = |tokens_per_block, layers| KvGroupPages {
            tokens_per_block,
            layers,
        };
        let group = |group, kind, kv_groups| Group {
            kind,
            pages: ObjectGroupPages { group, kv_groups },
        };
        Self {
            alignment: 32,
            groups: vec![
                group(
                    0,
                    ObjectKind::Full,
                    vec![
                        kv(16, vec![layer(0, 0, 1000, 24), layer(1, 0, 17, 0)]),
                        kv(32, vec![layer(2, 8, 4097, 7)]),
                    ],
                ),
                group(
                    1,
                    ObjectKind::Window { tokens: 40 },
                    vec![kv(16, vec![layer(3, 0, 500, 0)])],
                ),
                group(
                    2,
                    ObjectKind::Recurrent,
                    vec![kv(32, vec![layer(4, 0, 70_000, 0)])],
                ),
            ],
            regions: vec![1024 * 64, 17 * 64, 8 + 4104 * 64, 500 * 64, 70_000 * 64],
            blocks: 64,
            ..Self::plain(1, 0)
        }
    }

    fn spans(&self) -> Vec<GroupSpan> {
        let kv_groups = self.groups.iter().flat_map(|group| &group.pages.kv_groups);
        let spans = kv_groups.enumerate().map(|(index, pages)| GroupSpan {
            group: index as u32,
            tokens: pages.tokens_per_block,
        });
        spans.collect()
    }

    pub fn negotiation(&self) -> Negotiate {
        Negotiate {
            required_alignment: self.alignment,
            spans: self.spans(),
            preferred_base: 0,
            previous_size: 0,
            binding_domain: None,
        }
    }

    pub fn registration(&self) -> RegisterKvCache {
        let groups = self.groups.iter().map(|group| {
            let unit = group.pages.kv_groups.iter().map(|pages| {
                let block: u64 = pages.layers.iter().map(|layer| layer.page_bytes).sum();
                match group.kind {
                    ObjectKind::Recurrent => block,
                    _ => block * (self.alignment / pages.tokens_per_block),
                }
            });
            GroupRegistration {
                group: group.pages.group,
                kind: group.kind,
                parts: self.parts,
                part: if self.parts > 1 { self.rank as u16 } else { 0 },
                unit_bytes: unit.sum(),
            }
        });
        RegisterKvCache {
            domain: Domain {
                model: self.model.clone(),
                weights_id: vec![1; 32],
                kv_dtype: "bfloat16".into(),
                fingerprint: vec![2; 32],
                parallel_shape: format!("tp={}", self.world),
            },
            rank: self.rank,
            world_size: self.world,
            required_alignment: self.alignment,
            spans: self.spans(),
            groups: groups.collect(),
            layers: 2,
            blocks: self.blocks,
            payload_path: PayloadPath::ShmDirect,
            stores: true,
            copy_path: String::new(),
        }
    }
}

/// An engine process as a test plays it.
pub struct Engine {
    pub client: Client,
    pub shape: Shape,
    pub memory: Vec<EngineRegion>,
}

impl Engine {
    /// A worker of engine `instance`, negotiated and registered.
    pub fn start(place: &Place, shape: &Shape, instance: u8) -> Self {
        Self::start_with(place, shape, instance, |_| {})
    }

    /// The same with another configuration.
    pub fn start_with(
        place: &Place,
        shape: &Shape,
        instance: u8,
        configure: impl FnOnce(&mut ClientConfig),
    ) -> Self {
        Self::at(&place.socket(), shape, instance, configure)
    }

    /// The same at a socket.
    pub fn at(socket: &Path, shape: &Shape, instance: u8, configure: impl FnOnce(&mut ClientConfig)) -> Self {
        let mut config = ClientConfig::new(socket, ClientKind::Worker, "test engine", [instance; 16]);
        config.deadline = Duration::from_secs(20);
        config.grant_bytes = 1 << 20;
        configure(&mut config);
        let engine = Self::with_config(config, shape);
        engine.client.negotiate(shape.negotiation()).unwrap();
        engine.client.register(shape.registration()).unwrap();
        engine
    }

    /// A worker that has asked for nothing yet.
    pub fn unregistered(
        place: &Place,
        shape: &Shape,
        instance: u8,
        deadline: Duration,
        heartbeat: Duration,
    ) -> Self {
        let mut config = ClientConfig::new(place.socket(), ClientKind::Worker, "test engine", [instance; 16]);
        config.deadline = deadline;
        config.heartbeat = heartbeat;
        config.grant_bytes = 1 << 20;
        Self::with_config(config, shape)
    }

    fn with_config(config: ClientConfig, shape: &Shape) -> Self {
        let client = Client::new(config).unwrap();
        let memory = pages::regions(&shape.regions);
        let groups = shape.groups.iter().map(|group| group.pages.clone());
        client.set_memory(pages::kv_memory(&memory, groups.collect(), shape.blocks).unwrap());
        Self {
            client,
            shape: shape.clone(),
            memory,
        }
    }

    pub fn seed(&self) -> ChunkKey {
        self.client.domain_seed().unwrap()
    }

    /// Fills all memory with bytes that depend on the place and on `salt`.
    pub fn fill(&self, salt: u64) {
        for (region, memory) in self.memory.iter().enumerate() {
            let bytes: Vec<u8> = (0..memory.len() as u64)
                .map(|at| ((at ^ salt).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 ^ region as u8)
                .collect();
            memory.write_bytes(0, &bytes);
        }
    }

    /// All pages of a block of one KV cache group, layer after layer.
    pub fn block(&self, group: usize, kv_group: usize, block: i64) -> Vec<u8> {
        let layers = &self.shape.groups[group].pages.kv_groups[kv_group].layers;
        let pages = layers.iter().map(|layer| {
            let mut page = vec![0; layer.page_bytes as usize];
            let at = layer.offset + block as u64 * layer.block_stride;
            self.memory[usize::from(layer.region)].read_bytes(at as usize, &mut page);
            page
        });
        pages.collect::<Vec<_>>().concat()
    }

    /// Everything, to see that nothing else was touched.
    pub fn everything(&self) -> Vec<Vec<u8>> {
        let read = |memory: &EngineRegion| {
            let mut bytes = vec![0; memory.len()];
            memory.read_bytes(0, &mut bytes);
            bytes
        };
        self.memory.iter().map(read).collect()
    }

    /// The keys of a prompt of `tokens` tokens that differs from those with another salt.
    pub fn chain(&self, tokens: usize, salt: u32) -> KeyChain {
        chain(self.seed(), tokens, salt)
    }

    /// Looks a prompt up: all its full chunks and every tail behind them.
    pub fn lookup(&self, chain: &KeyChain, label: u64) -> LookupAnswer {
        self.client
            .lookup(&lookup(self.seed(), chain, label, self.shape.alignment as u32).as_request())
            .unwrap()
    }
}

pub fn chain(seed: ChunkKey, tokens: usize, salt: u32) -> KeyChain {
    let mut chain = KeyChain::new(seed, CHUNK as u32, Extras::default()).unwrap();
    let tokens: Vec<u32> = (0..tokens as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) ^ salt)
        .collect();
    chain.extend(&tokens);
    chain
}

pub fn lookup(seed: ChunkKey, chain: &KeyChain, label: u64, alignment: u32) -> Lookup {
    let full = chain.keys().len();
    let tails = chain.tail_keys(alignment).into_iter().map(|(tokens, key)| Tail {
        key,
        chunk: full as u32,
        tokens,
    });
    Lookup {
        domain_seed: seed,
        label,
        keys: chain.keys().to_vec(),
        tails: tails.collect(),
        max_tokens: chain.len_tokens() as u64 - 1,
        local_tokens: 0,
        pin: true,
        describe: false,
    }
}

/// A store of one part of a full chunk of object group 0.
pub fn store_chunk(chain: &KeyChain, chunk: usize, part: u16, blocks: Vec<Vec<i64>>) -> StoreRequest {
    StoreRequest {
        id: ObjectId {
            key: chain.keys()[chunk],
            group: 0,
        },
        parent: chunk.checked_sub(1).map(|parent| chain.keys()[parent]),
        part,
        tokens: CHUNK as u32,
        blocks: Some(blocks),
    }
}

/// A load of the whole of object group 0 of a full chunk.
pub fn load_chunk(chain: &KeyChain, chunk: usize, blocks: Vec<Vec<i64>>) -> LoadRequest {
    LoadRequest {
        id: ObjectId {
            key: chain.keys()[chunk],
            group: 0,
        },
        tokens: CHUNK as u32,
        blocks,
    }
}

/// The four block ids of a chunk of the plain shape, starting at `first`.
pub fn four(first: i64) -> Vec<Vec<i64>> {
    vec![(first..first + 4).collect()]
}

pub fn assert_published(outcomes: &[StoreOutcome]) {
    assert!(
        outcomes.iter().all(|outcome| *outcome == StoreOutcome::Published),
        "{outcomes:?}"
    );
}
