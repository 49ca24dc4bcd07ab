//! What does it cost to name the chunks of a prompt?
//!
//! Compares `blake3::hash` leaf by leaf with the leaves of several chunks in the lanes of the vector unit,
//! for 512 chunks of each size, and shows the whole key chain and the probes of one tail beside them. The
//! last lines are ratios of the fastest rounds, taken alternately: CPU-bound work is only ever slowed down by
//! the rest of the machine.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use kvasir::keys::leaves::hash_leaves;
use kvasir::keys::{ChunkKey, Extras, KeyChain};

use report::Report;

mod report;

const CHUNKS: usize = 512;
const CHUNK_TOKENS: [u32; 9] = [16, 256, 544, 640, 1001, 1088, 2032, 2048, 4096];
const SEED: ChunkKey = ChunkKey::from_bytes([7; 32]);

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) % 151_936)
        .collect()
}

fn leaf_bytes(chunk_tokens: u32) -> Vec<u8> {
    tokens(chunk_tokens as usize * CHUNKS)
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect()
}

fn leaf_by_leaf(bytes: &[u8], leaf_len: usize, out: &mut Vec<[u8; 32]>) {
    out.extend(
        bytes
            .chunks_exact(leaf_len)
            .map(|leaf| *blake3::hash(leaf).as_bytes()),
    );
}

fn chain(tokens: &[u32], chunk_tokens: u32) -> KeyChain {
    let mut chain = KeyChain::new(SEED, chunk_tokens, Extras::default()).expect("valid chain");
    chain.extend(tokens);
    chain
}

fn leaves(c: &mut Criterion) {
    let mut group = c.benchmark_group("hash/leaves");
    for chunk_tokens in CHUNK_TOKENS {
        let (bytes, leaf_len) = (leaf_bytes(chunk_tokens), chunk_tokens as usize * 4);
        let mut out = Vec::with_capacity(CHUNKS);
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(BenchmarkId::new("leaf_by_leaf", chunk_tokens), |b| {
            b.iter(|| {
                out.clear();
                leaf_by_leaf(black_box(&bytes), leaf_len, &mut out);
            });
        });
        group.bench_function(BenchmarkId::new("lanes", chunk_tokens), |b| {
            b.iter(|| {
                out.clear();
                hash_leaves(black_box(&bytes), leaf_len, &mut out);
            });
        });
    }
    group.finish();
}

fn chains(c: &mut Criterion) {
    let mut group = c.benchmark_group("hash/chain");
    for chunk_tokens in CHUNK_TOKENS {
        let tokens = tokens(chunk_tokens as usize * CHUNKS);
        group.throughput(Throughput::Elements(CHUNKS as u64));
        group.bench_function(BenchmarkId::new("extend", chunk_tokens), |b| {
            b.iter(|| chain(black_box(&tokens), chunk_tokens));
        });
    }
    group.finish();
    let tail = chain(&tokens(544 + 543), 544);
    c.bench_function("hash/tail_keys/544_by_32", |b| {
        b.iter(|| black_box(&tail).tail_keys(32))
    });
}

/// Seconds of the round that a busy machine disturbed least.
fn fastest(rounds: &[Duration]) -> f64 {
    rounds.iter().min().expect("at least one round").as_secs_f64()
}

fn ratios(report: &mut Report) {
    println!("\nlanes against leaf by leaf, {CHUNKS} chunks, fastest of 101 alternating rounds");
    for chunk_tokens in CHUNK_TOKENS {
        let (bytes, leaf_len) = (leaf_bytes(chunk_tokens), chunk_tokens as usize * 4);
        let mut out = Vec::with_capacity(CHUNKS);
        let (mut plain, mut lanes) = (Vec::new(), Vec::new());
        for _ in 0..101 {
            out.clear();
            let start = Instant::now();
            leaf_by_leaf(black_box(&bytes), leaf_len, &mut out);
            plain.push(start.elapsed());
            out.clear();
            let start = Instant::now();
            hash_leaves(black_box(&bytes), leaf_len, &mut out);
            lanes.push(start.elapsed());
        }
        let (plain, lanes) = (fastest(&plain), fastest(&lanes));
        report.figure(format!("{chunk_tokens} tokens/leaf by leaf"), plain * 1e6, "us");
        report.figure(format!("{chunk_tokens} tokens/lanes"), lanes * 1e6, "us");
        let ratio = report.ratio(
            format!("{chunk_tokens} tokens/leaf by leaf of lanes"),
            plain,
            lanes,
        );
        println!(
            "{chunk_tokens:>5} tokens: {:>7.1} us plain, {:>7.1} us lanes, ratio {ratio:.2}",
            plain * 1e6,
            lanes * 1e6
        );
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    leaves(&mut criterion);
    chains(&mut criterion);
    criterion.final_summary();
    let mut report = Report::new("hash");
    if report.is_wanted() {
        ratios(&mut report);
    }
    report.finish();
}
