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
const CASES: [(&str, usize); 4] = [
    ("contiguous_2MiB", OBJECT),
    ("gather_64KiB", 64 << 10),
    ("gather_16KiB", 16 << 10),
    ("gather_4KiB", 4 << 10),
];
/// Ways to copy without a checksum; those that this machine cannot are left out.
const PLAIN: [&str; 4] = [
    "portable",
    "avx2-4x512+portable",
    "avx2-8x64+portable",
    "avx2-ahead8+portable",
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
    fn all() -> Vec<(String, Self)> {
        let detected = CopyEngine::detect();
        println!("this machine copies by {detected}");
        let plains = PLAIN.map(|name| CopyEngine::on(name.parse().expect("a name")));
        let plain = |engine: CopyEngine| {
            let path = engine.path().to_string();
            let name = path.split('+').next().unwrap_or_default().to_owned();
            (name, Self::Engine(engine))
        };
        let mut all = vec![("copy_from_slice".into(), Self::CopyFromSlice)];
        all.extend(plains.into_iter().flatten().map(plain));
        all.push(("with_checksum".into(), Self::Summed(detected)));
        all
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
    let methods = Method::all();
    for (case, piece) in CASES {
        let plans = plans(piece);
        let mut times = vec![Vec::new(); methods.len()];
        for round in 0..3 * SLOTS {
            for (index, ((_, method), times)) in methods.iter().zip(&mut times).enumerate() {
                // Methods stay a part of the arena apart: none finds what another has just touched.
                let plan = &plans[(round + index * SLOTS / methods.len()) % SLOTS];
                let start = Instant::now();
                method.run(arenas, plan);
                times.push(start.elapsed());
            }
        }
        let rates: Vec<f64> = times.into_iter().map(gigabytes_per_second).collect();
        for ((name, _), &rate) in methods.iter().zip(&rates) {
            report.figure(format!("{case}/{name}"), rate, "GB/s");
            let ratio = report.ratio(format!("{case}/{name} of copy_from_slice"), rate, rates[0]);
            println!("{case:>16} {name:>16}: {rate:>6.2} GB/s, ratio {ratio:.2}");
        }
        let (summed, plain) = rates.split_last().expect("there are methods");
        let best = plain.iter().copied().fold(0.0, f64::max);
        let ratio = report.ratio(
            format!("{case}/with_checksum of the best plain copy"),
            *summed,
            best,
        );
        println!("{case:>16} with checksum, of the best plain copy: {ratio:.2}");
    }
}

/// What the bytes of a 32 MiB object cost in time of processors and of the clock, by one thread and by two.
fn threads(arenas: &Arenas, report: &mut Report) {
    const LARGE: usize = 32 << 20;
    let mut plans = Vec::new();
    for object in 0..ARENA / LARGE {
        let mut plan = SummedPlan::new();
        for page in 0..LARGE >> 16 {
            let to = (object * LARGE + (page << 16)) as u64;
            let from = (((to >> 16) * 0x9e37_79b1) % (ARENA as u64 >> 16)) << 16;
            plan.push(Span::new(0, from), Some(Span::new(0, to)), 1 << 16);
        }
        plan.end_part();
        plans.push(plan);
    }
    let (mut clock, mut processors) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for round in 0..3 * plans.len() {
        for count in [1, 2] {
            let engine = CopyEngine::detect().with_threads(count);
            let plan = &plans[(round + count * plans.len() / 2) % plans.len()];
            let (start, used) = (Instant::now(), processor_time());
            engine
                .execute_summed(plan, &arenas.regions.0, &arenas.regions.1)
                .expect("plan fits the arenas");
            processors[count - 1].push(processor_time() - used);
            clock[count - 1].push(start.elapsed());
        }
    }
    let [one, two] = clock.map(report::median);
    let time = report.ratio("32MiB/time by two threads of one", two, one);
    let [one, two] = processors.map(report::median);
    let cost = report.ratio("32MiB/cost by two threads of one", two, one);
    println!("32 MiB with checksum, two threads of one: time {time:.2}, processors' time {cost:.2}");
}

/// Of all threads of this process.
fn processor_time() -> Duration {
    let clock = nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID;
    nix::time::clock_gettime(clock).expect("a clock").into()
}

fn main() {
    let mut arenas = Arenas::new();
    criterion_suite(&mut arenas);
    let mut report = Report::new("copy");
    if report.is_wanted() {
        ratios(&mut arenas, &mut report);
        threads(&arenas, &mut report);
    }
    report.finish();
}
