//! Publication: a complete object becomes visible.
//!
//! May import everything of this module. Protocol: docs/shm-layout.md, "publish".

use super::api::{CommitOutcome, ObjectId};
use super::core::Core;
use super::error::CoreError;
use super::evict::Later;
use super::index::FreeSlot;
use super::partials::PartialKey;
use super::record::{Holding, RecordWords, incarnation};
use crate::pool::body::{self, PartBody, blocks_for};
use crate::pool::{Extent, RecordState, count_frames};

impl Core {
    /// Makes a complete object visible.
    pub(super) fn publish(&mut self, key: &PartialKey) -> Result<CommitOutcome, CoreError> {
        let Some(partial) = self.partials.get(key) else {
            return Ok(CommitOutcome::Dropped);
        };
        let record = partial.record;
        let range = Holding {
            domain: self.records.get(record).domain,
            tokens: partial.tokens,
            held_from: partial.held_from,
        };
        let tail = self.domain(range.domain)?.tail_bit(range.tokens);
        let parts: Vec<PartBody> = partial.parts().iter().map(|part| part.body.clone()).collect();
        let parent = self.records.get(record).parent;
        if parent.is_some_and(|p| self.records.get(p).state != RecordState::Live) {
            self.end_partial(key, Later::TurnedAway)?;
            return Ok(CommitOutcome::NoParent);
        }
        let slot = self.make_slot(&key.id)?;
        let needed = blocks_for(body::encode(&parts).len());
        let found = slot.and_then(|slot| Some((slot, self.chains.take_many(needed)?)));
        let Some((slot, blocks)) = found else {
            self.end_partial(key, Later::TurnedAway)?;
            self.counters.dropped_stores += 1;
            return Ok(CommitOutcome::Dropped);
        };
        let number = incarnation(self.boot_seq, self.publications + 1).ok_or(CoreError::Broken {
            what: "this boot has no incarnations left",
            a: self.boot_seq,
            b: self.publications,
        })?;
        self.publications += 1;
        let words = RecordWords::encode(&key.id, range, number, &parts, &blocks);
        let extents: Vec<Extent> = parts.iter().flat_map(|p| p.extents.iter().copied()).collect();
        let parent = parent.map(|p| self.parent_words(p)).transpose()?;
        let directory = &self.pool.directory;
        directory.write_record(record, &words.shared, parent)?;
        directory.write_chain(&words.body, &blocks)?;
        directory.set_state(record, RecordState::Live);
        self.pool.hold_for_object(record, &extents)?;
        let epochs = &self.pool.epochs;
        self.index
            .publish(record, &words, &blocks, slot, || epochs.set(&extents, number))?;
        self.partials.take(key);
        let frames = count_frames(&extents) as u32;
        self.records.publish(record, frames, range.held_from, tail);
        self.show_children(self.records.get(record).parent);
        self.show_children(self.records.chunk_before(record));
        self.counters.stored_objects += 1;
        self.counters.stored_bytes += parts.iter().map(|p| p.bytes).sum::<u64>();
        self.end_rivals(key, record)?;
        Ok(CommitOutcome::Published)
    }

    /// A slot for an object. When both buckets are full the record in them that would go first goes now;
    /// `None` when none of them may.
    fn make_slot(&mut self, id: &ObjectId) -> Result<Option<FreeSlot>, CoreError> {
        loop {
            match self.index.free_slot(id) {
                Ok(slot) => return Ok(Some(slot)),
                Err(occupants) => match self.first_unpinned_of(&occupants) {
                    Some(victim) => self.evict_one(victim)?,
                    None => return Ok(None),
                },
            }
        }
    }

    fn first_unpinned_of(&self, records: &[u32]) -> Option<u32> {
        let pinned = self.slabs.pinned(self.pool.frames());
        let free = records.iter().copied().filter(|record| !pinned.contains(record));
        self.records.first_of(&free.collect::<Vec<_>>())
    }

    /// Other engines' partials of an object that is complete now: their space returns, and what hangs under
    /// them hangs under the object. Those of another domain can never have the name, and end with all that hangs under them.
    fn end_rivals(&mut self, winner: &PartialKey, record: u32) -> Result<(), CoreError> {
        for rival in self.partials.of_object(&winner.id) {
            let Some(old) = self.partials.get(&rival).map(|p| p.record) else {
                continue;
            };
            let under = match rival.domain == winner.domain {
                true => self.partials_under(old),
                false => Vec::new(),
            };
            for key in under {
                if let Some(child) = self.partials.get(&key).map(|p| p.record) {
                    self.records.attach(child, Some(record));
                }
            }
            self.end_partial(&rival, Later::TurnedAway)?;
        }
        Ok(())
    }
}
