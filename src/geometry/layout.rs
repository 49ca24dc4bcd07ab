//! Where every page of a group lies: the checked basis of copy plans.
//!
//! The groups of a worker overlay each other (a block id belongs to one group at a time), but inside a group
//! no two pages may share a byte, and none may reach behind its storage. Checked once here, a copy plan needs
//! no further bounds.

use super::view::{PageView, Plane, StorageId};

/// Most byte runs per block of one group.
pub const MAX_PIECES: usize = 1 << 16;

/// Pairs that are compared one by one where strides allow no ordering.
const MAX_COMPARED: usize = 1 << 22;

/// A layer's planes in page order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerPlacement {
    /// Layer name.
    pub layer: String,
    /// Where the bytes of a block lie.
    pub planes: Vec<Plane>,
}

impl From<&PageView> for LayerPlacement {
    fn from(view: &PageView) -> Self {
        Self {
            layer: view.layer.clone(),
            planes: view.planes.clone(),
        }
    }
}

/// Some bytes of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagePiece {
    /// Storage that holds them.
    pub storage: StorageId,
    /// First byte inside the storage.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Why layers cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Nothing to place.
    #[error("a group with {layers} layers and {blocks} blocks has no pages")]
    Empty {
        /// Layers given.
        layers: usize,
        /// Committed blocks.
        blocks: u64,
    },
    /// A layer without bytes.
    #[error("layer {layer:?} has no bytes per block")]
    EmptyLayer {
        /// Layer name.
        layer: String,
    },
    /// An absurd number of pieces.
    #[error("the group's blocks fall into more than {MAX_PIECES} pieces")]
    TooManyPieces,
    /// Pages reach behind their storage.
    #[error(
        "layer {layer:?}: {blocks} blocks of {bytes} bytes, {block_stride} apart from offset {offset}, end \
         behind the storage of {storage_bytes} bytes"
    )]
    OutsideStorage {
        /// Layer name.
        layer: String,
        /// Committed blocks.
        blocks: u64,
        /// Bytes of a piece.
        bytes: u64,
        /// Bytes from one block to the next.
        block_stride: u64,
        /// First byte of block 0.
        offset: u64,
        /// Bytes of the storage.
        storage_bytes: u64,
    },
    /// Blocks of one layer run into each other.
    #[error("layer {layer:?}: blocks of {bytes} bytes are only {block_stride} bytes apart")]
    BlocksOverlap {
        /// Layer name.
        layer: String,
        /// Bytes of a piece.
        bytes: u64,
        /// Bytes from one block to the next.
        block_stride: u64,
    },
    /// Pages of two layers share bytes.
    #[error(
        "layers {first:?} (offset {first_offset}, stride {first_stride}) and {second:?} (offset \
         {second_offset}, stride {second_stride}) overlap in storage {}", storage.0
    )]
    LayersOverlap {
        /// One layer.
        first: String,
        /// Its offset.
        first_offset: u64,
        /// Its stride.
        first_stride: u64,
        /// The other layer.
        second: String,
        /// Its offset.
        second_offset: u64,
        /// Its stride.
        second_stride: u64,
        /// The storage they share.
        storage: StorageId,
    },
    /// One storage described with two sizes.
    #[error("layer {layer:?}: storage {} has {found} bytes, another layer says {expected}", storage.0)]
    StorageDiffers {
        /// Layer name.
        layer: String,
        /// Storage in question.
        storage: StorageId,
        /// Bytes another layer gave.
        expected: u64,
        /// Bytes this layer gave.
        found: u64,
    },
}

/// Checked page locations of one group, in the order of an object's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupLayout {
    num_blocks: u64,
    bytes_per_block: u64,
    planes: Vec<Plane>,
}

impl GroupLayout {
    /// Places layers in registered order over `num_blocks` committed blocks.
    pub fn new(layers: &[LayerPlacement], num_blocks: u64) -> Result<Self, LayoutError> {
        if layers.is_empty() || num_blocks == 0 {
            return Err(LayoutError::Empty {
                layers: layers.len(),
                blocks: num_blocks,
            });
        }
        let mut named: Vec<(&str, Plane)> = Vec::new();
        for layer in layers {
            if layer.planes.is_empty() || layer.planes.iter().any(|plane| plane.bytes == 0) {
                return Err(LayoutError::EmptyLayer {
                    layer: layer.layer.clone(),
                });
            }
            if named.len() + layer.planes.len() > MAX_PIECES {
                return Err(LayoutError::TooManyPieces);
            }
            named.extend(layer.planes.iter().map(|plane| (layer.layer.as_str(), *plane)));
        }
        for (layer, plane) in &named {
            check_bounds(layer, plane, num_blocks)?;
        }
        check_apart(&named, num_blocks)?;
        let planes: Vec<Plane> = named.into_iter().map(|(_, plane)| plane).collect();
        // Disjoint pieces inside 64-bit storages: only an absurd number of huge storages could overflow the
        // sum.
        let bytes_per_block = planes
            .iter()
            .fold(0_u64, |sum, plane| sum.saturating_add(plane.bytes));
        Ok(Self {
            num_blocks,
            bytes_per_block,
            planes,
        })
    }

    /// Blocks that have memory.
    pub fn num_blocks(&self) -> u64 {
        self.num_blocks
    }

    /// Bytes of one block over all layers.
    pub fn bytes_per_block(&self) -> u64 {
        self.bytes_per_block
    }

