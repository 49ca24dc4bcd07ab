//! Where the parts of the index region are. Layout: docs/shm-layout.md, "Index region".

use super::body::{CHAIN_BYTES, ChainArea, chain_blocks};
use crate::object::{FRAME_BYTES, ObjectId};
use crate::shm::mapping::{Access, Mapping};

/// Version of the layout of the pool's regions.
pub const ABI_VERSION: u32 = 5;
/// First word of the region.
pub const INDEX_MAGIC: u64 = u64::from_le_bytes(*b"KVASIRI1");
const HEADER: usize = 4096;
/// Slots of a bucket: one cache line.
pub const SLOTS: usize = 8;
pub(crate) const RECORD_BYTES: usize = 128;

/// Where everything is. Follows from the number of frames alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLayout {
    frames: u32,
    pub(crate) buckets: u64,
    records_at: usize,
    pub(crate) chains: ChainArea,
}

impl IndexLayout {
    /// The layout for a pool of `frames` frames.
    pub fn new(frames: u32) -> Self {
        let slots = (u64::from(frames) * 2).next_power_of_two();
        let buckets = (slots / SLOTS as u64).max(2);
        let records_at = HEADER + buckets as usize * SLOTS * 8;
        Self {
            frames,
            buckets,
            records_at,
            chains: ChainArea {
                base: records_at + frames as usize * RECORD_BYTES,
                blocks: chain_blocks(frames),
            },
        }
    }

    /// The layout of a mapped index. `None` when it is none of this version, or is shorter than it says.
    pub fn read<A: Access>(mapping: &Mapping<A>) -> Option<Self> {
        let mut header = [0; 10];
        mapping.load_words(0, &mut header).ok()?;
        let layout = Self::new(u32::try_from(header[2]).ok()?);
        (header == layout.header() && layout.bytes() <= mapping.len()).then_some(layout)
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> usize {
        self.chains.base + self.chains.blocks as usize * CHAIN_BYTES
    }

    /// Frames of the pool, hence records.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    pub(crate) fn header(&self) -> [u64; 10] {
        [
            INDEX_MAGIC,
            version_word(HEADER),
            self.frames.into(),
            FRAME_BYTES,
            self.buckets,
            HEADER as u64,
            self.frames.into(),
            self.records_at as u64,
            self.chains.blocks.into(),
            self.chains.base as u64,
        ]
    }

    pub(crate) fn bucket_at(&self, bucket: u64) -> usize {
        HEADER + bucket as usize * SLOTS * 8
    }

    pub(crate) fn record_at(&self, record: u32) -> usize {
        self.records_at + record as usize * RECORD_BYTES
    }

    /// The two buckets that an object may be in, and its tag.
    pub(crate) fn spots(&self, id: &ObjectId) -> ([u64; 2], u32) {
        let key = id.key.as_bytes();
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&key[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let g = u64::from(id.group).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let first = (word(0) ^ g) % self.buckets;
        let second = (word(8) ^ g.rotate_left(32)) % self.buckets;
        let tag = word(16) as u32 ^ (g >> 32) as u32;
        let second = if second == first { first ^ 1 } else { second };
        ([first, second], tag)
    }
}

/// The word of version and header bytes that follows every magic.
pub(crate) fn version_word(header_bytes: usize) -> u64 {
    (header_bytes as u64) << 32 | u64::from(ABI_VERSION)
}
