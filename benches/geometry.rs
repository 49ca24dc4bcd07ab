//! What a registration and a `kvasir plan` cost.
//!
//! * `plan/groups`: one JSON description in, one JSON answer out. Budget: 5 ms.
//! * `register/61-layers-6-groups`: everything that is computed when a worker registers: spans, sizes,
//!   checked pages and the fingerprint. Budget: 1 ms.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kvasir::cli::plan;
use kvasir::geometry::fingerprint::{FingerprintInput, GroupFingerprint, LayerFingerprint, fingerprint};
use kvasir::geometry::pages::{self, LayerPages, LayerTensor};
use kvasir::geometry::{GeometryInput, GroupKind, KvGroup, LayerSpec, RecurrentMode, chunk, resolve};

const LAYERS: u64 = 61;
const GROUPS: u64 = 6;
const BLOCK_TOKENS: u64 = 544;
const PAGE_BYTES: u64 = 1_114_112;
const BLOCKS: u64 = 1000;

/// Group of layer `layer`: five recurrent groups and one of full attention.
fn members(group: u64) -> impl Iterator<Item = u64> {
    (0..LAYERS).filter(move |layer| layer % GROUPS == group)
}

fn model() -> GeometryInput {
    let group = |group: u64| {
        let layers = members(group).map(|layer| LayerSpec {
            name: Some(format!("model.layers.{layer}")),
            ..LayerSpec::new(1, PAGE_BYTES, "bfloat16".parse().unwrap())
        });
        let kind = if group + 1 == GROUPS {
            GroupKind::FullAttention
        } else {
            GroupKind::Mamba
        };
        KvGroup {
            recurrent_mode: kind.is_recurrent().then_some(RecurrentMode::Align),
            ..KvGroup::new(kind, BLOCK_TOKENS, layers.collect())
        }
    };
    GeometryInput {
        dcp: 1,
        groups: (0..GROUPS).map(group).collect(),
    }
}

/// Tensors of one group: padded state pages, or attention in kernel pages of 16 tokens.
fn tensors(group: u64) -> Vec<LayerTensor> {
    let rows = if group + 1 == GROUPS { BLOCKS * 34 } else { BLOCKS };
    let describe = |slot: usize| LayerTensor {
        region: 0,
        offset: slot as u64 * BLOCKS * PAGE_BYTES,
        rows,
        row_stride: PAGE_BYTES / (rows / BLOCKS),
        page_bytes: PAGE_BYTES,
        declared: None,
    };
    (0..members(group).count()).map(describe).collect()
}

fn register(input: &GeometryInput, groups: &[Vec<LayerTensor>]) -> [u8; 32] {
    let resolved = resolve(input).unwrap();
    let size = chunk::resolve_chunk(resolved.required_alignment(), 256).unwrap();
    black_box(resolved.bind(size).unwrap());
    let region = LAYERS.div_ceil(GROUPS) * BLOCKS * PAGE_BYTES;
    let mut prints = Vec::new();
    for (group, layers) in resolved.groups().iter().zip(groups) {
        let place = |layer: &LayerTensor| layer.pages("layer", BLOCKS).unwrap();
        let placed: Vec<LayerPages> = layers.iter().map(place).collect();
        pages::check(&placed, &[region], BLOCKS, |index| format!("layer {index}")).unwrap();
        let layer = |layer: &LayerTensor| LayerFingerprint {
            page_size_bytes: layer.page_bytes,
            dtype: "bfloat16".into(),
            tokens_per_state: Some((1, 1)),
            edited_by: None,
            kernel_block_size: layer.kernel_pages(BLOCKS).map(|pages| BLOCK_TOKENS / pages),
        };
        prints.push(GroupFingerprint {
            kind: group.kind.to_string(),
            block_size: group.block_size,
            tokens_per_block: group.tokens_per_block,
            window: group.window,
            layers: layers.iter().map(layer).collect(),
        });
    }
    fingerprint(&FingerprintInput {
        layout: "LBNHC".into(),
        attention_backend: "FLASH_ATTN".into(),
        isa: String::new(),
        dcp: resolved.dcp(),
        groups: prints,
    })
    .unwrap()
}

fn benches(criterion: &mut Criterion) {
    let input = model();
    let groups: Vec<Vec<LayerTensor>> = (0..GROUPS).map(tensors).collect();
    criterion.bench_function("resolve/61-layers-6-groups", |bench| {
        bench.iter(|| resolve(black_box(&input)).unwrap())
    });
    criterion.bench_function("register/61-layers-6-groups", |bench| {
        bench.iter(|| register(black_box(&input), &groups));
    });

    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/geometry/groups.json");
    let cases: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases = cases["cases"].as_array().unwrap();
    let largest = cases
        .iter()
        .map(|case| case["input"].to_string())
        .max_by_key(String::len)
        .unwrap();
    criterion.bench_function("plan/groups", |bench| {
        bench.iter(|| plan::groups::answer(black_box(largest.as_bytes()), 256, None).unwrap());
    });
}

criterion_group!(geometry, benches);
criterion_main!(geometry);
