//! What a client's stores hang under: making room for them does not take it.
//!
//! May import this module's `api`, `core`, `error`, `partials`, `records` and `turn`.
//!
//! Only leaves go, and the newest chunk of a chain is one: in a pool that is one chain, the space for its next chunk
//! would be the chunk that this hangs under. So a client says what it stores under, and for its own needs that is spared, with what
//! stands beside it. For the needs of others it is an object like any other.

use std::collections::{HashSet, VecDeque};

use super::api::{ClientId, ObjectId, StoreItem};
use super::core::Core;
use super::error::CoreError;
use super::partials::PartialKey;
use super::records::Records;
use super::turn::Turn;
use crate::geometry::ObjectKind;
use crate::keys::ChunkKey;

/// Records that are spared for one need. Of longer chains it is the ends: what they hang under has children, and goes after them anyway.
const MAX_GUARDED: usize = 1024;
/// Steps of looking for the object of one key.
const FIND_STEPS: u32 = 2;

/// What stores hang under.
#[derive(Clone, Copy, Debug)]
pub(super) enum Under<'a> {
    /// Chunks that the client names.
    Chunks(&'a [ChunkKey]),
    /// What a commit has stored or has found: what the next one stores will hang under it.
    Items(&'a [StoreItem]),
}

impl Under<'_> {
    /// The keys at one place; nothing behind the last.
    fn at(&self, place: usize) -> Option<[Option<ChunkKey>; 2]> {
        match self {
            Self::Chunks(keys) => keys.get(place).map(|key| [Some(*key), None]),
            // The ends of chains come last. What was refused may have its parent all the same.
            Self::Items(items) => {
                let item = items.iter().rev().nth(place)?;
                Some([Some(item.id.key), item.parent])
            }
        }
    }
}

/// Finds what is spared for one need of a client.
///
/// Between two turns others store and evict, and a number that was found may come to name another object. That is spared then
/// as well, for this need: it costs this client some space and nobody anything else.
#[derive(Debug)]
pub(super) struct Guarding<'a> {
    under: Under<'a>,
    place: usize,
    /// Records whose turn it is next: of all chains alike, from their ends up.
    next: VecDeque<u32>,
    guards: Guards,
}

impl<'a> Guarding<'a> {
    pub(super) fn new(under: Under<'a>) -> Self {
        Self {
            under,
            place: 0,
            next: VecDeque::new(),
            guards: Guards::default(),
        }
    }

    /// Goes on until all is found. Nothing: the turn is over.
    pub(super) fn step(
        &mut self,
        core: &Core,
        turn: &mut Turn,
        client: ClientId,
    ) -> Result<Option<Guards>, CoreError> {
        while self.next.len() < MAX_GUARDED
            && let Some(keys) = self.under.at(self.place)
        {
            if turn.is_over() {
                return Ok(None);
            }
            turn.spend(1);
            self.place += 1;
            for key in keys.into_iter().flatten() {
                self.find(core, turn, client, key)?;
            }
        }
        // Nothing more is looked for once the walk has begun.
        self.place = usize::MAX;
        match self.guards.climb(&mut self.next, &core.records, turn) {
            true => Ok(Some(std::mem::take(&mut self.guards))),
            false => Ok(None),
        }
    }

    /// The full-attention objects of a chunk, or what the client's engine has begun of them.
    fn find(
        &mut self,
        core: &Core,
        turn: &mut Turn,
        client: ClientId,
        key: ChunkKey,
    ) -> Result<(), CoreError> {
        let entry = core.client(client)?;
        let instance = entry.info.engine_instance;
        let number = entry.registration.as_ref().map(|r| r.domain);
        let found = number.and_then(|number| Some((number, core.registry.get(number)?)));
        let Some((number, domain)) = found else {
            return Ok(());
        };
        for group in domain.groups.iter().filter(|g| g.kind == ObjectKind::Full) {
            turn.spend(FIND_STEPS);
            let group = group.group;
            let id = ObjectId { key, group };
            let begun = PartialKey {
                instance,
                domain: number,
                id,
            };
            let live = core.live(number, &id).map(|(record, _)| record);
            let record = live.or_else(|| core.partials.get(&begun).map(|partial| partial.record));
            self.next.extend(record);
        }
        Ok(())
    }
}

/// Records that are spared, each with what stands beside it.
#[derive(Clone, Debug, Default)]
pub(super) struct Guards {
    records: HashSet<u32>,
}

impl Guards {
    /// Adds these records and what they hang under, as far up as there is room, from all of them alike. False: the turn is over.
    fn climb(&mut self, next: &mut VecDeque<u32>, records: &Records, turn: &mut Turn) -> bool {
        while self.records.len() < MAX_GUARDED
            && let Some(record) = next.pop_front()
        {
            if self.records.insert(record) {
                next.extend(records.get(record).parent);
            }
            turn.spend(1);
            if turn.is_over() {
                return false;
            }
        }
        true
    }

    /// Whether a record is one of them, or a window or state beside one.
    pub(super) fn spare(&self, record: u32, records: &Records) -> bool {
        if self.records.is_empty() {
            return false;
        }
        let entry = records.get(record);
        let beside = entry.parent.filter(|_| entry.beside);
        self.records.contains(&record) || beside.is_some_and(|parent| self.records.contains(&parent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_ends(ends: Vec<u32>, records: &Records) -> Guards {
        let (mut guards, mut next) = (Guards::default(), VecDeque::from(ends));
        let mut turns = 1;
        while !guards.climb(&mut next, records, &mut Turn::of(10)) {
            turns += 1;
        }
        assert!(turns <= MAX_GUARDED / 10 + 1, "no more than what is spared");
        guards
    }

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
        let guards = from_ends(vec![spared[2]], &records);
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
        let guards = from_ends(vec![long[long.len() - 1], short[9]], &records);
        assert_eq!(guards.records.len(), MAX_GUARDED);
        assert!(short.iter().all(|record| guards.spare(*record, &records)));
        assert!(guards.spare(long[long.len() - 1], &records));
        assert!(!guards.spare(long[0], &records));
    }
}
