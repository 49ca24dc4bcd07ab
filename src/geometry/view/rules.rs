//! The rules, in order of precedence, and the way of tensors that need none.

use super::runs::{kernel_planes, total};
use super::{LayerTensors, PageView, Plane, ViewError, ViewRule};
use crate::geometry::GroupKind;

/// The rules for recurrent state and for attention kernels with smaller pages than the block table.
pub fn standard_rules() -> Vec<Box<dyn ViewRule>> {
    let sub_paged = |name, matches| Box::new(SubPaged { name, matches }) as Box<dyn ViewRule>;
    vec![
        Box::new(RecurrentPage),
        Box::new(RecurrentSlices),
        sub_paged("sub-paged-latent", is_latent),
        sub_paged("sub-paged-fused", is_fused),
        sub_paged("sub-paged-interleaved", is_interleaved),
        sub_paged("sub-paged-planes", is_planes),
    ]
}

/// One padded page per block that holds convolution and state: `[conv, state, pad]`.
struct RecurrentPage;

impl ViewRule for RecurrentPage {
    fn name(&self) -> &'static str {
        "recurrent-page"
    }

    fn matches(&self, layer: &LayerTensors) -> bool {
        let first = &layer.tensors[0];
        layer.kind.is_recurrent()
            && layer.tensors.iter().all(|tensor| {
                let stride = tensor.strides[tensor.block_dim];
                tensor.storage == first.storage
                    && stride == first.strides[first.block_dim]
                    && stride >= layer.page_size_bytes
            })
    }

    fn apply(&self, layer: &LayerTensors) -> Result<PageView, ViewError> {
        let planes = kernel_planes(layer)?;
        check_blocks(layer, self.name(), 1)?;
        let (page, found) = (layer.page_size_bytes, total(&planes));
        // The pad belongs to no tensor: what is there must be what is declared, or at least fit.
        if layer.real_page_bytes.is_some_and(|real| real != found) || found > page {
            let expected = layer.real_page_bytes.unwrap_or(page);
            return Err(ViewError::Bytes {
                layer: layer.layer.clone(),
                rule: self.name(),
                expected,
                found,
            });
        }
        let start = planes.iter().map(|plane| plane.offset).min().unwrap_or(0);
        let end = planes
            .iter()
            .map(|plane| plane.offset + plane.bytes)
            .max()
            .unwrap_or(0);
        // Too far apart for a page, or on top of each other.
        if end - start > page || end - start < found {
            let found = end - start;
            return Err(ViewError::Bytes {
                layer: layer.layer.clone(),
                rule: self.name(),
                expected: page,
                found,
            });
        }
        let whole = Plane {
            offset: start,
            bytes: page,
            ..planes[0]
        };
        Ok(edited(layer, self.name(), 1, vec![whole]))
    }
}

/// Convolution and state as dense slices of their own: one plane each, no pad in memory.
struct RecurrentSlices;

impl ViewRule for RecurrentSlices {
    fn name(&self) -> &'static str {
        "recurrent-slices"
    }

    fn matches(&self, layer: &LayerTensors) -> bool {
        let blocks = |index: usize| layer.tensors[index].shape[layer.tensors[index].block_dim];
        layer.kind.is_recurrent()
            && layer.tensors.len() > 1
            && (1..layer.tensors.len()).all(|index| blocks(index) == blocks(0))
            && kernel_planes(layer)
                .is_ok_and(|planes| planes.len() == layer.tensors.len() && all_dense(&planes))
    }

    fn apply(&self, layer: &LayerTensors) -> Result<PageView, ViewError> {
        let planes = kernel_planes(layer)?;
        check_blocks(layer, self.name(), 1)?;
        check_bytes(layer, self.name(), total(&planes))?;
        Ok(edited(layer, self.name(), 1, planes))
    }
}

/// A block that is several contiguous kernel pages: kernel pages `n*k..n*k+k` are block `n`.
struct SubPaged {
    name: &'static str,
    matches: fn(&LayerTensors, &[Plane]) -> bool,
}

