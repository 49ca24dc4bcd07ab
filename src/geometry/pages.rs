//! Where the pages of a KV cache group lie, checked once for every copy that follows.
//!
//! An engine declares where its pages are, and they are taken as it declares them: opaque, whole, padding included. What a
//! tensor's inner dimensions mean plays no part. The groups of an engine overlay each other, since a block id belongs to
//! one group at a time. Inside a group no two pages may share a byte, and none may reach behind its region.

/// Most pages that are compared one by one, where strides differ. More count as sharing bytes.
const COMPARED_MAX: u64 = 1 << 21;

/// One layer's pages: that of block `b` is `page_bytes` bytes at `offset + b * block_stride` of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPages {
    /// Index of the region.
    pub region: u16,
    /// Where the page of block 0 starts.
    pub offset: u64,
    /// From one block's page to the next one's.
    pub block_stride: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
}

impl LayerPages {
    /// One past the last byte of `blocks` pages: the last one need not be followed by its stride.
    fn end(&self, blocks: u64) -> Option<u64> {
        let last = blocks.checked_sub(1)?.checked_mul(self.block_stride)?;
        self.offset.checked_add(last)?.checked_add(self.page_bytes)
    }
}

/// A layer as the engine registered its first tensor and declared its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerTensor {
    /// Index of the region that the tensor lies in.
    pub region: u16,
    /// First byte of the tensor inside the region.
    pub offset: u64,
    /// Extent of the leading dimension: kernel pages, of which a block may have several.
    pub rows: u64,
    /// Bytes from one row to the next.
    pub row_stride: u64,
    /// Bytes of one block of this layer, padding included.
    pub page_bytes: u64,
    /// Byte of block 0 and bytes from one block to the next, where the engine declares them.
    pub declared: Option<(u64, u64)>,
}

impl LayerTensor {
    /// The layer's pages over `blocks` blocks; `layer` names it in errors. They still have to pass [`check`].
    pub fn pages(&self, layer: &str, blocks: u64) -> Result<LayerPages, PagesError> {
        let block_stride = match self.declared {
            Some((offset, block_stride)) if offset == self.offset => block_stride,
            Some((declared, _)) => {
                return Err(PagesError::Elsewhere {
                    layer: layer.to_owned(),
                    declared,
                    registered: self.offset,
                });
            }
            None => {
                let rows = self.kernel_pages(blocks);
                rows.and_then(|rows| self.row_stride.checked_mul(rows))
                    .ok_or_else(|| PagesError::Rows {
                        layer: layer.to_owned(),
                        rows: self.rows,
                        blocks,
                    })?
            }
        };
        Ok(LayerPages {
            region: self.region,
            offset: self.offset,
            block_stride,
            page_bytes: self.page_bytes,
        })
    }

    /// Rows of one block, where they are whole.
    pub fn kernel_pages(&self, blocks: u64) -> Option<u64> {
        (blocks > 0 && self.rows.is_multiple_of(blocks)).then(|| self.rows / blocks)
    }
}

/// Why pages cannot be where a layer says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PagesError {
    /// Registered elsewhere than declared.
    #[error("{layer} was declared at byte {declared} and registered at byte {registered}")]
    Elsewhere {
        /// Name of the layer.
        layer: String,
        /// Byte of the declaration.
        declared: u64,
        /// Byte of the tensor.
        registered: u64,
    },
    /// No declaration, and the tensor does not say either.
    #[error("{layer} has {rows} pages for {blocks} blocks")]
    Rows {
        /// Name of the layer.
        layer: String,
        /// Extent of the tensor's leading dimension.
        rows: u64,
        /// Number of blocks.
        blocks: u64,
    },
    /// A region that was not given.
    #[error("{layer}: region {region} of {regions} does not exist")]
    UnknownRegion {
        /// Name of the layer.
        layer: String,
        /// The region it names.
        region: u16,
        /// How many there are.
        regions: usize,
    },
    /// Pages without bytes.
    #[error("{layer}: its pages have 0 bytes")]
    Empty {
        /// Name of the layer.
        layer: String,
    },
    /// Pages of one layer run into each other.
    #[error("{layer}: a stride of {block_stride} bytes is less than a page of {page_bytes}")]
    Stride {
        /// Name of the layer.
        layer: String,
        /// Bytes from one block to the next.
        block_stride: u64,
        /// Bytes of a page.
        page_bytes: u64,
    },
    /// Pages reach behind their region.
    #[error(
        "{layer}: {blocks} pages of {} bytes every {} bytes from byte {} do not fit region {}, which has {bytes} bytes",
        pages.page_bytes, pages.block_stride, pages.offset, pages.region
    )]
    OutsideRegion {
        /// Name of the layer.
        layer: String,
        /// Its pages.
        pages: LayerPages,
        /// Number of blocks.
        blocks: u64,
        /// Bytes of the region.
        bytes: u64,
    },
    /// Pages of two layers share bytes.
    #[error(
        "{first} (pages of {} bytes every {} bytes from byte {}) and {second} (pages of {} bytes every {} bytes from \
         byte {}) share bytes of region {}",
        pages[0].page_bytes, pages[0].block_stride, pages[0].offset,
        pages[1].page_bytes, pages[1].block_stride, pages[1].offset, pages[0].region
    )]
    Overlap {
        /// The layer that starts before.
        first: String,
        /// The other layer.
        second: String,
        /// The pages of both.
        pages: [LayerPages; 2],
    },
}

