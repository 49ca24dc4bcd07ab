//! What pins keep from eviction, and how much of that one client may.
//!
//! May import this module's `api`, `core` and what they hold.
//!
//! A pin keeps an object and everything that it hangs under: of a chain only the end can go. (A superseded tail may go
//! all the same. It stays counted under its number until the pin ends, so shares are exact but for such tails.)
//! Clients that could keep all of the pool would stop the stores of all others, so each may keep a quarter. What does
//! not fit is not promised: a lookup answers the longest prefix that fits, a retrieve says that the rest is not there.

use std::collections::HashSet;

use super::api::ClientId;
use super::core::Core;
use super::pins::Kept;
use super::registry::Domain;

/// Collects what a pin to be made keeps, as far as its client may.
pub(super) struct Keeping<'a> {
    core: &'a Core,
    client: ClientId,
    /// Frames that the client may yet keep.
    room: u64,
    seen: HashSet<u32>,
    kept: Kept,
}

impl Core {
    /// Frames that the pins of one client may keep.
    pub(super) fn kept_frames_max(&self, domain: &Domain) -> u64 {
        let share = u64::from(self.pool.frames()) * u64::from(self.pinned_percent) / 100;
        // Where not even one chunk is that small, nothing could ever be a hit.
        share.max(domain.chunk_frames())
    }

    /// For a pin of a client on objects of a domain.
    pub(super) fn keeping(&self, client: ClientId, domain: &Domain) -> Keeping<'_> {
        let limit = self.kept_frames_max(domain);
        Keeping {
            core: self,
            client,
            room: limit.saturating_sub(self.pins.kept_frames(client)),
            seen: HashSet::new(),
            kept: Kept::new(),
        }
    }

    /// What a pin of all these records keeps; `None` when that is more than the client may.
    pub(super) fn keep_all(&self, client: ClientId, domain: &Domain, records: &[u32]) -> Option<Kept> {
        let mut keeping = self.keeping(client, domain);
        let all = records.iter().all(|record| keeping.add(*record));
        all.then(|| keeping.finish())
    }
}

impl Keeping<'_> {
    /// Adds a record with all it hangs under. False, and then nothing is added, when that is too much.
    pub(super) fn add(&mut self, record: u32) -> bool {
        let first = self.kept.len();
        let (mut at, mut new) = (Some(record), 0);
        while let Some(record) = at.filter(|record| !self.seen.contains(record)) {
            let entry = self.core.records.get(record);
            self.kept.push((record, entry.frames));
            if !self.core.pins.keeps(self.client, record) {
                new += u64::from(entry.frames);
            }
            at = entry.parent;
        }
        if new > self.room {
            self.kept.truncate(first);
            return false;
        }
        self.room -= new;
        self.seen
            .extend(self.kept[first..].iter().map(|(record, _)| record));
        true
    }

    /// Records and their frames, each once.
    pub(super) fn finish(self) -> Kept {
        self.kept
    }
}
