//! Records: how one object is written down in the index and in the directory.
//! Layout: docs/shm-layout.md, "Index region".

use crate::keys::ChunkKey;
use crate::object::{ObjectId, frames_for};
use crate::pool::body::{self, INLINE_WORDS, PartBody};
use crate::pool::directory::SHARED_WORDS;

/// Meta of a record whose fields are being written, or were never.
pub const META_UNSTABLE: u64 = 0;
/// Meta of a record that is no longer an object.
pub const META_DEAD: u64 = 1;
/// Bits of an incarnation that count publications.
pub const COUNTER_BITS: u32 = 44;

/// Index of the meta word in a record.
pub const WORD_META: usize = 0;
/// Index of the first of four key words.
pub const WORD_KEY: usize = 1;
/// Index of the shape word.
pub const WORD_SHAPE: usize = 5;
/// Index of the word of frames of all parts, and of the tails under it.
pub const WORD_FRAMES: usize = 6;
/// Index of the body word.
pub const WORD_BODY: usize = 7;
/// Index of the word of the domain and the first token that is held.
pub const WORD_HELD: usize = 8;
/// Index of the word of its companions. It and the tails under it are all that changes while the record is live.
pub const WORD_COMPANIONS: usize = 9;
/// Index of the first body word.
const WORD_INLINE: usize = 10;

/// The incarnation of a boot's `counter`-th publication. `None` when the counter has run out.
pub fn incarnation(boot_seq: u64, counter: u64) -> Option<u64> {
    (counter > 0 && counter < 1 << COUNTER_BITS).then_some(boot_seq << COUNTER_BITS | counter)
}

/// The four words of a key.
pub fn key_words(key: &ChunkKey) -> [u64; 4] {
    let bytes = key.as_bytes();
    std::array::from_fn(|i| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[i * 8..i * 8 + 8]);
        u64::from_le_bytes(word)
    })
}

/// The key of four words.
pub fn key_of_words(words: [u64; 4]) -> ChunkKey {
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

/// The groups that have a live object of the same key under a record, by their bits. Readers take it for a hint: they
/// look each object up that they are going to load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Companions {
    /// Those groups.
    pub groups: u32,
    /// Those of them whose object begins with holes.
    pub holed: u32,
}

impl Companions {
    /// The record's word.
    pub fn to_word(self) -> u64 {
        u64::from(self.holed) << 32 | u64::from(self.groups)
    }

    /// From the record's word.
    pub fn from_word(word: u64) -> Self {
        Self {
            groups: word as u32,
            holed: (word >> 32) as u32,
        }
    }
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
        debug_assert_eq!(body::blocks_for(body.len()), blocks.len());
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

/// A record as a reader found it: all fields belong to one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView {
    /// Number of the record.
    pub record: u32,
    /// Its incarnation.
    pub incarnation: u64,
    /// Number of its domain: of two that name the same keys neither is given the other's bytes.
    pub domain: u32,
    /// Tokens of the object.
    pub tokens: u32,
    /// The first of them that is held.
    pub held_from: u32,
    /// Parts of the object.
    pub parts: u16,
    /// Frames of all parts.
    pub frames: u64,
    /// Its companions.
    pub companions: Companions,
    /// Of a full chunk: which tails of the next one have a live object, bit `(tokens / alignment - 1) mod 32` of each.
    /// A hint too.
    pub tails: u32,
    pub(crate) body: u64,
    pub(crate) inline: [u64; INLINE_WORDS],
}

impl RecordView {
    /// Reads the words of a record that belongs to `id`; `None` when it belongs to another.
    pub(crate) fn decode(record: u32, words: &[u64; SHARED_WORDS], id: &ObjectId) -> Option<Self> {
        let shape = words[WORD_SHAPE];
        let same = words[WORD_KEY..WORD_SHAPE] == key_words(&id.key) && shape as u16 == id.group;
        let mut inline = [0; INLINE_WORDS];
        inline.copy_from_slice(&words[WORD_INLINE..]);
        same.then_some(Self {
            record,
            incarnation: words[WORD_META],
            domain: (words[WORD_HELD] >> 32) as u32,
            tokens: (shape >> 32) as u32,
            held_from: words[WORD_HELD] as u32,
            parts: (shape >> 16) as u16,
            frames: u64::from(words[WORD_FRAMES] as u32),
            companions: Companions::from_word(words[WORD_COMPANIONS]),
            tails: (words[WORD_FRAMES] >> 32) as u32,
            body: words[WORD_BODY],
            inline,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
