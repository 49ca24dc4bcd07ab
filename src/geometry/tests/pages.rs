//! Bounds, overlaps and placement of pages.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const REGIONS: [u64; 3] = [1000, 10_000, u64::MAX];

fn pages(region: u16, offset: u64, block_stride: u64, page_bytes: u64) -> LayerPages {
    LayerPages {
        region,
        offset,
        block_stride,
        page_bytes,
    }
}

fn checked(layers: &[LayerPages], blocks: u64) -> Result<(), PagesError> {
    check(layers, &REGIONS, blocks, |index| format!("layer l{index}"))
}

#[test]
fn the_last_block_needs_its_page_but_not_its_stride() {
    // Layer 1 of 3 where blocks are outermost: its last page ends before the block does.
    let fits = pages(0, 100, 300, 100);
    let end = fits.end(3).unwrap();
    assert_eq!(end, 2 * 300 + 200);
    assert_eq!(check(&[fits], &[end], 3, |_| String::new()), Ok(()));
    let error = check(&[fits], &[end - 1], 3, |_| "layer a".into()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "layer a: 3 pages of 100 bytes every 300 bytes from byte 100 do not fit region 0, which has 799 bytes"
    );
    // Fewer blocks than the region was reserved for: bounds follow those that have memory.
    assert_eq!(check(&[fits], &[end - 1], 2, |_| String::new()), Ok(()));
}

#[test]
fn overlaps_are_named() {
    let overlapping = [
        // The same pages twice, pages that run into the next layer, and ones that wrap into the next block.
        [pages(1, 0, 100, 50), pages(1, 0, 100, 50)],
        [pages(1, 0, 100, 51), pages(1, 50, 100, 50)],
        [pages(1, 0, 100, 50), pages(1, 51, 100, 50)],
        // Layer regions that are too close.
        [pages(1, 0, 100, 100), pages(1, 900, 100, 100)],
        [pages(1, 0, 100, 20), pages(1, 890, 100, 20)],
        // Meeting at different strides: page 0 of both misses the other, page 5 does not.
        [pages(1, 0, 100, 10), pages(1, 50, 90, 10)],
    ];
    for pair in overlapping {
        for (layers, names) in [(pair, ["l0", "l1"]), ([pair[1], pair[0]], ["l1", "l0"])] {
            let error = checked(&layers, 10).unwrap_err();
            let PagesError::Overlap { first, second, .. } = &error else {
                panic!("{error}")
            };
            let mut found = [first.as_str(), second.as_str()];
            if pair[0] == pair[1] {
                found.sort_unstable();
                assert_eq!(found, ["layer l0", "layer l1"]);
            } else {
                assert_eq!(found, names.map(|name| format!("layer {name}")));
            }
        }
    }
    let apart = [
        [pages(1, 0, 100, 50), pages(1, 50, 100, 50)],
        [pages(1, 0, 100, 100), pages(1, 1000, 100, 100)],
        [pages(1, 0, 100, 20), pages(1, 880, 100, 20)],
        [pages(1, 0, 100, 50), pages(2, 0, 100, 50)],
        [pages(1, 0, 100, 100), pages(1, 1000, 90, 90)],
        // Interleaved at different strides.
        [pages(1, 0, 100, 10), pages(1, 50, 200, 10)],
    ];
    for pair in apart {
        assert_eq!(checked(&pair, 10), Ok(()));
    }
    // The third layer would meet the first if that had more blocks; the second links their ranges.
    let linked = [
        pages(1, 0, 100, 50),
        pages(1, 550, 100, 50),
        pages(1, 1000, 100, 50),
    ];
    assert_eq!(checked(&linked, 10), Ok(()));
}

