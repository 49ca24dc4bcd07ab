//! The tails of a prompt: fronts of its chunks, at the boundaries inside a chunk where a hit may end.

use std::borrow::Cow;
use std::fmt::Debug;

use crate::keys::ChunkKey;

/// A partial chunk of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Key over the tokens of all chunks before and `tokens` of this one.
    pub key: ChunkKey,
    /// The chunk.
    pub chunk: u32,
    /// Tokens of the chunk: a multiple of the alignment, less than the chunk size.
    pub tokens: u32,
}

/// Where a lookup gets its tails from. It asks for those of a chunk only where they can matter, so that a client may compute
/// keys when they are asked for.
pub trait Tails: Debug + Sync {
    /// The last chunk up to this one that has any.
    fn last_chunk(&self, limit: u32) -> Option<u32>;
    /// All of them, by chunk, then by length.
    fn all(&self) -> Cow<'_, [Tail]>;
    /// Those of a chunk, the shortest first.
    fn of(&self, chunk: u32) -> Cow<'_, [Tail]>;
    /// Tokens of the prompt up to the end of the last tail, in chunks of `chunk_size`; 0 without tails.
    fn end(&self, chunk_size: u32) -> u64;
}

/// Tails that are all there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TailList(Vec<Tail>);

impl TailList {
    /// These, in any order.
    pub fn new(mut tails: Vec<Tail>) -> Self {
        let place = |tail: &Tail| (tail.chunk, tail.tokens);
        if !tails.is_sorted_by_key(place) {
            tails.sort_by_key(place);
        }
        Self(tails)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Tail> {
        self.0.iter()
    }
}

impl FromIterator<Tail> for TailList {
    fn from_iter<I: IntoIterator<Item = Tail>>(tails: I) -> Self {
        Self::new(tails.into_iter().collect())
    }
}

impl Tails for TailList {
    fn last_chunk(&self, limit: u32) -> Option<u32> {
        let count = self.0.partition_point(|tail| tail.chunk <= limit);
        count.checked_sub(1).map(|last| self.0[last].chunk)
    }

    fn all(&self) -> Cow<'_, [Tail]> {
        Cow::Borrowed(&self.0)
    }

    fn of(&self, chunk: u32) -> Cow<'_, [Tail]> {
        let first = self.0.partition_point(|tail| tail.chunk < chunk);
        let count = self.0[first..].partition_point(|tail| tail.chunk == chunk);
        Cow::Borrowed(&self.0[first..first + count])
    }

    fn end(&self, chunk_size: u32) -> u64 {
        let end = |tail: &Tail| u64::from(tail.chunk) * u64::from(chunk_size) + u64::from(tail.tokens);
        self.0.last().map_or(0, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_found_by_chunk_whatever_their_order() {
        let tail = |chunk, tokens| Tail {
            key: ChunkKey::from_bytes([tokens as u8; 32]),
            chunk,
            tokens,
        };
        let list = TailList::new(vec![tail(4, 32), tail(2, 16), tail(4, 16), tail(2, 48)]);
        assert_eq!(
            [9, 3, 2, 1].map(|limit| list.last_chunk(limit)),
            [Some(4), Some(2), Some(2), None]
        );
        assert!(list.all().is_sorted_by_key(|tail| (tail.chunk, tail.tokens)));
        assert_eq!(*list.of(2), [tail(2, 16), tail(2, 48)]);
        assert!(list.of(3).is_empty() && list.of(5).is_empty());
        assert_eq!(*list.of(4), [tail(4, 16), tail(4, 32)]);
        assert_eq!(list.end(64), 4 * 64 + 32);
        assert_eq!(
            (TailList::default().last_chunk(9), TailList::default().end(64)),
            (None, 0)
        );
    }
}
