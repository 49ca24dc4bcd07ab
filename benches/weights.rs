//! What does it cost to know what a set of weights is?
//!
//! A first start reads and hashes every byte, with one thread and with several, from the page cache: a disk that is
//! slower than that decides by itself. A second start looks at the inodes of a model of 200 files and at what is
//! remembered of each. The last line compares reading and hashing with reading alone, in the same run.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use kvasir::keys::{WeightsOptions, identify_weights, weights_stamp};
use report::Report;

mod report;

const SHARD_BYTES: usize = 512 << 20;
const FILES: usize = 200;

/// A file whose bytes are not alike, so that nothing is a hole.
fn shard(path: &Path, bytes: usize) {
    let mut block = vec![0u8; 1 << 20];
    let mut output = blake3::Hasher::new_derive_key("bench shard").finalize_xof();
    let mut file = File::create(path).expect("a file");
    for _ in 0..bytes.div_ceil(block.len()) {
        output.fill(&mut block);
        file.write_all(&block).expect("space for the shard");
    }
}

fn identify(dir: &Path, cache_dir: Option<&Path>, threads: usize) -> u64 {
    let options = WeightsOptions {
        cache_dir: cache_dir.map(Path::to_path_buf),
        threads,
        ..WeightsOptions::default()
    };
    let found = identify_weights(dir, &options, &AtomicBool::new(false)).expect("an identity");
    found.bytes_read
}

fn first_start(c: &mut Criterion, dir: &Path) {
    let mut group = c.benchmark_group("weights/first_start");
    group.throughput(Throughput::Bytes(SHARD_BYTES as u64));
    for threads in [1, 2, 4] {
        group.bench_function(BenchmarkId::new("threads", threads), |b| {
            b.iter(|| assert_eq!(identify(black_box(dir), None, threads), SHARD_BYTES as u64));
        });
    }
}

fn second_start(c: &mut Criterion, dir: &Path, cache_dir: &Path) {
    assert!(identify(dir, Some(cache_dir), 0) > 0, "the first start reads");
    let mut group = c.benchmark_group("weights/second_start");
    group.bench_function(BenchmarkId::new("files", FILES), |b| {
        b.iter(|| assert_eq!(identify(black_box(dir), Some(cache_dir), 0), 0));
    });
    group.bench_function(BenchmarkId::new("stamp", FILES), |b| {
        b.iter(|| weights_stamp(black_box(dir)).expect("a stamp"));
    });
}

/// Reading alone and reading with hashing, in turns; the best of each.
fn ratio(report: &mut Report, dir: &Path) {
    let path = dir.join("model.safetensors");
    let (mut read, mut hashed) = (Duration::MAX, Duration::MAX);
    let mut buffer = vec![0u8; 1 << 20];
    for _ in 0..5 {
        let started = Instant::now();
        let mut file = File::open(&path).expect("the shard");
        while file.read(&mut buffer).expect("bytes") > 0 {
            black_box(&buffer);
        }
        read = read.min(started.elapsed());
        let started = Instant::now();
        identify(dir, None, 1);
        hashed = hashed.min(started.elapsed());
    }
    let rate = |time: Duration| SHARD_BYTES as f64 / time.as_secs_f64() / 1e9;
    report.figure("one thread/reading", rate(read), "GB/s");
    report.figure("one thread/reading and hashing", rate(hashed), "GB/s");
    let ratio = report.ratio(
        "one thread/reading and hashing of reading",
        hashed.as_secs_f64(),
        read.as_secs_f64(),
    );
    println!(
        "one thread: reading {:.2} GB/s, reading and hashing {:.2} GB/s, {ratio:.2} times the time",
        rate(read),
        rate(hashed),
    );
}

fn main() {
    let place = tempfile::tempdir().expect("a directory");
    let (large, many, cache) = (
        place.path().join("large"),
        place.path().join("many"),
        place.path().join("cache"),
    );
    for dir in [&large, &many] {
        fs::create_dir(dir).expect("a directory");
    }
    shard(&large.join("model.safetensors"), SHARD_BYTES);
    for number in 0..FILES {
        shard(&many.join(format!("model-{number:05}.safetensors")), 1 << 20);
    }
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    first_start(&mut criterion, &large);
    second_start(&mut criterion, &many, &cache);
    criterion.final_summary();
    let mut report = Report::new("weights");
    if report.is_wanted() {
        ratio(&mut report, &large);
    }
    report.finish();
}
