//! Publication: a complete object becomes visible.
//!
//! May import everything of this module. Protocol: docs/shm-layout.md, "publish".

use super::core::Core;
use super::ends::{EndPartial, EndRivals};
use super::error::CoreError;
use super::evict::{CONDEMN_STEPS, Later, frame_steps};
use super::index::FreeSlot;
use super::partials::PartialKey;
use crate::index::record::{Holding, RecordWords, incarnation};
use crate::index::turn::Turn;
use crate::object::{CommitOutcome, Extent, count_frames};
use crate::pool::RecordState;
use crate::pool::body::{self, PartBody, blocks_for};

/// Steps that it takes to publish an object, besides those for its frames, runs and blocks.
const PUBLISH_STEPS: u32 = 12;

/// What became of a complete object.
pub(super) enum Publication {
    /// It is visible, and other engines' partials of it are needless.
    Published(EndRivals),
    /// It does not become visible, and ends.
    Refused(CommitOutcome, Option<EndPartial>),
    /// Its buckets are full; whether one of the objects in them may go is known after the next scan of the pins.
    Crowded,
}

impl Core {
    /// Makes a complete object visible. `scan`: what may go to make room in its buckets has not been pinned by that scan
    /// of the pins.
    pub(super) fn publish(
        &mut self,
        turn: &mut Turn,
        key: &PartialKey,
        scan: Option<u64>,
    ) -> Result<Publication, CoreError> {
        turn.spend(PUBLISH_STEPS);
        let Some(partial) = self.partials.get(key) else {
            return Ok(Publication::Refused(CommitOutcome::Dropped, None));
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
            return Ok(self.refuse_complete(key, CommitOutcome::NoParent));
        }
        let slot = match self.index.free_slot(&key.id) {
            Ok(slot) => Some(slot),
            Err(occupants) => {
                let Some(scan) = scan else {
                    return Ok(Publication::Crowded);
                };
                self.make_slot(turn, key, &occupants, scan)?
            }
        };
        let needed = blocks_for(body::encode(&parts).len());
        let found = slot.and_then(|slot| Some((slot, self.chains.take_many(needed)?)));
        let Some((slot, blocks)) = found else {
            self.counters.dropped_stores += 1;
            return Ok(self.refuse_complete(key, CommitOutcome::Dropped));
        };
        let number = incarnation(self.boot_seq, self.publications + 1).ok_or(CoreError::Broken {
            what: "this boot has no incarnations left",
            a: self.boot_seq,
            b: self.publications,
        })?;
        self.publications += 1;
        let words = RecordWords::encode(&key.id, range, number, &parts, &blocks);
        let extents: Vec<Extent> = parts.iter().flat_map(|p| p.extents.iter().copied()).collect();
        let frames = count_frames(&extents);
        turn.spend(frame_steps(extents.len(), frames) + 2 * blocks.len() as u32);
        let parent = parent.map(|p| self.parent_words(p)).transpose()?;
        let directory = &self.pool.directory;
        directory.write_record(record, &words.shared, parent)?;
        directory.write_chain(&words.body, &blocks)?;
        directory.set_state(record, RecordState::Live);
        self.pool.hold_for_object(frames)?;
        let epochs = &self.pool.epochs;
        self.index
            .publish(record, &words, &blocks, slot, || epochs.set(&extents, number))?;
        self.partials.take(key);
        self.records.publish(record, frames as u32, range.held_from, tail);
        self.show_children(self.records.get(record).parent);
        self.show_children(self.records.chunk_before(record));
        self.counters.stored_objects += 1;
        self.counters.stored_bytes += parts.iter().map(|p| p.bytes).sum::<u64>();
        Ok(Publication::Published(EndRivals::new(*key, record, number)))
    }

    fn refuse_complete(&self, key: &PartialKey, outcome: CommitOutcome) -> Publication {
        Publication::Refused(outcome, EndPartial::new(self, key, Later::TurnedAway))
    }

    /// Has the record in full buckets go that would go first of those that are not pinned, and takes its slot; nothing when none
    /// may go. Should a reader have pinned it since, its slot is free all the same.
    fn make_slot(
        &mut self,
        turn: &mut Turn,
        key: &PartialKey,
        occupants: &[u32],
        scan: u64,
    ) -> Result<Option<FreeSlot>, CoreError> {
        turn.spend(occupants.len() as u32);
        let free = occupants.iter().copied();
        let free = free.filter(|record| !self.sweep.found(*record, scan));
        let Some(victim) = self.records.first_of(&free.collect::<Vec<_>>()) else {
            return Ok(None);
        };
        turn.spend(CONDEMN_STEPS);
        self.condemn(victim)?;
        Ok(self.index.free_slot(&key.id).ok())
    }
}
