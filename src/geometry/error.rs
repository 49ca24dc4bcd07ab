//! Why a geometry cannot be served, with every offending group at once.

use std::fmt;

use super::chunk::{ChunkError, MAX_CHUNK_TOKENS};
use super::resolved::ResolvedGeometry;
use super::{Dtype, GroupKind, Ratio, RecurrentMode};

/// What is wrong with one group. Variants carry the numbers, so the text says what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupFault {
    /// A block that spans no tokens.
    #[error("block_size is 0; a block must span at least one token")]
    ZeroBlockSize,
    /// The span overflows or is absurd.
    #[error("a block of {block_size} tokens times {shards} context shards exceeds {MAX_CHUNK_TOKENS} tokens")]
    SpanTooLarge {
        /// Tokens per block before context parallelism.
        block_size: u64,
        /// Factor from decode context parallelism.
        shards: u64,
    },
    /// No layer entry.
    #[error("the group has no layers")]
    NoLayers,
    /// A layer entry that stands for nothing.
    #[error("layer entry {layer} has count 0")]
    ZeroCount {
        /// Index of the layer entry.
        layer: usize,
    },
    /// A page of zero bytes.
    #[error("layer entry {layer} has page_size_bytes 0")]
    ZeroPage {
        /// Index of the layer entry.
        layer: usize,
    },
    /// The bytes of one block of all layers do not fit 64 bits.
    #[error("the bytes of one block over all layers overflow 64 bits at layer entry {layer}")]
    BytesOverflow {
        /// Index of the layer entry at which the sum overflowed.
        layer: usize,
    },
    /// The declared compression does not give a whole number of slots.
    #[error(
        "layer entry {layer}: a block of {block_size} tokens at {ratio} tokens per state is no whole number \
         of slots"
    )]
    SlotsNotWhole {
        /// Index of the layer entry.
        layer: usize,
        /// Tokens per block before context parallelism.
        block_size: u64,
        /// Declared tokens per state.
        ratio: Ratio,
    },
    /// The page is no whole number of elements per slot.
    #[error(
        "layer entry {layer}: a page of {page_size_bytes} bytes does not factor into {slots} slots of whole \
         {dtype} elements ({element_bytes} bytes each); give a multiple of {slots} * {element_bytes}"
    )]
    PageNotWhole {
        /// Index of the layer entry.
        layer: usize,
        /// Bytes of one block of the layer.
        page_size_bytes: u64,
        /// Stored states per block.
        slots: u64,
        /// Declared element type.
        dtype: Dtype,
        /// Bytes of one element.
        element_bytes: u64,
    },
    /// A dtype is needed for everything that is stored.
    #[error("layer entry {layer} declares no dtype")]
    MissingDtype {
        /// Index of the layer entry.
        layer: usize,
    },
    /// A windowed kind without its window.
    #[error("a {kind} group must give its window in tokens, at least 1")]
    MissingWindow {
        /// The group's kind.
        kind: GroupKind,
    },
    /// A scratch kind that claims to be cacheable.
    #[error("a {kind} group keeps no tokens of a prefix behind its blocks; it must not be prefix_cacheable")]
    CacheableScratch {
        /// The group's kind.
        kind: GroupKind,
    },
    /// Keys and values of encoder output cannot be found by prompt tokens.
    #[error(
        "cross-attention cannot be served: its KV depends on encoder input, which prompt tokens do not name"
    )]
    CrossAttention,
    /// Nothing is kept across steps.
    #[error("encoder-only attention cannot be served: it keeps no KV across steps")]
    EncoderOnly,
    /// No state at a block boundary exists to be stored.
    #[error(
        "recurrent cache mode \"{}\" keeps no snapshot at block boundaries, so nothing can be restored; run \
         the engine with prefix caching and recurrent cache mode \"align\" or \"all\"",
        mode.as_str()
    )]
    NoSnapshots {
        /// The group's recurrent cache mode.
        mode: RecurrentMode,
    },
    /// Recurrent and attention layers behind one block table.
    #[error(
        "layer entry {layer} is {layer_kind} in a {group_kind} group; recurrent state and attention need \
         groups of their own"
    )]
    MixedRecurrent {
        /// Index of the layer entry.
        layer: usize,
        /// Kind of that layer.
        layer_kind: GroupKind,
        /// Kind of the group.
        group_kind: GroupKind,
    },
    /// Layers of one group that need different parts of a prefix.
    #[error(
        "layer entry {layer} needs {layer_window} but the group {group_window}; differing windows need \
         groups of their own"
    )]
    DifferingWindows {
        /// Index of the layer entry.
        layer: usize,
        /// What that layer needs.
        layer_window: WindowText,
        /// What the group needs.
        group_window: WindowText,
    },
    /// One layer in two places without saying who owns its KV.
    #[error("layer {name:?} is also in group {other}; a shared layer is handled by its owner's group only")]
    DuplicateLayer {
        /// Layer name.
        name: String,
        /// Index of the group that named it first.
        other: usize,
    },
    /// A layer shares the KV of a layer that no group owns.
    #[error("layer entry {layer} shares the KV of {owner:?}, which no group owns")]
    UnknownOwner {
        /// Index of the layer entry.
        layer: usize,
        /// Name of the missing owner.
        owner: String,
    },
}

