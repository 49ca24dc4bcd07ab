//! How incomplete objects end, with all that hangs under them.
//!
//! One after another, from the ends of the trees up, so that between any two everything is as if no more had been
//! meant to end.

use crate::cache::books::incomplete::{Incomplete, IncompleteKey};
use crate::cache::books::wasted::Waste;
use crate::cache::turn::Turn;
use crate::cache::{ClientId, Core, CoreError};

/// An incomplete object is abandoned, and ends also without need, after so many commits: more than the steps by which
/// the stages of a pipeline are apart.
const ABANDONED_COMMITS: u64 = 64;
/// Steps that it takes to end an incomplete object, besides those for its frames and runs.
const END_STEPS: u32 = 40;
/// Parts of an incomplete object that are noted in one step.
const PARTS_PER_STEP: u32 = 8;
/// Steps of forgetting a mark of one that has ended.
const FORGET_STEPS: u32 = 3;

/// Whether parts of an ended incomplete object that have yet to come are turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaterParts {
    /// They begin the object anew.
    BeginAnew,
    /// They are turned away: the object would never be complete.
    Refused,
    /// As before, and this part, which will not come, counts as having come.
    RefusedAndSkipped(u16),
}

/// Ends an incomplete object and everything that hangs under it: their frames are free again.
#[derive(Debug)]
pub(crate) struct EndIncomplete {
    key: IncompleteKey,
    /// Its age, which tells it from a later one of the same name; its record and who began it.
    seq: u64,
    record: u32,
    opened_by: ClientId,
    later: LaterParts,
    /// Where in its tree we are: a record, and the age of its incomplete object.
    at: (u32, u64),
}

impl EndIncomplete {
    /// Nothing where there is no such incomplete object.
    pub(crate) fn new(core: &Core, key: &IncompleteKey, later: LaterParts) -> Option<Self> {
        let incomplete = core.incomplete.get(key)?;
        Some(Self {
            key: *key,
            seq: incomplete.seq,
            record: incomplete.record,
            opened_by: incomplete.opened.0,
            later,
            at: (incomplete.record, incomplete.seq),
        })
    }

    /// Who began it, and its age.
    pub(crate) fn opened(&self) -> (ClientId, u64) {
        (self.opened_by, self.seq)
    }

    /// Goes on until it has ended. False: the turn is over.
    pub(crate) fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<bool, CoreError> {
        loop {
            if !core.free_waste(turn)? {
                return Ok(false);
            }
            if core.incomplete.get(&self.key).is_none_or(|p| p.seq != self.seq) {
                return Ok(true);
            }
            if turn.is_over() {
                return Ok(false);
            }
            turn.spend(1);
            let (record, seq) = self.at;
            let Some((key, incomplete)) = core.incomplete.of_record(record).filter(|(_, p)| p.seq == seq)
            else {
                // It has ended some other way.
                self.at = (self.record, self.seq);
                continue;
            };
            if let Some(child) = core.tree.first_child(record) {
                let below = core.incomplete.of_record(child).ok_or(CoreError::Broken {
                    what: "something other than an incomplete object hangs under one",
                    a: record.into(),
                    b: child.into(),
                })?;
                self.at = (child, below.1.seq);
                continue;
            }
            let key = *key;
            turn.spend(END_STEPS + incomplete.parts().len() as u32 / PARTS_PER_STEP);
            let parent = core.tree.get(record).parent;
            let above = parent.and_then(|parent| Some((parent, core.incomplete.of_record(parent)?.1.seq)));
            let root = seq == self.seq;
            core.end_leaf(&key, self.later, root);
            self.at = above.unwrap_or((self.record, self.seq));
        }
    }
}

/// Ends what an engine has begun in a domain and not completed, and forgets what ended of it: whatever it stored before
/// may never be completed.
#[derive(Debug)]
pub(crate) struct EndEngine {
    instance: [u8; 16],
    domain: u32,
    /// The youngest that ends: its ranks may begin anew meanwhile.
    youngest: u64,
    ending: Option<EndIncomplete>,
}

impl EndEngine {
    /// What there is of it now.
    pub(crate) fn new(core: &Core, instance: [u8; 16], domain: u32) -> Self {
        Self {
            instance,
            domain,
            youngest: core.incomplete.last_seq(),
            ending: None,
        }
    }

