//! What does a gather of small pieces cost, such as the pages of a model with few heads or a layout by heads?
//!
//! One object of 2 MiB is gathered from pieces that lie scattered over 256 MiB: plain, with its checksum, and by a loop of
//! `copy_from_slice`, in turn. Sizes that are no multiple of a vector's or a cache line's are among them.

use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput};
use kvasir::copy::{CopyEngine, CopyPlan, HostMemory, Span, SummedPlan};

use report::{Report, median};

mod report;

const ARENA: usize = 256 << 20;
const OBJECT: usize = 2 << 20;
const PIECES: [usize; 5] = [656, 1 << 10, 4 << 10, 8 << 10, 16 << 10];
/// Objects that are gathered from other places, so that each is cold.
const OBJECTS: usize = 64;

/// Where the pieces of an object come from; they go to one place after the other.
struct Gather {
    piece: usize,
    from: Vec<usize>,
    to: usize,
}

impl Gather {
    fn new(piece: usize, object: usize) -> Self {
        let places = ARENA / piece;
        let count = OBJECT / piece;
        // The odd multiplier visits every place, none near the one before.
        let place = |i: usize| (object * count + i) * 0x9e37_79b1 % places * piece;
        Self {
            piece,
            from: (0..count).map(place).collect(),
            to: object * OBJECT,
        }
    }

    fn spans(&self) -> impl Iterator<Item = (Span, Span)> {
        let to = |i: usize| Span::new(0, (self.to + i * self.piece) as u64);
        let from = self.from.iter().enumerate();
        from.map(move |(i, from)| (Span::new(0, *from as u64), to(i)))
    }
}

struct Arenas {
    slices: (Vec<u8>, Vec<u8>),
    source: [HostMemory; 1],
    target: [HostMemory; 1],
}

#[derive(Clone, Copy)]
enum Method {
    Slices,
    Plain,
    Summed,
}

const METHODS: [(&str, Method); 3] = [
    ("copy_from_slice", Method::Slices),
    ("plain", Method::Plain),
    ("with_checksum", Method::Summed),
];

impl Arenas {
    fn new() -> Self {
        let touched = |byte: u8| {
            let memory = HostMemory::zeroed(ARENA);
            let page = vec![byte; 1 << 20];
            for at in (0..ARENA).step_by(page.len()) {
                memory.write(at as u64, &page).expect("in bounds");
            }
            [memory]
        };
        Self {
            slices: (vec![1; ARENA], vec![2; ARENA]),
            source: touched(3),
            target: touched(4),
        }
    }

    /// The whole path of an object: the plan is made anew, as for each store.
    fn run(&mut self, gather: &Gather, method: Method) {
        let length = gather.piece as u64;
        match method {
            Method::Slices => {
                let (source, target) = &mut self.slices;
                for (i, from) in gather.from.iter().enumerate() {
                    let to = gather.to + i * gather.piece;
                    target[to..to + gather.piece].copy_from_slice(&source[*from..from + gather.piece]);
                }
            }
            Method::Plain => {
                let mut plan = CopyPlan::new();
                gather.spans().for_each(|(from, to)| plan.push(from, to, length));
                CopyEngine::detect()
                    .execute(&plan, &self.source, &self.target)
                    .expect("it fits");
            }
            Method::Summed => {
                let mut plan = SummedPlan::new();
                gather
                    .spans()
                    .for_each(|(from, to)| plan.push(from, Some(to), length));
                plan.end_part();
                CopyEngine::detect()
                    .execute_summed(&plan, &self.source, &self.target)
                    .expect("it fits");
            }
        }
    }
}

fn ratios(arenas: &mut Arenas, piece: usize, gathers: &[Gather], report: &mut Report) {
    let mut times = [const { vec![] }; METHODS.len()];
    let rounds = if std::env::var_os("BENCH_QUICK").is_some() {
        1
    } else {
        5
    };
    for round in 0..rounds * OBJECTS {
        for (number, ((_, method), times)) in METHODS.iter().zip(&mut times).enumerate() {
            // None finds what another has just touched.
            let gather = &gathers[(round + number * OBJECTS / METHODS.len()) % OBJECTS];
            let begin = Instant::now();
            arenas.run(gather, *method);
            times.push(begin.elapsed());
        }
    }
    let bytes = (OBJECT / piece * piece) as f64;
    let [slices, plain, summed] = times.map(|times| bytes / median(times) / 1e9);
    for (name, rate) in [
        ("copy_from_slice", slices),
        ("plain", plain),
        ("with_checksum", summed),
    ] {
        report.figure(format!("{piece} B/{name}"), rate, "GB/s");
    }
    let plain = report.ratio(format!("{piece} B/plain of copy_from_slice"), plain, slices);
    let summed = report.ratio(
        format!("{piece} B/with_checksum of copy_from_slice"),
        summed,
        slices,
    );
    println!(
        "pieces of {piece:>5} B: copy_from_slice {slices:.2} GB/s; plain {plain:.2} of it, with checksum {summed:.2}"
    );
}

fn main() {
    let mut arenas = Arenas::new();
    let mut criterion = Criterion::default().configure_from_args();
    let mut report = Report::new("gather");
    for piece in PIECES {
        let gathers: Vec<Gather> = (0..OBJECTS).map(|object| Gather::new(piece, object)).collect();
        let mut group = criterion.benchmark_group("gather");
        group.throughput(Throughput::Bytes((OBJECT / piece * piece) as u64));
        for (name, method) in METHODS {
            let mut next = gathers.iter().cycle();
            group.bench_function(BenchmarkId::new(name, piece), |bencher| {
                bencher.iter(|| arenas.run(next.next().expect("a cycle does not end"), method));
            });
        }
        group.finish();
        if report.is_wanted() {
            ratios(&mut arenas, piece, &gathers, &mut report);
        }
    }
    criterion.final_summary();
    report.finish();
}
