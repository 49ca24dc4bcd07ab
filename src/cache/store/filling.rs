//! How the runs of a part become its own, and are found to be, when they are too many for a turn.
//!
//! What has come of a part is the part's; what has not is its client's. An object with such a part is not complete,
//! and ends with its engine should nobody go on.

use super::context::Context;
use super::runs::GiveBack;
use crate::cache::books::incomplete::IncompleteKey;
use crate::cache::steps::{RUN_FRAMES, frame_steps};
use crate::cache::turn::Turn;
use crate::cache::{ClientId, Core, CoreError};
use crate::index::body::{BodyCursor, BodyPiece};
use crate::index::record::WORD_META;
use crate::object::{Extent, StoreItem};
use crate::pool::Owner;

/// Parts of so few steps are filled at once.
pub(crate) const AT_ONCE: u32 = 32;

/// Runs of a list that are compared in one step.
const COMPARED_AT_ONCE: usize = 64;

/// A part that is filled run by run.
#[derive(Debug)]
pub(crate) struct Filling<'a> {
    client: ClientId,
    key: IncompleteKey,
    /// The record of the object and its age.
    record: (u32, u64),
    part: u16,
    /// Runs that are yet to come, and frames of the first of them that have.
    left: &'a [Extent],
    taken: u32,
}

/// How far that is.
pub(crate) enum Filled<'a> {
    /// The turn is over.
    Not,
    /// The part is whole.
    Part,
    /// And with it the object of this record, of that age.
    Object((u32, u64)),
    /// The object has ended meanwhile: these frames are the client's still, and become free.
    Gone(GiveBack<'a>),
}

impl<'a> Filling<'a> {
    /// A part of which nothing has come yet.
    pub(crate) fn new(
        client: ClientId,
        key: IncompleteKey,
        record: (u32, u64),
        part: u16,
        extents: &'a [Extent],
    ) -> Self {
        Self {
            client,
            key,
            record,
            part,
            left: extents,
            taken: 0,
        }
    }

    /// Goes on until it is whole.
    pub(crate) fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Filled<'a>, CoreError> {
        let (record, seq) = self.record;
        while let Some((first, rest)) = self.left.split_first() {
            if turn.is_over() {
                return Ok(Filled::Not);
            }
            let count = (first.count - self.taken).min(RUN_FRAMES);
            let run = Extent::new(first.frame + self.taken, count);
            turn.spend(frame_steps(2, count.into()));
            if !core
                .incomplete
                .add_run(&self.key, seq, self.part, run, self.taken > 0)
            {
                let rest = GiveBack::behind(self.client, self.left, self.taken);
                return Ok(Filled::Gone(rest));
            }
            core.take_granted(self.client, &[run])?;
            core.pool.hold_for_incomplete(record, &[run]);
            self.taken += count;
            if self.taken == first.count {
                (self.left, self.taken) = (rest, 0);
            }
        }
        Ok(match core.incomplete.end_part(&self.key, seq) {
            true => Filled::Object(self.record),
            false => Filled::Part,
        })
    }
}

/// Looks whether exactly these runs are this part of the object already, or of this engine's incomplete object of it:
/// the commit is sent a second time then.
#[derive(Debug, Default)]
pub(crate) enum Retry {
    #[default]
    Start,
    /// Of an object: its record, its incarnation, where the look at its body is, and which part comes next.
    Object {
        record: u32,
        incarnation: u64,
        body: Box<BodyCursor>,
        part: usize,
        /// Runs of this part that are the same.
        same: usize,
    },
    /// Of an incomplete object: its age, which no other has had, and runs that are the same.
    Incomplete { seq: u64, same: usize },
}

impl Retry {
    /// Goes on until that is known. Nothing: the turn is over.
    pub(crate) fn step(
        &mut self,
        core: &Core,
        turn: &mut Turn,
        context: &Context,
        item: &StoreItem,
        extents: &[Extent],
    ) -> Result<Option<bool>, CoreError> {
        if let Self::Start = self {
            let Some(first) = extents.first().filter(|_| !item.skipped) else {
                return Ok(Some(false));
            };
            // Only then is it worth a look at the whole body.
            let Owner::Record(holder) = core.pool.directory.owner(first.frame)? else {
                return Ok(Some(false));
            };
            *self = match core.live(context.domain, &item.id) {
                Some((record, _)) if record != holder => return Ok(Some(false)),
                Some((record, _)) => Self::Object {
                    record,
                    incarnation: core.pool.directory.shared_words(record)?[WORD_META],
                    body: Box::new(core.pool.directory.walk(record)?),
                    part: 0,
                    same: 0,
                },
                None => {
                    let incomplete = core.incomplete.get(&context.key(&item.id));
                    let Some(own) = incomplete.filter(|incomplete| incomplete.record == holder) else {
                        return Ok(Some(false));
                    };
                    Self::Incomplete {
                        seq: own.seq,
                        same: 0,
                    }
                }
            };
        }
        match self {
            Self::Start => Ok(None),
            Self::Incomplete { seq, same } => {
                // Between two turns it may have ended, and have begun anew on the same record.
                let incomplete = core.incomplete.get(&context.key(&item.id));
                let incomplete = incomplete.filter(|incomplete| incomplete.seq == *seq);
                let Some(part) = incomplete.and_then(|incomplete| incomplete.part(item.part)) else {
                    return Ok(Some(false));
                };
                if part.body.extents.len() != extents.len() {
                    return Ok(Some(false));
                }
                while *same < extents.len() {
                    if turn.is_over() {
                        return Ok(None);
                    }
                    let to = extents.len().min(*same + COMPARED_AT_ONCE);
                    turn.spend(1);
                    if part.body.extents[*same..to] != extents[*same..to] {
                        return Ok(Some(false));
                    }
                    *same = to;
                }
                Ok(Some(true))
            }
            Self::Object {
                record,
                incarnation,
                body,
                part,
                same,
            } => {
                // What was freed between two turns may have another body by now.
                if !core.is_incarnation(*record, *incarnation)? {
                    return Ok(Some(false));
                }
                while !turn.is_over() {
                    match core.pool.directory.next_piece(*record, body)? {
                        Some(BodyPiece::Part { runs, .. }) => {
                            let mine = *part == usize::from(item.part);
                            if *part > usize::from(item.part) || mine && runs != extents.len() {
                                return Ok(Some(false));
                            }
                            *part += 1;
                        }
                        Some(BodyPiece::Run(run)) if *part == usize::from(item.part) + 1 => {
                            if extents.get(*same) != Some(&run) {
                                return Ok(Some(false));
                            }
                            *same += 1;
                            if *same == extents.len() {
                                return Ok(Some(true));
                            }
                        }
                        Some(BodyPiece::Run(_) | BodyPiece::Checksum(_)) => {}
                        // A line of seven words.
                        Some(BodyPiece::Block(_)) => turn.spend(2),
                        None => return Ok(Some(false)),
                    }
                }
                Ok(None)
            }
        }
    }
}