    /// Goes on until all has ended. False: the turn is over.
    pub(crate) fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<bool, CoreError> {
        let engine = (self.instance, self.domain);
        loop {
            if let Some(ending) = &mut self.ending {
                if !ending.step(core, turn)? {
                    return Ok(false);
                }
                self.ending = None;
            }
            if turn.is_over() {
                return Ok(false);
            }
            turn.spend(1);
            // The youngest first, so that most have nothing under them.
            if let Some((key, _)) = core.incomplete.youngest_of(engine, self.youngest) {
                self.ending = EndIncomplete::new(core, key, LaterParts::BeginAnew);
            } else if core.incomplete.forget_one(engine, self.youngest) {
                turn.spend(FORGET_STEPS);
            } else {
                return Ok(true);
            }
        }
    }
}

/// Ends what a client has begun and not completed. It begins nothing meanwhile.
#[derive(Debug)]
pub(crate) struct EndClient {
    client: ClientId,
    ending: Option<EndIncomplete>,
}

impl EndClient {
    pub(crate) fn new(client: ClientId) -> Self {
        Self { client, ending: None }
    }

    /// Goes on until all has ended. False: the turn is over.
    pub(crate) fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<bool, CoreError> {
        loop {
            if let Some(ending) = &mut self.ending {
                if !ending.step(core, turn)? {
                    return Ok(false);
                }
                self.ending = None;
            }
            if turn.is_over() {
                return Ok(false);
            }
            turn.spend(1);
            let Some((key, _)) = core.incomplete.oldest_of(self.client) else {
                return Ok(true);
            };
            self.ending = EndIncomplete::new(core, key, LaterParts::BeginAnew);
        }
    }
}

/// Other engines' incomplete objects of an object that is complete now: their space returns, and what hangs under them
/// hangs under the object. Those of another domain can never have the name, and end with all that hangs under them.
#[derive(Debug)]
pub(crate) struct EndRivals {
    winner: IncompleteKey,
    /// The object's record and its incarnation.
    record: u32,
    incarnation: u64,
    ending: Option<EndIncomplete>,
}

impl EndRivals {
    pub(crate) fn new(winner: IncompleteKey, record: u32, incarnation: u64) -> Self {
        Self {
            winner,
            record,
            incarnation,
            ending: None,
        }
    }

    /// Goes on until there is none. False: the turn is over.
    pub(crate) fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<bool, CoreError> {
        loop {
            if let Some(ending) = &mut self.ending {
                if !ending.step(core, turn)? {
                    return Ok(false);
                }
                self.ending = None;
            }
            if turn.is_over() {
                return Ok(false);
            }
            turn.spend(1);
            // What was published may be gone again, and then incomplete objects of the name are nobody's rivals.
            if !core.is_incarnation(self.record, self.incarnation)? {
                return Ok(true);
            }
            let Some(rival) = core.incomplete.rival_of(&self.winner).copied() else {
                return Ok(true);
            };
            let old = core.incomplete.get(&rival).map(|incomplete| incomplete.record);
            let child = old.and_then(|old| core.tree.first_child(old));
            match child.filter(|_| rival.domain == self.winner.domain) {
                Some(child) => {
                    turn.spend(1);
                    core.tree.attach(child, Some(self.record));
                }
                None => self.ending = EndIncomplete::new(core, &rival, LaterParts::Refused),
            }
        }
    }
}

impl Core {
    /// Ends one incomplete object that nothing hangs under. Its frames wait to become free.
    fn end_leaf(&mut self, key: &IncompleteKey, later: LaterParts, root: bool) {
        let Some(incomplete) = self.incomplete.take(key) else {
            return;
        };
        self.tree.attach(incomplete.record, None);
        self.counters.ended_incomplete += 1;
        if later != LaterParts::BeginAnew {
            let mut seen = incomplete.seen();
            if let (LaterParts::RefusedAndSkipped(part), true) = (later, root) {
                seen.note(part);
            }
            self.incomplete.mark_ended(*key, seen);
        }
        self.waste.push_back(Waste::of_incomplete(incomplete));
    }

    /// Whether the client that began an incomplete object has committed that often since, or is gone.
    pub(crate) fn has_waited(&self, incomplete: &Incomplete, commits: u64) -> bool {
        let (client, opened) = incomplete.opened;
        self.client(client)
            .map_or(true, |c| c.commits - opened >= commits)
    }

    /// The oldest incomplete object that a client has begun, if it is abandoned: nobody will complete it, but for a
    /// later computation of the same, whose parts it must not be mixed with.
    pub(crate) fn abandoned_by(&self, client: ClientId) -> Option<EndIncomplete> {
        let (key, incomplete) = self.incomplete.oldest_of(client)?;
        match self.has_waited(incomplete, ABANDONED_COMMITS) {
            true => EndIncomplete::new(self, key, LaterParts::BeginAnew),
            false => None,
        }
    }
}