    /// Planes in the order of an object's bytes: layer by layer, inside a layer plane by plane.
    pub fn planes(&self) -> &[Plane] {
        &self.planes
    }

    /// The pieces of one block in the order of an object's bytes; nothing for a block without memory.
    pub fn block(&self, block: u64) -> Option<impl ExactSizeIterator<Item = PagePiece> + '_> {
        let piece = move |plane: &Plane| PagePiece {
            storage: plane.storage,
            // Inside the storage, as checked for the last block.
            offset: plane.offset + block * plane.block_stride,
            bytes: plane.bytes,
        };
        (block < self.num_blocks).then(|| self.planes.iter().map(piece))
    }
}

fn check_bounds(layer: &str, plane: &Plane, blocks: u64) -> Result<(), LayoutError> {
    let Plane {
        storage_bytes,
        offset,
        block_stride,
        bytes,
        ..
    } = *plane;
    if plane.end(blocks).is_none_or(|end| end > storage_bytes) {
        let layer = layer.to_owned();
        return Err(LayoutError::OutsideStorage {
            layer,
            blocks,
            bytes,
            block_stride,
            offset,
            storage_bytes,
        });
    }
    if blocks > 1 && block_stride < bytes {
        return Err(LayoutError::BlocksOverlap {
            layer: layer.to_owned(),
            bytes,
            block_stride,
        });
    }
    Ok(())
}

/// No two pieces of a group share a byte.
fn check_apart(named: &[(&str, Plane)], blocks: u64) -> Result<(), LayoutError> {
    let mut sorted: Vec<&(&str, Plane)> = named.iter().collect();
    sorted.sort_by_key(|(_, plane)| (plane.storage, plane.offset, plane.bytes));
    // Runs of pieces whose address ranges meet; ranges are known to end inside their storages.
    let mut start = 0;
    while start < sorted.len() {
        let first = &sorted[start].1;
        let mut end = first.end(blocks).unwrap_or(u64::MAX);
        let mut stop = start + 1;
        while stop < sorted.len() && sorted[stop].1.storage == first.storage && sorted[stop].1.offset < end {
            end = end.max(sorted[stop].1.end(blocks).unwrap_or(u64::MAX));
            stop += 1;
        }
        check_cluster(&sorted[start..stop], blocks)?;
        start = stop;
    }
    for pair in sorted.windows(2) {
        let ((_, before), (layer, after)) = (pair[0], pair[1]);
        if before.storage == after.storage && before.storage_bytes != after.storage_bytes {
            return Err(LayoutError::StorageDiffers {
                layer: (*layer).to_owned(),
                storage: after.storage,
                expected: before.storage_bytes,
                found: after.storage_bytes,
            });
        }
    }
    Ok(())
}

/// Pieces whose ranges meet, by offset. Where blocks are outermost they all lie within one stride and
/// neighbours decide; anything else is compared pair by pair.
fn check_cluster(cluster: &[&(&str, Plane)], blocks: u64) -> Result<(), LayoutError> {
    let (first, last) = (&cluster[0].1, &cluster[cluster.len() - 1].1);
    let one_stride = cluster
        .iter()
        .all(|(_, plane)| plane.block_stride == first.block_stride);
    if one_stride && last.offset + last.bytes <= first.offset.saturating_add(first.block_stride) {
        let meets = |pair: &[&(&str, Plane)]| pair[0].1.offset + pair[0].1.bytes > pair[1].1.offset;
        return match cluster.windows(2).find(|pair| meets(pair)) {
            Some(pair) => Err(overlap(pair[0], pair[1])),
            None => Ok(()),
        };
    }
    if cluster.len().saturating_mul(cluster.len()) > MAX_COMPARED {
        return Err(overlap(cluster[0], cluster[1]));
    }
    for (index, left) in cluster.iter().enumerate() {
        if let Some(right) = cluster[index + 1..]
            .iter()
            .find(|right| shares_bytes(&left.1, &right.1, blocks))
        {
            return Err(overlap(left, right));
        }
    }
    Ok(())
}

/// Whether any block of `left` shares a byte with any block of `right`, which starts no earlier.
fn shares_bytes(left: &Plane, right: &Plane, blocks: u64) -> bool {
    let distance = right.offset - left.offset;
    if left.block_stride != right.block_stride {
        // No layout interleaves layers at different strides, so it is enough that their ranges meet.
        return left.end(blocks).is_none_or(|end| right.offset < end);
    }
    let stride = left.block_stride;
    if blocks == 1 || stride == 0 {
        return distance < left.bytes;
    }
    // Block `k` of left is the last that starts at or before block 0 of right; block `k+1` starts behind it.
    let k = distance / stride;
    let into = distance % stride;
    let before = k < blocks && into < left.bytes;
    // Any later block b of left meets block b-k-1 of right from the other side.
    let after = k + 1 < blocks && stride - into < right.bytes;
    before || after
}

fn overlap(left: &(&str, Plane), right: &(&str, Plane)) -> LayoutError {
    LayoutError::LayersOverlap {
        first: left.0.to_owned(),
        first_offset: left.1.offset,
        first_stride: left.1.block_stride,
        second: right.0.to_owned(),
        second_offset: right.1.offset,
        second_stride: right.1.block_stride,
        storage: left.1.storage,
    }
}

#[cfg(test)]
mod tests;
