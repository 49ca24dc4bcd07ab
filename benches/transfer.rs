//! What does it cost an engine to store an object and to get it back, through a real server process?
//!
//! A store is one gather into granted space and one commit; a retrieve is one request, one scatter, the final check and
//! one release. The ceiling is `copy_from_slice` of the same pages, and the copy engine alone says what the messages
//! add. All walk arenas larger than any cache, so that every byte comes from and goes to memory, as KV does. The last lines are
//! ratios of medians, taken alternately so that a busy machine disturbs all alike. `negotiate` is the shortest exchange there is.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use kvasir::client::{
    Client, ClientConfig, KvGroupPages, KvMemory, LayerPages, LoadRequest, ObjectGroupPages, StoreOutcome,
    StoreRequest,
};
use kvasir::copy::{CopyEngine, CopyPlan, HostMemory, Span};
use kvasir::geometry::ObjectKind;
use kvasir::keys::ChunkKey;
use kvasir::object::{ClientKind, GroupRegistration, GroupSpan, ObjectId, PayloadPath};
use kvasir::shm::{Mapping, Memfd, OwnerAccess, ReadWrite};
use kvasir::wire::{Domain, Negotiate, RegisterKvCache};

use report::{Report, median};

mod report;

const ARENA: u64 = 512 << 20;
const POOL: &str = "1GiB";
const BLOCK: u64 = 16;
const CHUNK: u64 = 256;
const BLOCKS_PER_CHUNK: u64 = CHUNK / BLOCK;
/// Bytes of a page, and the layers that make an object of 2 MiB and one of 32 MiB.
const SHAPES: [(u64, u64); 6] = [
    (64 << 10, 2),
    (64 << 10, 32),
    (16 << 10, 8),
    (16 << 10, 128),
    (4 << 10, 32),
    (4 << 10, 512),
];
const ROUNDS: usize = 21;

