//! What a client asks for and gets, and which size a first client's numbers lead to.

use super::config::{ChunkSizeConfig, Policy};
use super::error::BindError;
use super::word::BindState;
use crate::geometry::chunk::{self, ChunkError, MAX_CHUNK_TOKENS, Warning, near_coprime, resolve_chunk};
use crate::object::{GroupSpan, GroupSpans};

/// More KV cache groups than any model has.
pub const MAX_KV_CACHE_GROUPS: usize = 1024;

/// What a client says when it negotiates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NegotiateRequest {
    /// The least common multiple of the positive spans.
    pub required_alignment: u64,
    /// The chunk size the client would like as the minimum; counts under `auto` only. 0: none.
    pub preferred_base: u64,
    /// The size that an earlier life of the server gave it. 0: none.
    pub previous_size: u64,
    /// The model's groups. May be empty for a client that knows only its alignment.
    pub spans: Vec<GroupSpan>,
}

/// The answer to a successful negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The chunk size in tokens.
    pub chunk_size: u32,
    /// The state the word has now.
    pub state: BindState,
    /// What the engine's log should say.
    pub warnings: Vec<Warning>,
}

/// Checks the numbers of a request against each other, before any state is looked at.
pub(super) fn check_request(request: &NegotiateRequest) -> Result<Vec<Warning>, BindError> {
    let alignment = request.required_alignment;
    if request.spans.len() > MAX_KV_CACHE_GROUPS {
        return Err(BindError::TooManyGroups {
            given: request.spans.len(),
            limit: MAX_KV_CACHE_GROUPS,
        });
    }
    let arithmetic = |source| BindError::Arithmetic {
        source,
        spans: GroupSpans(request.spans.clone()),
    };
    let spans: Vec<u64> = request.spans.iter().map(|span| span.tokens).collect();
    let computed = match chunk::alignment(&spans) {
        Ok(computed) => Some(computed),
        // A client that knows only its alignment names no groups at all.
        Err(ChunkError::NoCacheableGroup { spans: 0 }) => None,
        Err(ChunkError::NoCacheableGroup { spans }) => {
            return Err(BindError::NoCacheableGroup { groups: spans });
        }
        Err(source) => return Err(arithmetic(source)),
    };
    // Zero and absurd alignments are refused here, whatever the minimum.
    resolve_chunk(alignment, 1).map_err(arithmetic)?;
    if let Some(computed) = computed.filter(|&computed| computed != alignment) {
        let spans = GroupSpans(request.spans.clone());
        return Err(BindError::AlignmentMismatch {
            sent: alignment,
            computed,
            spans,
        });
    }
    Ok(near_coprime(alignment, &spans).into_iter().collect())
}

/// The size that a first client gets.
pub(super) fn select_size(
    config: ChunkSizeConfig,
    alignment: u64,
    preferred_base: u64,
    previous_size: u64,
    spans: &GroupSpans,
) -> Result<u32, BindError> {
    let arithmetic = |source| BindError::Arithmetic {
        source,
        spans: spans.clone(),
    };
    // A model that joined another's size could never come back after a restart otherwise: whichever engine is first, all
    // that ran at one size go on at it. What this one would prefer now is no reason against it, nor is a preference that
    // makes no sense.
    let previous_suits = previous_size > 0
        && previous_size <= MAX_CHUNK_TOKENS
        && previous_size.is_multiple_of(alignment)
        && config.admits(previous_size);
    if previous_suits {
        return Ok(previous_size as u32);
    }
    let minimum = config.minimum_for(preferred_base).map_err(arithmetic)?;
    if config.policy() == Policy::Fixed {
        if !minimum.is_multiple_of(alignment) {
            let (chunk_size, spans) = (minimum as u32, spans.clone());
            return Err(BindError::FixedIncompatible {
                chunk_size,
                alignment,
                spans,
            });
        }
        return Ok(minimum as u32);
    }
    let size = resolve_chunk(alignment, minimum).map_err(arithmetic)?;
    Ok(size as u32) // at most MAX_CHUNK_TOKENS
}
