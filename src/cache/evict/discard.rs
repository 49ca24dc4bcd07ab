//! Objects whose bytes a reader found wrong.

use super::ends::{EndIncomplete, LaterParts};
use crate::cache::steps::CONDEMN_STEPS;
use crate::cache::turn::Turn;
use crate::cache::{ClientId, Core, CoreError, Progress, Work, finish};
use crate::index::record::WORD_META;
use crate::keys::ChunkKey;
use crate::object::ObjectId;
use crate::pool::RecordState;

/// An object with all that hangs under it, which goes from its ends up.
#[derive(Debug)]
struct Tree {
    /// Its record and incarnation.
    root: (u32, u64),
    /// Where we are, and what hangs there that is to be looked at next.
    at: (u32, u64),
    child: Option<u32>,
}

/// [`Core::discard`] in turns.
#[derive(Debug)]
pub struct Discard<'a> {
    client: ClientId,
    domain_seed: ChunkKey,
    /// What is yet to go. From the last on: what hangs under another is mostly named after it.
    left: &'a [(ObjectId, u64)],
    begun: bool,
    tree: Option<Tree>,
    ending: Option<EndIncomplete>,
    /// The scan that decides about what went.
    scan: Option<u64>,
}

impl<'a> Discard<'a> {
    /// Objects and the incarnations that were read.
    pub fn new(client: ClientId, domain_seed: ChunkKey, objects: &'a [(ObjectId, u64)]) -> Self {
        Self {
            client,
            domain_seed,
            left: objects,
            begun: false,
            tree: None,
            ending: None,
            scan: None,
        }
    }
}

impl Work for Discard<'_> {
    type Answer = ();

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<()>, CoreError> {
        if !std::mem::replace(&mut self.begun, true) {
            core.require_chunk_size()?;
            core.client(self.client)?;
            core.registry.find(&self.domain_seed)?;
        }
        loop {
            if turn.is_over() {
                return Ok(Progress::More);
            }
            if let Some(ending) = &mut self.ending {
                if ending.step(core, turn)? {
                    self.ending = None;
                }
            } else if let Some(tree) = &mut self.tree {
                match tree.step(core, turn)? {
                    Some(Next::Incomplete(ending)) => self.ending = Some(ending),
                    Some(Next::Gone) => self.tree = None,
                    None => {}
                }
                // Whatever went by now may be decided about by then.
                self.scan = Some(core.sweep.next());
            } else if let Some(((id, incarnation), left)) = self.left.split_last() {
                self.left = left;
                turn.spend(2);
                // The last object of a domain may have gone with what went before.
                let domain = core
                    .registry
                    .find(&self.domain_seed)
                    .ok()
                    .map(|(number, _)| number);
                let found = core.index.reader().lookup(id);
                let found = found.filter(|view| view.incarnation == *incarnation);
                if let Some(view) = found.filter(|view| Some(view.domain) == domain) {
                    let root = (view.record, view.incarnation);
                    self.tree = Some(Tree {
                        root,
                        at: root,
                        child: core.tree.first_child(view.record),
                    });
                }
            } else {
                let done = self.scan.map_or(Ok(true), |scan| core.sweep(turn, scan))?;
                return Ok(if done { Progress::Done(()) } else { Progress::More });
            }
        }
    }
}

/// What comes up in a tree.
enum Next {
    /// An incomplete object, which ends: what it hangs under goes.
    Incomplete(EndIncomplete),
    /// All of it has gone.
    Gone,
}

impl Tree {
    /// One step down, on or up.
    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Option<Next>, CoreError> {
        turn.spend(1);
        let (record, incarnation) = self.at;
        if !core.is_incarnation(record, incarnation)? {
            // Somebody else has evicted it. Begin again, if the root is still there.
            if !core.is_incarnation(self.root.0, self.root.1)? {
                return Ok(Some(Next::Gone));
            }
            self.at = self.root;
            self.child = core.tree.first_child(self.root.0);
            return Ok(None);
        }
        let child = self
            .child
            .filter(|child| core.tree.get(*child).parent == Some(record));
        if let Some(child) = child {
            self.child = core.tree.next_sibling(child);
            match core.tree.get(child).state {
                RecordState::Live => {
                    self.at = (child, core.pool.directory.shared_words(child)?[WORD_META]);
                    self.child = core.tree.first_child(child);
                }
                RecordState::Incomplete => {
                    let incomplete = core.incomplete.of_record(child);
                    let ending =
                        incomplete.and_then(|(key, _)| EndIncomplete::new(core, key, LaterParts::Refused));
                    return Ok(ending.map(Next::Incomplete));
                }
                // It stays for its reader.
                RecordState::Limbo | RecordState::Free => {}
            }
            return Ok(None);
        }
        if self.child.is_some() {
            // It does not hang here any more: look at all that does.
            self.child = core.tree.first_child(record);
            return Ok(None);
        }
        let entry = core.tree.get(record);
        let (parent, next) = (entry.parent, core.tree.next_sibling(record));
        turn.spend(CONDEMN_STEPS);
        core.condemn(record)?;
        if self.at == self.root {
            // Only now: others may discard the same object between two turns.
            core.counters.discarded_objects += 1;
            return Ok(Some(Next::Gone));
        }
        // What hung under the root hangs under it still, so there is something above.
        if let Some(parent) = parent {
            self.at = (parent, core.pool.directory.shared_words(parent)?[WORD_META]);
            self.child = next;
        }
        Ok(None)
    }
}

impl Core {
    /// Takes objects out of the index, and with each all that hangs under it: nothing below it can be reached without
    /// it. Their space is free once nobody reads them. An object that is not there any more, or was stored anew since
    /// it was read, is left alone.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::NotRegistered`], [`CoreError::UnknownClient`].
    pub fn discard(
        &mut self,
        client: ClientId,
        domain_seed: ChunkKey,
        objects: &[(ObjectId, u64)],
    ) -> Result<(), CoreError> {
        finish(self, Discard::new(client, domain_seed, objects))
    }

    /// Whether a record is a live object of that incarnation.
    pub(crate) fn is_incarnation(&self, record: u32, incarnation: u64) -> Result<bool, CoreError> {
        let live = self.tree.get(record).state == RecordState::Live;
        Ok(live && self.pool.directory.shared_words(record)?[WORD_META] == incarnation)
    }
}
