//! What the server knows of each record beyond the shared words: its tree, its pins, whether it may go.
//!
//! May import `pool` and this module's `policy`, `record` and `trunks`.
//!
//! Records form trees: a full-attention object hangs under the one of the chunk before, a window or a
//! state under the full-attention object of its chunk. Only leaves go.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::policy::{EvictionPolicy, Lru};
use super::record::Beside;
use super::trunks::Trunks;
use crate::pool::RecordState;
use crate::pool::body::NumberPool;

/// One record in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Same as in the directory.
    pub(super) state: RecordState,
    /// Domain number.
    pub(super) domain: u32,
    /// The record that it hangs under.
    pub(super) parent: Option<u32>,
    /// Records that hang under it: live, limbo and partial ones.
    pub(super) children: u32,
    /// Pins of the request form.
    pub(super) pins: u32,
    /// Frames of the object.
    pub(super) frames: u32,
    /// The first of its tokens that is held.
    pub(super) held_from: u32,
    /// Bit of its group in its domain.
    pub(super) bit: u32,
    /// What hangs beside it, as its record in the index says.
    pub(super) groups: Beside,
    /// Whether it is one of `below` of its parent.
    pub(super) beside: bool,
    /// Of a tail its bit in the word of the chunk before; 0 of what is none.
    pub(super) tail: u32,
    /// Bits of the tails of the next chunk, as its record in the index says.
    pub(super) tails: u32,
    /// Superseded.
    pub(super) superseded: bool,
}

/// All records in use.
#[derive(Debug)]
pub(super) struct Records {
    numbers: NumberPool,
    /// Grows as numbers come into use; an entry of a free number has the state `Free`.
    all: Vec<Record>,
    policy: Box<dyn EvictionPolicy>,
    /// How many live tails are behind a bit of `tails` of a record.
    tails: HashMap<(u32, u32), u32>,
    live: u64,
    pinned_frames: u64,
    /// Where full chunks stand in their trees.
    pub(super) trunks: Trunks,
    /// Records that have left the index, and of them those that a pin of the request form named.
    gone: u64,
    torn: u64,
}

const UNUSED: Record = Record {
    state: RecordState::Free,
    domain: 0,
    parent: None,
    children: 0,
    pins: 0,
    frames: 0,
    held_from: 0,
    bit: 0,
    groups: Beside { below: 0, holed: 0 },
    beside: false,
    tail: 0,
    tails: 0,
    superseded: false,
};

impl Records {
    /// Room for `total` records, none in use.
    pub(super) fn new(total: u32) -> Self {
        Self {
            numbers: NumberPool::new(total),
            all: Vec::new(),
            policy: Box::new(Lru::default()),
            tails: HashMap::new(),
            live: 0,
            pinned_frames: 0,
            trunks: Trunks::default(),
            gone: 0,
            torn: 0,
        }
    }

    /// A record by its number; one that is not in use is `Free`.
    pub(super) fn get(&self, record: u32) -> &Record {
        self.all.get(record as usize).unwrap_or(&UNUSED)
    }

    fn get_mut(&mut self, record: u32) -> &mut Record {
        &mut self.all[record as usize]
    }

    /// Visible objects.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Records that have left the index so far. As long as it stays the same, all that was found is there.
    pub(super) fn gone(&self) -> u64 {
        self.gone
    }

    /// Records that went while a pin of the request form named them. As long as it stays the same, all that is pinned is there.
    pub(super) fn torn(&self) -> u64 {
        self.torn
    }

    /// Frames of objects with pins of the request form.
    pub(super) fn pinned_frames(&self) -> u64 {
        self.pinned_frames
    }

    /// Takes a number for an incomplete object under `parent`.
    pub(super) fn open(&mut self, domain: u32, bit: u32, parent: Option<u32>, beside: bool) -> Option<u32> {
        let record = self.numbers.take()?;
        if record as usize >= self.all.len() {
            self.all.resize(record as usize + 1, UNUSED);
        }
        *self.get_mut(record) = Record {
            state: RecordState::Partial,
            domain,
            bit,
            beside,
            ..UNUSED
        };
        self.attach(record, parent);
        Some(record)
    }

    /// The object is complete and visible. `tail` is its bit if it is a tail, else 0.
    pub(super) fn publish(&mut self, record: u32, frames: u32, held_from: u32, tail: u32) {
        let entry = self.get_mut(record);
        entry.held_from = held_from;
        entry.tail = tail;
        entry.state = RecordState::Live;
        entry.frames = frames;
        let (bit, parent) = (entry.bit, entry.parent.filter(|_| entry.beside));
        if !entry.beside && tail == 0 {
            let above = entry.parent;
            self.trunks.grow(record, above, frames);
        }
        if let Some(parent) = parent {
            let entry = self.get_mut(parent);
            entry.groups.below |= bit;
            entry.groups.holed |= if held_from > 0 { bit } else { 0 };
            // A superseded one may go again: what hangs under it can be moved.
            self.refresh(parent);
        }
        if let Some(chunk) = self.chunk_before(record) {
            *self.tails.entry((chunk, tail)).or_default() += 1;
            self.get_mut(chunk).tails |= tail;
        }
        self.live += 1;
        self.policy.stored(record);
        self.refresh(record);
    }

