//! How long does the server's one thread stay with one piece of work? The longest turn of each kind, in CPU time, with
//! 10,000, 100,000 and 1,000,000 records: what grows with them is not bounded.
//!
//! Asserts nothing. Run with `cargo bench --bench turns`; with `BENCH_RECORDS=N` in the environment it measures one size only.
//! With `BENCH_RUNS=N` all is done so often, and of each turn the fastest counts: the same turn does the same each time, so what
//! is left is its own, and not what the machine did beside it.
//! Nobody touches the pool, so that a million frames take no more memory than their books (about 1 GiB).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use criterion::Criterion;
use kvasir::cache::*;
use kvasir::geometry::ObjectKind;
use kvasir::index::slab;
use kvasir::keys::ChunkKey;
use kvasir::object::*;
use kvasir::shm::heap::{PROGRAM_ALLOCATOR, ProgramAllocator, keep_freed_memory};
use kvasir::shm::lock::try_lock_byte;
use kvasir::shm::{Mapping, ReadWrite};
use nix::time::{ClockId, clock_gettime};
use report::Report;

mod report;

#[global_allocator]
static ALLOCATOR: ProgramAllocator = PROGRAM_ALLOCATOR;

const SIZES: [u32; 3] = [10_000, 100_000, 1_000_000];
const CHUNK: u32 = 64;
/// Asks for the first part of an object.
fn parts(domain_seed: ChunkKey, label: u64, part: u16, ids: &[ObjectId]) -> RetrieveRequest {
    RetrieveRequest {
        domain_seed,
        label,
        part,
        ids: ids.to_vec(),
    }
}

/// Items of a long commit.
const ITEMS: u32 = 8192;
/// Chunks of a chain: a quarter of what a client may pin in the smallest pool.
const CHAIN: u32 = 2048;

fn main() {
    // A turn is measured by its own clock, so criterion has only its flags here.
    Criterion::default().configure_from_args().final_summary();
    let mut report = Report::new("turns");
    if report.is_wanted() {
        longest_turns(&mut report);
    }
    report.finish();
}

fn longest_turns(report: &mut Report) {
    // As the server does.
    keep_freed_memory();
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let sizes = number("BENCH_RECORDS").map_or(SIZES.to_vec(), |size| vec![size]);
    let runs = number("BENCH_RUNS").unwrap_or(1);
    let mut rows: BTreeMap<(usize, &'static str), Vec<Slices>> = BTreeMap::new();
    for records in &sizes {
        let mut best: Vec<(&'static str, Slices)> = Vec::new();
        for run in 0..runs {
            let mut bench = Bench::new(*records);
            bench.run();
            if run == 0 {
                best = bench.rows;
                continue;
            }
            for ((what, best), (_, slices)) in best.iter_mut().zip(&bench.rows) {
                assert_eq!(
                    best.each.len(),
                    slices.each.len(),
                    "{what} takes the same turns each time"
                );
                for (best, each) in best.each.iter_mut().zip(&slices.each) {
                    *best = *each.min(best);
                }
            }
        }
        for (at, (what, slices)) in best.into_iter().enumerate() {
            rows.entry((at, what)).or_default().push(slices);
        }
    }
    println!("longest turn in us of CPU (999 of 1,000 are shorter than), turns, all of the work");
    println!(
        "{:<58} {}",
        "records",
        sizes.map_text(|size| format!("{size:>32}"))
    );
    for ((_, what), slices) in rows {
        for (records, slices) in sizes.iter().zip(&slices) {
            let name = |figure| format!("{what}/{records}/{figure}");
            report.figure(name("longest turn"), slices.below(1000), "us of CPU");
            report.figure(name("999 of 1,000 turns"), slices.below(999), "us of CPU");
        }
        println!("{what:<58} {}", slices.map_text(|slices| format!("{slices:>32}")));
    }
}

trait MapText<T> {
    fn map_text(&self, text: impl Fn(&T) -> String) -> String;
}

impl<T> MapText<T> for Vec<T> {
    fn map_text(&self, text: impl Fn(&T) -> String) -> String {
        self.iter().map(text).collect::<Vec<_>>().join(" ")
    }
}

/// What a kind of work took.
#[derive(Clone, Default)]
struct Slices {
    each: Vec<Duration>,
}

impl Slices {
    /// The time that so many of 1,000 turns stay below.
    fn below(&self, of_1000: usize) -> f64 {
        let mut each = self.each.clone();
        each.sort_unstable();
        let at = (each.len() * of_1000 / 1000).min(each.len().saturating_sub(1));
        each.get(at).map_or(0.0, |each| each.as_secs_f64() * 1e6)
    }
}

impl std::fmt::Display for Slices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all: f64 = self.each.iter().map(Duration::as_secs_f64).sum();
        let (longest, most) = (self.below(1000), self.below(999));
        f.pad(&format!(
            "{longest:.0} ({most:.0}) us, {}, {:.1} ms",
            self.each.len(),
            all * 1e3
        ))
    }
}