#[test]
fn contradictions_are_typed() {
    assert!(matches!(
        checked(&[pages(0, 0, 100, 0)], 4),
        Err(PagesError::Empty { .. })
    ));
    let close = pages(0, 0, 99, 100);
    assert!(matches!(
        checked(&[close], 4),
        Err(PagesError::Stride { page_bytes: 100, .. })
    ));
    assert_eq!(checked(&[close], 1), Ok(()));
    assert!(matches!(
        checked(&[pages(2, 0, u64::MAX, 100)], 3),
        Err(PagesError::OutsideRegion { blocks: 3, .. })
    ));
    assert!(matches!(
        checked(&[pages(3, 0, 100, 100)], 3),
        Err(PagesError::UnknownRegion {
            region: 3,
            regions: 3,
            ..
        })
    ));
    assert!(checked(&[pages(0, 0, 100, 100)], 0).is_err(), "no blocks");
    // Nobody waits for 2^40 pages to be compared.
    let endless = [pages(2, 0, 100, 1), pages(2, 50, 200, 1)];
    assert_eq!(checked(&endless, 1 << 20), Ok(()));
    assert!(matches!(
        checked(&endless, 1 << 40),
        Err(PagesError::Overlap { .. })
    ));
}

#[test]
fn blocks_that_are_not_one_range_are_refused() {
    // 4 layers of 2 heads of 50 bytes, as vLLM declares them: heads outside of blocks, and heads outside of layers.
    let lhbnc: Vec<LayerPages> = (0..4).map(|layer| pages(1, layer * 1000, 50, 100)).collect();
    assert!(matches!(
        checked(&lhbnc, 10),
        Err(PagesError::Stride { block_stride: 50, .. })
    ));
    let bhlnc: Vec<LayerPages> = (0..4).map(|layer| pages(1, layer * 50, 400, 100)).collect();
    assert!(matches!(checked(&bhlnc, 10), Err(PagesError::Overlap { .. })));
    let blhnc: Vec<LayerPages> = (0..4).map(|layer| pages(1, layer * 100, 400, 100)).collect();
    assert_eq!(checked(&blhnc, 10), Ok(()));
}

fn tensor(rows: u64, row_stride: u64, declared: Option<(u64, u64)>) -> LayerTensor {
    LayerTensor {
        region: 1,
        offset: 512,
        rows,
        row_stride,
        page_bytes: 100,
        declared,
    }
}

#[test]
fn pages_lie_where_the_engine_declares_them() {
    // The tensor's own rows and strides do not matter then: kernel pages of a quarter block, or padded state.
    for (rows, row_stride) in [(10, 4096), (40, 25), (7, 1)] {
        let found = tensor(rows, row_stride, Some((512, 300))).pages("layer a", 10);
        assert_eq!(found, Ok(pages(1, 512, 300, 100)));
    }
    let elsewhere = tensor(10, 300, Some((500, 300))).pages("layer a", 10);
    assert_eq!(
        elsewhere.unwrap_err().to_string(),
        "layer a was declared at byte 500 and registered at byte 512"
    );
}

#[test]
fn without_a_declaration_whole_rows_make_a_block() {
    assert_eq!(
        tensor(10, 120, None).pages("layer a", 10),
        Ok(pages(1, 512, 120, 100))
    );
    assert_eq!(
        tensor(40, 25, None).pages("layer a", 10),
        Ok(pages(1, 512, 100, 100))
    );
    assert_eq!(tensor(40, 25, None).kernel_pages(10), Some(4));
    for (rows, row_stride, blocks) in [(41, 25, 10), (10, 25, 0), (40, u64::MAX, 10)] {
        let error = tensor(rows, row_stride, None)
            .pages("layer a", blocks)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("layer a has {rows} pages for {blocks} blocks")
        );
    }
}

proptest! {
    /// Against a byte map: accepted exactly if no byte is covered twice and none lies outside.
    #[test]
    fn agrees_with_counting_every_byte(
        layers in prop::collection::vec((0..3_u16, 0..120_u64, 1..40_u64, 1..24_u64), 1..5),
        blocks in 1..6_u64,
        one_stride in prop::option::of(1..60_u64),
    ) {
        const BYTES: u64 = 256;
        let layers: Vec<LayerPages> = layers
            .into_iter()
            .map(|(region, offset, stride, bytes)| pages(region, offset, one_stride.unwrap_or(stride), bytes))
            .collect();
        let mut covered = HashSet::new();
        let mut legal = true;
        for layer in &layers {
            for block in 0..blocks {
                let start = layer.offset + block * layer.block_stride;
                for byte in start..start + layer.page_bytes {
                    legal &= byte < BYTES && covered.insert((layer.region, byte));
                }
            }
        }
        let found = check(&layers, &[BYTES; 3], blocks, |_| String::new());
        prop_assert_eq!(found.is_ok(), legal, "{:?}", found);
    }
}
