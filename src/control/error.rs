//! What a negotiation can answer besides a size, with the numbers and a way out.

use crate::object::GroupSpans;

use super::word::{BindState, WordError};
use crate::geometry::chunk::ChunkError;

/// Why a negotiation, or something that needs one, was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Nothing can be cached before a chunk size is bound.
    #[error("no chunk size is in force yet (state: {}); negotiate first", .0.name())]
    NotNegotiated(BindState),
    /// A zero, an overflow or a number beyond every limit.
    #[error("{source} ({spans})")]
    Arithmetic {
        /// What is wrong with the numbers.
        source: ChunkError,
        /// The client's groups.
        spans: GroupSpans,
    },
    /// Groups, but none that can be cached.
    #[error(
        "none of the {groups} KV cache groups can be cached: every span is 0 tokens; start the engine without a KV connector"
    )]
    NoCacheableGroup {
        /// The number of groups.
        groups: usize,
    },
    /// More groups than any model has.
    #[error("{given} KV cache groups are beyond the limit of {limit}")]
    TooManyGroups {
        /// The number of groups.
        given: usize,
        /// The limit.
        limit: usize,
    },
    /// The alignment sent is not what its spans give.
    #[error(
        "the required alignment of {sent} tokens is not the least common multiple of the spans, which is \
         {computed} ({spans}); the client computed one of the two wrongly"
    )]
    AlignmentMismatch {
        /// The alignment that was sent.
        sent: u64,
        /// The least common multiple of the spans.
        computed: u64,
        /// The client's groups.
        spans: GroupSpans,
    },
    /// The policy is `fixed`, and the size does not suit the model.
    #[error(
        "this server is fixed to chunks of {chunk_size} tokens, which is not a multiple of the {alignment} \
         tokens this model needs ({spans}); restart it with --chunk-size-policy negotiate, or with a \
         --chunk-size that is a multiple of {alignment}"
    )]
    FixedIncompatible {
        /// The configured size.
        chunk_size: u32,
        /// The alignment the model needs.
        alignment: u64,
        /// The client's groups.
        spans: GroupSpans,
    },
    /// Another client came first, with a size that does not suit this model.
    #[error(
        "this server is {} to chunks of {chunk_size} tokens, which is not a multiple of the {alignment} \
         tokens this model needs ({spans}); use another server for this model, or restart this one with \
         --chunk-scope model, or with a --chunk-size that is a multiple of both", state.name()
    )]
    Incompatible {
        /// Whether the size is selected or bound.
        state: BindState,
        /// The size.
        chunk_size: u32,
        /// The alignment the model needs.
        alignment: u64,
        /// The client's groups.
        spans: GroupSpans,
    },
    /// Groups that do not suit the bound size, found when they were registered.
    #[error(
        "the bound chunk size of {chunk_size} tokens is not a multiple of these spans: {spans}; the groups \
         registered are not the ones negotiated for"
    )]
    SpanIncompatible {
        /// The bound size.
        chunk_size: u32,
        /// Only the groups that do not fit.
        spans: GroupSpans,
    },
    /// A part of the server could not take up the size. The size stays selected.
    #[error(
        "chunk size {chunk_size} is selected but not in force: binding listener {index} ({name}) failed: \
         {reason}; negotiate again to resume there"
    )]
    ListenerFailed {
        /// The selected size.
        chunk_size: u32,
        /// The position of the listener.
        index: usize,
        /// Its name.
        name: String,
        /// What it said.
        reason: String,
    },
    /// A listener that would never run.
    #[error("binding listener {name} was registered after chunk size {chunk_size} was bound")]
    ListenerTooLate {
        /// Its name.
        name: String,
        /// The bound size.
        chunk_size: u32,
    },
    /// More binding domains than the control region has words for.
    #[error(
        "this server has chunk sizes for {known} binding domains and takes no more than {limit} in its life; use \
         another server for this model, or restart this one to forget those no longer used"
    )]
    TooManyDomains {
        /// The number of domains.
        known: usize,
        /// The limit.
        limit: usize,
    },
    /// The record of the agreed size cannot be used.
    #[error("{place}: {reason}; no chunk size can be agreed on until that is mended")]
    AgreedUnreadable {
        /// Where the record is.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Other servers have agreed on a size that the model cannot use.
    #[error(
        "the servers of {place} have agreed on chunks of {agreed} tokens, which is not a multiple of the {alignment} \
         tokens this model needs ({spans}); use a server outside of that fleet for this model"
    )]
    AgreedAlignment {
        /// Where the record is.
        place: String,
        /// The recorded size.
        agreed: u32,
        /// The alignment the model needs.
        alignment: u64,
        /// The client's groups.
        spans: GroupSpans,
    },
    /// Other servers have agreed on a size that this one's configuration excludes.
    #[error(
        "the servers of {place} have agreed on chunks of {agreed} tokens, but this server's --chunk-size is \
         {configured}; restart it with the settings of the others"
    )]
    AgreedConfig {
        /// Where the record is.
        place: String,
        /// The recorded size.
        agreed: u32,
        /// The alignment the model needs.
        alignment: u64,
        /// The configuration.
        configured: String,
    },
    /// A recovered pool was written with a size that the configuration excludes.
    #[error(
        "the recovered pool holds chunks of {recovered} tokens, but --chunk-size is {configured}; start with \
         --chunk-size {recovered}, or with --discard-pool to drop what it holds"
    )]
    RecoveredConflict {
        /// The size the pool was bound to.
        recovered: u64,
        /// The configuration.
        configured: String,
    },
    /// A pool was recovered after a client had already decided on another size.
    #[error(
        "the recovered pool holds chunks of {recovered} tokens, but {chunk_size} was decided before; a pool \
         is to be recovered before the first client is served"
    )]
    RecoveredTooLate {
        /// The size the pool was bound to.
        recovered: u32,
        /// The size decided before.
        chunk_size: u32,
    },
    /// The word in the control region is not one that a server writes.
    #[error(transparent)]
    Word(#[from] WordError),
}
