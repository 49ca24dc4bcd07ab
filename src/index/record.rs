//! Records: how one object is written down in the index and in the directory.
//! Layout: docs/shm-layout.md, "Index region".

use super::body::INLINE_WORDS;
use crate::keys::ChunkKey;
use crate::object::ObjectId;

/// Meta of a record whose fields are being written, or were never.
pub const META_UNSTABLE: u64 = 0;
/// Meta of a record that is no longer an object.
pub const META_DEAD: u64 = 1;
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
pub(crate) const WORD_INLINE: usize = 10;
/// Words of a record that the directory has too: all that the index has of it but the chain blocks of its body.
pub(crate) const SHARED_WORDS: usize = WORD_INLINE + INLINE_WORDS;

/// The four words of a key.
pub fn key_words(key: &ChunkKey) -> [u64; 4] {
    let bytes = key.as_bytes();
    std::array::from_fn(|i| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[i * 8..i * 8 + 8]);
        u64::from_le_bytes(word)
    })
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
