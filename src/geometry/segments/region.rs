//! From tensor placements to the distinct regions of a reservation.

use super::{Layout, MAX_SEGMENTS, Segment, SegmentError};

/// Layers alike of one KV cache group, as the engine placed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorPlacement {
    /// How many layers.
    pub n_layers: u64,
    /// Where the first layer starts: inside the reservation, or inside a block where blocks are outermost.
    pub offset: u64,
    /// Bytes from one layer to the next.
    pub layer_stride: u64,
    /// Bytes from one block to the next: of a layer, of a head's slice, or of all layers.
    pub block_stride: u64,
    /// Explicit head slices where heads are outside the block. Without it the slices are taken to be dense,
    /// since a layer stride alone cannot tell head slices from padding.
    pub heads: Option<HeadSlices>,
}

/// Head slices of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadSlices {
    /// How many.
    pub count: u64,
    /// Bytes from one to the next.
    pub stride: u64,
}

/// What the planner is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentInput {
    /// Layout tag.
    pub layout: Layout,
    /// Bytes of the smallest unit of physical memory.
    pub granule: u64,
    /// Block capacity of the reservation.
    pub blocks: u64,
    /// Bytes of the reservation.
    pub total_bytes: u64,
    /// Placements of all groups; groups overlay each other.
    pub tensors: Vec<TensorPlacement>,
}

/// The distinct segments of `input`, by offset.
pub(super) fn segments(input: &SegmentInput) -> Result<Vec<Segment>, SegmentError> {
    if input.granule == 0 {
        return Err(SegmentError::ZeroGranule);
    }
    if input.blocks == 0 {
        return Err(SegmentError::ZeroBlocks);
    }
    if input.tensors.is_empty() {
        return Err(SegmentError::NoTensors);
    }
    for (tensor, placement) in input.tensors.iter().enumerate() {
        for (field, value) in [
            ("n_layers", placement.n_layers),
            ("block_stride", placement.block_stride),
        ] {
            if value == 0 {
                return Err(SegmentError::ZeroField { tensor, field });
            }
        }
    }
    if input.layout.is_block_outermost() {
        block_outermost(input)
    } else {
        layer_outermost(input)
    }
}

/// One segment at 0 that holds every block of every layer.
fn block_outermost(input: &SegmentInput) -> Result<Vec<Segment>, SegmentError> {
    let expected = input.tensors[0].block_stride;
    for (tensor, placement) in input.tensors.iter().enumerate() {
        let found = placement.block_stride;
        if found != expected {
            return Err(SegmentError::BlockStrideDiffers {
                tensor,
                expected,
                found,
                layout: input.layout,
            });
        }
        let last = (placement.n_layers - 1)
            .checked_mul(placement.layer_stride)
            .and_then(|bytes| bytes.checked_add(placement.offset))
            .ok_or(SegmentError::Overflow {
                what: "start of the last layer",
            })?;
        if last >= found {
            return Err(SegmentError::OutsideBlock {
                tensor,
                last,
                block_stride: found,
            });
        }
        if placement.n_layers > 1 && placement.layer_stride == 0 {
            return Err(SegmentError::ZeroField {
                tensor,
                field: "layer_stride",
            });
        }
    }
    check_inside(input, 0, 0, expected)?;
    check_layers_nest(input, expected)?;
    Ok(vec![Segment {
        offset: 0,
        block_stride: expected,
    }])
}

/// Where one layer lies inside a block.
#[derive(Clone, Copy)]
struct LayerRegion {
    start: u64,
    end: u64,
    tensor: usize,
    layer: u64,
}

/// Groups overlay each other, also with pages of different sizes: two layers may be the same bytes of a block, or one a
/// part of the other. Layers that cut each other are a wrong offset or stride. A layer is as long as its
/// stride, at most to the end of the block.
fn check_layers_nest(input: &SegmentInput, block_stride: u64) -> Result<(), SegmentError> {
    let layers = input.tensors.iter().try_fold(0_u64, |sum, placement| {
        sum.checked_add(placement.n_layers)
            .filter(|sum| *sum <= MAX_SEGMENTS)
    });
    layers.ok_or(SegmentError::TooManySegments)?;
    let mut regions: Vec<LayerRegion> = Vec::new();
    for (tensor, placement) in input.tensors.iter().enumerate() {
        regions.extend((0..placement.n_layers).map(|layer| {
            // The last layer starts inside the block, so these sums are exact.
            let start = placement.offset + layer * placement.layer_stride;
            let end = start.saturating_add(placement.layer_stride).min(block_stride);
            LayerRegion {
                start,
                end,
                tensor,
                layer,
            }
        }));
    }
    regions.sort_by_key(|region| (region.start, std::cmp::Reverse(region.end), region.tensor));
    // The regions around the present one, each inside the one before.
    let mut around: Vec<LayerRegion> = Vec::new();
    for region in regions {
        while around.last().is_some_and(|outer| outer.end <= region.start) {
            around.pop();
        }
        if let Some(outer) = around.last().filter(|outer| outer.end < region.end) {
            return Err(SegmentError::LayersCut {
                tensor: region.tensor,
                layer: region.layer,
                start: region.start,
                end: region.end,
                other_tensor: outer.tensor,
                other_layer: outer.layer,
                other_start: outer.start,
                other_end: outer.end,
                layout: input.layout,
            });
        }
        around.push(region);
    }
    Ok(())
}

