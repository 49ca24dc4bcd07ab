//! The server's side of the index: a table from (chunk key, object group) to records, in memory that clients may read.
//!
//! Layout and protocol: docs/shm-layout.md. The server is the only writer.

use std::os::fd::OwnedFd;

use crate::index::body::CHAIN_WORDS;
use crate::index::layout::{IndexLayout, SLOTS};
use crate::index::reader::IndexReader;
use crate::index::record::{Companions, META_DEAD, META_UNSTABLE, WORD_COMPANIONS, WORD_FRAMES, WORD_META};
use crate::object::ObjectId;
use crate::pool::record::RecordWords;
use crate::shm::mapping::{Mapping, ReadWrite};
use crate::shm::{Memfd, OwnerAccess, ShmError};
use crate::sync::shared::{AtomicU64, Ordering, fence};

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

    /// The address of its first byte here, for models.
    #[cfg(all(test, loom))]
    pub(crate) fn base(&self) -> usize {
        self.mapping.base().addr()
    }

    /// A slot for an object in the emptier of its buckets; the records of both when they are full.
    pub fn free_slot(&self, id: &ObjectId) -> Result<FreeSlot, Vec<u32>> {
        let (buckets, tag) = self.layout.spots(id);
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

    /// Writes the words of an object's body that do not fit in its record, before it is published.
    ///
    /// # Errors
    /// [`ShmError`] when a block is outside of the region.
    pub fn write_chain(&self, words: &[u64], blocks: &[u32]) -> Result<(), ShmError> {
        self.layout.chains.write(&self.mapping, words, blocks)
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

    /// Names the companions of a live record of `frames` frames, and which tails of the next chunk hang under it.
    pub fn set_companions(&self, record: u32, frames: u32, companions: Companions, tails: u32) {
        let at = self.layout.record_at(record);
        let word = u64::from(tails) << 32 | u64::from(frames);
        self.word(at + WORD_FRAMES * 8).store(word, Ordering::Relaxed);
        self.word(at + WORD_COMPANIONS * 8)
            .store(companions.to_word(), Ordering::Relaxed);
    }

    /// Takes an object out: no reader that looks from now on finds it. The caller fences, then scans pins.
    pub fn kill(&self, record: u32, id: &ObjectId) {
        self.word(self.layout.record_at(record))
            .store(META_DEAD, Ordering::Relaxed);
        for bucket in self.layout.spots(id).0 {
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
#[path = "tests/index.rs"]
mod tests;
