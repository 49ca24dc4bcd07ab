//! What a group needs stored before a request can resume at a token boundary.

use std::ops::Range;

use super::GroupKind;
use super::resolved::ResolvedGroup;

/// What part of a prefix the objects of a group stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// The whole prefix is needed.
    Full,
    /// The trailing window is needed.
    Window {
        /// Window length in tokens.
        tokens: u64,
    },
    /// The aligned piece that holds the boundary is needed.
    ChunkedLocal {
        /// Piece length in tokens.
        tokens: u64,
    },
    /// Only the state at the boundary is needed.
    Recurrent,
}

impl ObjectKind {
    /// The kind of objects a group's blocks go into; nothing for scratch and for what is refused.
    pub fn of(group: &ResolvedGroup) -> Option<Self> {
        if !group.cacheable {
            return None;
        }
        match group.kind {
            GroupKind::FullAttention | GroupKind::SinkFullAttention | GroupKind::Mla => Some(Self::Full),
            GroupKind::SlidingWindow | GroupKind::SlidingWindowMla => {
                group.window.map(|tokens| Self::Window { tokens })
            }
            GroupKind::ChunkedLocal => group.window.map(|tokens| Self::ChunkedLocal { tokens }),
            GroupKind::Mamba => Some(Self::Recurrent),
            GroupKind::CircularBuffer
            | GroupKind::HiSparseHot
            | GroupKind::HiSparseResident
            | GroupKind::CrossAttention
            | GroupKind::EncoderOnly => None,
        }
    }

    /// Tokens of the window or of the attention chunk; 0 of kinds that have none.
    pub fn window_tokens(self) -> u64 {
        match self {
            Self::Window { tokens } | Self::ChunkedLocal { tokens } => tokens,
            Self::Full | Self::Recurrent => 0,
        }
    }

    /// See [`first_needed_token`].
    pub fn first_needed_token(self, boundary: u64) -> u64 {
        first_needed_token(self, boundary)
    }
}

/// First token position whose KV a group needs when the next token to compute sits at `boundary`.
///
/// The needed positions are `first..boundary`; equal to `boundary` means that no per-token KV is needed.
///
/// * Full attention reads the whole prefix.
/// * A sliding window of `w` lets the token at position `p` attend to `p-w+1..=p`. The next token sits at
///   `boundary` and brings its own KV, so `boundary-w+1..boundary` must be there: `w-1` tokens. Later tokens
///   reach back less far.
/// * Chunked local attention of `c` attends within `c`-aligned pieces, so it needs from the start of the
///   piece that holds `boundary`; at a multiple of `c` it needs nothing.
/// * Recurrent state at the boundary replaces all tokens before it.
pub fn first_needed_token(kind: ObjectKind, boundary: u64) -> u64 {
    match kind {
        ObjectKind::Full => 0,
        ObjectKind::Window { tokens } => boundary.saturating_sub(tokens.saturating_sub(1)),
        ObjectKind::ChunkedLocal { tokens } => boundary - boundary % tokens.max(1),
        ObjectKind::Recurrent => boundary,
    }
}

/// Whether a request can resume at one of these boundaries at least without anything of a group.
pub fn needs_nothing_in(kind: ObjectKind, boundaries: Range<u64>) -> bool {
    let first = match kind {
        ObjectKind::Full | ObjectKind::Recurrent => return boundaries.contains(&0),
        ObjectKind::Window { tokens: 0 | 1 } => boundaries.start,
        ObjectKind::Window { .. } => 0,
        ObjectKind::ChunkedLocal { tokens } => boundaries.start.next_multiple_of(tokens.max(1)),
    };
    boundaries.contains(&first)
}

/// Most trailing chunks that a resume at a chunk boundary can need; nothing for full attention, which needs
/// all.
///
/// One snapshot, hence one chunk's object, for recurrent state.
pub fn window_chunks(kind: ObjectKind, chunk: u64) -> Option<u64> {
    match kind {
        ObjectKind::Full => None,
        // Chunked local attention needs at most c-1 tokens: at a multiple of c it needs none.
        ObjectKind::Window { tokens } | ObjectKind::ChunkedLocal { tokens } => {
            Some(tokens.saturating_sub(1).div_ceil(chunk.max(1)))
        }
        ObjectKind::Recurrent => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn boundaries() {
        assert_eq!(first_needed_token(ObjectKind::Full, 512), 0);
        assert_eq!(first_needed_token(ObjectKind::Window { tokens: 128 }, 512), 385);
        assert_eq!(first_needed_token(ObjectKind::Window { tokens: 1 }, 512), 512);
        assert_eq!(first_needed_token(ObjectKind::Window { tokens: 1024 }, 512), 0);
        assert_eq!(
            first_needed_token(ObjectKind::ChunkedLocal { tokens: 8192 }, 8191),
            0
        );
        assert_eq!(
            first_needed_token(ObjectKind::ChunkedLocal { tokens: 8192 }, 8192),
            8192
        );
        assert_eq!(
            first_needed_token(ObjectKind::ChunkedLocal { tokens: 8192 }, 8448),
            8192
        );
        assert_eq!(first_needed_token(ObjectKind::Recurrent, 544), 544);
    }

    #[test]
    fn windows_in_chunks() {
        assert_eq!(window_chunks(ObjectKind::Full, 256), None);
        assert_eq!(window_chunks(ObjectKind::Window { tokens: 128 }, 256), Some(1));
        assert_eq!(window_chunks(ObjectKind::Window { tokens: 257 }, 256), Some(1));
        assert_eq!(window_chunks(ObjectKind::Window { tokens: 258 }, 256), Some(2));
        assert_eq!(window_chunks(ObjectKind::Window { tokens: 1 }, 256), Some(0));
        assert_eq!(
            window_chunks(ObjectKind::ChunkedLocal { tokens: 8192 }, 256),
            Some(32)
        );
        assert_eq!(window_chunks(ObjectKind::Recurrent, 256), Some(1));
    }

    proptest! {
        #[test]
        fn window_chunks_cover_every_boundary(
            tokens in 1..3000_u64,
            chunk in 1..700_u64,
            n in 0..20_u64,
            local in any::<bool>(),
        ) {
            let kind = if local { ObjectKind::ChunkedLocal { tokens } } else { ObjectKind::Window { tokens } };
            let boundary = n * chunk;
            let first = first_needed_token(kind, boundary);
            prop_assert!(first <= boundary);
            // Reference: the positions that a token at `boundary` may attend to, found by the mask's
            // definition.
            let attends = |p: u64| {
                if local { p / tokens == boundary / tokens } else { boundary < p + tokens }
            };
            let wanted = (0..boundary).find(|&p| attends(p)).unwrap_or(boundary);
            prop_assert_eq!(first, wanted);
            let chunks = (boundary - first).div_ceil(chunk);
            prop_assert!(chunks <= window_chunks(kind, chunk).unwrap());
        }
    }
}
