//! A real server and engines that store and load prompts in it, as the benches of whole paths need them.

#![allow(dead_code, unreachable_pub)] // each bench uses its own part of this

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvasir::client::{
    Client, ClientConfig, ClientKind, Domain, GroupRegistration, GroupSpan, KvGroupPages, KvMemory,
    LayerPages, LoadRequest, LookupAnswer, LookupRequest, Negotiate, ObjectGroupPages, ObjectId, ObjectKind,
    PayloadPath, RegisterKvCache, StoreOutcome, StoreRequest, TailList,
};
use kvasir::copy::HostMemory;
use kvasir::keys::{Extras, KeyChain};
use kvasir::shm::{Mapping, Memfd, OwnerAccess, ReadWrite};

/// Tokens of a block, and of a chunk.
pub const BLOCK: u64 = 16;
pub const CHUNK: u64 = 256;
/// How long a server may take to answer, and to make its pool present.
const PATIENCE: Duration = Duration::from_secs(120);
/// Blocks of a chunk.
pub const BLOCKS: u64 = CHUNK / BLOCK;

/// A `kvasir serve` process in a directory of its own. Ends with the value.
pub struct Server {
    child: Child,
    directory: tempfile::TempDir,
}

impl Server {
    /// Starts a server; when it answers, its pool may not be present yet.
    pub fn start(pool: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command
            .arg("serve")
            .arg("--socket")
            .arg(directory.path().join("k.sock"));
        command.args(["--pool-size", pool, "--chunk-size", "256", "--log-level", "warn"]);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("KVASIR_") {
                command.env_remove(name); // settings of the machine's user are not those of a bench
            }
        }
        let child = command.stdin(Stdio::null()).spawn().expect("the server starts");
        Self { child, directory }
    }

    /// Starts a server and waits until all of its pool is present.
    pub fn ready(pool: &str) -> Self {
        let server = Self::start(pool);
        server.wait_present();
        server
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("k.sock")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn wait_present(&self) {
        let tool = connect(&self.socket(), ClientKind::Tool, [0; 16]);
        let is_present = || -> Option<bool> {
            let status: serde_json::Value = serde_json::from_str(&tool.status().ok()?).ok()?;
            Some(status["pool"]["prefaulted"] == status["pool"]["total"])
        };
        let begin = Instant::now();
        while is_present() != Some(true) {
            assert!(begin.elapsed() < PATIENCE, "the pool is not present in time");
            sleep(Duration::from_millis(5));
        }
    }

    /// Seconds of CPU that all threads of the server have used.
    pub fn cpu_seconds(&self) -> f64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("/proc");
        let of_task = |task: std::fs::DirEntry| -> Option<u64> {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        tasks.flatten().filter_map(of_task).sum::<u64>() as f64 / 1e9
    }

    /// Resident memory without shared pages, which are the pool's.
    pub fn private_mib(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("/proc");
        let of = |name: &str| -> f64 {
            let line = status.lines().find(|line| line.starts_with(name));
            let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
            number.expect("a field of /proc/PID/status")
        };
        (of("RssAnon:") + of("RssFile:")) / 1024.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails when it has ended, and then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that waits for its server. It copies with the calling thread alone, as the plain copies beside it do, and the
/// peer: on machines with more than two cores its own choice would be more threads.
pub fn connect(socket: &Path, kind: ClientKind, instance: [u8; 16]) -> Client {
    let mut config = ClientConfig::new(socket, kind, "bench", instance);
    config.deadline = Duration::from_secs(60);
    config.copy_threads = 1;
    let client = Client::new(config).expect("a client");
    let begin = Instant::now();
    while !client.is_healthy() {
        assert!(begin.elapsed() < PATIENCE, "no server: {}", client.state_text());
        sleep(Duration::from_millis(1));
    }
    client
}

/// What a model's pages are like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layers: u64,
    /// Bytes of one block in one layer.
    pub page: u64,
}

impl Shape {
    /// Bytes of a chunk.
    pub fn bytes(self) -> u64 {
        self.layers * self.page * BLOCKS
    }
}

/// A prompt of whole chunks.
pub struct Prompt {
    pub tokens: Vec<u32>,
    pub chain: KeyChain,
}

/// Engines of this process so far.
static ENGINES: AtomicU64 = AtomicU64::new(0);

/// One engine process: its connection and its KV cache.
pub struct Engine {
    pub client: Client,
    pub shape: Shape,
    pub memory: Arc<Mapping<ReadWrite>>,
    blocks: u64,
    next_block: u64,
    next_prompt: u64,
}

impl Engine {
    /// An engine with a KV cache of `arena` bytes, or none of its own for one that only looks up.
    pub fn start(socket: &Path, shape: Shape, arena: u64, number: u8) -> Self {
        let client = connect(socket, ClientKind::Worker, [number; 16]);
        let blocks = (arena / (shape.layers * shape.page)).max(2 * BLOCKS);
        let bytes = blocks * shape.layers * shape.page;
        let memfd = Memfd::create("bench", bytes, OwnerAccess::ReadWrite).expect("memory");
        let memory: Arc<Mapping<ReadWrite>> = Arc::new(memfd.map().expect("a mapping"));
        memory.prefault(0..bytes as usize).expect("memory");
        let layers = (0..shape.layers).map(|layer| LayerPages {
            region: 0,
            offset: layer * blocks * shape.page,
            block_stride: shape.page,
            page_bytes: shape.page,
        });
        let pages = KvGroupPages {
            tokens_per_block: BLOCK,
            layers: layers.collect(),
        };
        let groups = vec![ObjectGroupPages {
            group: 0,
            kv_groups: vec![pages],
        }];
        let regions = vec![HostMemory::mapped(Arc::clone(&memory))];
        client.set_memory(KvMemory::new(regions, groups, blocks).expect("a layout"));
        let spans = vec![GroupSpan {
            group: 0,
            tokens: BLOCK,
        }];
        let negotiate = Negotiate {
            required_alignment: BLOCK,
            spans: spans.clone(),
            ..Negotiate::default()
        };
        assert_eq!(
            client.negotiate(negotiate).expect("a chunk size").chunk_size,
            CHUNK
        );
        let register = RegisterKvCache {
            domain: Domain {
                // Objects of another size are another model's.
                model: format!("bench/{}x{}", shape.layers, shape.page),
                weights_id: vec![1; 32],
                kv_dtype: "bfloat16".into(),
                fingerprint: vec![2; 32],
                parallel_shape: "tp=1".into(),
            },
            rank: 0,
            world_size: 1,
            required_alignment: BLOCK,
            spans,
            groups: vec![GroupRegistration {
                group: 0,
                kind: ObjectKind::Full,
                parts: 1,
                part: 0,
                unit_bytes: shape.layers * shape.page,
            }],
            layers: shape.layers as u32,
            blocks,
            payload_path: PayloadPath::ShmDirect,
            stores: true,
            copy_path: String::new(),
        };
        client.register(register).expect("a registration");
        Self {
            client,
            shape,
            memory,
            blocks,
            next_block: 1,
            // Nobody else's: of this process, and of this engine in it.
            next_prompt: u64::from(std::process::id()) << 32 | ENGINES.fetch_add(1, Ordering::Relaxed) << 24,
        }
    }

    /// A prompt of so many chunks that nobody had before.
    pub fn prompt(&mut self, chunks: u64) -> Prompt {
        self.next_prompt += 1;
        self.prompt_number(self.next_prompt, chunks)
    }

    /// The prompt of this number.
    pub fn prompt_number(&self, number: u64, chunks: u64) -> Prompt {
        let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let token = |i: u64| ((mixed ^ (i * 31)).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 47) as u32;
        let tokens: Vec<u32> = (0..chunks * CHUNK).map(token).collect();
        let chain = self.hash(&tokens);
        Prompt { tokens, chain }
    }

    /// The keys of some tokens.
    pub fn hash(&self, tokens: &[u32]) -> KeyChain {
        let seed = self.client.domain_seed().expect("a domain");
        let mut chain = KeyChain::new(seed, CHUNK as u32, Extras::default()).expect("a chain");
        chain.extend(tokens);
        chain
    }

    /// The next blocks of the KV cache, round and round. Block 0 is the null block.
    fn blocks(&mut self) -> Vec<Vec<i64>> {
        let (first, count) = (self.next_block, self.blocks - 1);
        self.next_block += BLOCKS;
        vec![
            (first..first + BLOCKS)
                .map(|block| (1 + block % count) as i64)
                .collect(),
        ]
    }

    /// Stores a prompt with one call.
    pub fn store(&mut self, prompt: &Prompt) -> Duration {
        let keys = prompt.chain.keys();
        let requests = keys.iter().enumerate().map(|(chunk, key)| StoreRequest {
            id: ObjectId { key: *key, group: 0 },
            parent: chunk.checked_sub(1).map(|before| keys[before]),
            part: 0,
            tokens: CHUNK as u32,
            blocks: Some(self.blocks()),
        });
        let requests: Vec<StoreRequest> = requests.collect();
        let begin = Instant::now();
        let outcomes = self.client.store(&requests, &[]).expect("a store");
        let took = begin.elapsed();
        assert!(
            outcomes.iter().all(|outcome| *outcome == StoreOutcome::Published),
            "{outcomes:?}"
        );
        took
    }

    /// Looks a chain up; what is found is pinned until it is released.
    pub fn find(&self, chain: &KeyChain) -> LookupAnswer {
        let request = LookupRequest {
            domain_seed: self.client.domain_seed().expect("a domain"),
            label: 1,
            keys: chain.keys(),
            tails: &TailList::default(),
            max_tokens: u64::MAX,
            local_tokens: 0,
            pin: true,
            describe: false,
        };
        self.client.lookup(&request).expect("a lookup")
    }

    /// Looks a chain up that is there, and gives the pin back.
    pub fn hit(&self, chain: &KeyChain) {
        let found = self.find(chain);
        assert_eq!(found.hit_tokens, chain.len_tokens() as u64);
        self.client.release(found.pin.as_slice()).expect("a release");
    }

    /// Loads a prompt with one call into the next blocks; the lookup is not part of the time.
    pub fn load(&mut self, prompt: &Prompt) -> Duration {
        let found = self.find(&prompt.chain);
        assert_eq!(found.hit_tokens, prompt.tokens.len() as u64);
        let keys = prompt.chain.keys();
        let requests = keys.iter().map(|key| LoadRequest {
            id: ObjectId { key: *key, group: 0 },
            tokens: CHUNK as u32,
            blocks: self.blocks(),
        });
        let requests: Vec<LoadRequest> = requests.collect();
        let begin = Instant::now();
        let loaded = self.client.load(1, 0, &requests).expect("a load");
        let took = begin.elapsed();
        assert!(loaded.iter().all(|one| *one));
        self.client.release(found.pin.as_slice()).expect("a release");
        took
    }
}

/// A value that a fraction of others does not exceed.
pub fn percentile(times: &mut [Duration], fraction: f64) -> f64 {
    times.sort_unstable();
    let at = (times.len() as f64 * fraction) as usize;
    times[at.min(times.len() - 1)].as_secs_f64()
}