    /// The object is out of the index; it keeps its number and its place in the tree.
    pub(super) fn enter_limbo(&mut self, record: u32) {
        let entry = *self.get(record);
        self.gone += 1;
        self.torn += u64::from(entry.pins > 0);
        if entry.state == RecordState::Live {
            self.live -= 1;
            self.leave_chunk_before(record);
        }
        self.leave(&entry);
        let entry = self.get_mut(record);
        entry.state = RecordState::Limbo;
        entry.beside = false;
        self.policy.removed(record);
    }

    /// The number is free again. A live record goes through [`Records::enter_limbo`] first.
    pub(super) fn close(&mut self, record: u32) {
        self.attach(record, None);
        self.trunks.cut(record);
        *self.get_mut(record) = UNUSED;
        self.numbers.put(record);
    }

    /// Hangs a record under another one, or under none.
    pub(super) fn attach(&mut self, record: u32, parent: Option<u32>) {
        let entry = self.get_mut(record);
        let old = std::mem::replace(&mut entry.parent, parent);
        if let Some(parent) = parent {
            self.get_mut(parent).children += 1;
            self.refresh(parent);
        }
        if let Some(old) = old {
            self.get_mut(old).children -= 1;
            self.refresh(old);
        }
    }

    /// Hangs the record of a partial that was opened without a parent.
    pub(super) fn hang(&mut self, record: u32, parent: u32, beside: bool) {
        self.get_mut(record).beside = beside;
        self.attach(record, Some(parent));
    }

    /// Hangs a live record under another one whose key is not its own.
    pub(super) fn move_up(&mut self, record: u32, parent: Option<u32>) {
        let entry = *self.get(record);
        self.leave(&entry);
        self.get_mut(record).beside = false;
        self.attach(record, parent);
    }

    /// Of a tail: the record of the chunk before it, which speaks for it. A state or a window may have the attention of its
    /// own tail between.
    pub(super) fn chunk_before(&self, record: u32) -> Option<u32> {
        let entry = self.get(record);
        let parent = entry.parent.filter(|_| entry.tail != 0)?;
        match entry.beside {
            true => self.get(parent).parent,
            false => Some(parent),
        }
    }

    fn leave_chunk_before(&mut self, record: u32) {
        let Some(chunk) = self.chunk_before(record) else {
            return;
        };
        let bit = self.get(record).tail;
        let Entry::Occupied(mut tails) = self.tails.entry((chunk, bit)) else {
            debug_assert!(false, "record {chunk} counts no tail {record}");
            return;
        };
        *tails.get_mut() -= 1;
        if *tails.get() == 0 {
            tails.remove();
            self.get_mut(chunk).tails &= !bit;
        }
    }

    /// Its parent no longer speaks for it.
    fn leave(&mut self, entry: &Record) {
        if let Some(parent) = entry.parent.filter(|_| entry.beside) {
            let parent = self.get_mut(parent);
            parent.groups.below &= !entry.bit;
            parent.groups.holed &= !entry.bit;
        }
    }

    /// One more pin.
    pub(super) fn pin(&mut self, record: u32) {
        let entry = self.get_mut(record);
        entry.pins += 1;
        if entry.pins == 1 {
            self.pinned_frames += u64::from(self.get(record).frames);
            self.refresh(record);
        }
    }

    /// One pin less.
    pub(super) fn unpin(&mut self, record: u32) {
        let entry = self.get_mut(record);
        debug_assert!(entry.pins > 0);
        entry.pins -= 1;
        if entry.pins == 0 {
            self.pinned_frames -= u64::from(self.get(record).frames);
            self.refresh(record);
        }
    }

    /// A reader has used it.
    pub(super) fn touch(&mut self, record: u32) {
        if self.get(record).state == RecordState::Live {
            self.policy.touched(record);
        }
    }

    /// It goes before all that are not superseded.
    pub(super) fn supersede(&mut self, record: u32) {
        self.get_mut(record).superseded = true;
        self.policy.superseded(record);
        self.refresh(record);
    }

    /// The next record to go. It stays live until the caller says otherwise.
    pub(super) fn next_victim(&mut self) -> Option<u32> {
        self.policy.next()
    }

    /// A victim that stays after all, since a reader holds it.
    pub(super) fn spare(&mut self, record: u32) {
        self.policy.touched(record);
        self.refresh(record);
    }

    /// Of some records the one that would go first.
    pub(super) fn first_of(&self, records: &[u32]) -> Option<u32> {
        let ranked = records
            .iter()
            .filter_map(|&r| self.policy.rank(r).map(|rank| (rank, r)));
        ranked.min().map(|(_, record)| record)
    }

    /// Records in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Record)> + '_ {
        let used = |(_, r): &(usize, &Record)| r.state != RecordState::Free;
        self.all
            .iter()
            .enumerate()
            .filter(used)
            .map(|(i, r)| (i as u32, r))
    }

    /// Whether the policy may name it, for the audit.
    pub(super) fn is_candidate(&self, record: u32) -> bool {
        self.policy.rank(record).is_some()
    }

    /// Whether it may go: a live, unpinned leaf. A superseded tail may also go when all that hangs under
    /// it can be hung under its parent, for a state stays useful without the attention bytes of its tail.
    pub(super) fn may_go(&self, record: u32) -> bool {
        let entry = self.get(record);
        let movable = entry.superseded && entry.children == entry.groups.below.count_ones();
        entry.state == RecordState::Live && entry.pins == 0 && (entry.children == 0 || movable)
    }

    fn refresh(&mut self, record: u32) {
        let yes = self.may_go(record);
        self.policy.evictable(record, yes);
    }
}
