//! Object groups: which KV cache groups are stored together, and how many bytes that makes.

use super::error::BindError;
use super::resolved::ResolvedGeometry;
use super::window::{self, ObjectKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Member {
    group: usize,
    tokens_per_block: u64,
    bytes_per_block: u64,
}

/// KV cache groups whose bytes for one chunk make one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectGroup {
    kind: ObjectKind,
    members: Vec<Member>,
}

impl ObjectGroup {
    /// What part of a prefix these objects stand for.
    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Indices of the KV cache groups, ascending; an object holds their bytes in this order.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.members.iter().map(|member| member.group)
    }

    /// Bytes of one worker's part of a full chunk.
    pub fn object_bytes(&self, chunk: u64) -> Result<u64, BindError> {
        self.bytes_for_tokens(chunk)
    }

    /// Bytes of one worker's part of an object over `tokens` tokens, a chunk or a tail of whole blocks.
    /// A recurrent object is one state per group at its end, whatever its length.
    pub fn bytes_for_tokens(&self, tokens: u64) -> Result<u64, BindError> {
        let mut total = 0_u64;
        for member in &self.members {
            let blocks = blocks_of(member.group, member.tokens_per_block, tokens)?;
            let blocks = if self.kind == ObjectKind::Recurrent {
                1
            } else {
                blocks
            };
            let too_large = BindError::ObjectTooLarge {
                group: member.group,
                bytes_per_block: member.bytes_per_block,
                blocks,
            };
            let bytes = member
                .bytes_per_block
                .checked_mul(blocks)
                .and_then(|bytes| total.checked_add(bytes));
            total = bytes.ok_or(too_large)?;
        }
        Ok(total)
    }

    /// See [`window::window_chunks`].
    pub fn window_chunks(&self, chunk: u64) -> Option<u64> {
        window::window_chunks(self.kind, chunk)
    }
}

/// Whole blocks of a group in `tokens` tokens.
pub(super) fn blocks_of(group: usize, tokens_per_block: u64, tokens: u64) -> Result<u64, BindError> {
    if tokens == 0 || tokens_per_block == 0 || !tokens.is_multiple_of(tokens_per_block) {
        return Err(BindError::PartialBlock {
            tokens,
            group,
            tokens_per_block,
        });
    }
    Ok(tokens / tokens_per_block)
}

/// Sorts the cacheable groups into object groups.
///
/// All full-attention groups share one object, which comes first if there is any: a hit needs all of them
/// over the whole prefix. Groups with the same window share one, and so do all recurrent groups, since a
/// boundary can be resumed only with every state. The rest of the order is that of each object group's first
/// member.
pub fn object_groups(geometry: &ResolvedGeometry) -> Vec<ObjectGroup> {
    let mut found: Vec<ObjectGroup> = Vec::new();
    for (group, resolved) in geometry.groups().iter().enumerate() {
        let Some(kind) = ObjectKind::of(resolved) else {
            continue;
        };
        let member = Member {
            group,
            tokens_per_block: resolved.tokens_per_block,
            bytes_per_block: resolved.bytes_per_block,
        };
        match found.iter_mut().find(|object| object.kind == kind) {
            Some(object) => object.members.push(member),
            None => found.push(ObjectGroup {
                kind,
                members: vec![member],
            }),
        }
    }
    found.sort_by_key(|object| object.kind != ObjectKind::Full);
    found
}
