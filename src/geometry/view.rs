//! Page views: restoring "one block id is one page" on registered tensors.
//!
//! Copies address a page as *tensor start + block id x stride*. Engines with recurrent layers register
//! tensors for which that is not so: attention kernels see smaller pages than the block table, and recurrent
//! state comes as typed pieces of one padded page. A rule recognises such a tensor by its structure alone and
//! describes the same bytes as whole pages; nothing is copied. The first rule that matches wins, and a tensor
//! that none matches passes through, if its bytes add up.
//!
//! A view that a rule made is *opaque*: its dimensions address bytes and mean nothing else. Work that looks
//! inside pages must ask [`PageView::require_content`] first.

mod rules;
mod runs;

pub use rules::standard_rules;

use super::{GroupKind, Ratio};

/// Most separate byte runs that one page may consist of: 512 heads of keys and of values.
pub const MAX_PLANES: u64 = 1024;

/// Identity of one storage of a worker; its bytes are addressed from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StorageId(pub u64);

/// A registered tensor, as its structure only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorDesc {
    /// Storage that holds the tensor.
    pub storage: StorageId,
    /// Bytes of that storage.
    pub storage_bytes: u64,
    /// First byte of the tensor inside the storage.
    pub offset: u64,
    /// Extent of every dimension.
    pub shape: Vec<u64>,
    /// Bytes from one index to the next, for every dimension.
    pub strides: Vec<u64>,
    /// Bytes of one element.
    pub itemsize: u64,
    /// Which dimension counts blocks. Given by the engine's layout tag: at some sizes two layouts have the
    /// same shape, so it cannot be guessed.
    pub block_dim: usize,
}

/// A layer with what it declares and the tensors it registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerTensors {
    /// Layer name, for errors.
    pub layer: String,
    /// What a block holds.
    pub kind: GroupKind,
    /// Tokens of one block id before context parallelism.
    pub block_size: u64,
    /// Block ids that have memory: the committed blocks, which may be fewer than the tensors have room for.
    pub num_blocks: u64,
    /// Bytes of one block of this layer, padding included.
    pub page_size_bytes: u64,
    /// The same without padding, where the engine declares it.
    pub real_page_bytes: Option<u64>,
    /// Declared slot compression.
    pub tokens_per_state: Option<Ratio>,
    /// The registered tensors, in order.
    pub tensors: Vec<TensorDesc>,
}

impl LayerTensors {
    /// Slot compression is declared, so a differing block dimension is meant and must be left alone.
    fn is_compressed(&self) -> bool {
        self.tokens_per_state.is_some_and(|ratio| ratio != Ratio::ONE)
    }

    fn is_attention(&self) -> bool {
        !self.kind.is_recurrent() && !self.kind.is_always_scratch()
    }
}

/// Equal runs of bytes, one per block: block `b` has `bytes` bytes at `offset + b * block_stride`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plane {
    /// Storage that holds the plane.
    pub storage: StorageId,
    /// Bytes of that storage.
    pub storage_bytes: u64,
    /// First byte of block 0.
    pub offset: u64,
    /// Bytes from one block to the next.
    pub block_stride: u64,
    /// Bytes of one block.
    pub bytes: u64,
}

impl Plane {
    /// One past the last byte of `blocks` blocks: the last block need not be followed by its stride.
    pub fn end(&self, blocks: u64) -> Option<u64> {
        let last = blocks.checked_sub(1)?.checked_mul(self.block_stride)?;
        self.offset.checked_add(last)?.checked_add(self.bytes)
    }
}

/// A layer's pages: for every block id, the planes' bytes in order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageView {
    /// Layer name.
    pub layer: String,
    /// Rule that made the view.
    pub rule: &'static str,
    /// The view is not the registered tensor's own shape; its pages are opaque.
    pub edited: bool,
    /// Block ids the view covers.
    pub num_blocks: u64,
    /// Bytes of one block over all planes.
    pub page_bytes: u64,
    /// Kernel pages in one block; 1 where the kernel's page is the block.
    pub kernel_pages_per_block: u64,
    /// Tokens of a kernel page; goes into the layout fingerprint.
    pub kernel_block_size: u64,
    /// Where the bytes lie: one plane where a page is one range.
    pub planes: Vec<Plane>,
}

impl PageView {
    /// The single plane of a page that is one range of bytes.
    pub fn contiguous(&self) -> Option<Plane> {
        match self.planes[..] {
            [plane] => Some(plane),
            _ => None,
        }
    }

    /// Refuses work that gives meaning to bytes inside a page of an edited layer.
    pub fn require_content(&self, operation: &'static str) -> Result<(), ViewError> {
        if self.edited {
            return Err(ViewError::Opaque {
                layer: self.layer.clone(),
                rule: self.rule,
                operation,
            });
        }
        Ok(())
    }
}