impl GroupFault {
    /// True where the numbers are sound but the model cannot be served; false where the input is malformed.
    pub fn is_refusal(&self) -> bool {
        use GroupFault::{
            CrossAttention, DifferingWindows, DuplicateLayer, EncoderOnly, MixedRecurrent, NoSnapshots,
        };
        matches!(
            self,
            CrossAttention
                | EncoderOnly
                | NoSnapshots { .. }
                | MixedRecurrent { .. }
                | DifferingWindows { .. }
                | DuplicateLayer { .. }
        )
    }
}

/// What part of a prefix a layer needs, for error texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowText {
    /// Everything.
    Whole,
    /// A sliding window.
    Sliding(u64),
    /// An aligned piece.
    Chunked(u64),
}

impl fmt::Display for WindowText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("the whole prefix"),
            Self::Sliding(tokens) => write!(f, "a sliding window of {tokens} tokens"),
            Self::Chunked(tokens) => write!(f, "aligned pieces of {tokens} tokens"),
        }
    }
}

/// A fault and the group it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupProblem {
    /// Group index.
    pub index: usize,
    /// What is wrong with it.
    pub fault: GroupFault,
}

impl fmt::Display for GroupProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}: {}", self.index, self.fault)
    }
}

/// Why the groups of a worker resolve to no geometry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// No groups at all.
    #[error("the model has no KV cache groups")]
    NoGroups,
    /// Context parallelism of size zero.
    #[error("the decode context parallel size is 0; it must be at least 1")]
    ZeroDcp,
    /// Every offending group and why.
    #[error(
        "{} of the model's KV cache groups cannot be served: {}",
        distinct(problems),
        join(problems)
    )]
    Groups {
        /// All problems, by group.
        problems: Vec<GroupProblem>,
        /// The numbers the model would have, where the only obstacle is how the engine was started.
        would_be: Option<Box<ResolvedGeometry>>,
    },
    /// The groups are sound one by one, but their spans have no chunk.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
}

impl GeometryError {
    /// A stable word for machine-readable answers.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoGroups => "no_groups",
            Self::ZeroDcp => "zero",
            Self::Groups { problems, .. } => {
                if problems.iter().all(|problem| problem.fault.is_refusal()) {
                    "refused"
                } else {
                    "invalid"
                }
            }
            Self::Chunk(error) => error.kind(),
        }
    }
}

fn join(problems: &[GroupProblem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

fn distinct(problems: &[GroupProblem]) -> usize {
    let mut groups: Vec<usize> = problems.iter().map(|problem| problem.index).collect();
    groups.sort_unstable();
    groups.dedup();
    groups.len()
}

/// Why a resolved geometry cannot take a chunk size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The size is zero or too large.
    #[error("a chunk of {chunk} tokens is outside 1..={MAX_CHUNK_TOKENS}")]
    OutOfRange {
        /// Offered chunk size in tokens.
        chunk: u64,
    },
    /// A span does not divide the size.
    #[error(
        "a chunk of {chunk} tokens is no multiple of the required alignment {alignment} (spans {spans:?}); \
         use a multiple of {alignment}"
    )]
    Misaligned {
        /// Offered chunk size in tokens.
        chunk: u64,
        /// Required alignment in tokens.
        alignment: u64,
        /// Tokens per block of every group.
        spans: Vec<u64>,
    },
    /// A tail that cuts a block.
    #[error(
        "{tokens} tokens are no whole number of blocks of group {group}, which span {tokens_per_block} tokens"
    )]
    PartialBlock {
        /// Offered length in tokens.
        tokens: u64,
        /// Group index.
        group: usize,
        /// Tokens per block of that group.
        tokens_per_block: u64,
    },
    /// The object does not fit 64 bits.
    #[error(
        "the object of group {group} overflows 64 bits: {bytes_per_block} bytes per block, {blocks} blocks"
    )]
    ObjectTooLarge {
        /// Group index.
        group: usize,
        /// Bytes of one block.
        bytes_per_block: u64,
        /// Blocks in the object.
        blocks: u64,
    },
}
