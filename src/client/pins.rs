//! The pin words of this client's slab, and its account of what they keep (docs/shm-layout.md, "Pin arena").

use std::collections::HashMap;
use std::sync::MutexGuard;

use crate::cache::direct::{Hold, Kept};
use crate::cache::slabs::{PIN_WORDS, SLAB_CURSOR, SLAB_HIGH_WATER, SLAB_PINS, SLAB_TOUCHED, TOUCHED_WORDS};
use crate::shm::{Mapping, ReadWrite};
use crate::sync::shared::{Ordering, fence};

#[derive(Debug)]
struct Held {
    session: u64,
    words: Vec<u16>,
    kept: Kept,
}

/// A record that pins keep.
#[derive(Clone, Copy, Debug, Default)]
struct KeptRecord {
    pins: u32,
    /// As they were when it was first kept: what is added is what is taken off again.
    frames: u32,
}

/// Which words are in use, and for what.
#[derive(Debug)]
pub(super) struct Pins {
    free: Vec<u16>,
    /// Words below this one have been in use.
    high: u16,
    held: HashMap<u64, Held>,
    last: u64,
    /// By record; grows as records come up.
    kept: Vec<KeptRecord>,
    records: u32,
    kept_frames: u64,
    /// Entries written to the touched log so far.
    logged: u64,
}

impl Pins {
    /// None, in an index of so many records.
    pub(super) fn new(records: u32) -> Self {
        Self {
            free: Vec::new(),
            high: 0,
            held: HashMap::new(),
            last: 0,
            kept: Vec::new(),
            records,
            kept_frames: 0,
            logged: 0,
        }
    }

    fn is_kept(&self, record: u32) -> bool {
        self.kept.get(record as usize).is_some_and(|kept| kept.pins > 0)
    }

    fn keep(&mut self, record: u32, frames: u64) {
        if record >= self.records {
            return;
        }
        if self.kept.len() <= record as usize {
            self.kept.resize(record as usize + 1, KeptRecord::default());
        }
        let entry = &mut self.kept[record as usize];
        if entry.pins == 0 {
            entry.frames = u32::try_from(frames).unwrap_or(u32::MAX);
            self.kept_frames += u64::from(entry.frames);
        }
        entry.pins += 1;
    }

    fn unkeep(&mut self, record: u32) {
        let Some(entry) = self.kept.get_mut(record as usize).filter(|entry| entry.pins > 0) else {
            return;
        };
        entry.pins -= 1;
        if entry.pins == 0 {
            self.kept_frames -= u64::from(entry.frames);
        }
    }
}

/// The pins, with the slab that they are written in.
pub(super) struct SlabPins<'a> {
    slab: &'a Mapping<ReadWrite>,
    pins: MutexGuard<'a, Pins>,
}

impl<'a> SlabPins<'a> {
    /// Nobody else writes them meanwhile.
    pub(super) fn new(slab: &'a Mapping<ReadWrite>, pins: MutexGuard<'a, Pins>) -> Self {
        Self { slab, pins }
    }

    /// Takes all pins of a session back.
    pub(super) fn end_session(&mut self, session: u64) {
        let of_session = self.pins.held.iter().filter(|(_, held)| held.session == session);
        let ended: Vec<u64> = of_session.map(|(pin, _)| *pin).collect();
        ended.into_iter().for_each(|pin| self.release(pin));
    }

    fn store(&self, offset: usize, value: u64, order: Ordering) {
        if let Ok(word) = self.slab.atomic_u64(offset) {
            word.store(value, order);
        }
    }
}

impl Hold for SlabPins<'_> {
    fn fits(&self, kept: &Kept, limit: u64) -> bool {
        let new = kept.iter().filter(|(record, _)| !self.pins.is_kept(*record));
        let new: u64 = new.map(|(_, frames)| *frames).sum();
        new == 0 || self.pins.kept_frames + new <= limit
    }

    fn hold(&mut self, session: u64, records: &[u32], kept: Kept) -> Option<u64> {
        let pins = &mut *self.pins;
        let fresh = records.len().saturating_sub(pins.free.len());
        if usize::from(pins.high) + fresh > PIN_WORDS {
            return None;
        }
        let words: Vec<u16> = (0..records.len())
            .filter_map(|_| {
                pins.free.pop().or_else(|| {
                    pins.high += 1;
                    Some(pins.high - 1)
                })
            })
            .collect();
        for (record, frames) in &kept {
            pins.keep(*record, *frames);
        }
        pins.last += 1;
        let (pin, high) = (pins.last, pins.high);
        if fresh > 0 {
            self.store(SLAB_HIGH_WATER, high.into(), Ordering::Relaxed);
        }
        for (word, record) in words.iter().zip(records) {
            let at = SLAB_PINS + usize::from(*word) * 8;
            self.store(at, u64::from(*record) + 1, Ordering::Relaxed);
        }
        // Pairs with the fence of an eviction between taking a record out and looking for pins.
        fence(Ordering::SeqCst);
        let held = Held { session, words, kept };
        self.pins.held.insert(pin, held);
        Some(pin)
    }

    fn release(&mut self, pin: u64) {
        let Some(held) = self.pins.held.remove(&pin) else {
            return;
        };
        for word in &held.words {
            // Release: what was read under the pin was read before it goes.
            self.store(SLAB_PINS + usize::from(*word) * 8, 0, Ordering::Release);
        }
        self.pins.free.extend(held.words);
        for (record, _) in held.kept {
            self.pins.unkeep(record);
        }
    }

    fn touch(&mut self, records: &[u32]) {
        // Of more than the log holds only the last would be left.
        let first = records.len().saturating_sub(TOUCHED_WORDS);
        for record in &records[first..] {
            let at = SLAB_TOUCHED + (self.pins.logged % TOUCHED_WORDS as u64) as usize * 8;
            self.store(at, u64::from(*record) + 1, Ordering::Relaxed);
            self.pins.logged += 1;
        }
        self.store(SLAB_CURSOR, self.pins.logged, Ordering::Release);
    }
}
