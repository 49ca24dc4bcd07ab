//! Publication: a complete object becomes visible.
//!
//! Protocol: docs/shm-layout.md, "publish".

use crate::cache::books::incomplete::IncompleteKey;
use crate::cache::books::index::FreeSlot;
use crate::cache::books::prepared::{Next, Prepared};
use crate::cache::evict::ends::{EndIncomplete, EndRivals, LaterParts};
use crate::cache::steps::{CONDEMN_STEPS, RUN_FRAMES, frame_steps};
use crate::cache::turn::Turn;
use crate::cache::{Core, CoreError};
use crate::object::CommitOutcome;
use crate::pool::RecordState;
use crate::pool::record::{Body, COUNTER_BITS, Holding, RecordWords, incarnation};

/// Steps that it takes to publish an object, besides those for its frames, runs and blocks.
pub(super) const PUBLISH_STEPS: u32 = 12;
/// Steps of writing a chain block.
const BLOCK_STEPS: u32 = 2;
/// Parts whose books are closed in one step.
const PARTS_PER_STEP: u32 = 8;

/// What became of a complete object.
pub(crate) enum Publication {
    /// It is visible, and other engines' incomplete objects of it are needless.
    Published(EndRivals),
    /// It does not become visible, and ends.
    Refused(CommitOutcome, Option<EndIncomplete>),
    /// The turn is over, and it is not prepared yet: go on in the next.
    Preparing,
    /// Its buckets are full; whether one of the objects in them may go is known after the next scan of the pins.
    Crowded,
}

impl Core {
    /// Makes a complete object visible that is of that age. `scan`: what may go to make room in its buckets has not
    /// been pinned by that scan of the pins.
    pub(crate) fn publish(
        &mut self,
        turn: &mut Turn,
        key: &IncompleteKey,
        seq: u64,
        scan: Option<u64>,
    ) -> Result<Publication, CoreError> {
        // Between two turns it may have ended, and another one of its name have begun.
        let complete = |core: &Self| {
            core.incomplete
                .get(key)
                .is_some_and(|p| p.seq == seq && p.is_complete())
        };
        if !complete(self) {
            return Ok(Publication::Refused(CommitOutcome::Dropped, None));
        }
        match self.prepare(turn, key)? {
            Some(true) => {}
            Some(false) => {
                self.counters.dropped_stores += 1;
                return Ok(self.refuse_complete(key, CommitOutcome::Dropped));
            }
            None => return Ok(Publication::Preparing),
        }
        turn.spend(PUBLISH_STEPS);
        let Some(incomplete) = self.incomplete.get(key) else {
            return Ok(Publication::Refused(CommitOutcome::Dropped, None));
        };
        let record = incomplete.record;
        let range = Holding {
            domain: self.tree.get(record).domain,
            tokens: incomplete.tokens,
            held_from: incomplete.held_from,
        };
        let tail = self.domain(range.domain)?.tail_bit(range.tokens);
        let parts = incomplete.parts().len();
        let parent = self.tree.get(record).parent;
        if parent.is_some_and(|p| self.tree.get(p).state != RecordState::Live) {
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
        let Some((slot, prepared)) = slot.zip(self.incomplete.prepared(key)) else {
            self.counters.dropped_stores += 1;
            return Ok(self.refuse_complete(key, CommitOutcome::Dropped));
        };
        let (number, frames, bytes) = (prepared.number, prepared.frames, prepared.bytes);
        let body = Body {
            parts,
            frames,
            words: prepared.words,
            first: prepared.blocks.first().copied(),
            inline: prepared.inline,
        };
        let words = RecordWords::of_body(&key.id, range, number, &body);
        turn.spend(parts as u32 / PARTS_PER_STEP);
        let parent = parent.map(|p| self.parent_words(p)).transpose()?;
        let directory = &self.pool.directory;
        directory.write_record(record, &words.shared, parent)?;
        directory.set_state(record, RecordState::Live);
        self.pool.hold_for_object(frames)?;
        self.index.publish(record, &words, &[], slot, || ())?;
        self.incomplete.take(key);
        self.now_live(record, frames, range.held_from, tail, bytes);
        Ok(Publication::Published(EndRivals::new(*key, record, number)))
    }

    /// Notes an object that has become visible.
    pub(super) fn now_live(&mut self, record: u32, frames: u64, held_from: u32, tail: u32, bytes: u64) {
        self.tree.publish(record, frames as u32, held_from, tail);
        self.show_companions(self.tree.get(record).parent);
        self.show_companions(self.tree.chunk_before(record));
        self.counters.stored_objects += 1;
        self.counters.stored_bytes += bytes;
    }

    /// Goes on with what is done for an object before it becomes visible. Whether there were chain blocks enough;
    /// nothing: the turn is over.
    fn prepare(&mut self, turn: &mut Turn, key: &IncompleteKey) -> Result<Option<bool>, CoreError> {
        let (boot, publications) = (self.boot_seq, self.publications);
        let begin = |parts: &[_]| Some(Prepared::new(incarnation(boot, publications + 1)?, parts));
        let Some((parts, prepared)) = self.incomplete.preparing(key, begin) else {
            return Err(CoreError::Broken {
                what: "this boot has no incarnations left",
                a: boot,
                b: publications,
            });
        };
        self.publications = publications.max(prepared.number & ((1 << COUNTER_BITS) - 1));
        loop {
            if turn.is_over() {
                return Ok(None);
            }
            let line = match prepared.next(parts, RUN_FRAMES) {
                Next::Epochs(frames) => {
                    turn.spend(frame_steps(1, frames.count.into()));
                    self.pool.epochs.set(&[frames], prepared.number);
                    None
                }
                Next::Block => {
                    let Some(block) = self.chains.take() else {
                        return Ok(Some(false));
                    };
                    prepared.take(block)
                }
                Next::Line(block, line) => Some((block, line)),
                Next::Done => return Ok(Some(true)),
            };
            if let Some((block, line)) = line {
                turn.spend(BLOCK_STEPS);
                self.pool.directory.write_block(block, &line)?;
                self.index.write_block(block, &line)?;
            }
        }
    }

    fn refuse_complete(&self, key: &IncompleteKey, outcome: CommitOutcome) -> Publication {
        Publication::Refused(outcome, EndIncomplete::new(self, key, LaterParts::Refused))
    }

    /// Has the record in full buckets go that would go first of those that are not pinned, and takes its slot; nothing
    /// when none may go. Should a reader have pinned it since, its slot is free all the same.
    fn make_slot(
        &mut self,
        turn: &mut Turn,
        key: &IncompleteKey,
        occupants: &[u32],
        scan: u64,
    ) -> Result<Option<FreeSlot>, CoreError> {
        turn.spend(occupants.len() as u32);
        let free = occupants.iter().copied();
        let free = free.filter(|record| !self.sweep.found(*record, scan));
        let Some(victim) = self.tree.first_of(&free.collect::<Vec<_>>()) else {
            return Ok(None);
        };
        turn.spend(CONDEMN_STEPS);
        self.condemn(victim)?;
        Ok(self.index.free_slot(&key.id).ok())
    }
}
