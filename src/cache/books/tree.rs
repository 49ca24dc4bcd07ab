//! What the server knows of each record beyond the shared words: its tree, its pins, whether it may go.
//!
//! Records form trees: a full-attention object hangs under the one of the chunk before, a window or a
//! state under the full-attention object of its chunk. Only leaves go.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::chunked::Chunked;
use super::numbers::NumberPool;
use super::policy::{EvictionPolicy, Lru, Position};
use super::trunks::Trunks;
use crate::index::record::Companions;
use crate::pool::RecordState;

/// One record in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Same as in the directory.
    pub(crate) state: RecordState,
    /// Domain number.
    pub(crate) domain: u32,
    /// The record that it hangs under.
    pub(crate) parent: Option<u32>,
    /// Records that hang under it: live, limbo and incomplete ones.
    pub(crate) children: u32,
    /// Pins of the request form.
    pub(crate) pins: u32,
    /// Frames of the object.
    pub(crate) frames: u32,
    /// The first of its tokens that is held.
    pub(crate) held_from: u32,
    /// Bit of its group in its domain.
    pub(crate) bit: u32,
    /// Its companions, as its record in the index says.
    pub(crate) companions: Companions,
    /// Whether it is one of the companions of its parent.
    pub(crate) is_companion: bool,
    /// Of a tail its bit in the word of the chunk before; 0 of what is none.
    pub(crate) tail: u32,
    /// Bits of the tails of the next chunk, as its record in the index says.
    pub(crate) tails: u32,
    /// Superseded.
    pub(crate) superseded: bool,
    /// Out of the index, and nobody has looked yet whether a reader holds it. It hangs under nothing meanwhile.
    pub(crate) undecided: bool,
    /// A live record that does not go for now: a word of a slab pins it.
    parked: bool,
    /// What hangs under it is a list, so that all of it is found without looking at anything else.
    first_child: u32,
    next_sibling: u32,
    previous_sibling: u32,
}

/// No record, in the lists of what hangs under one.
const NONE: u32 = u32::MAX;

/// All records in use.
#[derive(Debug)]
pub(crate) struct Tree {
    numbers: NumberPool,
    /// Takes memory as numbers come into use; an entry of a free number has the state `Free`.
    all: Chunked<Record>,
    policy: Box<dyn EvictionPolicy>,
    /// How many live tails are behind a bit of `tails` of a record.
    tails: BTreeMap<(u32, u32), u32>,
    /// Those that are parked.
    parked: BTreeSet<u32>,
    /// Records in limbo that nothing but a word of a slab may hold any more, since their last pin or the last that hung
    /// under them has gone.
    let_go: BTreeSet<u32>,
    limbo: u64,
    live: u64,
    pinned_frames: u64,
    /// Where full chunks stand in their trees.
    pub(crate) trunks: Trunks,
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
    companions: Companions { groups: 0, holed: 0 },
    is_companion: false,
    tail: 0,
    tails: 0,
    superseded: false,
    undecided: false,
    parked: false,
    first_child: NONE,
    next_sibling: NONE,
    previous_sibling: NONE,
};

impl Tree {
    /// Room for `total` records, none in use.
    pub(crate) fn new(total: u32) -> Self {
        Self {
            numbers: NumberPool::new(total),
            all: Chunked::new(UNUSED, total),
            policy: Box::new(Lru::new(total)),
            tails: BTreeMap::new(),
            parked: BTreeSet::new(),
            let_go: BTreeSet::new(),
            limbo: 0,
            live: 0,
            pinned_frames: 0,
            trunks: Trunks::new(total),
            gone: 0,
            torn: 0,
        }
    }

    /// A record by its number; one that is not in use is `Free`.
    pub(crate) fn get(&self, record: u32) -> &Record {
        self.all.get(record)
    }

    fn get_mut(&mut self, record: u32) -> &mut Record {
        self.all.get_mut(record)
    }

    /// Visible objects.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// Objects that are out of the index and keep their frames.
    pub(crate) fn limbo(&self) -> u64 {
        self.limbo
    }

    /// Records that have left the index so far. As long as it stays the same, all that was found is there.
    pub(crate) fn gone(&self) -> u64 {
        self.gone
    }

    /// Records that went while a pin of the request form named them. As long as it stays the same, all that is pinned
    /// is there.
    pub(crate) fn torn(&self) -> u64 {
        self.torn
    }

    /// Frames of objects with pins of the request form.
    pub(crate) fn pinned_frames(&self) -> u64 {
        self.pinned_frames
    }

    /// Takes a number for an incomplete object under `parent`.
    pub(crate) fn open(
        &mut self,
        domain: u32,
        bit: u32,
        parent: Option<u32>,
        is_companion: bool,
    ) -> Option<u32> {
        let record = self.numbers.take()?;
        *self.get_mut(record) = Record {
            state: RecordState::Incomplete,
            domain,
            bit,
            is_companion,
            ..UNUSED
        };
        self.attach(record, parent);
        Some(record)
    }

