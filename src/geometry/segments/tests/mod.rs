//! Segments, padding and commits beyond the recorded cases.

use proptest::prelude::*;

use super::*;
use crate::geometry::pages::{self, LayerPages};

const GRANULE: u64 = 2 << 20;

fn tensor(n_layers: u64, offset: u64, layer_stride: u64, block_stride: u64) -> TensorPlacement {
    TensorPlacement {
        n_layers,
        offset,
        layer_stride,
        block_stride,
        heads: None,
    }
}

fn input(layout: &str, blocks: u64, total_bytes: u64, tensors: &[TensorPlacement]) -> SegmentInput {
    SegmentInput {
        layout: layout.parse().unwrap(),
        granule: GRANULE,
        blocks,
        total_bytes,
        tensors: tensors.to_vec(),
    }
}

/// Dense layers of `page` bytes.
fn layers(n_layers: u64, page: u64, blocks: u64) -> SegmentInput {
    input(
        "LBHNC",
        blocks,
        n_layers * page * blocks,
        &[tensor(n_layers, 0, page * blocks, page)],
    )
}

fn offsets(placement: &Placement) -> Vec<u64> {
    placement.segments.iter().map(|segment| segment.offset).collect()
}

#[test]
fn the_block_count_is_never_rounded() {
    for (blocks, rounded) in [(102, 0), (1331, 1024)] {
        let plan = SegmentPlan::new(&layers(28, 20_480, blocks), true).unwrap();
        assert_eq!(plan.block_alignment(), 512);
        assert_eq!(blocks / plan.block_alignment() * plan.block_alignment(), rounded);
        assert_eq!(plan.blocks(), blocks);
        let commit = plan.commit(blocks);
        assert_eq!(
            (commit.blocks, commit.nominal_bytes),
            (blocks, 28 * 20_480 * blocks)
        );
        assert!(commit.padded_every_segment_one_chunk && !commit.every_segment_one_chunk);
    }
    let plan = SegmentPlan::new(&layers(4, 65_536, 19_254), true).unwrap();
    assert_eq!(
        plan.blocks() / plan.block_alignment() * plan.block_alignment(),
        19_232
    );
    assert_eq!(plan.commit(19_254).blocks, 19_254);
}

#[test]
fn committing_more_than_the_capacity_commits_the_capacity() {
    let plan = SegmentPlan::new(&layers(2, 8192, 10), true).unwrap();
    assert_eq!(plan.commit(u64::MAX), plan.commit(10));
    let nothing = plan.commit(0);
    assert_eq!((nothing.nominal_bytes, nothing.padded_physical_bytes), (0, 0));
    assert!(nothing.every_segment_one_chunk && nothing.padded_every_segment_one_chunk);
}

#[test]
fn mixed_strides_get_regions_of_their_own() {
    // 41984-byte latent rows and 8448-byte indexer pages, layer regions one after the other.
    let blocks = 3000;
    let (rows, index) = (41_984 * blocks, 8448 * blocks);
    let tensors = [tensor(3, 0, rows, 41_984), tensor(3, 3 * rows, index, 8448)];
    let plan = SegmentPlan::new(&input("LBNHC", blocks, 3 * (rows + index), &tensors), true).unwrap();
    assert_eq!(plan.block_alignment(), 8192);
    assert_eq!(
        offsets(plan.plain()),
        [
            0,
            rows,
            2 * rows,
            3 * rows,
            3 * rows + index,
            3 * rows + 2 * index
        ]
    );
    let up = |bytes: u64| bytes.next_multiple_of(GRANULE);
    assert_eq!(offsets(plan.padded())[3], 3 * up(rows));
    assert_eq!(plan.padded().total_bytes, 3 * (up(rows) + up(index)));
    let commit = plan.commit(7);
    assert_eq!(commit.nominal_bytes, 7 * 3 * (41_984 + 8448));
    assert_eq!(commit.padded_physical_bytes, 6 * GRANULE);
}

#[test]
fn narrower_groups_overlay_a_prefix() {
    let blocks = 100;
    let region = 65_536 * blocks;
    let tensors = [
        tensor(2, 0, region, 65_536),
        tensor(4, 0, region, 65_536),
        tensor(1, region, 0, 65_536),
    ];
    let plan = SegmentPlan::new(&input("LBHNC", blocks, 4 * region, &tensors), true).unwrap();
    assert_eq!(offsets(plan.plain()), [0, region, 2 * region, 3 * region]);
}

