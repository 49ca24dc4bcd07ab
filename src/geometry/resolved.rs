//! What described groups resolve to: spans, bytes and the required alignment.

use super::chunk::{self, Warning};
use super::{Dtype, GroupKind, Ratio, RecurrentMode};

/// One layer entry, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedLayer {
    /// Layer name, where the engine gave one.
    pub name: Option<String>,
    /// How many layers alike.
    pub count: u64,
    /// Bytes of one block of one such layer.
    pub page_size_bytes: u64,
    /// Element types of the page.
    pub dtype: Option<Dtype>,
    /// Stored states per block; 1 for recurrent state.
    pub slots_per_block: u64,
    /// Tokens per stored state; none for recurrent state.
    pub compress_ratio: Option<Ratio>,
    /// The layer reads another layer's KV: it adds no bytes and is never copied.
    pub shared: bool,
}

/// One group, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedGroup {
    /// What a block holds.
    pub kind: GroupKind,
    /// Tokens of one block id before context parallelism.
    pub block_size: u64,
    /// Tokens of one block id after it; 0 exactly where the group is not `cacheable`.
    pub tokens_per_block: u64,
    /// Bytes of one block id over all layers that keep their own KV.
    pub bytes_per_block: u64,
    /// One state per block.
    pub recurrent: bool,
    /// Stored and restored; false for scratch.
    pub cacheable: bool,
    /// Window in tokens as declared.
    pub window: Option<u64>,
    /// Recurrent cache mode of a recurrent group.
    pub recurrent_mode: Option<RecurrentMode>,
    /// Layer entries in registered order.
    pub layers: Vec<ResolvedLayer>,
}

/// The one resolved value that feeds registration, sizes and copy plans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedGeometry {
    pub(super) dcp: u64,
    pub(super) groups: Vec<ResolvedGroup>,
    pub(super) required_alignment: u64,
}

impl ResolvedGeometry {
    /// Decode context parallel size.
    pub fn dcp(&self) -> u64 {
        self.dcp
    }

    /// Groups by index.
    pub fn groups(&self) -> &[ResolvedGroup] {
        &self.groups
    }

    /// Least common multiple of the positive spans, in tokens.
    pub fn required_alignment(&self) -> u64 {
        self.required_alignment
    }

    /// Tokens per block of every group, 0 for scratch.
    pub fn spans(&self) -> Vec<u64> {
        self.groups.iter().map(|group| group.tokens_per_block).collect()
    }

    /// Whether any stored group is recurrent.
    pub fn has_recurrent(&self) -> bool {
        self.groups.iter().any(|group| group.recurrent && group.cacheable)
    }

    /// Warnings that hold for any chunk size.
    pub fn warnings(&self) -> Vec<Warning> {
        chunk::near_coprime(self.required_alignment, &self.spans())
            .into_iter()
            .collect()
    }
}
