//! What do the messages of stores and loads cost, where objects are so small that copying them is next to nothing?
//!
//! Objects of one frame through a real server process: the server's CPU time for each object that is stored, in commits of 128 and
//! of one, as the kernel counts it; what a call of a store and of a load takes; and, of the load, what the copy of the same bytes
//! takes alone. With `BENCH_SERVER=PATH` another server is measured with the same client.
//! Asserts nothing. Run with `cargo bench --bench commit`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::Criterion;
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

const CHUNK: u64 = 256;
/// Bytes of an object: well below a frame, so that messages are what counts.
const SIZES: [u64; 2] = [4 << 10, 16 << 10];
const AT_ONCE: usize = 128;
const ROUNDS: usize = 60;
/// Objects of a call that takes several commits, and how many such calls: all that is stored is to fit.
const MANY: usize = 1024;
const MANY_ROUNDS: usize = 4;
/// Objects that are stored one by one.
const SINGLE: usize = 2000;
const BLOCKS: u64 = 4096;

/// Ends with the value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    fn start(socket: &Path) -> Self {
        let program = std::env::var_os("BENCH_SERVER").map(PathBuf::from);
        let mut command = Command::new(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_kvasir").into()));
        command.arg("serve").arg("--socket").arg(socket).args([
            "--pool-size",
            "1GiB",
            "--chunk-size",
            "256",
            "--log-level",
            "warn",
        ]);
        let server = Self(command.stdin(Stdio::null()).spawn().expect("the server starts"));
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

    /// CPU time of all its threads.
    fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).expect("its threads");
        let spent = tasks.filter_map(|task| {
            let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            text.split_ascii_whitespace().next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(spent.sum())
    }
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

struct Engine {
    client: Client,
    bytes: u64,
    memory: [HostMemory; 1],
    target: [HostMemory; 1],
    stored: u64,
}

fn touched(bytes: u64) -> Arc<Mapping<ReadWrite>> {
    let memfd = Memfd::create("bench", bytes, OwnerAccess::ReadWrite).expect("memory");
    let mapping = memfd.map().expect("a mapping");
    mapping.prefault(0..bytes as usize).expect("memory");
    Arc::new(mapping)
}

impl Engine {
    fn new(socket: &Path, bytes: u64) -> Self {
        let client = client(socket, ClientKind::Worker);
        let memory = touched(BLOCKS * bytes);
        let pages = ObjectGroupPages {
            group: 0,
            kv_groups: vec![KvGroupPages {
                tokens_per_block: CHUNK,
                layers: vec![LayerPages {
                    region: 0,
                    offset: 0,
                    block_stride: bytes,
                    page_bytes: bytes,
                }],
            }],
        };
        let regions = vec![HostMemory::mapped(Arc::clone(&memory))];
        client.set_memory(KvMemory::new(regions, vec![pages], BLOCKS).expect("a layout"));
        let spans = vec![GroupSpan {
            group: 0,
            tokens: CHUNK,
        }];
        client
            .negotiate(Negotiate {
                required_alignment: CHUNK,
                spans: spans.clone(),
                preferred_base: 0,
                previous_size: 0,
                binding_domain: None,
            })
            .expect("a chunk size");
        client
            .register(registration(bytes, spans))
            .expect("a registration");
        Self {
            client,
            bytes,
            memory: [HostMemory::mapped(memory)],
            target: [HostMemory::mapped(touched(BLOCKS * bytes))],
            stored: 0,
        }
    }

    fn id(&self, number: u64) -> ObjectId {
        let name = [self.bytes.to_le_bytes(), number.to_le_bytes()].concat();
        ObjectId {
            key: ChunkKey::from_bytes(*blake3::hash(&name).as_bytes()),
            group: 0,
        }
    }

    /// Blocks one after another, of which 0 is the null block.
    fn block(number: u64) -> i64 {
        (1 + number % (BLOCKS - 1)) as i64
    }

    /// Chunks of one prompt.
    fn store(&mut self, count: usize) -> Duration {
        let first = self.stored;
        self.stored += count as u64;
        let requests: Vec<StoreRequest> = (first..self.stored)
            .map(|number| StoreRequest {
                id: self.id(number),
                parent: (number > first).then(|| self.id(number - 1).key),
                part: 0,
                tokens: CHUNK as u32,
                blocks: Some(vec![vec![Self::block(number)]]),
            })
            .collect();
        let begin = Instant::now();
        let outcomes = self.client.store(&requests, &[]).expect("a store");
        let took = begin.elapsed();
        assert!(outcomes.iter().all(|outcome| *outcome == StoreOutcome::Published));
        took
    }

    fn load(&mut self, first: u64) -> Duration {
        let requests: Vec<LoadRequest> = (first..first + AT_ONCE as u64)
            .map(|number| LoadRequest {
                id: self.id(number),
                tokens: CHUNK as u32,
                blocks: vec![vec![Self::block(number)]],
            })
            .collect();
        let begin = Instant::now();
        let loaded = self.client.load(1, 0, &requests).expect("a load");
        let took = begin.elapsed();
        assert!(loaded.iter().all(|loaded| *loaded));
        took
    }

    /// As many bytes as such a load, by the copy engine.
    fn copy(&mut self, first: u64) -> Duration {
        let begin = Instant::now();
        let mut plan = CopyPlan::new();
        for number in first..first + AT_ONCE as u64 {
            let at = Self::block(number) as u64 * self.bytes;
            plan.push(Span::new(0, at), Span::new(0, at), self.bytes);
        }
        CopyEngine::detect()
            .execute(&plan, &self.memory, &self.target)
            .expect("a copy");
        begin.elapsed()
    }
}

fn registration(bytes: u64, spans: Vec<GroupSpan>) -> RegisterKvCache {
    RegisterKvCache {
        domain: Domain {
            model: format!("bench/{bytes}"),
            weights_id: vec![1; 32],
            kv_dtype: "bfloat16".into(),
            fingerprint: vec![2; 32],
            parallel_shape: "tp=1".into(),
        },
        rank: 0,
        world_size: 1,
        required_alignment: CHUNK,
        spans,
        groups: vec![GroupRegistration {
            group: 0,
            kind: ObjectKind::Full,
            parts: 1,
            part: 0,
            unit_bytes: bytes,
        }],
        layers: 1,
        blocks: BLOCKS,
        payload_path: PayloadPath::ShmDirect,
        stores: true,
        copy_path: String::new(),
    }
}

fn main() {
    // Calls are measured by their own clock, and the server by the kernel's, so criterion has only its flags here.
    Criterion::default().configure_from_args().final_summary();
    let mut report = Report::new("commit");
    if report.is_wanted() {
        for bytes in SIZES {
            measure(bytes, &mut report);
        }
    }
    report.finish();
}

fn measure(bytes: u64, report: &mut Report) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("k.sock");
    let server = Server::start(&socket);
    let mut engine = Engine::new(&socket, bytes);
    let size = format!("{} KiB", bytes >> 10);
    let us = |time: Duration, of: usize| time.as_secs_f64() * 1e6 / of as f64;
    engine.store(AT_ONCE);

    let before = server.cpu();
    let stores: Vec<Duration> = (0..ROUNDS).map(|_| engine.store(AT_ONCE)).collect();
    let together = us(server.cpu() - before, ROUNDS * AT_ONCE);
    let store = median(stores) * 1e6;

    let before = server.cpu();
    let many: Vec<Duration> = (0..MANY_ROUNDS).map(|_| engine.store(MANY)).collect();
    let of_many = us(server.cpu() - before, MANY_ROUNDS * MANY);
    let many = many.into_iter().min().expect("some rounds").as_secs_f64() * 1e6;

    let first = 0;
    let (mut loads, mut copies) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        loads.push(engine.load(first + round * AT_ONCE as u64));
        copies.push(engine.copy(first + round * AT_ONCE as u64));
    }
    let (load, copy) = (median(loads) * 1e6, median(copies) * 1e6);

    let before = server.cpu();
    let singles: Vec<Duration> = (0..SINGLE).map(|_| engine.store(1)).collect();
    let single = us(server.cpu() - before, SINGLE);
    let each = median(singles) * 1e6;

    println!(
        "objects of {size}: the server's CPU for each, in commits of {AT_ONCE} {together:.2} us, of one {single:.1} us"
    );
    println!("        store call of {AT_ONCE} {store:.0} us, of one {each:.0} us");
    println!(
        "        store call of {MANY}, the shortest of {MANY_ROUNDS}: {many:.0} us, the server's CPU for each {of_many:.2} us"
    );
    println!(
        "        load call of {AT_ONCE} {load:.0} us, the copy alone {copy:.0} us: {:.2} us of control for each",
        (load - copy) / AT_ONCE as f64
    );
    let mut figure = |name: &str, value: f64| report.figure(format!("{size}/{name}"), value, "us");
    figure("server CPU for each of 128", together);
    figure("server CPU for one", single);
    figure("store call of 128", store);
    figure("store call of one", each);
    figure("store call of 1024", many);
    figure("load call of 128", load);
    figure("copy of 128", copy);
}