fn cpu() -> Duration {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock of this thread");
    now.into()
}

struct Peer {
    id: ClientId,
    lock: Option<OwnedFd>,
    slab: Mapping<ReadWrite>,
}

impl Peer {
    fn pin(&self, words: &[u64]) {
        let high = [words.len() as u64];
        self.slab
            .store_words(slab::SLAB_HIGH_WATER, &high)
            .expect("a slab");
        self.slab.store_words(slab::SLAB_PINS, words).expect("a slab");
    }

    fn log(&self, words: &[u64]) {
        self.slab.store_words(slab::SLAB_TOUCHED, words).expect("a slab");
        let cursor = [words.len() as u64];
        self.slab.store_words(slab::SLAB_CURSOR, &cursor).expect("a slab");
    }
}

struct Bench {
    core: Core,
    records: u32,
    prompts: u32,
    rows: Vec<(&'static str, Slices)>,
}

fn seed(n: u8) -> ChunkKey {
    ChunkKey::from_bytes([n; 32])
}

fn key(prompt: u32, chunk: u32) -> ChunkKey {
    let bytes = [prompt.to_le_bytes(), chunk.to_le_bytes()].concat();
    ChunkKey::from_bytes(*blake3::hash(&bytes).as_bytes())
}

impl Bench {
    /// A core with room for so many objects and a half more.
    fn new(records: u32) -> Self {
        let frames = u64::from(records) * 3 / 2;
        let mut core = Core::create(CoreConfig {
            pool_bytes: frames * FRAME_BYTES,
            max_clients: SLABS,
            ..CoreConfig::default()
        })
        .expect("a core");
        core.set_chunk_size(CHUNK).expect("a size");
        core.prefaulted(frames * FRAME_BYTES).expect("nobody touches it");
        core.prefault_ended();
        Self {
            core,
            records,
            prompts: 0,
            rows: Vec::new(),
        }
    }

    fn peer(&mut self, instance: u8) -> Peer {
        let info = ClientInfo {
            engine_instance: [instance; 16],
            kind: ClientKind::Worker,
            name: "bench".into(),
        };
        let id = self.core.open_client(info).expect("a slab");
        let regions = self.core.regions(id).expect("descriptors");
        assert!(try_lock_byte(regions.liveness.as_fd(), id.slab().into()).expect("a lock"));
        self.core.attach(id).expect("the lock is held");
        let slab = Mapping::map_foreign_at(
            regions.slabs.as_fd(),
            regions.slab_offset,
            regions.slab_bytes as usize,
        );
        Peer {
            id,
            lock: Some(regions.liveness),
            slab: slab.expect("a slab"),
        }
    }

    fn registration(&self, domain: u8, ranks: u16) -> Registration {
        Registration {
            domain_seed: seed(domain),
            rank: 0,
            world_size: ranks.into(),
            required_alignment: CHUNK.into(),
            chunk_size: CHUNK,
            groups: vec![GroupRegistration {
                group: 0,
                kind: ObjectKind::Full,
                parts: ranks,
                part: 0,
                unit_bytes: 4096,
            }],
            payload_path: PayloadPath::ShmDirect,
            stores: true,
        }
    }

    fn engine(&mut self, instance: u8, domain: u8, ranks: u16) -> Peer {
        let peer = self.peer(instance);
        let registration = self.registration(domain, ranks);
        self.core
            .register(peer.id, &registration)
            .expect("a registration");
        peer
    }