/// One segment per layer region, or per head slice of it; groups overlay equal regions.
fn layer_outermost(input: &SegmentInput) -> Result<Vec<Segment>, SegmentError> {
    let mut found: Vec<(Segment, usize)> = Vec::new();
    for (tensor, placement) in input.tensors.iter().enumerate() {
        let heads = head_slices(input, tensor, placement)?;
        let regions = placement.n_layers.checked_mul(heads.count);
        let within = regions.and_then(|regions| regions.checked_add(found.len() as u64));
        if within.is_none_or(|regions| regions > MAX_SEGMENTS) {
            return Err(SegmentError::TooManySegments);
        }
        for layer in 0..placement.n_layers {
            for head in 0..heads.count {
                let offset = at(placement.offset, layer, placement.layer_stride)
                    .and_then(|offset| at(offset, head, heads.stride))
                    .ok_or(SegmentError::Overflow {
                        what: "offset of a region",
                    })?;
                check_inside(input, tensor, offset, placement.block_stride)?;
                found.push((
                    Segment {
                        offset,
                        block_stride: placement.block_stride,
                    },
                    tensor,
                ));
            }
        }
    }
    found.sort_by_key(|(segment, tensor)| (segment.offset, segment.block_stride, *tensor));
    found.dedup_by_key(|(segment, _)| *segment);
    for pair in found.windows(2) {
        let ((before, _), (after, tensor)) = (pair[0], pair[1]);
        // check_inside proved that this end exists.
        if after.offset - before.offset < before.block_stride * input.blocks {
            return Err(SegmentError::RegionsOverlap {
                tensor,
                offset: after.offset,
                block_stride: after.block_stride,
                other_offset: before.offset,
                other_stride: before.block_stride,
            });
        }
    }
    Ok(found.into_iter().map(|(segment, _)| segment).collect())
}

fn at(start: u64, index: u64, stride: u64) -> Option<u64> {
    index.checked_mul(stride)?.checked_add(start)
}

/// How many slices a layer's region has and how far apart they are; one where heads are inside the block.
fn head_slices(
    input: &SegmentInput,
    tensor: usize,
    placement: &TensorPlacement,
) -> Result<HeadSlices, SegmentError> {
    let TensorPlacement {
        n_layers,
        layer_stride,
        block_stride,
        ..
    } = *placement;
    let blocks = input.blocks;
    let slice_bytes = block_stride.checked_mul(blocks).ok_or(SegmentError::Overflow {
        what: "length of a layer region",
    })?;
    if input.layout != Layout::Lhbnc {
        if n_layers > 1 && layer_stride < slice_bytes {
            let layer_bytes = slice_bytes;
            return Err(SegmentError::LayersOverlap {
                tensor,
                layer_stride,
                layer_bytes,
                blocks,
                block_stride,
            });
        }
        // However much longer the stride is, the rest is padding: heads are inside the block here.
        return Ok(HeadSlices { count: 1, stride: 0 });
    }
    let Some(heads) = placement.heads else {
        if layer_stride == 0 || !layer_stride.is_multiple_of(slice_bytes) {
            return Err(SegmentError::HeadsNotWhole {
                tensor,
                layer_stride,
                slice_bytes,
                blocks,
                block_stride,
            });
        }
        return Ok(HeadSlices {
            count: layer_stride / slice_bytes,
            stride: slice_bytes,
        });
    };
    if heads.count == 0 {
        return Err(SegmentError::ZeroField {
            tensor,
            field: "num_heads",
        });
    }
    let end = at(slice_bytes, heads.count - 1, heads.stride);
    let apart = heads.count == 1 || heads.stride >= slice_bytes;
    if !apart || end.is_none_or(|end| n_layers > 1 && end > layer_stride) {
        return Err(SegmentError::HeadsDoNotFit {
            tensor,
            count: heads.count,
            slice_bytes,
            head_stride: heads.stride,
            layer_stride,
        });
    }
    Ok(heads)
}

fn check_inside(
    input: &SegmentInput,
    tensor: usize,
    offset: u64,
    block_stride: u64,
) -> Result<(), SegmentError> {
    let SegmentInput {
        blocks, total_bytes, ..
    } = *input;
    let end = at(offset, blocks, block_stride);
    if end.is_some_and(|end| end <= total_bytes) {
        return Ok(());
    }
    Err(SegmentError::OutsideReservation {
        tensor,
        offset,
        block_stride,
        blocks,
        total_bytes,
    })
}
