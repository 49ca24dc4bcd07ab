//! Bounds, overlaps and order of page locations.

use proptest::prelude::*;

use super::*;

fn plane(storage: u64, storage_bytes: u64, offset: u64, block_stride: u64, bytes: u64) -> Plane {
    Plane {
        storage: StorageId(storage),
        storage_bytes,
        offset,
        block_stride,
        bytes,
    }
}

fn layers(planes: &[Plane]) -> Vec<LayerPlacement> {
    let name = |(index, plane): (usize, &Plane)| LayerPlacement {
        layer: format!("l{index}"),
        planes: vec![*plane],
    };
    planes.iter().enumerate().map(name).collect()
}

#[test]
fn pages_come_layer_by_layer_over_several_storages() {
    let planes = [
        plane(1, 1000, 0, 100, 60),
        plane(2, 500, 20, 50, 30),
        plane(1, 1000, 60, 100, 40),
    ];
    let layout = GroupLayout::new(&layers(&planes), 10).unwrap();
    assert_eq!(layout.bytes_per_block(), 130);
    let piece = |storage, offset, bytes| PagePiece {
        storage: StorageId(storage),
        offset,
        bytes,
    };
    let block: Vec<PagePiece> = layout.block(9).unwrap().collect();
    assert_eq!(block, [piece(1, 900, 60), piece(2, 470, 30), piece(1, 960, 40)]);
    assert!(layout.block(10).is_none());
}

#[test]
fn the_last_block_needs_its_page_but_not_its_stride() {
    // Layer 1 of 3 in a block-outermost storage: its last page ends before the block does.
    let fits = plane(1, 9 * 300 + 200, 100, 300, 100);
    assert!(GroupLayout::new(&layers(&[fits]), 10).is_ok());
    let short = Plane {
        storage_bytes: fits.storage_bytes - 1,
        ..fits
    };
    let error = GroupLayout::new(&layers(&[short]), 10).unwrap_err();
    assert!(
        matches!(
            error,
            LayoutError::OutsideStorage {
                blocks: 10,
                storage_bytes: 2899,
                ..
            }
        ),
        "{error}"
    );
    // Fewer committed blocks than the storage was reserved for: bounds follow the committed ones.
    assert!(GroupLayout::new(&layers(&[short]), 9).is_ok());
}

#[test]
fn overlaps_are_named() {
    let overlapping = [
        // The same pages twice, pages that run into the next layer, and ones that wrap into the next block.
        [plane(1, 10_000, 0, 100, 50), plane(1, 10_000, 0, 100, 50)],
        [plane(1, 10_000, 0, 100, 51), plane(1, 10_000, 50, 100, 50)],
        [plane(1, 10_000, 0, 100, 50), plane(1, 10_000, 51, 100, 50)],
        // Layer regions that are too close.
        [plane(1, 10_000, 0, 100, 100), plane(1, 10_000, 900, 100, 100)],
        [plane(1, 10_000, 0, 100, 20), plane(1, 10_000, 890, 100, 20)],
        // Meeting at different strides.
        [plane(1, 10_000, 0, 100, 10), plane(1, 10_000, 50, 90, 10)],
    ];
    for pair in overlapping {
        let error = GroupLayout::new(&layers(&pair), 10).unwrap_err();
        let LayoutError::LayersOverlap {
            first,
            second,
            storage,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(
            (first.as_str(), second.as_str(), storage),
            ("l0", "l1", StorageId(1))
        );
    }
    let apart = [
        [plane(1, 10_000, 0, 100, 50), plane(1, 10_000, 50, 100, 50)],
        [plane(1, 10_000, 0, 100, 100), plane(1, 10_000, 1000, 100, 100)],
        [plane(1, 10_000, 0, 100, 20), plane(1, 10_000, 880, 100, 20)],
        [plane(1, 10_000, 0, 100, 50), plane(2, 10_000, 0, 100, 50)],
        [plane(1, 10_000, 0, 100, 100), plane(1, 10_000, 1000, 90, 90)],
    ];
    for pair in apart {
        GroupLayout::new(&layers(&pair), 10).unwrap();
    }
    // The third layer would meet the first if that had more blocks; the second links their ranges.
    let linked = [
        plane(1, 10_000, 0, 100, 50),
        plane(1, 10_000, 550, 100, 50),
        plane(1, 10_000, 1000, 100, 50),
    ];
    GroupLayout::new(&layers(&linked), 10).unwrap();
}

#[test]
fn contradictions_are_typed() {
    assert!(matches!(
        GroupLayout::new(&[], 4),
        Err(LayoutError::Empty { layers: 0, blocks: 4 })
    ));
    let good = plane(1, 1000, 0, 100, 100);
    assert!(matches!(
        GroupLayout::new(&layers(&[good]), 0),
        Err(LayoutError::Empty { blocks: 0, .. })
    ));
    let empty = plane(1, 1000, 0, 100, 0);
    assert!(matches!(
        GroupLayout::new(&layers(&[empty]), 4),
        Err(LayoutError::EmptyLayer { .. })
    ));
    let close = plane(1, 1000, 0, 99, 100);
    assert!(matches!(
        GroupLayout::new(&layers(&[close]), 4),
        Err(LayoutError::BlocksOverlap { bytes: 100, .. })
    ));
    assert!(GroupLayout::new(&layers(&[close]), 1).is_ok());
    let huge = plane(1, u64::MAX, 0, u64::MAX, 100);
    assert!(matches!(
        GroupLayout::new(&layers(&[huge]), 3),
        Err(LayoutError::OutsideStorage { .. })
    ));
    let other_size = plane(1, 2000, 500, 100, 100);
    assert!(matches!(
        GroupLayout::new(&layers(&[good, other_size]), 4),
        Err(LayoutError::StorageDiffers {
            expected: 1000,
            found: 2000,
            ..
        })
    ));
}

proptest! {
    /// Against a byte map: accepted exactly if no byte is covered twice and none lies outside.
    #[test]
    fn agrees_with_counting_every_byte(
        planes in prop::collection::vec((0..3_u64, 0..120_u64, 1..40_u64, 1..24_u64), 1..5),
        blocks in 1..6_u64,
        one_stride in prop::option::of(1..60_u64),
    ) {
        const BYTES: u64 = 256;
        let planes: Vec<Plane> = planes
            .into_iter()
            .map(|(storage, offset, stride, bytes)| {
                plane(storage, BYTES, offset, one_stride.unwrap_or(stride), bytes)
            })
            .collect();
        let mut covered = std::collections::HashSet::new();
        let mut legal = true;
        for plane in &planes {
            for block in 0..blocks {
                let start = plane.offset + block * plane.block_stride;
                for byte in start..start + plane.bytes {
                    legal &= byte < BYTES && covered.insert((plane.storage, byte));
                }
            }
        }
        let layout = GroupLayout::new(&layers(&planes), blocks);
        if one_stride.is_some() {
            prop_assert_eq!(layout.is_ok(), legal, "{:?}", layout);
        } else if layout.is_ok() {
            // Different strides may be refused although their pages happen to miss each other.
            prop_assert!(legal);
        }
    }
}