impl ViewRule for SubPaged {
    fn name(&self) -> &'static str {
        self.name
    }

    fn matches(&self, layer: &LayerTensors) -> bool {
        // A page that fits between one kernel page and the next is the block itself, padded or not. Declared
        // compression makes pages small on purpose.
        layer.is_attention()
            && !layer.is_compressed()
            && kernel_planes(layer).is_ok_and(|planes| {
                let step = planes
                    .iter()
                    .fold(0_u64, |sum, plane| sum.saturating_add(plane.block_stride));
                let declared = layer.real_page_bytes.unwrap_or(layer.page_size_bytes);
                step < declared && (self.matches)(layer, &planes)
            })
    }

    fn apply(&self, layer: &LayerTensors) -> Result<PageView, ViewError> {
        let planes = kernel_planes(layer)?;
        let kernel_page = total(&planes);
        for plane in &planes {
            if plane.block_stride != plane.bytes {
                return Err(ViewError::Stride {
                    layer: layer.layer.clone(),
                    rule: self.name,
                    expected: plane.bytes,
                    found: plane.block_stride,
                });
            }
        }
        // Planes of their own have no room for padding, so they tile the page without it.
        let page = match layer.real_page_bytes {
            Some(real) if planes.len() > 1 => real,
            _ => layer.page_size_bytes,
        };
        let pages = page / kernel_page;
        if !page.is_multiple_of(kernel_page) || !layer.block_size.is_multiple_of(pages) {
            return Err(ViewError::DoesNotFactor {
                layer: layer.layer.clone(),
                rule: self.name,
                page,
                block_size: layer.block_size,
                kernel_page,
            });
        }
        check_blocks(layer, self.name, pages)?;
        // pages * bytes is at most the page, so neither product overflows.
        let whole = |plane: Plane| Plane {
            block_stride: plane.block_stride * pages,
            bytes: plane.bytes * pages,
            ..plane
        };
        Ok(edited(
            layer,
            self.name,
            pages,
            planes.into_iter().map(whole).collect(),
        ))
    }
}

/// Latent rows: one tensor without heads, or with a single head slot.
fn is_latent(layer: &LayerTensors, planes: &[Plane]) -> bool {
    let [tensor] = &layer.tensors[..] else {
        return false;
    };
    let real_dims = tensor
        .shape
        .iter()
        .enumerate()
        .filter(|&(dim, &extent)| dim != tensor.block_dim && extent > 1);
    matches!(layer.kind, GroupKind::Mla | GroupKind::SlidingWindowMla)
        && real_dims.count() <= 2
        && planes.len() == 1
}

/// Keys and values in one tensor whose kernel pages are whole.
fn is_fused(layer: &LayerTensors, planes: &[Plane]) -> bool {
    layer.tensors.len() == 1 && planes.len() == 1
}

/// A pair of tensors in one storage whose kernel pages alternate: keys, values, keys, values.
fn is_interleaved(layer: &LayerTensors, planes: &[Plane]) -> bool {
    layer.tensors.len() == 2 && planes.len() == 1
}

/// Keys and values as dense planes, in one tensor or two.
fn is_planes(_: &LayerTensors, planes: &[Plane]) -> bool {
    planes.len() > 1 && all_dense(planes)
}

fn all_dense(planes: &[Plane]) -> bool {
    planes.iter().all(|plane| plane.block_stride == plane.bytes)
}

/// The layer's own tensors, if a block id is an index of their block dimension and the bytes add up.
pub(super) fn pass_through(layer: &LayerTensors) -> Result<PageView, ViewError> {
    const NAME: &str = "pass-through";
    let mut planes = kernel_planes(layer)?;
    check_blocks(layer, NAME, 1)?;
    let found = total(&planes);
    if found != layer.page_size_bytes {
        check_bytes(layer, NAME, found)?;
        if let [plane] = &mut planes[..] {
            // A padded page is copied with its padding, as long as that lies before the next page.
            if layer.num_blocks > 1 && plane.block_stride < layer.page_size_bytes {
                let (expected, found) = (layer.page_size_bytes, plane.block_stride);
                return Err(ViewError::Stride {
                    layer: layer.layer.clone(),
                    rule: NAME,
                    expected,
                    found,
                });
            }
            plane.bytes = layer.page_size_bytes;
        }
    }
    Ok(PageView {
        edited: false,
        ..edited(layer, NAME, 1, planes)
    })
}

fn edited(layer: &LayerTensors, rule: &'static str, pages: u64, planes: Vec<Plane>) -> PageView {
    PageView {
        layer: layer.layer.clone(),
        rule,
        edited: true,
        num_blocks: layer.num_blocks,
        page_bytes: total(&planes),
        kernel_pages_per_block: pages,
        kernel_block_size: layer.block_size / pages,
        planes,
    }
}

/// Bytes of a block must be the page, or the page without its declared padding.
fn check_bytes(layer: &LayerTensors, rule: &'static str, found: u64) -> Result<(), ViewError> {
    if found == layer.page_size_bytes || layer.real_page_bytes == Some(found) {
        return Ok(());
    }
    let expected = layer.real_page_bytes.unwrap_or(layer.page_size_bytes);
    Err(ViewError::Bytes {
        layer: layer.layer.clone(),
        rule,
        expected,
        found,
    })
}

/// Every tensor has room for the committed blocks, `pages` kernel pages each.
fn check_blocks(layer: &LayerTensors, rule: &'static str, pages: u64) -> Result<(), ViewError> {
    let expected = layer.num_blocks.saturating_mul(pages);
    let rooms = layer.tensors.iter().map(|tensor| tensor.shape[tensor.block_dim]);
    match rooms.min() {
        Some(found) if found < expected => Err(ViewError::Blocks {
            layer: layer.layer.clone(),
            rule,
            expected,
            found,
        }),
        _ => Ok(()),
    }
}