#[test]
fn a_padded_placement_is_its_own_padding() {
    // Three layers of eight 8 KiB blocks, each layer padded to a granule: three segments, not 96 head slices.
    let padded = input("LBHNC", 8, 3 * GRANULE, &[tensor(3, 0, GRANULE, 8192)]);
    let plan = SegmentPlan::new(&padded, true).unwrap();
    assert_eq!(offsets(plan.plain()), [0, GRANULE, 2 * GRANULE]);
    assert_eq!(plan.padded(), plan.plain());
    assert_eq!(plan.padded().total_bytes, 3 * GRANULE);
    assert!(plan.commit(8).every_segment_one_chunk);
    assert_eq!(plan.commit(8).nominal_bytes, 3 * 8 * 8192);
}

#[test]
fn padded_head_slices_must_be_said() {
    // Two heads of 8 x 4096 bytes. Dense, the layer stride tells; padded to granules it would look like 128
    // heads.
    let slice = 8 * 4096;
    let dense = input("LHBNC", 8, 2 * 2 * slice, &[tensor(2, 0, 2 * slice, 4096)]);
    let plan = SegmentPlan::new(&dense, true).unwrap();
    assert_eq!(offsets(plan.plain()), [0, slice, 2 * slice, 3 * slice]);
    assert_eq!(offsets(plan.padded()), [0, GRANULE, 2 * GRANULE, 3 * GRANULE]);
    let refused = plan.layout().require_block_compact().unwrap_err();
    assert!(refused.to_string().contains("layout LHBNC"), "{refused}");
    assert_eq!(Layout::Blhnc.require_block_compact(), Ok(()));

    let heads = Some(HeadSlices {
        count: 2,
        stride: GRANULE,
    });
    let said = TensorPlacement {
        heads,
        ..tensor(2, 0, 2 * GRANULE, 4096)
    };
    let again = SegmentPlan::new(&input("LHBNC", 8, 4 * GRANULE, &[said]), true).unwrap();
    assert_eq!(again.plain(), plan.padded());
    assert_eq!(again.padded(), plan.padded());

    let cut = input("LHBNC", 8, 4 * GRANULE, &[tensor(2, 0, 2 * slice + 1, 4096)]);
    assert!(matches!(
        SegmentPlan::new(&cut, true),
        Err(SegmentError::HeadsNotWhole { tensor: 0, .. })
    ));
    let heads = Some(HeadSlices {
        count: 2,
        stride: slice - 1,
    });
    let close = TensorPlacement { heads, ..said };
    assert!(matches!(
        SegmentPlan::new(&input("LHBNC", 8, 4 * GRANULE, &[close]), true),
        Err(SegmentError::HeadsDoNotFit { count: 2, .. })
    ));
    let heads = Some(HeadSlices {
        count: 3,
        stride: GRANULE,
    });
    let out = TensorPlacement { heads, ..said };
    assert!(matches!(
        SegmentPlan::new(&input("LHBNC", 8, 4 * GRANULE, &[out]), true),
        Err(SegmentError::HeadsDoNotFit { count: 3, .. })
    ));
}

#[test]
fn without_registration_nothing_changes() {
    let plan = SegmentPlan::new(&layers(28, 20_480, 102), false).unwrap();
    assert_eq!(plan.padded(), plan.plain());
    assert_eq!(plan.padded().total_bytes, 28 * 20_480 * 102);
    // Neighbours share border granules, each mapped once.
    assert_eq!(
        plan.commit(102).padded_physical_bytes,
        (28 * 20_480 * 102_u64).next_multiple_of(GRANULE)
    );
}

#[test]
fn the_scheduler_never_sees_padding() {
    let plan = SegmentPlan::new(&layers(28, 20_480, 102), true).unwrap();
    assert_eq!(plan.placement(Role::Scheduler).total_bytes, 28 * 20_480 * 102);
    assert_eq!(plan.placement(Role::Worker).total_bytes, 58_720_256);
}

#[test]
fn commits_and_pages_agree_on_a_padded_reservation() {
    let (page, committed) = (20_480, 77);
    let plan = SegmentPlan::new(&layers(28, page, 102), true).unwrap();
    let segments = &plan.padded().segments;
    let layer = |region: usize, offset: u64, block_stride: u64| LayerPages {
        region: region as u16,
        offset,
        block_stride,
        page_bytes: page,
    };
    // One reservation, and the same pages once every layer has a region of exactly its committed bytes.
    let place = |segment: &Segment| layer(0, segment.offset, segment.block_stride);
    let whole: Vec<LayerPages> = segments.iter().map(place).collect();
    let own: Vec<LayerPages> = (0..28)
        .map(|index| layer(index, 0, segments[index].block_stride))
        .collect();
    let name = |index| format!("layer {index}");
    pages::check(&whole, &[plan.padded().total_bytes], committed, name).unwrap();
    pages::check(&own, &[committed * page; 28], committed, name).unwrap();
    pages::check(&own, &[committed * page; 28], committed + 1, name).unwrap_err();
    assert_eq!(28 * page * committed, plan.commit(committed).nominal_bytes);
    for (pages, segment) in whole.iter().zip(segments) {
        // Every page lies in the granules that the commit mapped for its own segment.
        let mapped = segment.offset + (committed * page).next_multiple_of(GRANULE);
        assert!(pages.offset + (committed - 1) * pages.block_stride + page <= mapped);
    }
}

