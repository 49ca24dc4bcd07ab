//! The chunk-size word: state and size in one `u64`, so that nobody can see one without the other.
//!
//! Bits 63..62 are the state, bits 61..32 zero, bits 31..0 the size in tokens (zero while unbound).

use crate::geometry::chunk::MAX_CHUNK_TOKENS;

const STATE_SHIFT: u32 = 62;
const RESERVED: u64 = 0x3fff_ffff_0000_0000;

/// The state half of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BindState {
    /// No client has negotiated yet.
    Unbound = 0,
    /// The size is decided, but not every binding listener has accepted it yet.
    Selected = 1,
    /// The size holds for the rest of the server's life.
    Bound = 2,
}

impl BindState {
    /// The name used in status output and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unbound => "unbound",
            Self::Selected => "selected",
            Self::Bound => "bound",
        }
    }
}

/// A decoded chunk-size word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkWord {
    /// See [`BindState::Unbound`].
    Unbound,
    /// See [`BindState::Selected`].
    Selected(u32),
    /// See [`BindState::Bound`].
    Bound(u32),
}

/// A pattern of bits that no server writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// State 3 does not exist.
    #[error("chunk-size word {0:#018x} has the state 3, which does not exist; the region is damaged")]
    UnknownState(u64),
    /// Bits 61..32 are not zero.
    #[error("chunk-size word {0:#018x} has reserved bits set; the region is damaged or of a later version")]
    ReservedBits(u64),
    /// An unbound word with a size, or one with a state and none.
    #[error("chunk-size word {word:#018x} is {} with a size of {size} tokens; the region is damaged", state.name())]
    SizeOfState {
        /// The word.
        word: u64,
        /// Its state.
        state: BindState,
        /// Its size.
        size: u32,
    },
}

impl ChunkWord {
    /// The state without the size.
    pub fn state(self) -> BindState {
        match self {
            Self::Unbound => BindState::Unbound,
            Self::Selected(_) => BindState::Selected,
            Self::Bound(_) => BindState::Bound,
        }
    }

    /// The size, decided or in force. Use [`ChunkWord::bound`] to know what may be relied on.
    pub fn size(self) -> Option<u32> {
        match self {
            Self::Unbound => None,
            Self::Selected(size) | Self::Bound(size) => Some(size),
        }
    }

    /// The size, if it is in force.
    pub fn bound(self) -> Option<u32> {
        match self {
            Self::Bound(size) => Some(size),
            Self::Unbound | Self::Selected(_) => None,
        }
    }

    /// The bits.
    pub fn encode(self) -> u64 {
        (self.state() as u64) << STATE_SHIFT | u64::from(self.size().unwrap_or(0))
    }

    /// Reads the bits.
    ///
    /// # Errors
    /// [`WordError`] for a pattern that [`ChunkWord::encode`] never gives for a size within
    /// [`MAX_CHUNK_TOKENS`].
    pub fn decode(word: u64) -> Result<Self, WordError> {
        if word & RESERVED != 0 {
            return Err(WordError::ReservedBits(word));
        }
        let size = word as u32;
        let valid = size > 0 && u64::from(size) <= MAX_CHUNK_TOKENS;
        match (word >> STATE_SHIFT, valid) {
            (0, _) if size == 0 => Ok(Self::Unbound),
            (0, _) => Err(WordError::SizeOfState {
                word,
                state: BindState::Unbound,
                size,
            }),
            (1, true) => Ok(Self::Selected(size)),
            (1, false) => Err(WordError::SizeOfState {
                word,
                state: BindState::Selected,
                size,
            }),
            (2, true) => Ok(Self::Bound(size)),
            (2, false) => Err(WordError::SizeOfState {
                word,
                state: BindState::Bound,
                size,
            }),
            _ => Err(WordError::UnknownState(word)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bits_are_as_documented() {
        assert_eq!(ChunkWord::Unbound.encode(), 0);
        assert_eq!(ChunkWord::Selected(256).encode(), 0x4000_0000_0000_0100);
        assert_eq!(ChunkWord::Bound(1088).encode(), 0x8000_0000_0000_0440);
        assert_eq!(ChunkWord::Bound(1088).bound(), Some(1088));
        assert_eq!(ChunkWord::Selected(1088).bound(), None);
        assert_eq!(ChunkWord::Selected(1088).size(), Some(1088));
        assert_eq!(ChunkWord::Unbound.size(), None);
    }

    #[test]
    fn patterns_nobody_writes_are_refused() {
        use WordError::{ReservedBits, SizeOfState, UnknownState};
        let wrong = |word, state, size| SizeOfState { word, state, size };
        let cases = [
            (0xc000_0000_0000_0100, UnknownState(0xc000_0000_0000_0100)),
            (1 << 32, ReservedBits(1 << 32)),
            (0xa000_0000_0000_0100, ReservedBits(0xa000_0000_0000_0100)),
            (256, wrong(256, BindState::Unbound, 256)),
            (1 << 62, wrong(1 << 62, BindState::Selected, 0)),
            (2 << 62, wrong(2 << 62, BindState::Bound, 0)),
            (
                2 << 62 | 0x0100_0001,
                wrong(2 << 62 | 0x0100_0001, BindState::Bound, (1 << 24) + 1),
            ),
        ];
        for (word, error) in cases {
            assert_eq!(ChunkWord::decode(word), Err(error), "{word:#x}");
        }
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bits(word: u64) {
            if let Ok(decoded) = ChunkWord::decode(word) {
                prop_assert_eq!(decoded.encode(), word);
            }
        }

        #[test]
        fn every_size_survives(size in 1u32..=1 << 24) {
            for word in [ChunkWord::Selected(size), ChunkWord::Bound(size)] {
                prop_assert_eq!(ChunkWord::decode(word.encode()), Ok(word));
            }
        }
    }
}
