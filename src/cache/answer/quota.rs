//! What pins keep from eviction, and how much of that one client may.
//!
//! A pin keeps an object and everything that it hangs under: of a chain only the end can go. (A superseded tail may go
//! all the same. It stays counted under its number until the pin ends, so shares are exact but for such tails.)
//! Clients that could keep all of the pool would stop the stores of all others, so each may keep a quarter. What does
//! not fit is not promised: a lookup answers the longest prefix that fits, a retrieve says that the rest is not there.

use crate::cache::books::pins::PinTable;
use crate::cache::books::registry::Domain;
use crate::cache::books::tree::Tree;
use crate::cache::books::trunks::Spot;
use crate::cache::{ClientId, Core, CoreError};
use crate::index::budget::{Budget, Unlimited};
use crate::index::pins::{Pins, Role};
use crate::index::probe::Found;
use crate::index::reader::IndexReader;
use crate::object::ObjectId;
use crate::shm::mapping::Access;

/// Parts of a step: to note what keeps an object in a chain, or a companion, and to pin it.
const KEEP: u32 = 2;
const KEEP_BESIDE: u32 = 8;
const PIN: u32 = 3;

/// Collects what a pin is to keep, as far as its client may. A pin begins with the first object.
#[derive(Debug)]
pub(crate) struct Keeping {
    client: ClientId,
    label: u64,
    /// Frames that the client may keep.
    limit: u64,
    pin: u64,
    /// It is only asked how much fits.
    is_trial: bool,
    /// A spot that is not yet noted, since the next one on its chain may follow.
    pending: Option<Spot>,
    /// Frames that noting it adds at most.
    ahead: u64,
    /// Frames that the client keeps without it.
    kept: u64,
    /// Records that are pinned and not yet noted as the pin's; none between turns.
    unnamed: Vec<u32>,
    /// Something was noted as the pin's.
    is_used: bool,
    /// Objects that had gone from the index when the read began, and records that had gone under a pin when that was
    /// asked last.
    gone: u64,
    torn: u64,
}

impl Core {
    /// Frames that the pins of one client may keep.
    pub(crate) fn kept_frames_max(&self, domain: &Domain) -> u64 {
        let share = u64::from(self.pool.frames()) * u64::from(self.pinned_percent) / 100;
        // Where not even one chunk is that small, nothing could ever be a hit.
        share.max(domain.chunk_frames())
    }

    /// Whether a pin of the request form keeps a record from eviction.
    pub(crate) fn is_kept(&self, client: ClientId, record: u32) -> bool {
        self.pins.keeps(client, record, &self.tree.trunks)
    }
}

impl Keeping {
    /// Nothing yet, of at most `limit` frames with all that the client keeps besides.
    pub(crate) fn new(client: ClientId, label: u64, limit: u64, records: &Tree) -> Self {
        Self {
            client,
            label,
            limit,
            pin: 0,
            is_trial: false,
            pending: None,
            ahead: 0,
            kept: 0,
            unnamed: Vec::new(),
            is_used: false,
            gone: records.gone(),
            torn: records.torn(),
        }
    }
}

/// Pins that the server counts.
pub(crate) struct CountedPins<'a> {
    pub(crate) keeping: &'a mut Keeping,
    pub(crate) pins: &'a mut PinTable,
    pub(crate) tree: &'a mut Tree,
}

