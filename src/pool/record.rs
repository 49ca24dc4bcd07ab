//! What is written of an object, into the index and into the directory. How it is read: [`crate::index::record`].
//! Layout: docs/shm-layout.md, "Index region".

use super::body::{self, PartBody};
use crate::index::body::{INLINE_WORDS, blocks_for};
use crate::index::record::{
    SHARED_WORDS, WORD_BODY, WORD_FRAMES, WORD_HELD, WORD_INLINE, WORD_KEY, WORD_META, WORD_SHAPE, key_words,
};
use crate::keys::ChunkKey;
use crate::object::{ObjectId, frames_for};

/// Bits of an incarnation that count publications.
pub(crate) const COUNTER_BITS: u32 = 44;

/// The incarnation of a boot's `counter`-th publication. `None` when the counter has run out.
pub(crate) fn incarnation(boot_seq: u64, counter: u64) -> Option<u64> {
    (counter > 0 && counter < 1 << COUNTER_BITS).then_some(boot_seq << COUNTER_BITS | counter)
}

/// The key of four words.
pub(crate) fn key_of_words(words: [u64; 4]) -> ChunkKey {
    let mut bytes = [0; 32];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    ChunkKey::from_bytes(bytes)
}

/// The domain of an object, and its tokens, counted from the start of its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Number of the domain.
    pub domain: u32,
    /// How many.
    pub tokens: u32,
    /// Those before this one are holes: null blocks of a window, stored as zeroes.
    pub held_from: u32,
}

/// A body as a record speaks of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    /// Parts of the object.
    pub parts: usize,
    /// Frames of all of them.
    pub frames: u64,
    /// Words of the body.
    pub words: usize,
    /// Its first chain block.
    pub first: Option<u32>,
    /// Its first words.
    pub inline: [u64; INLINE_WORDS],
}

/// Everything that a record says of an object, ready to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordWords {
    /// The words that index and directory share.
    pub shared: [u64; SHARED_WORDS],
    /// All body words, those in `shared` too; nothing where those that are not are written already.
    pub body: Vec<u64>,
}

impl RecordWords {
    /// Encodes an object whose body needs the given chain blocks.
    pub fn encode(
        id: &ObjectId,
        range: Holding,
        incarnation: u64,
        parts: &[PartBody],
        blocks: &[u32],
    ) -> Self {
        let body = body::encode(parts);
        debug_assert_eq!(blocks_for(body.len()), blocks.len());
        let mut inline = [0; INLINE_WORDS];
        let some = body.len().min(INLINE_WORDS);
        inline[..some].copy_from_slice(&body[..some]);
        let written = Body {
            parts: parts.len(),
            frames: parts.iter().map(|p| frames_for(p.bytes)).sum(),
            words: body.len(),
            first: blocks.first().copied(),
            inline,
        };
        let shared = Self::of_body(id, range, incarnation, &written).shared;
        Self { shared, body }
    }

    /// Encodes an object whose body is in its chain blocks already.
    pub fn of_body(id: &ObjectId, range: Holding, incarnation: u64, body: &Body) -> Self {
        let mut shared = [0; SHARED_WORDS];
        shared[WORD_META] = incarnation;
        shared[WORD_KEY..WORD_SHAPE].copy_from_slice(&key_words(&id.key));
        shared[WORD_SHAPE] = u64::from(range.tokens) << 32 | (body.parts as u64) << 16 | u64::from(id.group);
        shared[WORD_FRAMES] = body.frames;
        shared[WORD_BODY] = body.first.map_or(0, |b| u64::from(b) + 1) << 32 | body.words as u64;
        shared[WORD_HELD] = u64::from(range.domain) << 32 | u64::from(range.held_from);
        shared[WORD_INLINE..].copy_from_slice(&body.inline);
        Self {
            shared,
            body: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::record::RecordView;
    use crate::object::Extent;

    #[test]
    fn the_record_of_the_layout_page() {
        let id = ObjectId {
            key: ChunkKey::from_bytes(std::array::from_fn(|i| i as u8)),
            group: 0x0102,
        };
        let parts = [PartBody {
            bytes: 70_000,
            checksum: 0xABCD,
            extents: vec![Extent::new(5, 1), Extent::new(9, 1)],
        }];
        let range = Holding {
            domain: 7,
            tokens: 256,
            held_from: 96,
        };
        let words = RecordWords::encode(&id, range, incarnation(3, 9).unwrap(), &parts, &[]);
        assert_eq!(words.shared[0], 3 << 44 | 9);
        assert_eq!(words.shared[1], 0x0706_0504_0302_0100);
        assert_eq!(words.shared[5], 256 << 32 | 1 << 16 | 0x0102);
        assert_eq!(
            words.shared[6..14],
            [
                2,
                4,
                7 << 32 | 96,
                0,
                70_000 << 16 | 2,
                0xABCD,
                5 << 32 | 1,
                9 << 32 | 1
            ]
        );
        let mut live = words.shared;
        live[WORD_FRAMES] |= 0b101 << 32;
        let view = RecordView::decode(4, &live, &id).unwrap();
        assert_eq!((view.domain, view.tokens, view.held_from), (7, 256, 96));
        assert_eq!((view.parts, view.frames, view.tails), (1, 2, 0b101));
        assert_eq!(key_of_words(key_words(&id.key)), id.key);
        let other = ObjectId { group: 1, ..id };
        assert!(RecordView::decode(4, &words.shared, &other).is_none());
    }

    #[test]
    fn incarnations_are_never_zero_one_or_reused() {
        assert_eq!(incarnation(1, 0), None);
        assert_eq!(incarnation(1, 1 << 44), None);
        assert_eq!(incarnation(1, 1), Some((1 << 44) + 1));
    }
}
