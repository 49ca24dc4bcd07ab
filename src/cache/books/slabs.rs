//! Pin slabs and lock bytes: what clients hold without sending a message. Layout: docs/shm-layout.md, "Pin arena".
//!
//! Clients write their slabs at any time. Each word is copied once and checked before it is used: whatever
//! a client writes, it can keep objects from going, never damage them.

use std::os::fd::{AsFd, OwnedFd};

use crate::cache::SLABS;
use crate::index::conditions::Conditions;
use crate::index::counters::{ClientCounters, DEVICE_WORDS, DeviceCounters, REUSE_WORDS, ReuseCounters};
use crate::index::slab::{
    PIN_WORDS, SLAB_BYTES, SLAB_CONDITIONS, SLAB_CURSOR, SLAB_HIGH_WATER, SLAB_PINS, SLAB_STATS,
    SLAB_TOUCHED, STAT_WORDS, TOUCHED_WORDS,
};
use crate::shm::lock::byte_is_locked;
use crate::shm::{Mapping, Memfd, OwnerAccess, ReadWrite, ShmError};
use crate::sync::shared::Ordering;

/// The record that a word names, if there is one of that number.
pub(crate) fn record_of(word: u64, records: u32) -> Option<u32> {
    let record = u32::try_from(word.checked_sub(1)?).ok()?;
    (record < records).then_some(record)
}

/// Pin words that are looked at together when a slab is wiped.
const WIPED_AT_ONCE: usize = 128;
const _: () = assert!(PIN_WORDS.is_multiple_of(WIPED_AT_ONCE));

/// The arena and the liveness file.
#[derive(Debug)]
pub(crate) struct Slabs {
    arena: Memfd,
    mapping: Mapping<ReadWrite>,
    liveness: Memfd,
    /// Of each slab in use, how far its touched log has been read.
    open: Vec<Option<u64>>,
    nonces: u64,
}

impl Slabs {
    /// All slabs free.
    ///
    /// # Errors
    /// [`ShmError`] when memory cannot be had.
    pub(crate) fn create() -> Result<Self, ShmError> {
        let arena = Memfd::create("slabs", (SLABS * SLAB_BYTES) as u64, OwnerAccess::ReadWrite)?;
        let mapping = arena.map()?;
        arena.seal_seals()?;
        let liveness = Memfd::create("liveness", SLABS as u64, OwnerAccess::ReadWrite)?;
        liveness.seal_seals()?;
        Ok(Self {
            arena,
            mapping,
            liveness,
            open: vec![None; SLABS],
            nonces: 0,
        })
    }

    /// Takes the first free slab; its number and its nonce.
    pub(crate) fn open(&mut self) -> Option<(u16, u64)> {
        let slab = self.open.iter().position(Option::is_none)?;
        self.open[slab] = Some(0);
        self.nonces += 1;
        self.store(slab, 0, self.nonces);
        Some((slab as u16, self.nonces))
    }

    /// Wipes the slab of a dead client and frees it.
    pub(crate) fn close(&mut self, slab: u16) {
        let slab = slab.into();
        // All pin words, not only those below the mark: the client may have written any.
        let mut words = [0; WIPED_AT_ONCE];
        for first in (0..PIN_WORDS).step_by(WIPED_AT_ONCE) {
            self.load(slab, SLAB_PINS + first * 8, &mut words);
            for (i, _) in words.iter().enumerate().filter(|(_, w)| **w != 0) {
                self.store(slab, SLAB_PINS + (first + i) * 8, 0);
            }
        }
        for offset in [SLAB_HIGH_WATER, SLAB_CURSOR, SLAB_CONDITIONS] {
            self.store(slab, offset, 0);
        }
        for i in 0..STAT_WORDS {
            self.store(slab, SLAB_STATS + i * 8, 0);
        }
        self.store(slab, 0, 0);
        self.open[slab] = None;
    }

    /// Whether a living process holds the lock byte of a slab.
    ///
    /// # Errors
    /// [`ShmError`] when the kernel does not say.
    pub(crate) fn is_locked(&self, slab: u16) -> Result<bool, ShmError> {
        byte_is_locked(self.liveness.as_fd(), slab.into())
    }

    /// Whether a client has a slab.
    pub(crate) fn is_open(&self, slab: usize) -> bool {
        self.open[slab].is_some()
    }

