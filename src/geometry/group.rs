//! The engine-neutral description of KV cache groups that every geometry question starts from.

use std::fmt;
use std::str::FromStr;

use super::{Dtype, Ratio};

/// What the layers of a group keep per block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// Keys and values of every token.
    FullAttention,
    /// Full attention with a few always-visible first tokens.
    SinkFullAttention,
    /// Latent rows (multi-head latent attention) of every token.
    Mla,
    /// Keys and values of a trailing window.
    SlidingWindow,
    /// Latent rows of a trailing window.
    SlidingWindowMla,
    /// Attention within aligned pieces of fixed length.
    ChunkedLocal,
    /// Recurrent state (Mamba, GDN, short convolution): one state per block, not one per token.
    Mamba,
    /// A per-request ring of tokens not yet compressed; scratch.
    CircularBuffer,
    /// Per-request hot cache of a host-backed group; scratch.
    HiSparseHot,
    /// Reclaimable resident pages of a host-backed group; scratch.
    HiSparseResident,
    /// Keys and values of encoder output; refused.
    CrossAttention,
    /// Attention that keeps nothing across steps; refused.
    EncoderOnly,
}

const KINDS: &[(GroupKind, &str)] = &[
    (GroupKind::FullAttention, "full_attention"),
    (GroupKind::SinkFullAttention, "sink_full_attention"),
    (GroupKind::Mla, "mla_attention"),
    (GroupKind::SlidingWindow, "sliding_window"),
    (GroupKind::SlidingWindowMla, "sliding_window_mla"),
    (GroupKind::ChunkedLocal, "chunked_local_attention"),
    (GroupKind::Mamba, "mamba"),
    (GroupKind::CircularBuffer, "circular_buffer"),
    (GroupKind::HiSparseHot, "hisparse_hot"),
    (GroupKind::HiSparseResident, "hisparse_resident"),
    (GroupKind::CrossAttention, "cross_attention"),
    (GroupKind::EncoderOnly, "encoder_only_attention"),
];

impl GroupKind {
    /// The engine's name of the kind.
    pub fn as_str(self) -> &'static str {
        KINDS
            .iter()
            .find(|(kind, _)| *kind == self)
            .map_or("unknown", |(_, name)| name)
    }

    /// One state per block instead of one per token.
    pub fn is_recurrent(self) -> bool {
        self == Self::Mamba
    }

    /// Needs a window in tokens to mean anything.
    pub fn needs_window(self) -> bool {
        matches!(
            self,
            Self::SlidingWindow | Self::SlidingWindowMla | Self::ChunkedLocal
        )
    }

    /// Never has tokens of a prefix behind its blocks.
    pub fn is_always_scratch(self) -> bool {
        matches!(
            self,
            Self::CircularBuffer | Self::HiSparseHot | Self::HiSparseResident
        )
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name is no kind of group this build knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown kind {name:?}; known: {}", known_kinds())]
pub struct UnknownKind {
    name: String,
}

fn known_kinds() -> String {
    KINDS.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

impl FromStr for GroupKind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        // The same names, as a mechanical conversion of the engine's class names spells them.
        let name = match name {
            "hi_sparse_hot" => "hisparse_hot",
            "hi_sparse_resident" => "hisparse_resident",
            other => other,
        };
        let found = KINDS
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(kind, _)| *kind);
        found.ok_or_else(|| UnknownKind {
            name: name.chars().take(64).collect(),
        })
    }
}

/// Which recurrent states an engine keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecurrentMode {
    /// Only the running state: no snapshot to store.
    None,
    /// A snapshot at block boundaries where a step ended.
    Align,
    /// A snapshot at every block boundary.
    All,
}

impl RecurrentMode {
    /// The engine's name of the mode.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Align => "align",
            Self::All => "all",
        }
    }

    /// Whether states at block boundaries exist to be stored and restored.
    pub fn keeps_block_boundaries(self) -> bool {
        self != Self::None
    }
}