/// Ends with the value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(socket: &Path) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    command
        .arg("serve")
        .arg("--socket")
        .arg(socket)
        .args(["--pool-size", POOL]);
    command.args(["--chunk-size", "256", "--log-level", "warn"]);
    let server = Server(command.stdin(Stdio::null()).spawn().expect("the server starts"));
    let tool = client(socket, ClientKind::Tool);
    let prefaulted = || -> Option<bool> {
        let status: serde_json::Value = serde_json::from_str(&tool.status().ok()?).ok()?;
        Some(status["pool"]["prefaulted"] == status["pool"]["total"])
    };
    while prefaulted() != Some(true) {
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

fn client(socket: &Path, kind: ClientKind) -> Client {
    let mut config = ClientConfig::new(socket, kind, "bench", [9; 16]);
    config.deadline = Duration::from_secs(60);
    let client = Client::new(config).expect("a client");
    while !client.is_healthy() {
        std::thread::sleep(Duration::from_millis(5));
    }
    client
}

fn touched() -> Arc<Mapping<ReadWrite>> {
    let memfd = Memfd::create("bench", ARENA, OwnerAccess::ReadWrite).expect("memory");
    let mapping = memfd.map().expect("a mapping");
    mapping.prefault(0..ARENA as usize).expect("memory");
    Arc::new(mapping)
}

/// One engine whose objects have some number of layers.
struct Engine {
    client: Client,
    page: u64,
    layers: u64,
    blocks: u64,
    /// The same memory as the client's, and as much again, for copies without a server.
    source: [HostMemory; 1],
    target: [HostMemory; 1],
    slices: (Vec<u8>, Vec<u8>),
    step: u64,
}

fn negotiation() -> Negotiate {
    Negotiate {
        required_alignment: BLOCK,
        spans: vec![GroupSpan {
            group: 0,
            tokens: BLOCK,
        }],
        preferred_base: 0,
        previous_size: 0,
        binding_domain: None,
    }
}

impl Engine {
    fn new(socket: &Path, page: u64, layers: u64) -> Self {
        let client = client(socket, ClientKind::Worker);
        let blocks = ARENA / (layers * page);
        let memory = touched();
        let pages = (0..layers).map(|layer| LayerPages {
            region: 0,
            offset: layer * blocks * page,
            block_stride: page,
            page_bytes: page,
        });
        let pages = ObjectGroupPages {
            group: 0,
            kv_groups: vec![KvGroupPages {
                tokens_per_block: BLOCK,
                layers: pages.collect(),
            }],
        };
        let regions = vec![HostMemory::mapped(Arc::clone(&memory))];
        client.set_memory(KvMemory::new(regions, vec![pages], blocks).expect("a layout"));
        client.negotiate(negotiation()).expect("a chunk size");
        client
            .register(registration(page, layers, blocks))
            .expect("a registration");
        Self {
            client,
            page,
            layers,
            blocks,
            source: [HostMemory::mapped(memory)],
            target: [HostMemory::mapped(touched())],
            slices: (vec![0x5a; ARENA as usize], vec![0xa5; ARENA as usize]),
            step: 0,
        }
    }

    fn bytes(&self) -> u64 {
        self.layers * BLOCKS_PER_CHUNK * self.page
    }

    /// The next object: a key of its own, and blocks that were not used for long.
    fn next(&mut self) -> (ObjectId, Vec<Vec<i64>>) {
        self.step += 1;
        let mut key = [0; 32];
        // The index takes its hash from the key's bytes, which real keys fill with noise.
        for (i, word) in key.chunks_mut(8).enumerate() {
            // Engines of different sizes share the server, so their keys have to differ.
            let number = (self.layers << 40) + (self.page << 42) + self.step * 4 + i as u64;
            let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            word.copy_from_slice(&(mixed ^ (mixed >> 29)).to_le_bytes());
        }
        let id = ObjectId {
            key: ChunkKey::from_bytes(key),
            group: 0,
        };
        (id, vec![self.block_ids()])
    }

    fn block_ids(&self) -> Vec<i64> {
        let first = self.step * BLOCKS_PER_CHUNK;
        // Block 0 is the null block.
        (first..first + BLOCKS_PER_CHUNK)
            .map(|block| (1 + block % (self.blocks - 1)) as i64)
            .collect()
    }

    fn store(&mut self) -> (ObjectId, Duration) {
        let (id, blocks) = self.next();
        let request = StoreRequest {
            id,
            parent: None,
            part: 0,
            tokens: CHUNK as u32,
            blocks: Some(blocks),
        };
        let begin = Instant::now();
        let outcomes = self.client.store(&[request], &[]).expect("a store");
        let took = begin.elapsed();
        assert_eq!(outcomes, [StoreOutcome::Published]);
        (id, took)
    }

    /// Loads what was stored last, which was written past the caches.
    fn retrieve(&mut self, id: ObjectId) -> Duration {
        self.step += 1;
        let request = LoadRequest {
            id,
            tokens: CHUNK as u32,
            blocks: vec![self.block_ids()],
        };
        let begin = Instant::now();
        let loaded = self.client.load(1, 0, &[request]).expect("a load");
        let took = begin.elapsed();
        assert_eq!(loaded, [true]);
        took
    }

    /// The pages of the next object: where they lie, and where they would go.
    fn pages(&mut self) -> Vec<(u64, u64)> {
        self.step += 1;
        let object = self.step * self.bytes() % ARENA;
        let mut pages = Vec::new();
        for block in self.block_ids() {
            for layer in 0..self.layers {
                let from = (layer * self.blocks + block as u64) * self.page;
                pages.push((from, object + pages.len() as u64 * self.page));
            }
        }
        pages
    }

    fn copy_engine(&mut self) -> Duration {
        let pages = self.pages();
        let begin = Instant::now();
        let mut plan = CopyPlan::new();
        for (from, to) in pages {
            plan.push(Span::new(0, from), Span::new(0, to), self.page);
        }
        CopyEngine::detect()
            .execute(&plan, &self.source, &self.target)
            .expect("a copy");
        begin.elapsed()
    }

    fn copy_from_slice(&mut self) -> Duration {
        let pages = self.pages();
        let (source, target) = &mut self.slices;
        let begin = Instant::now();
        for (from, to) in pages {
            let (from, to, page) = (from as usize, to as usize, self.page as usize);
            target[to..to + page].copy_from_slice(&source[from..from + page]);
        }
        begin.elapsed()
    }
}

fn registration(page: u64, layers: u64, blocks: u64) -> RegisterKvCache {
    RegisterKvCache {
        domain: Domain {
            model: format!("bench/{page}/{layers}"),
            weights_id: vec![1; 32],
            kv_dtype: "bfloat16".into(),
            fingerprint: vec![2; 32],
            parallel_shape: "tp=1".into(),
        },
        rank: 0,
        world_size: 1,
        required_alignment: BLOCK,
        spans: vec![GroupSpan {
            group: 0,
            tokens: BLOCK,
        }],
        groups: vec![GroupRegistration {
            group: 0,
            kind: ObjectKind::Full,
            parts: 1,
            part: 0,
            unit_bytes: layers * page,
        }],
        layers: layers as u32,
        blocks,
        payload_path: PayloadPath::ShmDirect,
        stores: true,
        copy_path: String::new(),
    }
}

/// Page faults of this thread that needed no device; nothing where the kernel does not say.
fn minor_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    // The name before may hold anything, but no more brackets after it.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let field = fields.split_ascii_whitespace().nth(7);
    field.and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// All four ways in turn.
fn ratios(engine: &mut Engine, report: &mut Report) {
    let mut times: [Vec<Duration>; 4] = Default::default();
    let mut faults = [0; 2];
    for _ in 0..ROUNDS {
        let before = minor_faults();
        let (id, store) = engine.store();
        let between = minor_faults();
        let retrieve = engine.retrieve(id);
        faults[0] += between - before;
        faults[1] += minor_faults() - between;
        for (all, one) in
            times
                .iter_mut()
                .zip([store, retrieve, engine.copy_engine(), engine.copy_from_slice()])
        {
            all.push(one);
        }
    }
    let [store, retrieve, copy, slice] = times.map(median);
    let (bytes, gib) = (engine.bytes(), |seconds: f64| {
        engine.bytes() as f64 / seconds / f64::from(1 << 30)
    });
    println!(
        "{:>2} MiB of {} KiB pages: store {:.2} GiB/s, retrieve {:.2}, copy engine {:.2}, copy_from_slice {:.2}",
        bytes >> 20,
        engine.page >> 10,
        gib(store),
        gib(retrieve),
        gib(copy),
        gib(slice)
    );
    let size = format!("{}MiB of {}KiB", bytes >> 20, engine.page >> 10);
    let mut figure = |name: &str, seconds: f64| {
        report.figure(format!("{size}/{name}"), gib(seconds), "GiB/s");
        let mut against =
            |what: &str, of| report.ratio(format!("{size}/time of {name} of {what}"), seconds, of);
        (against("copy_engine", copy), against("copy_from_slice", slice))
    };
    let (stores, retrieves) = (figure("store", store), figure("retrieve", retrieve));
    println!(
        "        time as a multiple of the copy engine's: store {:.2}, retrieve {:.2}; of copy_from_slice's: store \
         {:.2}, retrieve {:.2}",
        stores.0, retrieves.0, stores.1, retrieves.1
    );
    let [store, retrieve] = faults.map(|faults| faults / ROUNDS as u64);
    for (name, faults) in [("store", store), ("retrieve", retrieve)] {
        report.figure(
            format!("{size}/minor faults of a {name}"),
            faults as f64,
            "faults",
        );
    }
    println!(
        "        minor faults of the calling thread: store {store}, retrieve {retrieve}; pages of 4 KiB {}",
        bytes >> 12
    );
}

fn main() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("k.sock");
    let _server = start(&socket);
    let mut criterion = Criterion::default().configure_from_args().sample_size(10);
    let mut report = Report::new("transfer");
    for (page, layers) in SHAPES {
        let mut engine = Engine::new(&socket, page, layers);
        let mut group = criterion.benchmark_group("transfer");
        group.throughput(Throughput::Bytes(engine.bytes()));
        let size = format!("{}MiB of {}KiB", engine.bytes() >> 20, page >> 10);
        group.bench_function(BenchmarkId::new("store", &size), |bencher| {
            bencher.iter_custom(|count| (0..count).map(|_| engine.store().1).sum());
        });
        let (id, _) = engine.store();
        group.bench_function(BenchmarkId::new("retrieve", &size), |bencher| {
            bencher.iter_custom(|count| (0..count).map(|_| engine.retrieve(id)).sum());
        });
        group.bench_function(BenchmarkId::new("copy_engine", &size), |bencher| {
            bencher.iter_custom(|count| (0..count).map(|_| engine.copy_engine()).sum());
        });
        group.bench_function(BenchmarkId::new("copy_from_slice", &size), |bencher| {
            bencher.iter_custom(|count| (0..count).map(|_| engine.copy_from_slice()).sum());
        });
        group.finish();
        if report.is_wanted() {
            ratios(&mut engine, &mut report);
        }
    }
    let tool = client(&socket, ClientKind::Scheduler);
    criterion.bench_function("negotiate", |bencher| {
        bencher.iter(|| tool.negotiate(negotiation()).expect("a chunk size"));
    });
    criterion.final_summary();
    report.finish();
}
