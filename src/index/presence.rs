//! What is there of a prompt, and the objects that a plan takes of it.

use std::collections::BTreeMap;

use crate::object::{DomainShape, GroupShape, LookupRequest};

/// A tail of the prompt and the groups that have an object of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TailPresence {
    /// Its chunk.
    pub(crate) chunk: u32,
    /// Its tokens.
    pub(crate) tokens: u32,
    /// Bits of the groups.
    pub(crate) groups: u32,
}

/// What is there of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Presence {
    /// Bits of the groups that have an object of each full chunk. Chunks behind the end have none.
    pub(crate) chunks: Vec<u32>,
    /// The tails, in the order in which the request names them.
    pub(crate) tails: Vec<TailPresence>,
    /// Of objects that begin with holes the first token that is held, by source and bit of the group.
    pub(crate) holes: BTreeMap<(Source, u32), u32>,
}

impl Presence {
    /// An object that was there is not any more.
    pub(crate) fn lose(&mut self, load: &Load, groups: &[GroupShape]) {
        let gone = !groups[load.group].bit;
        match load.source {
            Source::Chunk(chunk) => self.chunks[chunk as usize] &= gone,
            Source::Tail(tail) => self.tails[tail as usize].groups &= gone,
        }
    }
}

/// The numbers of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The bound chunk size.
    pub(crate) chunk_size: u64,
    /// The prefix is at most this long.
    pub(crate) max_tokens: u64,
    /// Tokens that need not be loaded.
    pub(crate) local_tokens: u64,
}

impl Limits {
    /// Those of a request.
    pub(crate) fn of(request: &LookupRequest<'_>, shape: &DomainShape) -> Self {
        Self {
            chunk_size: shape.chunk_size.into(),
            max_tokens: request.max_tokens,
            local_tokens: request.local_tokens,
        }
    }
}

/// Where bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Source {
    /// The object of a full chunk.
    Chunk(u32),
    /// The object of the tail with this place in the request.
    Tail(u32),
}

/// One object to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Load {
    /// Place of the group in the domain's list.
    pub(crate) group: usize,
    /// The object.
    pub(crate) source: Source,
}