    /// The object is complete and visible. `tail` is its bit if it is a tail, else 0.
    pub(crate) fn publish(&mut self, record: u32, frames: u32, held_from: u32, tail: u32) {
        let entry = self.get_mut(record);
        entry.held_from = held_from;
        entry.tail = tail;
        entry.state = RecordState::Live;
        entry.frames = frames;
        let (bit, parent) = (entry.bit, entry.parent.filter(|_| entry.is_companion));
        if !entry.is_companion && tail == 0 {
            let above = entry.parent;
            self.trunks.grow(record, above, frames);
        }
        if let Some(parent) = parent {
            let entry = self.get_mut(parent);
            entry.companions.groups |= bit;
            entry.companions.holed |= if held_from > 0 { bit } else { 0 };
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
    pub(crate) fn enter_limbo(&mut self, record: u32) {
        let entry = *self.get(record);
        debug_assert!(entry.state == RecordState::Live);
        self.gone += 1;
        self.torn += u64::from(entry.pins > 0);
        self.live -= 1;
        self.limbo += 1;
        self.leave_chunk_before(record);
        self.leave(&entry);
        self.leave_park(record);
        let entry = self.get_mut(record);
        entry.state = RecordState::Limbo;
        entry.undecided = true;
        entry.is_companion = false;
        self.policy.removed(record);
    }

    /// A reader holds an object that is out of the index, or something does that hangs under it: it hangs where it
    /// did.
    pub(crate) fn stay_in_limbo(&mut self, record: u32, parent: Option<u32>) {
        self.get_mut(record).undecided = false;
        self.attach(record, parent);
        self.note_let_go(record);
    }

    /// Whether only a word of a slab can hold a record in limbo.
    pub(crate) fn is_let_go(&self, record: u32) -> bool {
        let entry = self.get(record);
        entry.state == RecordState::Limbo && !entry.undecided && entry.children == 0 && entry.pins == 0
    }

    /// The next of those in limbo that only a word of a slab can hold, from this number on.
    pub(crate) fn let_go_from(&self, record: u32) -> Option<u32> {
        self.let_go.range(record..).next().copied()
    }

    fn note_let_go(&mut self, record: u32) {
        if self.is_let_go(record) {
            self.let_go.insert(record);
        }
    }

    /// Nobody holds a record in limbo any more: it hangs under nothing until the last of its frames is free.
    pub(crate) fn waste(&mut self, record: u32) {
        debug_assert!(self.get(record).state == RecordState::Limbo);
        self.limbo -= 1;
        self.let_go.remove(&record);
        self.attach(record, None);
        self.get_mut(record).state = RecordState::Incomplete;
    }

    /// The number is free again. A live record goes through [`Tree::enter_limbo`] and [`Tree::waste`] first.
    pub(crate) fn close(&mut self, record: u32) {
        debug_assert!(self.get(record).first_child == NONE);
        self.attach(record, None);
        debug_assert!(self.get(record).state == RecordState::Incomplete);
        self.leave_park(record);
        self.trunks.cut(record);
        *self.get_mut(record) = UNUSED;
        self.numbers.put(record);
    }

    /// Hangs a record under another one, or under none.
    pub(crate) fn attach(&mut self, record: u32, parent: Option<u32>) {
        let old = self.get(record).parent;
        if let Some(old) = old {
            self.unlink(record, old);
        }
        self.get_mut(record).parent = parent;
        if let Some(parent) = parent {
            let first = std::mem::replace(&mut self.get_mut(parent).first_child, record);
            self.get_mut(record).next_sibling = first;
            if first != NONE {
                self.get_mut(first).previous_sibling = record;
            }
            let entry = self.get_mut(parent);
            entry.children += 1;
            // A record in limbo to which something comes back is held by it again.
            if entry.state == RecordState::Limbo {
                self.let_go.remove(&parent);
            }
            self.refresh(parent);
        }
        if let Some(old) = old {
            self.refresh(old);
            self.note_let_go(old);
        }
    }

    /// Takes a record out of the list of what hangs under its parent.
    fn unlink(&mut self, record: u32, parent: u32) {
        let entry = self.get_mut(record);
        let next = std::mem::replace(&mut entry.next_sibling, NONE);
        let previous = std::mem::replace(&mut entry.previous_sibling, NONE);
        match previous {
            NONE => self.get_mut(parent).first_child = next,
            previous => self.get_mut(previous).next_sibling = next,
        }
        if next != NONE {
            self.get_mut(next).previous_sibling = previous;
        }
        self.get_mut(parent).children -= 1;
    }

    /// One of those that hang under a record: live, limbo and incomplete ones.
    pub(crate) fn first_child(&self, record: u32) -> Option<u32> {
        Some(self.get(record).first_child).filter(|child| *child != NONE)
    }

    /// How many records the list of what hangs under a record has, as far as they say that they hang there.
    pub(crate) fn linked_children(&self, record: u32) -> u64 {
        let children = std::iter::successors(self.first_child(record), |child| self.next_sibling(*child));
        children
            .filter(|child| self.get(*child).parent == Some(record))
            .count() as u64
    }

    /// Another one that hangs where this one does.
    pub(crate) fn next_sibling(&self, record: u32) -> Option<u32> {
        Some(self.get(record).next_sibling).filter(|next| *next != NONE)
    }

    /// Hangs the record of an incomplete object that was opened without a parent.
    pub(crate) fn hang(&mut self, record: u32, parent: u32, is_companion: bool) {
        self.get_mut(record).is_companion = is_companion;
        self.attach(record, Some(parent));
    }

    /// Hangs a live record under another one whose key is not its own.
    pub(crate) fn move_up(&mut self, record: u32, parent: Option<u32>) {
        let entry = *self.get(record);
        self.leave(&entry);
        self.get_mut(record).is_companion = false;
        self.attach(record, parent);
    }

    /// Of a tail: the record of the chunk before it, which speaks for it. A state or a window may have the attention
    /// of its own tail between.
    pub(crate) fn chunk_before(&self, record: u32) -> Option<u32> {
        let entry = self.get(record);
        let parent = entry.parent.filter(|_| entry.tail != 0)?;
        match entry.is_companion {
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
        if let Some(parent) = entry.parent.filter(|_| entry.is_companion) {
            let parent = self.get_mut(parent);
            parent.companions.groups &= !entry.bit;
            parent.companions.holed &= !entry.bit;
        }
    }

    /// One more pin.
    pub(crate) fn pin(&mut self, record: u32) {
        let entry = self.get_mut(record);
        entry.pins += 1;
        if entry.pins == 1 {
            self.pinned_frames += u64::from(self.get(record).frames);
            self.refresh(record);
        }
    }

    /// One pin less.
    pub(crate) fn unpin(&mut self, record: u32) {
        let entry = self.get_mut(record);
        debug_assert!(entry.pins > 0);
        entry.pins -= 1;
        if entry.pins == 0 {
            self.pinned_frames -= u64::from(self.get(record).frames);
            self.refresh(record);
            self.note_let_go(record);
        }
    }

    /// A reader has used it.
    pub(crate) fn touch(&mut self, record: u32) {
        if self.get(record).state == RecordState::Live {
            self.policy.touched(record);
        }
    }

    /// It goes before all that are not superseded.
    pub(crate) fn supersede(&mut self, record: u32) {
        self.get_mut(record).superseded = true;
        self.policy.superseded(record);
        self.refresh(record);
    }

    /// The next record to go from a place in the order on.
    pub(crate) fn victim_from(&self, place: Position) -> Option<Position> {
        self.policy.first_from(place)
    }

    /// Where a record stands that may go.
    pub(crate) fn position_of(&self, record: u32) -> Option<Position> {
        self.policy.rank(record).map(|rank| (rank, record))
    }

    /// A word of a slab pins it: it does not go before [`Tree::unpark`]. So victims that stay are met once, not by
    /// each who looks for some.
    pub(crate) fn park(&mut self, record: u32) {
        self.get_mut(record).parked = true;
        self.parked.insert(record);
        self.policy.touched(record);
        self.refresh(record);
    }

    /// No word of a slab pins it any more.
    pub(crate) fn unpark(&mut self, record: u32) {
        self.leave_park(record);
        self.refresh(record);
    }

    /// The next record that is parked, from this number on.
    pub(crate) fn parked_from(&self, record: u32) -> Option<u32> {
        self.parked.range(record..).next().copied()
    }

    fn leave_park(&mut self, record: u32) {
        if std::mem::take(&mut self.get_mut(record).parked) {
            self.parked.remove(&record);
        }
    }

    /// Of some records the one that would go first.
    pub(crate) fn first_of(&self, records: &[u32]) -> Option<u32> {
        let ranked = records
            .iter()
            .filter_map(|&r| self.policy.rank(r).map(|rank| (rank, r)));
        ranked.min().map(|(_, record)| record)
    }

    /// Records in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Record)> + '_ {
        self.all.iter().filter(|(_, r)| r.state != RecordState::Free)
    }

    /// Whether the policy may name it, for the audit.
    pub(crate) fn is_candidate(&self, record: u32) -> bool {
        self.policy.rank(record).is_some()
    }

    /// Whether it may go: a live, unpinned leaf. A superseded tail may also go when all that hangs under
    /// it can be hung under its parent, for a state stays useful without the attention bytes of its tail.
    pub(crate) fn may_go(&self, record: u32) -> bool {
        let entry = self.get(record);
        let movable = entry.superseded && entry.children == entry.companions.groups.count_ones();
        let held = entry.pins > 0 || entry.parked;
        entry.state == RecordState::Live && !held && (entry.children == 0 || movable)
    }

    fn refresh(&mut self, record: u32) {
        let yes = self.may_go(record);
        self.policy.evictable(record, yes);
    }
}