impl Pins for CountedPins<'_> {
    type Error = CoreError;

    fn begin(&mut self, _: &[Found], is_trial: bool) {
        let keeping = &mut *self.keeping;
        (keeping.pin, keeping.is_trial, keeping.is_used) = (0, is_trial, false);
        (keeping.pending, keeping.ahead) = (None, 0);
        keeping.torn = self.tree.torn();
    }

    fn is_unchanged(&self) -> bool {
        self.tree.gone() == self.keeping.gone
    }

    fn add(
        &mut self,
        found: &Found,
        _: &ObjectId,
        role: Role,
        meter: &mut impl Budget,
    ) -> Result<bool, CoreError> {
        let (keep, pin) = match role {
            Role::Chunk(_) | Role::Chained => (KEEP, PIN),
            Role::Companion => (KEEP_BESIDE, PIN),
            Role::Named => (0, 0), // part of finding it
        };
        meter.spend(keep);
        if !self.keep(found.record)? {
            return Ok(false);
        }
        if !self.keeping.is_trial {
            meter.spend(pin);
            self.tree.pin(found.record);
            self.keeping.unnamed.push(found.record);
        }
        Ok(true)
    }

    fn settle(&mut self) -> Result<(), CoreError> {
        let keeping = &mut *self.keeping;
        if keeping.unnamed.is_empty() {
            return Ok(());
        }
        let named = self.pins.name(keeping.client, keeping.pin, &keeping.unnamed);
        if named.is_err() {
            keeping.unnamed.iter().for_each(|record| self.tree.unpin(*record));
        }
        keeping.is_used |= named.is_ok();
        keeping.unnamed.clear();
        named
    }

    fn hold(&mut self) -> Option<u64> {
        self.note();
        if !self.keeping.is_used {
            self.give_back(&mut Unlimited); // where all was too much it holds nothing
        } else {
            self.pins.close(self.keeping.client, self.keeping.pin);
        }
        Some(self.keeping.pin)
    }

    fn is_intact<A: Access>(&mut self, _: &IndexReader<'_, A>) -> bool {
        let torn = std::mem::replace(&mut self.keeping.torn, self.tree.torn());
        torn == self.keeping.torn
    }

    fn touch(&mut self, record: u32) {
        self.tree.touch(record);
    }

    fn give_back(&mut self, meter: &mut impl Budget) -> bool {
        let (client, pin, records) = (self.keeping.client, self.keeping.pin, &mut *self.tree);
        let is_gone = pin == 0 || self.pins.take(client, pin, meter, |record| records.unpin(record));
        if is_gone {
            self.keeping.pin = 0;
        }
        is_gone
    }
}

impl CountedPins<'_> {
    /// Keeps a live record with all that it hangs under, without pinning it. False, and then nothing is kept, when
    /// that is too much.
    fn keep(&mut self, record: u32) -> Result<bool, CoreError> {
        let client = self.keeping.client;
        if self.keeping.pin == 0 {
            self.keeping.pin = self.pins.open(client, self.keeping.label)?;
            self.keeping.kept = self.pins.kept_frames(client);
        }
        let pin = self.keeping.pin;
        // A state is a companion of its tail's attention, which is a companion of a chain's.
        let (mut at, mut companions) = (Some(record), 0);
        let before = self.keeping.kept;
        while let Some(record) = at.filter(|record| self.tree.trunks.spot(*record).is_none()) {
            let entry = *self.tree.get(record);
            self.pins.hold_companion(client, pin, record, entry.frames);
            companions += 1;
            at = entry.parent;
        }
        if companions > 0 {
            self.keeping.kept = self.pins.kept_frames(client);
        }
        let grows = self.keeping.kept > before;
        let spot = at.and_then(|record| self.tree.trunks.spot(record));
        let spot = spot.filter(|spot| !self.covers(*spot));
        if self.fits(spot, grows) {
            return Ok(true);
        }
        for _ in 0..companions {
            self.pins.let_go_companion(client, pin);
        }
        self.keeping.kept = self.pins.kept_frames(client);
        Ok(false)
    }

    /// Notes what is pending.
    fn note(&mut self) {
        let keeping = &mut *self.keeping;
        keeping.ahead = 0;
        if let Some(spot) = keeping.pending.take() {
            self.pins
                .hold(keeping.client, keeping.pin, spot, &self.tree.trunks);
            keeping.kept = self.pins.kept_frames(keeping.client);
        }
    }

    fn covers(&self, spot: Spot) -> bool {
        match self.keeping.pending {
            // What was noted before of this chain is before this, or it would not be pending.
            Some(pending) if pending.chain == spot.chain => pending.frames >= spot.frames,
            _ => self.pins.covers(self.keeping.client, self.keeping.pin, spot),
        }
    }

    /// Whether a spot may be held too. `grows`: the companions that have just been added were not kept before.
    fn fits(&mut self, spot: Option<Spot>, grows: bool) -> bool {
        let more = match (spot, self.keeping.pending) {
            (None, _) => 0,
            (Some(spot), Some(pending)) if pending.chain == spot.chain => spot.frames - pending.frames,
            (Some(spot), _) => {
                self.note();
                spot.frames
            }
        };
        let keeping = &mut *self.keeping;
        // All of it may be kept already; only where that would matter it is looked at.
        if keeping.kept + keeping.ahead + u64::from(more) <= keeping.limit {
            (keeping.pending, keeping.ahead) = (spot.or(keeping.pending), keeping.ahead + u64::from(more));
            return true;
        }
        self.note();
        let noted = self.keeping.kept;
        let kept = match spot {
            Some(spot) => self
                .pins
                .frames_with(self.keeping.client, spot, &self.tree.trunks),
            None => noted,
        };
        // What is kept already is not refused, however much it is.
        if (grows || kept > noted) && kept > self.keeping.limit {
            return false;
        }
        (self.keeping.pending, self.keeping.ahead) = (spot, more.into());
        true
    }
}