    /// How many pin words of a slab may be in use.
    pub(crate) fn high_water(&self, slab: usize) -> usize {
        self.word(slab, SLAB_HIGH_WATER).min(PIN_WORDS as u64) as usize
    }

    /// Copies some pin words of a slab, each once.
    pub(crate) fn load_pins(&self, slab: usize, first: usize, into: &mut [u64]) {
        self.load(slab, SLAB_PINS + first * 8, into);
    }

    /// The address of its first byte here, for models.
    #[cfg(all(test, loom))]
    pub(crate) fn base(&self) -> usize {
        self.mapping.base().addr()
    }

    /// The records that one slab pins now, each as often as it does.
    #[cfg(test)]
    pub(crate) fn pinned_by(&self, slab: u16, records: u32) -> Vec<u32> {
        let slab = slab.into();
        let high = self.word(slab, SLAB_HIGH_WATER).min(PIN_WORDS as u64) as usize;
        let mut words = vec![0; high];
        self.load(slab, SLAB_PINS, &mut words);
        words
            .iter()
            .filter_map(|word| record_of(*word, records))
            .collect()
    }

    /// Reads at most so much of what a client has logged as touched since the last time, oldest first. How much that
    /// was. Entries that were overwritten meanwhile are lost, which costs recency only.
    pub(crate) fn read_touched(
        &mut self,
        slab: usize,
        records: u32,
        most: usize,
        mut touched: impl FnMut(u32),
    ) -> usize {
        let Some(read) = self.open[slab] else { return 0 };
        let written = self.word(slab, SLAB_CURSOR);
        let new = written.wrapping_sub(read).min(TOUCHED_WORDS as u64);
        let first = written.wrapping_sub(new);
        let count = new.min(most as u64);
        for entry in 0..count {
            let entry = first.wrapping_add(entry);
            let at = SLAB_TOUCHED + (entry % TOUCHED_WORDS as u64) as usize * 8;
            if let Some(record) = record_of(self.word(slab, at), records) {
                touched(record);
            }
        }
        self.open[slab] = Some(first.wrapping_add(count));
        count as usize
    }

    /// Entries of a client's touched log that were not read.
    #[cfg(test)]
    pub(crate) fn unread(&self, slab: usize) -> u64 {
        let written = self.word(slab, SLAB_CURSOR);
        written.wrapping_sub(self.open[slab].unwrap_or(written))
    }

    /// What a client says of itself.
    pub(crate) fn counters(&self, slab: u16) -> ClientCounters {
        let mut words = [0; STAT_WORDS];
        self.load(slab.into(), SLAB_STATS, &mut words);
        let [
            loads,
            loaded_bytes,
            failed_loads,
            stale_loads,
            stores,
            stored_bytes,
            dropped_stores,
            degraded_seconds,
            corrupt_loads,
            lookups,
            requested,
            hit,
            shortened,
            ref rest @ ..,
        ] = words;
        let (tokens, rest) = rest.split_first_chunk().unwrap_or((&[0; REUSE_WORDS], &[]));
        let (new_bytes, device) = rest.split_first().unwrap_or((&0, &[]));
        ClientCounters {
            loads,
            loaded_bytes,
            failed_loads,
            stale_loads,
            stores,
            stored_bytes,
            dropped_stores,
            degraded_seconds,
            corrupt_loads,
            lookups,
            requested,
            hit,
            shortened,
            tokens: ReuseCounters::from_words(*tokens),
            new_bytes: *new_bytes,
            device: DeviceCounters::from_words(*device.first_chunk().unwrap_or(&[0; DEVICE_WORDS])),
        }
    }

    /// What a client says keeps it from caching.
    pub(crate) fn conditions(&self, slab: u16) -> Conditions {
        Conditions::from_word(self.word(slab.into(), SLAB_CONDITIONS))
    }

    /// Descriptors for a client: the arena, and a liveness description of its own.
    ///
    /// # Errors
    /// [`ShmError`] when descriptors have run out.
    pub(crate) fn descriptors(&self) -> Result<(OwnedFd, OwnedFd), ShmError> {
        let arena = self.arena.as_fd().try_clone_to_owned();
        let arena = arena.map_err(|e| ShmError::os("dup", self.arena.name(), e))?;
        Ok((arena, self.liveness.reopen_read_write()?))
    }

    fn word(&self, slab: usize, offset: usize) -> u64 {
        let mut word = [0];
        self.load(slab, offset, &mut word);
        word[0]
    }