#[test]
fn bad_placements_are_typed() {
    let plan = |layout, blocks, total, tensors: &[TensorPlacement]| {
        SegmentPlan::new(&input(layout, blocks, total, tensors), true).unwrap_err()
    };
    let good = tensor(2, 0, 81_920, 8192);
    assert_eq!(plan("LBNHC", 0, 163_840, &[good]), SegmentError::ZeroBlocks);
    assert_eq!(plan("LBNHC", 10, 163_840, &[]), SegmentError::NoTensors);
    let no_granule = SegmentInput {
        granule: 0,
        ..input("LBNHC", 10, 163_840, &[good])
    };
    assert_eq!(
        SegmentPlan::new(&no_granule, true),
        Err(SegmentError::ZeroGranule)
    );
    assert_eq!(plan("LBNHC", 10, 163_840, &[tensor(0, 0, 1, 1)]).kind(), "zero");
    assert!(matches!(
        plan("LBNHC", 11, 163_840, &[good]),
        SegmentError::LayersOverlap {
            layer_bytes: 90_112,
            ..
        }
    ));
    assert!(matches!(
        plan("LBNHC", 10, 163_839, &[good]),
        SegmentError::OutsideReservation { offset: 81_920, .. }
    ));
    let shifted = tensor(1, 8192, 0, 8192);
    assert!(matches!(
        plan("LBNHC", 10, 163_840, &[good, shifted]),
        SegmentError::RegionsOverlap {
            offset: 8192,
            other_offset: 0,
            ..
        }
    ));
    let other_stride = tensor(1, 0, 0, 4096);
    assert!(matches!(
        plan("LBNHC", 10, 163_840, &[good, other_stride]),
        SegmentError::RegionsOverlap { .. }
    ));
    let blocks_differ = [tensor(2, 0, 8192, 16_384), tensor(2, 0, 8192, 16_385)];
    assert!(matches!(
        plan("BLNHC", 10, 200_000, &blocks_differ),
        SegmentError::BlockStrideDiffers {
            tensor: 1,
            expected: 16_384,
            found: 16_385,
            ..
        }
    ));
    assert!(matches!(
        plan("BLNHC", 10, 200_000, &[tensor(3, 0, 8192, 16_384)]),
        SegmentError::OutsideBlock { last: 16_384, .. }
    ));
    let many = tensor(u64::MAX, 0, 8192, 1);
    assert_eq!(plan("LBNHC", 1, u64::MAX, &[many]), SegmentError::TooManySegments);
    let far = tensor(3, 0, u64::MAX / 2 + 1, 8192);
    assert_eq!(plan("LBNHC", 1, u64::MAX, &[far]).kind(), "too_large");
    assert!("LBNH".parse::<Layout>().is_err());
    assert_eq!("HND".parse::<Layout>(), Ok(Layout::Lbhnc));
}

#[test]
fn layers_inside_a_block_may_nest_and_must_not_cut_each_other() {
    let block = 128 << 10;
    let plan = |layout: &str, tensors: &[TensorPlacement]| {
        SegmentPlan::new(&input(layout, 10, 10 * block, tensors), true)
    };
    let half = block / 2;
    let two = tensor(2, 0, half, block);
    for layout in ["BLHNC", "BLNHC", "BHLNC"] {
        for other in [
            two,
            tensor(4, 0, half / 2, block),
            tensor(1, half, half, block),
            // A single layer without a stride says nothing of its length.
            tensor(1, half + 1, 0, block),
        ] {
            assert!(plan(layout, &[two, other]).is_ok(), "{layout} {other:?}");
            assert!(plan(layout, &[other, two]).is_ok(), "{layout} {other:?}");
        }
        // Its second layer covers the end of the first of `two` and the start of the second.
        let cutting = tensor(2, half / 4, half / 2, block);
        for tensors in [[two, cutting], [cutting, two]] {
            let error = plan(layout, &tensors).unwrap_err();
            let at_fault = error.tensor().unwrap();
            assert_eq!((error.kind(), tensors[at_fault]), ("placement", cutting));
            let text = error.to_string();
            let other = 1 - at_fault;
            assert!(
                text.contains(&format!(
                    "tensor {at_fault}: layer 1 (bytes 49152..81920 of every {layout} block) cuts layer 0 of tensor \
                     {other} (bytes 0..65536)"
                )),
                "{text}"
            );
        }
    }
    // Layers of one tensor run on behind each other; the last ends with its block.
    let absurd = tensor(u64::from(u32::MAX), 0, 1, block * block);
    let many = SegmentPlan::new(&input("BLHNC", 1, block * block, &[absurd]), true);
    assert_eq!(many, Err(SegmentError::TooManySegments));
}

