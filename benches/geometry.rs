//! What a registration and a `kvasir plan` cost.
//!
//! * `plan/groups`: one JSON description in, one JSON answer out. Budget: 5 ms.
//! * `register/61-layers-6-groups`: everything the server computes when a worker registers: spans, sizes, page
//!   views, checked layouts and the fingerprint. Budget: 1 ms.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kvasir::cli::plan;
use kvasir::geometry::fingerprint::{FingerprintInput, GroupFingerprint, LayerFingerprint, fingerprint};
use kvasir::geometry::layout::{GroupLayout, LayerPlacement};
use kvasir::geometry::view::{LayerTensors, Registry, StorageId, TensorDesc};
use kvasir::geometry::{
    GeometryInput, GroupKind, KvGroup, LayerSpec, RecurrentMode, ResolvedGeometry, chunk, resolve,
};

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
fn tensors(resolved: &ResolvedGeometry, group: u64) -> Vec<LayerTensors> {
    let kind = resolved.groups()[group as usize].kind;
    let per_storage = LAYERS.div_ceil(GROUPS);
    let storage_bytes = per_storage * BLOCKS * PAGE_BYTES;
    let describe = |(slot, layer): (usize, u64)| {
        let (shape, strides) = if kind.is_recurrent() {
            (
                vec![BLOCKS, 1, 1, 1_000_000],
                vec![PAGE_BYTES, 1_000_000, 1_000_000, 1],
            )
        } else {
            let kernel_page = PAGE_BYTES / 34;
            (
                vec![BLOCKS * 34, 2, kernel_page / 2],
                vec![kernel_page, kernel_page / 2, 1],
            )
        };
        let tensor = TensorDesc {
            storage: StorageId(0),
            storage_bytes,
            offset: slot as u64 * BLOCKS * PAGE_BYTES,
            shape,
            strides,
            itemsize: 1,
            block_dim: 0,
        };
        LayerTensors {
            layer: format!("model.layers.{layer}"),
            kind,
            block_size: BLOCK_TOKENS,
            num_blocks: BLOCKS,
            page_size_bytes: PAGE_BYTES,
            real_page_bytes: None,
            tokens_per_state: None,
            tensors: vec![tensor],
        }
    };
    members(group).enumerate().map(describe).collect()
}

fn register(input: &GeometryInput, groups: &[Vec<LayerTensors>], registry: &Registry) -> [u8; 32] {
    let resolved = resolve(input).unwrap();
    let size = chunk::resolve_chunk(resolved.required_alignment(), 256).unwrap();
    black_box(resolved.bind(size).unwrap());
    let mut prints = Vec::new();
    for (group, layers) in resolved.groups().iter().zip(groups) {
        let views: Vec<_> = layers
            .iter()
            .map(|layer| registry.view(layer, resolved.has_recurrent()).unwrap())
            .collect();
        let placements: Vec<LayerPlacement> = views.iter().map(LayerPlacement::from).collect();
        black_box(GroupLayout::new(&placements, BLOCKS).unwrap());
        let layer = |view: &kvasir::geometry::view::PageView| LayerFingerprint {
            page_size_bytes: view.page_bytes,
            dtype: "bfloat16".into(),
            tokens_per_state: Some((1, 1)),
            edited_by: view.edited.then(|| view.rule.to_owned()),
            kernel_block_size: Some(view.kernel_block_size),
        };
        prints.push(GroupFingerprint {
            kind: group.kind.to_string(),
            block_size: group.block_size,
            tokens_per_block: group.tokens_per_block,
            window: group.window,
            layers: views.iter().map(layer).collect(),
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
    let resolved = resolve(&input).unwrap();
    let groups: Vec<Vec<LayerTensors>> = (0..GROUPS).map(|group| tensors(&resolved, group)).collect();
    let registry = Registry::default();
    criterion.bench_function("resolve/61-layers-6-groups", |bench| {
        bench.iter(|| resolve(black_box(&input)).unwrap())
    });
    criterion.bench_function("register/61-layers-6-groups", |bench| {
        bench.iter(|| register(black_box(&input), &groups, &registry));
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
