//! The index: a table from (chunk key, object group) to records, in memory that clients may read.
//!
//! May import `shm`, `sync`, `pool` and this module's `record`.
//! Layout and protocol: docs/shm-layout.md. The server is the only writer. Readers, the server among them,
//! never wait: what is unstable, dead or does not match is a miss.

use std::os::fd::OwnedFd;

use super::record::{
    Beside, META_DEAD, META_UNSTABLE, RecordView, RecordWords, WORD_BESIDE, WORD_FRAMES, WORD_META,
};
use crate::object::ObjectId;
use crate::pool::ABI_VERSION;
use crate::pool::body::{CHAIN_BYTES, CHAIN_WORDS, ChainArea, chain_blocks};
use crate::pool::directory::SHARED_WORDS;
use crate::shm::mapping::{Access, Mapping, ReadWrite};
use crate::shm::{Memfd, OwnerAccess, ShmError};
use crate::sync::shared::{AtomicU64, Ordering, fence};

/// First word of the region.
pub const INDEX_MAGIC: u64 = u64::from_le_bytes(*b"KVASIRI1");
const HEADER: usize = 4096;
/// Slots of a bucket: one cache line.
pub const SLOTS: usize = 8;
const RECORD_BYTES: usize = 128;

/// Where everything is. Follows from the number of frames alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLayout {
    frames: u32,
    buckets: u64,
    records_at: usize,
    chains: ChainArea,
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

    fn header(&self) -> [u64; 10] {
        [
            INDEX_MAGIC,
            (HEADER as u64) << 32 | u64::from(ABI_VERSION),
            self.frames.into(),
            crate::object::FRAME_BYTES,
            self.buckets,
            HEADER as u64,
            self.frames.into(),
            self.records_at as u64,
            self.chains.blocks.into(),
            self.chains.base as u64,
        ]
    }

    fn bucket_at(&self, bucket: u64) -> usize {
        HEADER + bucket as usize * SLOTS * 8
    }

    fn record_at(&self, record: u32) -> usize {
        self.records_at + record as usize * RECORD_BYTES
    }

    /// The two buckets that an object may be in, and its tag.
    fn place(&self, id: &ObjectId) -> ([u64; 2], u32) {
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

/// Reads an index through any mapping of it.
#[derive(Debug)]
pub struct IndexReader<'a, A: Access> {
    mapping: &'a Mapping<A>,
    layout: IndexLayout,
}

impl<'a, A: Access> IndexReader<'a, A> {
    /// A reader of a mapping whose layout is known.
    pub fn new(mapping: &'a Mapping<A>, layout: IndexLayout) -> Self {
        Self { mapping, layout }
    }

    /// The record that seems to hold an object: what a reader pins before it looks again with
    /// [`IndexReader::view`].
    pub fn probe(&self, id: &ObjectId) -> Option<u32> {
        self.find(id).map(|view| view.record)
    }

    /// A record as it is now, if it is live and holds the object.
    pub fn view(&self, record: u32, id: &ObjectId) -> Option<RecordView> {
        if record >= self.layout.frames {
            return None;
        }
        let at = self.layout.record_at(record);
        let meta = self.mapping.load_only_u64(at).ok()?;
        let before = meta.load_acquire();
        if before == META_UNSTABLE || before == META_DEAD {
            return None;
        }
        let mut words = [0; SHARED_WORDS];
        self.mapping.load_words(at, &mut words).ok()?;
        fence(Ordering::Acquire);
        if meta.load_relaxed() != before || words[WORD_META] != before {
            return None;
        }
        RecordView::decode(record, &words, id)
    }

    /// The live record of an object.
    pub fn lookup(&self, id: &ObjectId) -> Option<RecordView> {
        self.find(id)
    }

    /// The body words of a record. `None` when it has changed meanwhile.
    pub fn body(&self, view: &RecordView, words: &mut Vec<u64>) -> Option<()> {
        self.layout
            .chains
            .read(self.mapping, view.body, &view.inline, words)?;
        fence(Ordering::Acquire);
        let meta = self
            .mapping
            .load_only_u64(self.layout.record_at(view.record))
            .ok()?;
        (meta.load_relaxed() == view.incarnation).then_some(())
    }

    /// Has the buckets of an object brought into the cache, for a lookup that comes a few lookups later.
    pub fn prefetch_buckets(&self, id: &ObjectId) {
        for bucket in self.layout.place(id).0 {
            self.mapping.prefetch(self.layout.bucket_at(bucket));
        }
    }

    /// The same of what seems to be its record; its buckets should be there.
    pub fn prefetch_record(&self, id: &ObjectId) {
        let (buckets, tag) = self.layout.place(id);
        for bucket in buckets {
            let mut slots = [0; SLOTS];
            let loaded = self.mapping.load_words(self.layout.bucket_at(bucket), &mut slots);
            let same = |slot: &&u64| **slot != 0 && (**slot >> 32) as u32 == tag;
            if let (Ok(()), Some(slot)) = (loaded, slots.iter().find(same)) {
                let at = self.layout.record_at((*slot as u32).wrapping_sub(1));
                self.mapping.prefetch(at);
                self.mapping.prefetch(at + RECORD_BYTES / 2);
                return;
            }
        }
    }