/// Why a layer's tensors have no pages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// The description contradicts itself.
    #[error("layer {layer:?}, tensor {tensor}: {reason}")]
    Malformed {
        /// Layer name.
        layer: String,
        /// Index of the tensor.
        tensor: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing was registered, or no blocks exist.
    #[error("layer {layer:?} has {tensors} tensors and {blocks} blocks; both must be positive")]
    Empty {
        /// Layer name.
        layer: String,
        /// Registered tensors.
        tensors: usize,
        /// Committed blocks.
        blocks: u64,
    },
    /// The bytes of a block do not add up.
    #[error("layer {layer:?} ({rule}): a block should have {expected} bytes, its tensors hold {found}")]
    Bytes {
        /// Layer name.
        layer: String,
        /// Rule that was applied.
        rule: &'static str,
        /// Bytes that the cache spec declares.
        expected: u64,
        /// Bytes that the tensors hold.
        found: u64,
    },
    /// Kernel pages do not tile a block.
    #[error(
        "layer {layer:?} ({rule}): a page of {page} bytes and {block_size} tokens is no whole number of \
         kernel pages of {kernel_page} bytes"
    )]
    DoesNotFactor {
        /// Layer name.
        layer: String,
        /// Rule that was applied.
        rule: &'static str,
        /// Bytes of a block.
        page: u64,
        /// Tokens of a block.
        block_size: u64,
        /// Bytes of a kernel page.
        kernel_page: u64,
    },
    /// Bytes from one block to the next are not what the rule needs.
    #[error("layer {layer:?} ({rule}): the stride from block to block is {found} bytes, expected {expected}")]
    Stride {
        /// Layer name.
        layer: String,
        /// Rule that was applied.
        rule: &'static str,
        /// Stride needed.
        expected: u64,
        /// Stride found.
        found: u64,
    },
    /// The tensors have room for fewer blocks than are committed.
    #[error("layer {layer:?} ({rule}): {expected} blocks are needed, the tensor has {found}")]
    Blocks {
        /// Layer name.
        layer: String,
        /// Rule that was applied.
        rule: &'static str,
        /// Blocks needed, in the tensor's own unit.
        expected: u64,
        /// Blocks found.
        found: u64,
    },
    /// A page ends behind its storage.
    #[error("layer {layer:?} ({rule}): its pages end at byte {expected} of a storage of {found} bytes")]
    OutsideStorage {
        /// Layer name.
        layer: String,
        /// Rule that was applied.
        rule: &'static str,
        /// One past the last byte needed; `u64::MAX` where that overflows.
        expected: u64,
        /// Bytes of the storage.
        found: u64,
    },
    /// A page falls into absurdly many pieces.
    #[error("layer {layer:?}: a page falls into more than {MAX_PLANES} separate runs of bytes")]
    TooManyPlanes {
        /// Layer name.
        layer: String,
    },
    /// Content-aware work on an opaque page.
    #[error(
        "layer {layer:?}: {operation} needs to look inside pages, but they are opaque (view rule {rule})"
    )]
    Opaque {
        /// Layer name.
        layer: String,
        /// Rule that edited the layer.
        rule: &'static str,
        /// What was attempted.
        operation: &'static str,
    },
}

/// One way of restoring pages.
pub trait ViewRule: Send + Sync {
    /// Name, for reports and the fingerprint.
    fn name(&self) -> &'static str;

    /// Whether the structure of the layer's tensors is what this rule is for.
    fn matches(&self, layer: &LayerTensors) -> bool;

    /// The view, or what about the numbers is wrong.
    fn apply(&self, layer: &LayerTensors) -> Result<PageView, ViewError>;
}

/// Rules in order of precedence.
pub struct Registry {
    rules: Vec<Box<dyn ViewRule>>,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            rules: standard_rules(),
        }
    }
}

impl Registry {
    /// A registry of the given rules; the first that matches wins.
    pub fn new(rules: Vec<Box<dyn ViewRule>>) -> Self {
        Self { rules }
    }

    /// The pages of a layer. Rules are consulted only for models with recurrent layers: everywhere else the
    /// block table and the kernels agree, and a tensor that does not add up is an error, not something to
    /// edit.
    pub fn view(&self, layer: &LayerTensors, model_has_recurrent: bool) -> Result<PageView, ViewError> {
        runs::check(layer)?;
        if model_has_recurrent && let Some(rule) = self.rules.iter().find(|rule| rule.matches(layer)) {
            return check_storage(layer, rule.apply(layer)?);
        }
        check_storage(layer, rules::pass_through(layer)?)
    }
}

/// Every view, whoever made it, stays inside its storages.
fn check_storage(layer: &LayerTensors, view: PageView) -> Result<PageView, ViewError> {
    for plane in &view.planes {
        let end = plane.end(view.num_blocks);
        if end.is_none_or(|end| end > plane.storage_bytes) {
            return Err(ViewError::OutsideStorage {
                layer: layer.layer.clone(),
                rule: view.rule,
                expected: end.unwrap_or(u64::MAX),
                found: plane.storage_bytes,
            });
        }
    }
    Ok(view)
}

#[cfg(test)]
mod tests;
