//! What pins keep from eviction, and how much of that one client may.
//!
//! May import this module's `api`, `core` and what they hold.
//!
//! A pin keeps an object and everything that it hangs under: of a chain only the end can go. (A superseded tail may go
//! all the same. It stays counted under its number until the pin ends, so shares are exact but for such tails.)
//! Clients that could keep all of the pool would stop the stores of all others, so each may keep a quarter. What does
//! not fit is not promised: a lookup answers the longest prefix that fits, a retrieve says that the rest is not there.

use super::api::ClientId;
use super::core::Core;
use super::error::CoreError;
use super::registry::Domain;
use super::trunks::Spot;

/// Collects what a pin is to keep, as far as its client may. A pin begins with the first object.
#[derive(Debug)]
pub(super) struct Keeping {
    client: ClientId,
    session: u64,
    /// Frames that the client may keep.
    limit: u64,
    pin: u64,
    /// A spot that is not yet noted, since the next one on its chain may follow.
    pending: Option<Spot>,
    /// Frames that noting it adds at most.
    ahead: u64,
    /// Frames that the client keeps without it.
    kept: u64,
}

impl Core {
    /// Frames that the pins of one client may keep.
    pub(super) fn kept_frames_max(&self, domain: &Domain) -> u64 {
        let share = u64::from(self.pool.frames()) * u64::from(self.pinned_percent) / 100;
        // Where not even one chunk is that small, nothing could ever be a hit.
        share.max(domain.chunk_frames())
    }

    /// Whether a pin of the request form keeps a record from eviction.
    pub(super) fn is_kept(&self, client: ClientId, record: u32) -> bool {
        self.pins.keeps(client, record, &self.records.trunks)
    }
}

impl Keeping {
    /// Nothing yet, of at most `limit` frames with all that the client keeps besides.
    pub(super) fn new(client: ClientId, session: u64, limit: u64) -> Self {
        Self {
            client,
            session,
            limit,
            pin: 0,
            pending: None,
            ahead: 0,
            kept: 0,
        }
    }

    /// The pin; 0 as long as nothing was added.
    pub(super) fn pin(&self) -> u64 {
        self.pin
    }

    /// Adds a live record with all that it hangs under, without pinning it. False, and then nothing is added, when that is
    /// too much.
    ///
    /// # Errors
    /// [`CoreError::LimitExceeded`] for more pins than a client may have.
    pub(super) fn add(&mut self, core: &mut Core, record: u32) -> Result<bool, CoreError> {
        if self.pin == 0 {
            self.pin = core.pins.open(self.client, self.session)?;
            self.kept = core.pins.kept_frames(self.client);
        }
        // A state stands beside the attention of its tail, which stands beside a chain.
        let (mut at, mut beside) = (Some(record), 0);
        let before = self.kept;
        while let Some(record) = at.filter(|record| core.records.trunks.spot(*record).is_none()) {
            let entry = *core.records.get(record);
            core.pins.hold_beside(self.client, self.pin, record, entry.frames);
            beside += 1;
            at = entry.parent;
        }
        if beside > 0 {
            self.kept = core.pins.kept_frames(self.client);
        }
        let grows = self.kept > before;
        let spot = at.and_then(|record| core.records.trunks.spot(record));
        let spot = spot.filter(|spot| !self.covers(core, *spot));
        if self.fits(core, spot, grows) {
            return Ok(true);
        }
        for _ in 0..beside {
            core.pins.let_go_beside(self.client, self.pin);
        }
        self.kept = core.pins.kept_frames(self.client);
        Ok(false)
    }

    /// Notes what is pending.
    pub(super) fn note(&mut self, core: &mut Core) {
        self.ahead = 0;
        if let Some(spot) = self.pending.take() {
            core.pins.hold(self.client, self.pin, spot, &core.records.trunks);
            self.kept = core.pins.kept_frames(self.client);
        }
    }

    fn covers(&self, core: &Core, spot: Spot) -> bool {
        match self.pending {
            // What was noted before of this chain is before this, or it would not be pending.
            Some(pending) if pending.chain == spot.chain => pending.frames >= spot.frames,
            _ => core.pins.covers(self.client, self.pin, spot),
        }
    }

    /// Whether a spot may be held too. `grows`: what has just been added beside the chains was not kept before.
    fn fits(&mut self, core: &mut Core, spot: Option<Spot>, grows: bool) -> bool {
        let more = match (spot, self.pending) {
            (None, _) => 0,
            (Some(spot), Some(pending)) if pending.chain == spot.chain => spot.frames - pending.frames,
            (Some(spot), _) => {
                self.note(core);
                spot.frames
            }
        };
        // All of it may be kept already; only where that would matter it is looked at.
        if self.kept + self.ahead + u64::from(more) <= self.limit {
            (self.pending, self.ahead) = (spot.or(self.pending), self.ahead + u64::from(more));
            return true;
        }
        self.note(core);
        let noted = self.kept;
        let kept = match spot {
            Some(spot) => core.pins.frames_with(self.client, spot, &core.records.trunks),
            None => noted,
        };
        // What is kept already is not refused, however much it is.
        if (grows || kept > noted) && kept > self.limit {
            return false;
        }
        self.pending = spot;
        self.ahead = u64::from(more);
        true
    }
}
