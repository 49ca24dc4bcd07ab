//! What a client's stores hang under: making room for them does not take it.
//!
//! May import this module's `api`, `core`, `error`, `partials`, `records` and `turn`.
//!
//! Only leaves go, and the newest chunk of a chain is one: in a pool that is one chain, the space for its next chunk
//! would be the chunk that this hangs under. So a client says what it stores under, and for its own needs that is spared, with what
//! stands beside it. For the needs of others it is an object like any other.

use std::collections::HashSet;

use super::api::ClientId;
use super::core::Core;
use super::error::CoreError;
use super::partials::PartialKey;
use super::records::Records;
use crate::geometry::ObjectKind;
use crate::index::turn::Turn;
use crate::keys::ChunkKey;
use crate::object::{ObjectId, StoreItem};

/// Records that are spared for one need. Of longer chains it is the ends: what they hang under has children, and goes after them anyway.
const MAX_GUARDED: usize = 1024;
/// Records that are spared at once.
const CLIMBED: usize = 32;

/// Records that are spared, each with what stands beside it.
#[derive(Debug, Default)]
pub(super) struct Guards {
    records: HashSet<u32>,
}

impl Guards {
    /// Adds some of these records as far as there is room, from this one on, and leaves what they hang under. When the last has
    /// had its turn the first is next.
    fn climb(&mut self, ends: &mut Vec<u32>, next: &mut usize, records: &Records) {
        for _ in 0..CLIMBED {
            let Some(at) = ends.get_mut(*next) else {
                *next = 0;
                return;
            };
            let new = self.records.len() < MAX_GUARDED && self.records.insert(*at);
            match records.get(*at).parent.filter(|_| new) {
                Some(parent) => (*at, *next) = (parent, *next + 1),
                None => drop(ends.swap_remove(*next)),
            }
        }
    }

    /// These records and what they hang under, as far up as there is room, from all of them alike.
    #[cfg(test)]
    fn from_ends(ends: Vec<u32>, records: &Records) -> Self {
        let mut guards = Self::default();
        let (mut ends, mut next) = (ends, 0);
        while !ends.is_empty() {
            guards.climb(&mut ends, &mut next, records);
        }
        guards
    }

    /// Whether a record is one of them, or a window or state beside one.
    fn spare(&self, record: u32, records: &Records) -> bool {
        if self.records.is_empty() {
            return false;
        }
        let entry = records.get(record);
        let beside = entry.parent.filter(|_| entry.beside);
        self.records.contains(&record) || beside.is_some_and(|parent| self.records.contains(&parent))
    }
}

impl Core {
    /// Whether a record stays although space is made for this client: what it stores hangs under it.
    pub(super) fn is_guarded(&self, client: ClientId, record: u32) -> bool {
        self.client(client)
            .is_ok_and(|entry| entry.guards.spare(record, &self.records))
    }

    /// Nothing is spared any more.
    pub(super) fn unguard(&mut self, client: ClientId) -> Result<(), CoreError> {
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
            let key = PartialKey {
                instance,
                domain: number,
                id,
            };
            let live = self.live(number, &id).map(|(record, _)| record);
            ends.extend(live.or_else(|| self.partials.get(&key).map(|partial| partial.record)));
        }
        Ok(())
    }
}

/// What is to be spared.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spared<'a> {
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
pub(super) struct Guarding<'a> {
    spared: Spared<'a>,
    next: usize,
    ends: Vec<u32>,
    /// The end that climbs next.
    climbing: usize,
    guards: Guards,
}

impl<'a> Guarding<'a> {
    pub(super) fn new(spared: Spared<'a>) -> Self {
        Self {
            spared,
            next: 0,
            ends: Vec::new(),
            climbing: 0,
            guards: Guards::default(),
        }
    }

    /// Goes on until they are. False: the turn is over.
    pub(super) fn step(
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
            self.guards
                .climb(&mut self.ends, &mut self.climbing, &core.records);
        }
        core.client_mut(client)?.guards = std::mem::take(&mut self.guards);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain of so many records, each under the one before.
    fn chain(records: &mut Records, length: u32) -> Vec<u32> {
        let mut parent = None;
        let one = |_| {
            let record = records.open(0, 1, parent, false).unwrap();
            records.publish(record, 1, 0, 0);
            parent = Some(record);
            record
        };
        (0..length).map(one).collect()
    }

    #[test]
    fn ends_are_spared_with_what_they_hang_under_and_what_stands_beside() {
        let mut records = Records::new(64);
        let spared = chain(&mut records, 3);
        let other = chain(&mut records, 2);
        let state = |records: &mut Records, parent| {
            let record = records.open(0, 2, Some(parent), true).unwrap();
            records.publish(record, 1, 0, 0);
            record
        };
        let beside = [spared[0], spared[2]].map(|parent| state(&mut records, parent));
        let others = state(&mut records, other[1]);
        let guards = Guards::from_ends(vec![spared[2]], &records);
        for record in spared.iter().chain(&beside) {
            assert!(guards.spare(*record, &records), "{record}");
        }
        for record in other.iter().chain([&others]) {
            assert!(!guards.spare(*record, &records), "{record}");
        }
        assert!(!Guards::default().spare(spared[2], &records));
    }

    #[test]
    fn of_long_chains_the_ends_are_spared_of_all_alike() {
        let mut records = Records::new(4 * MAX_GUARDED as u32);
        let long = chain(&mut records, 2 * MAX_GUARDED as u32);
        let short = chain(&mut records, 10);
        let guards = Guards::from_ends(vec![long[long.len() - 1], short[9]], &records);
        assert_eq!(guards.records.len(), MAX_GUARDED);
        assert!(short.iter().all(|record| guards.spare(*record, &records)));
        assert!(guards.spare(long[long.len() - 1], &records));
        assert!(!guards.spare(long[0], &records));
    }
}