    fn find(&self, id: &ObjectId) -> Option<RecordView> {
        let (buckets, tag) = self.layout.place(id);
        for bucket in buckets {
            let mut slots = [0; SLOTS];
            self.mapping
                .load_words(self.layout.bucket_at(bucket), &mut slots)
                .ok()?;
            // One fence for the line instead of eight acquire loads.
            fence(Ordering::Acquire);
            for slot in slots {
                if slot != 0
                    && (slot >> 32) as u32 == tag
                    && let Some(view) = self.view((slot as u32).wrapping_sub(1), id)
                {
                    return Some(view);
                }
            }
        }
        None
    }
}

/// A free slot that [`Index::publish`] fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSlot {
    at: usize,
    tag: u32,
}

/// The server's side.
#[derive(Debug)]
pub struct Index {
    memfd: Memfd,
    mapping: Mapping<ReadWrite>,
    layout: IndexLayout,
}

impl Index {
    /// An empty index for a pool of `frames` frames. Touches its header only.
    ///
    /// # Errors
    /// [`ShmError`] when the memory cannot be had.
    pub fn create(frames: u32) -> Result<Self, ShmError> {
        let layout = IndexLayout::new(frames);
        let memfd = Memfd::create("index", layout.bytes() as u64, OwnerAccess::Read)?;
        let mapping = memfd.map()?;
        memfd.seal_future_writes()?;
        mapping.store_words(0, &layout.header())?;
        Ok(Self {
            memfd,
            mapping,
            layout,
        })
    }

    /// Reads through the server's own mapping.
    pub fn reader(&self) -> IndexReader<'_, ReadWrite> {
        IndexReader::new(&self.mapping, self.layout)
    }

    /// A read-only descriptor for a client.
    pub fn read_only(&self) -> Result<OwnedFd, ShmError> {
        self.memfd.reopen_read_only()
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> u64 {
        self.memfd.len()
    }

    /// A slot for an object in the emptier of its buckets; the records of both when they are full.
    pub fn free_slot(&self, id: &ObjectId) -> Result<FreeSlot, Vec<u32>> {
        let (buckets, tag) = self.layout.place(id);
        let lines = buckets.map(|b| self.line(b));
        let used = lines.map(|line| line.iter().filter(|s| **s != 0).count());
        let best = usize::from(used[1] < used[0]);
        match lines[best].iter().position(|s| *s == 0) {
            Some(slot) => Ok(FreeSlot {
                at: self.layout.bucket_at(buckets[best]) + slot * 8,
                tag,
            }),
            None => Err(lines.iter().flatten().map(|s| (*s as u32) - 1).collect()),
        }
    }

    /// Writes one chain block of an object that is going to be published.
    ///
    /// # Errors
    /// [`ShmError`] when the block is outside of the region.
    pub fn write_block(&self, block: u32, line: &[u64; CHAIN_WORDS + 1]) -> Result<(), ShmError> {
        self.layout.chains.write_block(&self.mapping, block, line)
    }

    /// Makes an object visible. `set_epochs` runs between the fields and the meta word.
    ///
    /// # Errors
    /// [`ShmError`] when a chain block is outside of the region.
    pub fn publish(
        &self,
        record: u32,
        words: &RecordWords,
        blocks: &[u32],
        slot: FreeSlot,
        set_epochs: impl FnOnce(),
    ) -> Result<(), ShmError> {
        let at = self.layout.record_at(record);
        let meta = self.word(at);
        meta.store(META_UNSTABLE, Ordering::Relaxed);
        fence(Ordering::Release);
        self.layout.chains.write(&self.mapping, &words.body, blocks)?;
        self.mapping.store_words(at + 8, &words.shared[1..])?;
        set_epochs();
        meta.store(words.shared[WORD_META], Ordering::Release);
        let entry = u64::from(slot.tag) << 32 | (u64::from(record) + 1);
        self.word(slot.at).store(entry, Ordering::Release);
        Ok(())
    }

    /// Says what hangs beside a live record of `frames` frames, and which tails of the next chunk hang under it.
    pub fn set_children(&self, record: u32, frames: u32, beside: Beside, tails: u32) {
        let at = self.layout.record_at(record);
        let word = u64::from(tails) << 32 | u64::from(frames);
        self.word(at + WORD_FRAMES * 8).store(word, Ordering::Relaxed);
        self.word(at + WORD_BESIDE * 8)
            .store(beside.to_word(), Ordering::Relaxed);
    }

    /// Takes an object out: no reader that looks from now on finds it. The caller fences, then scans pins.
    pub fn kill(&self, record: u32, id: &ObjectId) {
        self.word(self.layout.record_at(record))
            .store(META_DEAD, Ordering::Relaxed);
        for bucket in self.layout.place(id).0 {
            for (slot, value) in self.line(bucket).into_iter().enumerate() {
                if value != 0 && value as u32 == record + 1 {
                    self.word(self.layout.bucket_at(bucket) + slot * 8)
                        .store(0, Ordering::Relaxed);
                }
            }
        }
    }

    /// Number of slots in use. Walks the table.
    pub fn used_slots(&self) -> u64 {
        (0..self.layout.buckets)
            .map(|b| self.line(b).iter().filter(|s| **s != 0).count() as u64)
            .sum()
    }

    fn line(&self, bucket: u64) -> [u64; SLOTS] {
        let mut line = [0; SLOTS];
        self.mapping
            .load_words(self.layout.bucket_at(bucket), &mut line)
            .expect("a bucket number is a remainder of the number of buckets");
        line
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.mapping
            .atomic_u64(offset)
            .expect("records and slots are inside the region that was made for them")
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