    fn drive<W: Work>(&mut self, mut work: W, slices: &mut Slices) -> W::Answer {
        loop {
            let (mut turn, begun) = (Turn::new(), cpu());
            let progress = work
                .step(&mut self.core, &mut turn)
                .expect("a request that is right");
            let spent = cpu() - begun;
            slices.each.push(spent);
            if let Progress::Done(answer) = progress {
                return answer;
            }
        }
    }

    /// What an allocator put off until somebody asks it for more than small pieces.
    fn ask_for_memory(&mut self, what: &'static str) {
        let begun = cpu();
        let memory: Vec<u8> = Vec::with_capacity(std::hint::black_box(2048));
        let spent = cpu() - begun;
        drop(std::hint::black_box(memory));
        self.rows.push((what, Slices { each: vec![spent] }));
    }

    fn measure<W: Work>(&mut self, what: &'static str, work: W) -> W::Answer {
        let mut slices = Slices::default();
        let answer = self.drive(work, &mut slices);
        self.rows.push((what, slices));
        answer
    }

    /// Stores so many objects of one frame each, in chains of that length.
    fn fill(&mut self, peer: &Peer, domain: u8, count: u32, chain: u32, slices: &mut Slices) {
        let mut stored = 0;
        while stored < count {
            let some = (count - stored).min(ITEMS);
            let granted = self
                .core
                .grant(peer.id, u64::from(some) * FRAME_BYTES)
                .expect("a grant");
            let frames = granted.iter().flat_map(|extent| extent.frames());
            let extents: Vec<Extent> = frames.map(|frame| Extent::new(frame, 1)).collect();
            let some = extents.len() as u32;
            assert!(some > 0, "space for all");
            let items: Vec<StoreItem> = (0..some)
                .map(|at| {
                    let (prompt, chunk) = (self.prompts + (stored + at) / chain, (stored + at) % chain);
                    StoreItem {
                        id: ObjectId {
                            key: key(prompt, chunk),
                            group: 0,
                        },
                        parent: chunk.checked_sub(1).map(|before| key(prompt, before)),
                        skipped: false,
                        part: 0,
                        tokens: CHUNK,
                        held_from: 0,
                        bytes: 4096,
                        checksum: 1,
                        first_extent: at,
                        extent_count: 1,
                    }
                })
                .collect();
            let request = CommitRequest {
                domain_seed: seed(domain),
                items: items.to_vec(),
                extents: extents.to_vec(),
                supersedes: vec![],
                grant_bytes: 0,
            };
            let answer = self.drive(Committing::new(peer.id, &request), slices);
            let stored_all = |outcome: &CommitOutcome| {
                matches!(outcome, CommitOutcome::Published | CommitOutcome::PartAccepted)
            };
            assert!(answer.outcomes.iter().all(stored_all));
            stored += some;
        }
        self.prompts += count.div_ceil(chain);
    }

    fn read(&mut self, peer: &Peer, prompt: u32, chunk: u32) -> (ObjectId, u64) {
        let id = ObjectId {
            key: key(prompt, chunk),
            group: 0,
        };
        let found = self
            .core
            .retrieve(peer.id, &parts(seed(1), 0, 0, &[id]))
            .expect("a retrieve");
        self.core.release(peer.id, &[found.pin]).expect("its pin");
        (id, found.locations[0].incarnation)
    }

