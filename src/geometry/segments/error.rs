//! Why tensor placements make no segments.

use super::{Layout, MAX_SEGMENTS};

/// Why placements make no segments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// A granule of zero bytes.
    #[error("the granule is 0 bytes")]
    ZeroGranule,
    /// A pool without blocks.
    #[error("the block capacity is 0")]
    ZeroBlocks,
    /// Nothing placed.
    #[error("there are no tensors to place")]
    NoTensors,
    /// A placement field is zero.
    #[error("tensor {tensor}: {field} is 0")]
    ZeroField {
        /// Index of the tensor.
        tensor: usize,
        /// Which field.
        field: &'static str,
    },
    /// Layers of one tensor run into each other.
    #[error(
        "tensor {tensor}: layer_stride {layer_stride} is smaller than the layer's {layer_bytes} bytes \
         ({blocks} blocks of {block_stride})"
    )]
    LayersOverlap {
        /// Index of the tensor.
        tensor: usize,
        /// Bytes from one layer to the next.
        layer_stride: u64,
        /// Bytes of one layer.
        layer_bytes: u64,
        /// Block capacity.
        blocks: u64,
        /// Bytes from one block to the next.
        block_stride: u64,
    },
    /// Head slices cannot be told from the layer stride.
    #[error(
        "tensor {tensor}: layer_stride {layer_stride} is no whole number of head slices of {slice_bytes} \
         bytes ({blocks} blocks of {block_stride}); give num_heads and head_stride"
    )]
    HeadsNotWhole {
        /// Index of the tensor.
        tensor: usize,
        /// Bytes from one layer to the next.
        layer_stride: u64,
        /// Bytes of one dense head slice.
        slice_bytes: u64,
        /// Block capacity.
        blocks: u64,
        /// Bytes from one block to the next.
        block_stride: u64,
    },
    /// Head slices run into each other or out of the layer.
    #[error(
        "tensor {tensor}: {count} head slices of {slice_bytes} bytes at a head_stride of {head_stride} do \
         not fit a layer_stride of {layer_stride}"
    )]
    HeadsDoNotFit {
        /// Index of the tensor.
        tensor: usize,
        /// How many head slices.
        count: u64,
        /// Bytes of one head slice.
        slice_bytes: u64,
        /// Bytes from one head slice to the next.
        head_stride: u64,
        /// Bytes from one layer to the next.
        layer_stride: u64,
    },
    /// Block-outermost placements with several block sizes.
    #[error(
        "tensor {tensor}: block_stride {found} differs from {expected} of tensor 0; one block of a {layout} \
         layout holds all layers"
    )]
    BlockStrideDiffers {
        /// Index of the tensor.
        tensor: usize,
        /// Stride of tensor 0.
        expected: u64,
        /// Stride of this tensor.
        found: u64,
        /// Layout tag.
        layout: Layout,
    },
    /// A layer starts behind the end of the block.
    #[error("tensor {tensor}: its last layer starts at byte {last} of a block of {block_stride} bytes")]
    OutsideBlock {
        /// Index of the tensor.
        tensor: usize,
        /// Start of the last layer inside a block.
        last: u64,
        /// Bytes of a block.
        block_stride: u64,
    },
    /// Layers of a block-outermost placement share bytes and neither holds the other.
    #[error(
        "tensor {tensor}: layer {layer} (bytes {start}..{end} of every {layout} block) cuts layer {other_layer} of \
         tensor {other_tensor} (bytes {other_start}..{other_end}); layers that share bytes of a block must be equal or \
         one inside the other"
    )]
    LayersCut {
        /// Index of the tensor.
        tensor: usize,
        /// Its layer.
        layer: u64,
        /// First byte of the layer inside a block.
        start: u64,
        /// End of the layer inside a block.
        end: u64,
        /// Index of the tensor whose layer starts before.
        other_tensor: usize,
        /// Its layer.
        other_layer: u64,
        /// First byte of that layer.
        other_start: u64,
        /// End of that layer.
        other_end: u64,
        /// Layout tag.
        layout: Layout,
    },
    /// A region ends behind the reservation.
    #[error(
        "tensor {tensor}: {blocks} blocks of {block_stride} bytes at offset {offset} end behind the \
         reservation of {total_bytes} bytes"
    )]
    OutsideReservation {
        /// Index of the tensor.
        tensor: usize,
        /// Where the region starts.
        offset: u64,
        /// Bytes from one block to the next.
        block_stride: u64,
        /// Block capacity.
        blocks: u64,
        /// Bytes of the reservation.
        total_bytes: u64,
    },
    /// Two regions share bytes without being the same region.
    #[error(
        "tensor {tensor}: a region at offset {offset} with block_stride {block_stride} overlaps the one at \
         {other_offset} with {other_stride}; groups may only overlay equal regions"
    )]
    RegionsOverlap {
        /// Index of the tensor.
        tensor: usize,
        /// Where its region starts.
        offset: u64,
        /// Its stride.
        block_stride: u64,
        /// Where the other region starts.
        other_offset: u64,
        /// The other's stride.
        other_stride: u64,
    },
    /// An absurd number of segments, or of layers inside a block.
    #[error("the placements make more than {MAX_SEGMENTS} segments or layers")]
    TooManySegments,
    /// Address arithmetic overflows 64 bits.
    #[error("the {what} overflows 64 bits")]
    Overflow {
        /// What was computed.
        what: &'static str,
    },
    /// The block alignment overflows 64 bits.
    #[error("the block alignment for granule {granule} overflows 64 bits at stride {stride}")]
    AlignmentOverflow {
        /// Bytes of a granule.
        granule: u64,
        /// Stride at which it overflowed.
        stride: u64,
    },
}

impl SegmentError {
    /// A stable word for machine-readable answers.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ZeroGranule | Self::ZeroBlocks | Self::ZeroField { .. } => "zero",
            Self::NoTensors => "no_tensors",
            Self::TooManySegments | Self::Overflow { .. } | Self::AlignmentOverflow { .. } => "too_large",
            _ => "placement",
        }
    }

    /// Index of the tensor that is at fault, where it is one.
    pub fn tensor(&self) -> Option<usize> {
        match *self {
            Self::ZeroField { tensor, .. }
            | Self::LayersOverlap { tensor, .. }
            | Self::HeadsNotWhole { tensor, .. }
            | Self::HeadsDoNotFit { tensor, .. }
            | Self::BlockStrideDiffers { tensor, .. }
            | Self::OutsideBlock { tensor, .. }
            | Self::LayersCut { tensor, .. }
            | Self::OutsideReservation { tensor, .. }
            | Self::RegionsOverlap { tensor, .. } => Some(tensor),
            _ => None,
        }
    }
}