/// Checks the layers of one group over `blocks` blocks: every page lies inside its region, and no two share a byte.
/// `regions` are the regions' bytes, and `name` says how errors call a layer.
pub fn check(
    layers: &[LayerPages],
    regions: &[u64],
    blocks: u64,
    name: impl Fn(usize) -> String,
) -> Result<(), PagesError> {
    for (index, &pages) in layers.iter().enumerate() {
        let LayerPages {
            region,
            block_stride,
            page_bytes,
            ..
        } = pages;
        let layer = || name(index);
        let Some(&bytes) = regions.get(usize::from(region)) else {
            return Err(PagesError::UnknownRegion {
                layer: layer(),
                region,
                regions: regions.len(),
            });
        };
        if page_bytes == 0 {
            return Err(PagesError::Empty { layer: layer() });
        }
        if blocks > 1 && block_stride < page_bytes {
            return Err(PagesError::Stride {
                layer: layer(),
                block_stride,
                page_bytes,
            });
        }
        if pages.end(blocks).is_none_or(|end| end > bytes) {
            return Err(PagesError::OutsideRegion {
                layer: layer(),
                pages,
                blocks,
                bytes,
            });
        }
    }
    let mut sorted: Vec<usize> = (0..layers.len()).collect();
    sorted.sort_by_key(|&index| (layers[index].region, layers[index].offset));
    for (at, &first) in sorted.iter().enumerate() {
        let left = &layers[first];
        let meets = |right: &LayerPages| {
            right.region == left.region && left.end(blocks).is_some_and(|end| right.offset < end)
        };
        for &second in sorted[at + 1..]
            .iter()
            .take_while(|&&second| meets(&layers[second]))
        {
            if share_bytes(left, &layers[second], blocks) {
                return Err(PagesError::Overlap {
                    first: name(first),
                    second: name(second),
                    pages: [*left, layers[second]],
                });
            }
        }
    }
    Ok(())
}

/// Whether a page of `left` and a page of `right`, which starts no earlier, share a byte. Both lie inside their region.
fn share_bytes(left: &LayerPages, right: &LayerPages, blocks: u64) -> bool {
    let distance = right.offset - left.offset;
    if blocks == 1 {
        return distance < left.page_bytes;
    }
    if left.block_stride == right.block_stride {
        // Page `k` of left is the last that starts at or before page 0 of right; page `k + 1` starts behind it.
        let (k, into) = (distance / left.block_stride, distance % left.block_stride);
        let before = k < blocks && into < left.page_bytes;
        // Any later page b of left meets page b - k - 1 of right from the other side.
        let after = k + 1 < blocks && left.block_stride - into < right.page_bytes;
        return before || after;
    }
    let (mut l, mut r) = (0, 0);
    while l < blocks && r < blocks {
        if l + r > COMPARED_MAX {
            return true;
        }
        let from = left.offset + l * left.block_stride;
        let to = right.offset + r * right.block_stride;
        if from < to + right.page_bytes && to < from + left.page_bytes {
            return true;
        }
        if from < to { l += 1 } else { r += 1 }
    }
    false
}

#[cfg(test)]
#[path = "tests/pages.rs"]
mod tests;