/// The name is no recurrent cache mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown recurrent cache mode {name:?}; known: none, align, all")]
pub struct UnknownRecurrentMode {
    name: String,
}

impl FromStr for RecurrentMode {
    type Err = UnknownRecurrentMode;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "none" => Ok(Self::None),
            "align" => Ok(Self::Align),
            "all" => Ok(Self::All),
            _ => Err(UnknownRecurrentMode {
                name: name.chars().take(64).collect(),
            }),
        }
    }
}

/// One layer of a group, or several alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSpec {
    /// Layer name, where the engine gives one. Names must be unique over all groups.
    pub name: Option<String>,
    /// How many layers alike this entry stands for.
    pub count: u64,
    /// Bytes of one block of one such layer, padding included.
    pub page_size_bytes: u64,
    /// Element types of the page; only scratch groups may leave it open.
    pub dtype: Option<Dtype>,
    /// Declared slot compression; none means one state per token. Meaningless for recurrent state.
    pub tokens_per_state: Option<Ratio>,
    /// The layer's own kind where a group holds per-layer specs; none: the group's.
    pub kind: Option<GroupKind>,
    /// The layer's own window where a group holds per-layer specs; none: the group's.
    pub window: Option<u64>,
    /// Set when the layer keeps no KV of its own but reads that of the named layer. It then adds no bytes
    /// and is neither stored nor restored: its owner is.
    pub shares_kv_of: Option<String>,
}

impl LayerSpec {
    /// `count` unnamed layers of one plain page size.
    pub fn new(count: u64, page_size_bytes: u64, dtype: Dtype) -> Self {
        Self {
            name: None,
            count,
            page_size_bytes,
            dtype: Some(dtype),
            tokens_per_state: None,
            kind: None,
            window: None,
            shares_kv_of: None,
        }
    }
}

/// Layers that share a block table, as the engine resolved them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvGroup {
    /// What a block holds.
    pub kind: GroupKind,
    /// Tokens of one block id before context parallelism.
    pub block_size: u64,
    /// Layers in registration order, which is also the order of their pages in an object.
    pub layers: Vec<LayerSpec>,
    /// Window in tokens: sliding window, or the piece length of chunked local attention.
    pub window: Option<u64>,
    /// False for scratch: no tokens of a prefix behind the blocks.
    pub prefix_cacheable: bool,
    /// True where decode context parallelism shards the blocks, so that one id spans `block_size * dcp`
    /// tokens.
    pub dcp_sharded: bool,
    /// Recurrent cache mode; none counts as [`RecurrentMode::None`], the engines' default.
    pub recurrent_mode: Option<RecurrentMode>,
}

impl KvGroup {
    /// A cacheable, context-sharded group without a window; adjust the fields that differ.
    pub fn new(kind: GroupKind, block_size: u64, layers: Vec<LayerSpec>) -> Self {
        Self {
            kind,
            block_size,
            layers,
            window: None,
            prefix_cacheable: !kind.is_always_scratch(),
            dcp_sharded: !kind.is_recurrent(),
            recurrent_mode: None,
        }
    }
}

/// All groups of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeometryInput {
    /// Decode context parallel size; 1 without it.
    pub dcp: u64,
    /// Groups by index, which is their id.
    pub groups: Vec<KvGroup>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_read_back_and_unknown_ones_do_not() {
        for (kind, name) in KINDS {
            assert_eq!(name.parse::<GroupKind>().as_ref(), Ok(kind));
            assert_eq!(kind.to_string(), *name);
        }
        assert_eq!("hi_sparse_hot".parse(), Ok(GroupKind::HiSparseHot));
        for bad in ["", "unknown", "Mamba", "mamba ", "full-attention"] {
            assert!(bad.parse::<GroupKind>().is_err(), "{bad:?} was accepted");
        }
    }
}