    fn load(&self, slab: usize, offset: usize, into: &mut [u64]) {
        self.mapping
            .load_words(slab * SLAB_BYTES + offset, into)
            .expect("slab numbers and offsets are below the size of the arena");
    }

    fn store(&self, slab: usize, offset: usize, value: u64) {
        self.mapping
            .atomic_u64(slab * SLAB_BYTES + offset)
            .expect("slab numbers and offsets are below the size of the arena")
            .store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::lock::try_lock_byte;

    #[test]
    fn hostile_words_are_ignored() {
        let mut slabs = Slabs::create().unwrap();
        let (slab, _) = slabs.open().unwrap();
        let at = usize::from(slab);
        slabs.store(at, SLAB_HIGH_WATER, u64::MAX);
        for (i, word) in [0, 1, 10, 11, u64::MAX, 1 << 40, 4].into_iter().enumerate() {
            slabs.store(at, SLAB_PINS + i * 8, word);
        }
        slabs.store(at, SLAB_PINS + (PIN_WORDS - 1) * 8, 8);
        assert_eq!(slabs.pinned_by(slab, 10), [0, 9, 3, 7]);
        slabs.store(at, SLAB_CONDITIONS, u64::MAX);
        assert_eq!(slabs.conditions(slab).to_word(), u64::MAX);
        slabs.store(at, SLAB_HIGH_WATER, 2);
        assert_eq!(slabs.pinned_by(slab, 10), [0]);
        slabs.close(slab);
        assert!(!slabs.is_open(at));
        let (again, _) = slabs.open().unwrap();
        slabs.store(again.into(), SLAB_HIGH_WATER, u64::MAX);
        assert!(
            slabs.pinned_by(again, 10).is_empty(),
            "the next client inherits nothing"
        );
        assert_eq!(slabs.conditions(again).to_word(), 0);
    }

    #[test]
    fn the_touched_log_is_read_once_and_may_overflow() {
        let mut slabs = Slabs::create().unwrap();
        let (slab, _) = slabs.open().unwrap();
        let at = usize::from(slab);
        let log = |slabs: &Slabs, from: u64, to: u64| {
            for entry in from..to {
                let offset = SLAB_TOUCHED + (entry % TOUCHED_WORDS as u64) as usize * 8;
                slabs.store(at, offset, entry + 1);
            }
            slabs.store(at, SLAB_CURSOR, to);
        };
        let drain_some = |slabs: &mut Slabs, most| {
            let mut seen = Vec::new();
            let count = slabs.read_touched(at, 100_000, most, |r| seen.push(u64::from(r)));
            assert_eq!(count, seen.len());
            seen
        };
        let drain = |slabs: &mut Slabs| drain_some(slabs, TOUCHED_WORDS);
        log(&slabs, 0, 3);
        assert_eq!(drain_some(&mut slabs, 2), [0, 1]);
        assert_eq!(drain(&mut slabs), [2]);
        assert!(drain(&mut slabs).is_empty());
        log(&slabs, 3, 10_000);
        assert_eq!(
            drain(&mut slabs),
            (10_000 - TOUCHED_WORDS as u64..10_000).collect::<Vec<_>>()
        );
        // A cursor that runs backwards is a lie; it costs one ring of reads at most.
        slabs.store(at, SLAB_CURSOR, 5);
        assert!(drain(&mut slabs).len() <= TOUCHED_WORDS);
    }

    #[test]
    fn slabs_run_out_and_nonces_differ() {
        let mut slabs = Slabs::create().unwrap();
        let all: Vec<_> = std::iter::from_fn(|| slabs.open()).collect();
        assert_eq!(all.len(), SLABS);
        slabs.close(7);
        let (slab, nonce) = slabs.open().unwrap();
        assert_eq!(slab, 7);
        assert!(all.iter().all(|(_, n)| *n != nonce));
    }

    #[test]
    fn a_lock_byte_lives_as_long_as_the_client_holds_it() {
        let slabs = Slabs::create().unwrap();
        assert!(!slabs.is_locked(3).unwrap());
        let (_, fd) = slabs.descriptors().unwrap();
        assert!(try_lock_byte(fd.as_fd(), 3).unwrap());
        assert!(slabs.is_locked(3).unwrap());
        assert!(!slabs.is_locked(4).unwrap());
        drop(fd);
        assert!(!slabs.is_locked(3).unwrap());
    }
}
