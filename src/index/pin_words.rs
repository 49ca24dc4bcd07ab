//! The pin words of one client's slab, as that client writes them, and its own account of what they keep.
//!
//! Layout: docs/shm-layout.md, "Pin arena".

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::slab::{PIN_WORDS, SLAB_CURSOR, SLAB_HIGH_WATER, SLAB_PINS, SLAB_TOUCHED, TOUCHED_WORDS};
use crate::shm::{Mapping, ReadWrite};
use crate::sync::shared::{Ordering, fence};

/// Records that a pin keeps, each once, with the frames that each holds at most.
pub(crate) type Kept = Vec<(u32, u64)>;

/// What a pin is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A hit that was answered and may be read some time. When words run out it may go: what it promised is then a load
    /// that fails, if it is gone.
    Promise,
    /// A copy that is under way. It stays.
    Copy,
}

/// Words that are made free at least, where promises have to go: room for some lookups to come.
const SPARE_WORDS: usize = PIN_WORDS / 64;
/// Pins that went and are remembered, so that their release is no mistake; of more the oldest are forgotten.
const EVICTED_REMEMBERED: usize = 16 * PIN_WORDS;

#[derive(Debug)]
struct Held {
    label: u64,
    purpose: Use,
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

/// Which words are in use, and for what. One for each slab, and nobody else writes them.
#[derive(Debug)]
pub struct PinWords {
    slab: Arc<Mapping<ReadWrite>>,
    free: Vec<u16>,
    /// Words below this one have been in use.
    high: u16,
    held: HashMap<u64, Held>,
    last: u64,
    /// Pins that made room for others and were not released since.
    evicted: BTreeSet<u64>,
    /// How many made room since this was last asked.
    newly_evicted: u64,
    /// By record; grows as records come up.
    kept: Vec<KeptRecord>,
    records: u32,
    kept_frames: u64,
    /// Entries written to the touched log so far.
    logged: u64,
}

impl PinWords {
    /// No pins in a slab that is all zeroes, for an index of so many records.
    pub fn new(slab: Arc<Mapping<ReadWrite>>, records: u32) -> Self {
        Self {
            slab,
            free: Vec::new(),
            high: 0,
            held: HashMap::new(),
            last: 0,
            evicted: BTreeSet::new(),
            newly_evicted: 0,
            kept: Vec::new(),
            records,
            kept_frames: 0,
            logged: 0,
        }
    }

    pub(crate) fn is_kept(&self, record: u32) -> bool {
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

    /// Takes all pins of a label back.
    pub fn release_label(&mut self, label: u64) {
        let of_session = self.held.iter().filter(|(_, held)| held.label == label);
        let ended: Vec<u64> = of_session.map(|(pin, _)| *pin).collect();
        ended.into_iter().for_each(|pin| self.release(pin));
    }

    fn store(&self, offset: usize, value: u64, order: Ordering) {
        if let Ok(word) = self.slab.atomic_u64(offset) {
            word.store(value, order);
        }
    }

    /// Frames of all that is kept, each record once.
    pub(crate) fn kept_frames(&self) -> u64 {
        self.kept_frames
    }

    /// Writes a pin word for each record, then fences (SeqCst). The pin's number; nothing where words have run out and
    /// no promise can go for it.
    pub(crate) fn hold(&mut self, label: u64, records: &[u32], kept: Kept, purpose: Use) -> Option<u64> {
        if !self.make_room(label, records.len()) {
            return None;
        }
        let fresh = records.len().saturating_sub(self.free.len());
        let words: Vec<u16> = (0..records.len())
            .filter_map(|_| {
                self.free.pop().or_else(|| {
                    self.high += 1;
                    Some(self.high - 1)
                })
            })
            .collect();
        for (record, frames) in &kept {
            self.keep(*record, *frames);
        }
        self.last += 1;
        let (pin, high) = (self.last, self.high);
        if fresh > 0 {
            self.store(SLAB_HIGH_WATER, high.into(), Ordering::Relaxed);
        }
        for (word, record) in words.iter().zip(records) {
            let at = SLAB_PINS + usize::from(*word) * 8;
            self.store(at, u64::from(*record) + 1, Ordering::Relaxed);
        }
        // Pairs with the fence of an eviction between taking a record out and looking for pins.
        fence(Ordering::SeqCst);
        let held = Held {
            label,
            purpose,
            words,
            kept,
        };
        self.held.insert(pin, held);
        Some(pin)
    }

    fn free_words(&self) -> usize {
        PIN_WORDS - usize::from(self.high) + self.free.len()
    }

    /// Lets promises go until there are so many free words: all of the label that has held one for the longest, then
    /// of the next, and of the asking one its oldest at last. False, with nothing changed: all of them would not be
    /// enough.
    fn make_room(&mut self, label: u64, words: usize) -> bool {
        let free = self.free_words();
        if words <= free {
            return true;
        }
        let mut promises: Vec<(u64, u64)> = Vec::new();
        let (mut words_of_promises, mut since) = (0, HashMap::new());
        for (&pin, held) in self.held.iter().filter(|(_, held)| held.purpose == Use::Promise) {
            promises.push((pin, held.label));
            words_of_promises += held.words.len();
            let first = since.entry(held.label).or_insert(pin);
            *first = pin.min(*first);
        }
        if words > free + words_of_promises {
            return false;
        }
        promises.sort_by_key(|(pin, of)| (*of == label, since[of], *pin));
        let mut last = None;
        for (pin, of) in promises {
            let enough = if of == label {
                words
            } else {
                words.max(SPARE_WORDS)
            };
            if self.free_words() >= enough && (of == label || last != Some(of)) {
                break;
            }
            last = Some(of);
            self.release(pin);
            self.newly_evicted += 1;
            self.evicted.insert(pin);
            if self.evicted.len() > EVICTED_REMEMBERED {
                self.evicted.pop_first();
            }
        }
        true
    }

    /// Whether a pin made room for another and was not released since.
    pub fn is_evicted(&self, pin: u64) -> bool {
        self.evicted.contains(&pin)
    }

    /// How many pins made room for others since this was last asked.
    pub fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.newly_evicted)
    }

    /// Whether there is a pin of that number.
    pub fn is_held(&self, pin: u64) -> bool {
        self.held.contains_key(&pin)
    }

    /// Takes a pin back; fine when there is none of that number.
    pub fn release(&mut self, pin: u64) {
        let Some(held) = self.held.remove(&pin) else {
            self.evicted.remove(&pin);
            return;
        };
        for word in &held.words {
            // Release: what was read under the pin was read before it goes.
            self.store(SLAB_PINS + usize::from(*word) * 8, 0, Ordering::Release);
        }
        self.free.extend(held.words);
        for (record, _) in held.kept {
            self.unkeep(record);
        }
    }

    /// Logs uses, the least recent first.
    pub fn touch(&mut self, records: &[u32]) {
        // Of more than the log holds, those that go last in any case are left out.
        for record in records.iter().take(TOUCHED_WORDS) {
            let at = SLAB_TOUCHED + (self.logged % TOUCHED_WORDS as u64) as usize * 8;
            self.store(at, u64::from(*record) + 1, Ordering::Relaxed);
            self.logged += 1;
        }
        self.store(SLAB_CURSOR, self.logged, Ordering::Release);
    }
}
