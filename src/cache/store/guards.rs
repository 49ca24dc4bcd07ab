//! What a client's stores hang under: making room for them does not take it.
//!
//! Only leaves go, and the newest chunk of a chain is one: in a pool that is one chain, the space for its next chunk
//! would be the chunk that this hangs under. So a client says what it stores under, and for its own needs that is
//! spared, with its companions. For the needs of others it is an object like any other.

use crate::cache::books::guarded::{CLIMBED, Guards, MAX_GUARDED};
use crate::cache::books::incomplete::IncompleteKey;
use crate::cache::turn::Turn;
use crate::cache::{ClientId, Core, CoreError};
use crate::geometry::ObjectKind;
use crate::keys::ChunkKey;
use crate::object::{ObjectId, StoreItem};

impl Core {
    /// Whether a record stays although space is made for this client: what it stores hangs under it.
    pub(crate) fn is_guarded(&self, client: ClientId, record: u32) -> bool {
        self.client(client)
            .is_ok_and(|entry| entry.guards.spare(record, &self.tree))
    }

    /// Nothing is spared any more.
    pub(crate) fn unguard(&mut self, client: ClientId) -> Result<(), CoreError> {
        self.client_mut(client)?.guards = Guards::default();
        Ok(())
    }

    /// The records of a chunk's full-attention objects, those that the client's own engine has begun among them.
    fn ends_of(&self, client: ClientId, key: ChunkKey, ends: &mut Vec<u32>) -> Result<(), CoreError> {
        let entry = self.client(client)?;
        let instance = entry.info.engine_instance;
        let registered = entry.registration.as_ref().map(|r| r.domain);
        let Some((number, domain)) = registered.and_then(|number| Some((number, self.registry.get(number)?)))
        else {
            return Ok(());
        };
        for group in domain.groups.iter().filter(|g| g.kind == ObjectKind::Full) {
            let id = ObjectId {
                key,
                group: group.group,
            };
            let key = IncompleteKey {
                instance,
                domain: number,
                id,
            };
            let live = self.live(number, &id).map(|(record, _)| record);
            ends.extend(live.or_else(|| self.incomplete.get(&key).map(|incomplete| incomplete.record)));
        }
        Ok(())
    }
}

/// What is to be spared.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spared<'a> {
    /// These chunks.
    Chunks(&'a [ChunkKey]),
    /// What a commit has stored or has found: what the next one stores will hang under it.
    Items(&'a [StoreItem]),
}

impl Spared<'_> {
    /// The keys, one by one. The ends of chains come last. What was refused may have its parent all the same.
    fn key(&self, at: usize) -> Option<Option<ChunkKey>> {
        match self {
            Self::Chunks(keys) => keys.get(at).copied().map(Some),
            Self::Items(items) => {
                let item = items.len().checked_sub(at / 2 + 1).and_then(|at| items.get(at))?;
                Some(match at % 2 {
                    0 => Some(item.id.key),
                    _ => item.parent,
                })
            }
        }
    }
}

/// From its end on these are spared for a client's needs, and nothing else is.
#[derive(Debug)]
pub(crate) struct Guarding<'a> {
    spared: Spared<'a>,
    next: usize,
    ends: Vec<u32>,
    /// The end that climbs next.
    climbing: usize,
    guards: Guards,
}

impl<'a> Guarding<'a> {
    pub(crate) fn new(spared: Spared<'a>) -> Self {
        Self {
            spared,
            next: 0,
            ends: Vec::new(),
            climbing: 0,
            guards: Guards::default(),
        }
    }

    /// Goes on until they are. False: the turn is over.
    pub(crate) fn step(
        &mut self,
        core: &mut Core,
        turn: &mut Turn,
        client: ClientId,
    ) -> Result<bool, CoreError> {
        while self.ends.len() < MAX_GUARDED
            && let Some(key) = self.spared.key(self.next)
        {
            if turn.is_over() {
                return Ok(false);
            }
            turn.spend(1);
            self.next += 1;
            if let Some(key) = key {
                core.ends_of(client, key, &mut self.ends)?;
            }
        }
        while !self.ends.is_empty() {
            if turn.is_over() {
                return Ok(false);
            }
            turn.spend(1 + self.ends.len().min(CLIMBED) as u32 / 4);
            self.guards.climb(&mut self.ends, &mut self.climbing, &core.tree);
        }
        core.client_mut(client)?.guards = std::mem::take(&mut self.guards);
        Ok(true)
    }
}