/// Allocations of a fresh commit, granule by granule, as the driver hands them out.
fn simulate(placement: &Placement, blocks: u64, granule: u64) -> (u64, bool) {
    let mut owner = std::collections::HashMap::new();
    let mut allocation = 0;
    let mut one_chunk = true;
    for segment in &placement.segments {
        let (from, to) = (segment.offset, segment.offset + blocks * segment.block_stride);
        if from == to {
            continue;
        }
        let granules: Vec<u64> = (from / granule..to.div_ceil(granule)).collect();
        let mut last_new = None;
        for &at in &granules {
            if owner.contains_key(&at) {
                continue;
            }
            if last_new.is_none_or(|last| last + 1 != at) {
                allocation += 1;
            }
            owner.insert(at, allocation);
            last_new = Some(at);
        }
        one_chunk &= granules.windows(2).all(|pair| owner[&pair[0]] == owner[&pair[1]]);
    }
    (owner.len() as u64 * granule, one_chunk)
}

proptest! {
    #[test]
    fn commits_agree_with_a_driver_and_padding_always_works(
        sizes in prop::collection::vec((1..5_u64, 1..400_u64, 0..300_u64), 1..4),
        granule in 1..600_u64,
        blocks in 1..12_u64,
        commit in 0..14_u64,
    ) {
        let mut tensors = Vec::new();
        let mut end = 0;
        for (n_layers, stride, gap) in sizes {
            let layer_stride = stride * blocks + gap;
            tensors.push(tensor(n_layers, end, layer_stride, stride));
            end += n_layers * layer_stride;
        }
        let input = SegmentInput { granule, ..input("LBHNC", blocks, end, &tensors) };
        let plan = SegmentPlan::new(&input, true).unwrap();
        let found = plan.commit(commit);
        let blocks = commit.min(blocks);
        let (_, plain) = simulate(plan.plain(), blocks, granule);
        let (physical, padded) = simulate(plan.padded(), blocks, granule);
        prop_assert_eq!(found.every_segment_one_chunk, plain);
        prop_assert_eq!(found.padded_every_segment_one_chunk, padded);
        prop_assert_eq!(found.padded_physical_bytes, physical);
        prop_assert!(padded);
        // Padding moves segments up, and costs less than a granule for every one of them.
        for (plain, padded) in plan.plain().segments.iter().zip(&plan.padded().segments) {
            prop_assert!(padded.offset.is_multiple_of(granule) && padded.offset >= plain.offset);
        }
        let bound = plan.plain().total_bytes + granule * (2 * plan.plain().segments.len() as u64 + 1);
        prop_assert!(plan.padded().total_bytes <= bound);
        // Without registration the same holds on the plain placement.
        let unregistered = SegmentPlan::new(&input, false).unwrap().commit(commit);
        prop_assert_eq!(unregistered.padded_physical_bytes, simulate(plan.plain(), blocks, granule).0);
    }

    #[test]
    fn absurd_placements_are_errors_not_panics(
        fields in prop::collection::vec((0..9_u64, any::<u64>(), any::<u64>(), any::<u64>()), 1..3),
        granule in any::<u64>(),
        blocks in any::<u64>(),
        total in any::<u64>(),
        layout in 0..6_usize,
        small in any::<bool>(),
    ) {
        let shift = if small { 44 } else { 0 };
        let place = |(n, offset, layer, block): (u64, u64, u64, u64)| {
            tensor(n, offset >> shift, layer >> shift, block >> shift)
        };
        let tensors: Vec<TensorPlacement> = fields.into_iter().map(place).collect();
        let input = SegmentInput {
            layout: LAYOUTS[layout].0,
            granule: granule >> shift,
            blocks: blocks >> 52,
            total_bytes: total,
            tensors,
        };
        if let Ok(plan) = SegmentPlan::new(&input, true) {
            prop_assert!(plan.commit(u64::MAX).padded_every_segment_one_chunk);
        }
    }
}
