//! What does it cost to move KV between an engine's tensors and the pool?
//!
//! Walks arenas of 512 MiB on each side, so that every byte comes from and goes to memory, as KV does: a
//! contiguous 2 MiB object, one gathered from 64 KiB pages, and one gathered from 4 KiB pieces, both
//! scattered over the whole source; each without and with the checksum of the object. The ceiling to compare with is `copy_from_slice` of the same pieces.
//! The last lines are ratios of medians, taken alternately so that a busy machine disturbs all alike.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use kvasir::copy::{CopyEngine, CopyPlan, HostMemory, Span, SummedPlan};

use report::Report;

mod report;

const ARENA: usize = 512 << 20;
const OBJECT: usize = 2 << 20;
const SLOTS: usize = ARENA / OBJECT;
const METHODS: usize = 4;
const CASES: [(&str, usize); 3] = [
    ("contiguous_2MiB", OBJECT),
    ("gather_64KiB", 64 << 10),
    ("gather_4KiB", 4 << 10),
];

/// The same amount of memory twice: as slices, and as regions for the engine.
struct Arenas {
    slices: (Vec<u8>, Vec<u8>),
    regions: ([HostMemory; 1], [HostMemory; 1]),
}

impl Arenas {
    fn new() -> Self {
        let touched = || {
            let memory = HostMemory::zeroed(ARENA);
            let page = [0x5a; 1 << 16];
            (0..ARENA)
                .step_by(page.len())
                .for_each(|at| memory.write(at as u64, &page).expect("in bounds"));
            [memory]
        };
        Self {
            slices: (vec![0x5a; ARENA], vec![0xa5; ARENA]),
            regions: (touched(), touched()),
        }
    }
}

/// One copy, without and with a checksum.
struct Plan {
    plain: CopyPlan,
    summed: SummedPlan,
}

/// One plan per slot. The odd multiplier visits every piece of the source once, none near the one before.
fn plans(piece: usize) -> Vec<Plan> {
    let pieces = ARENA / piece;
    let stride = if piece == OBJECT { 1 } else { 0x9e37_79b1 };
    let place = |n: usize| (n * stride % pieces * piece) as u64;
    (0..SLOTS)
        .map(|slot| {
            let mut summed = SummedPlan::new();
            for i in 0..OBJECT / piece {
                let to = (slot * OBJECT + i * piece) as u64;
                let from = place(slot * (OBJECT / piece) + i);
                summed.push(Span::new(0, from), Some(Span::new(0, to)), piece as u64);
            }
            summed.end_part();
            let plain = summed.unsummed();
            Plan { plain, summed }
        })
        .collect()
}

/// What a plan is executed by.
#[derive(Clone, Copy)]
enum Method {
    CopyFromSlice,
    Engine(CopyEngine),
    Summed(CopyEngine),
}

impl Method {
    fn all() -> [(String, Self); METHODS] {
        let engine = |engine: CopyEngine| (engine.path().to_string(), Self::Engine(engine));
        [
            ("copy_from_slice".into(), Self::CopyFromSlice),
            engine(CopyEngine::portable()),
            engine(CopyEngine::detect()),
            ("with_checksum".into(), Self::Summed(CopyEngine::detect())),
        ]
    }

    fn run(self, arenas: &mut Arenas, plan: &Plan) {
        match self {
            Self::CopyFromSlice => {
                let (src, dst) = (&arenas.slices.0, &mut arenas.slices.1);
                for piece in plan.plain.pieces() {
                    let (from, to, len) = (
                        piece.src.offset as usize,
                        piece.dst.offset as usize,
                        piece.len as usize,
                    );
                    dst[to..to + len].copy_from_slice(&src[from..from + len]);
                }
            }
            Self::Engine(engine) => {
                engine
                    .execute(&plan.plain, &arenas.regions.0, &arenas.regions.1)
                    .expect("plan fits the arenas");
            }
            Self::Summed(engine) => {
                engine
                    .execute_summed(&plan.summed, &arenas.regions.0, &arenas.regions.1)
                    .expect("plan fits the arenas");
            }
        }
    }
}

fn criterion_suite(arenas: &mut Arenas) {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("copy");
    group.throughput(Throughput::Bytes(OBJECT as u64));
    for (case, piece) in CASES {
        let plans = plans(piece);
        for (name, method) in Method::all() {
            let mut slots = plans.iter().cycle();
            group.bench_function(BenchmarkId::new(name, case), |b| {
                b.iter(|| method.run(arenas, slots.next().expect("a cycle does not end")));
            });
        }
    }
    group.finish();
    criterion.final_summary();
}

fn gigabytes_per_second(rounds: Vec<Duration>) -> f64 {
    OBJECT as f64 / report::median(rounds) / 1e9
}

fn ratios(arenas: &mut Arenas, report: &mut Report) {
    println!(
        "\nGB/s, medians of {} alternating 2 MiB objects over 512 MiB arenas",
        3 * SLOTS
    );
    for (case, piece) in CASES {
        let plans = plans(piece);
        let methods = Method::all();
        let mut times = [const { Vec::new() }; METHODS];
        for round in 0..3 * SLOTS {
            for (index, ((_, method), times)) in methods.iter().zip(&mut times).enumerate() {
                // Methods stay a quarter of the arena apart: none finds what another has just touched.
                let plan = &plans[(round + index * SLOTS / METHODS) % SLOTS];
                let start = Instant::now();
                method.run(arenas, plan);
                times.push(start.elapsed());
            }
        }
        let rates = times.map(gigabytes_per_second);
        for ((name, _), rate) in methods.iter().zip(rates) {
            report.figure(format!("{case}/{name}"), rate, "GB/s");
            let ratio = report.ratio(format!("{case}/{name} of copy_from_slice"), rate, rates[0]);
            println!("{case:>16} {name:>16}: {rate:>6.2} GB/s, ratio {ratio:.2}");
        }
    }
}

fn main() {
    let mut arenas = Arenas::new();
    criterion_suite(&mut arenas);
    let mut report = Report::new("copy");
    if report.is_wanted() {
        ratios(&mut arenas, &mut report);
    }
    report.finish();
}