    fn run(&mut self) {
        let records = self.records;
        let engine = self.engine(1, 1, 1);
        let mut slices = Slices::default();
        // A quarter in long chains, the rest in chains of 64.
        self.fill(&engine, 1, records / 4, CHAIN, &mut slices);
        self.fill(&engine, 1, records - records / 4, 64, &mut slices);
        self.rows.push(("commits of 8,192 new objects", slices));

        let readers: Vec<Peer> = (0..200).map(|at| self.peer(at + 50)).collect();
        for (at, reader) in (0_u64..).zip(&readers) {
            let words = (0..4096).map(|word| (at * 4096 + word) % u64::from(records) + 1);
            reader.pin(&words.collect::<Vec<_>>());
        }
        let reporting = Reporting::new(&self.core);
        self.measure("status with 200 clients of 4,096 pins each", reporting);
        let granted = self.measure(
            "grant of half of the pool beside as many pins",
            Grant::new(engine.id, u64::from(records) * FRAME_BYTES),
        );
        self.core.abort(engine.id, &granted).expect("its own");
        let mut untold = Slices::default();
        self.fill(&engine, 1, records / 2, 64, &mut untold);
        for (at, reader) in readers.iter().enumerate() {
            reader.pin(if at < 16 { &[1; 4096] } else { &[] });
            reader.log(&vec![at as u64 + 1; slab::TOUCHED_WORDS]);
        }
        let granted = self.measure(
            "grant of half of the pool, 200 full logs",
            Grant::new(engine.id, u64::from(records) * FRAME_BYTES),
        );
        drop(granted);
        let other = self.engine(9, 1, 1);
        let all = self.core.grant(other.id, u64::MAX).expect("a grant");
        let frames = all.iter().flat_map(|extent| extent.frames());
        let odd: Vec<Extent> = frames
            .filter(|frame| frame % 2 == 1)
            .map(|frame| Extent::new(frame, 1))
            .take(131_072)
            .collect();
        self.measure("abort of up to 131,072 runs", Abort::new(other.id, &odd));
        let mut other = other;
        other.lock = None;
        self.measure(
            "death of a client with as many granted runs",
            ClientGone::new(other.id),
        );
        let mut engine = engine;
        engine.lock = None;
        self.measure(
            "death of a client with half of the pool",
            ClientGone::new(engine.id),
        );

        // A chain whose end is pinned while its root is discarded.
        let engine = self.engine(2, 1, 1);
        let first = self.prompts;
        self.fill(&engine, 1, CHAIN, CHAIN, &mut untold);
        let one = self.prompts;
        self.fill(&engine, 1, 1, 1, &mut untold);
        let named = [self.read(&engine, one, 0)];
        self.measure("discard of one object", Discard::new(engine.id, seed(1), &named));
        let id = ObjectId {
            key: key(first, CHAIN - 1),
            group: 0,
        };
        let held = self
            .core
            .retrieve(engine.id, &parts(seed(1), 0, 0, &[id]))
            .expect("a retrieve");
        let named = [self.read(&engine, first, 0)];
        self.measure(
            "discard of a chain of 2,048 that is pinned",
            Discard::new(engine.id, seed(1), &named),
        );
        self.core.release(engine.id, &[held.pin]).expect("its pin");
        let free = self.core.status().pool.free;
        let granted = self.measure(
            "grant that frees it from limbo",
            Grant::new(engine.id, free + FRAME_BYTES),
        );
        self.core.abort(engine.id, &granted).expect("its own");

        // Half of an engine of two ranks.
        let mut rank = self.engine(3, 2, 2);
        self.core.clear().expect("a clear");
        let begun = records / 4;
        let mut slices = Slices::default();
        self.fill(&rank, 2, begun, 64, &mut slices);
        self.rows
            .push(("commits of 8,192 parts of incomplete objects", slices));
        let mut slices = Slices::default();
        self.fill(&engine, 1, 1024, 64, &mut slices);
        self.rows.push(("commit of 1,024 objects beside them", slices));
        let registration = self.registration(2, 2);
        let again = self.peer(3);
        self.measure(
            "registration that ends 1/4 as many incomplete objects",
            Register::new(again.id, &registration),
        );
        self.ask_for_memory("2 KiB of memory after that");
        self.core.unregister(again.id).expect("a registration");
        let registration = self.registration(2, 2);
        self.core
            .register(rank.id, &registration)
            .expect("a registration");
        self.fill(&rank, 2, begun, CHAIN, &mut untold);
        rank.lock = None;
        self.measure(
            "death of a rank with as many, in chains of 2,048",
            ClientGone::new(rank.id),
        );
        self.ask_for_memory("2 KiB of memory after that death");
        self.fill(&engine, 1, records / 4, 64, &mut untold);
        let clear = Clear::new(&self.core);
        self.measure("clear of 1/4 as many objects", clear);
    }
}
