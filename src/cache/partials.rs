//! Objects some of whose parts are missing. Each belongs to one engine instance.
//!
//! May import `pool` and this module's `api`.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use super::{ClientId, ObjectId};
use crate::pool::body::PartBody;
use crate::pool::{Extent, count_frames};

/// Marks of ended partials that are remembered.
const MAX_ENDED: usize = 65536;

/// Names a partial: two engines build two of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PartialKey {
    /// The engine.
    pub(super) instance: [u8; 16],
    /// The object.
    pub(super) id: ObjectId,
}

/// An incomplete object.
#[derive(Clone, Debug)]
pub(super) struct Partial {
    /// Its record; its frames name it as their owner.
    pub(super) record: u32,
    /// Tokens of the object.
    pub(super) tokens: u32,
    /// The first token that all parts so far hold.
    pub(super) held_from: u32,
    /// The parts that are there, and who brought them.
    pub(super) parts: Vec<Option<(PartBody, ClientId)>>,
    /// The client that brought the first part, and how many commits it had made by then.
    pub(super) opened: (ClientId, u64),
    seq: u64,
}

impl Partial {
    /// Whether all parts are there.
    pub(super) fn is_complete(&self) -> bool {
        self.parts.iter().all(Option::is_some)
    }

    /// The runs of all parts that are there.
    pub(super) fn extents(&self) -> Vec<Extent> {
        let parts = self.parts.iter().flatten();
        parts.flat_map(|(body, _)| body.extents.iter().copied()).collect()
    }
}

/// A partial that ended before all its parts had come: the parts still to come are turned away.
#[derive(Clone, Debug)]
struct Ended {
    seen: Vec<bool>,
    seq: u64,
}

/// All partials.
#[derive(Debug, Default)]
pub(super) struct Partials {
    all: HashMap<PartialKey, Partial>,
    order: BTreeMap<u64, PartialKey>,
    by_id: HashMap<ObjectId, Vec<PartialKey>>,
    ended: HashMap<PartialKey, Ended>,
    ended_order: VecDeque<(u64, PartialKey)>,
    /// Frames of the parts of each client; nothing of one that has none.
    frames: HashMap<ClientId, u64>,
    seq: u64,
}

impl Partials {
    /// Number of partials.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// A partial.
    pub(super) fn get(&self, key: &PartialKey) -> Option<&Partial> {
        self.all.get(key)
    }

    /// Begins a partial that has no part yet.
    pub(super) fn open(
        &mut self,
        key: PartialKey,
        record: u32,
        tokens: u32,
        parts: u16,
        opened: (ClientId, u64),
    ) {
        self.seq += 1;
        self.order.insert(self.seq, key);
        self.by_id.entry(key.id).or_default().push(key);
        let partial = Partial {
            record,
            tokens,
            held_from: 0,
            parts: vec![None; parts.into()],
            opened,
            seq: self.seq,
        };
        self.all.insert(key, partial);
    }

    /// Adds a part that was missing and holds the tokens from `held_from` on. Whether that completes the object.
    pub(super) fn add_part(
        &mut self,
        key: &PartialKey,
        part: u16,
        body: PartBody,
        held_from: u32,
        client: ClientId,
    ) -> bool {
        let Some(partial) = self.all.get_mut(key) else {
            return false;
        };
        partial.held_from = partial.held_from.max(held_from);
        *self.frames.entry(client).or_default() += count_frames(&body.extents);
        partial.parts[usize::from(part)] = Some((body, client));
        partial.is_complete()
    }

    /// Takes a partial out.
    pub(super) fn take(&mut self, key: &PartialKey) -> Option<Partial> {
        let partial = self.all.remove(key)?;
        for (body, client) in partial.parts.iter().flatten() {
            if let Entry::Occupied(mut held) = self.frames.entry(*client) {
                *held.get_mut() -= count_frames(&body.extents);
                if *held.get() == 0 {
                    held.remove();
                }
            }
        }
        self.order.remove(&partial.seq);
        if let Some(keys) = self.by_id.get_mut(&key.id) {
            keys.retain(|k| k != key);
            if keys.is_empty() {
                self.by_id.remove(&key.id);
            }
        }
        Some(partial)
    }

    /// Frames of the parts that a client has brought to partials.
    pub(super) fn frames_of(&self, client: ClientId) -> u64 {
        self.frames.get(&client).copied().unwrap_or_default()
    }

    /// The record of an engine's partial of an object.
    pub(super) fn of_engine(&self, instance: [u8; 16], id: &ObjectId) -> Option<u32> {
        let key = PartialKey { instance, id: *id };
        self.all.get(&key).map(|partial| partial.record)
    }

    /// Partials of one object, of whatever engine.
    pub(super) fn of_object(&self, id: &ObjectId) -> Vec<PartialKey> {
        self.by_id.get(id).cloned().unwrap_or_default()
    }

    /// Partials of one engine, the oldest first.
    pub(super) fn of_instance(&self, instance: &[u8; 16]) -> Vec<PartialKey> {
        self.iter()
            .map(|(key, _)| *key)
            .filter(|key| key.instance == *instance)
            .collect()
    }

    /// All partials, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&PartialKey, &Partial)> + '_ {
        self.order.values().filter_map(|key| self.all.get_key_value(key))
    }

    /// Remembers that a partial has ended and which of its parts have come, so that the rest do not begin
    /// it anew. Nothing to remember when all have.
    pub(super) fn mark_ended(&mut self, key: PartialKey, seen: Vec<bool>) {
        if seen.iter().all(|s| *s) {
            return;
        }
        self.seq += 1;
        self.ended.insert(key, Ended { seen, seq: self.seq });
        self.ended_order.push_back((self.seq, key));
        while self.ended.len() > MAX_ENDED || self.ended_order.len() > 2 * MAX_ENDED {
            let Some((seq, oldest)) = self.ended_order.pop_front() else {
                break;
            };
            if self.ended.get(&oldest).is_some_and(|e| e.seq == seq) {
                self.ended.remove(&oldest);
            }
        }
    }

    /// Whether a part belongs to a partial that has ended; it is then noted as having come. One that comes again is of another
    /// computation: the parts that have not come never will.
    pub(super) fn turned_away(&mut self, key: &PartialKey, part: u16) -> bool {
        let Some(ended) = self.ended.get_mut(key) else {
            return false;
        };
        let again = match ended.seen.get_mut(usize::from(part)) {
            Some(seen) => std::mem::replace(seen, true),
            None => false,
        };
        if again || ended.seen.iter().all(|s| *s) {
            self.ended.remove(key);
        }
        !again
    }

    /// Notes a part that came while the object was there. Should the object go now, the computation's other parts do not
    /// begin one that this part would be missing from.
    pub(super) fn not_needed(&mut self, key: PartialKey, part: u16, parts: u16) {
        if !self.turned_away(&key, part) {
            self.mark_ended(key, (0..parts).map(|p| p == part).collect());
        }
    }

    /// Forgets what ended of an engine: its ranks begin anew.
    pub(super) fn forget_ended(&mut self, instance: &[u8; 16]) {
        self.ended.retain(|key, _| key.instance != *instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::ChunkKey;

    fn key(n: u8, instance: u8) -> PartialKey {
        PartialKey {
            instance: [instance; 16],
            id: ObjectId {
                key: ChunkKey::from_bytes([n; 32]),
                group: 0,
            },
        }
    }

    const CLIENT: ClientId = ClientId { slab: 1, nonce: 1 };

    #[test]
    fn completes_with_the_last_part() {
        let mut partials = Partials::default();
        partials.open(key(1, 1), 5, 256, 3, (CLIENT, 0));
        for (part, held_from) in [(2, 0), (0, 96)] {
            assert!(!partials.add_part(&key(1, 1), part, PartBody::default(), held_from, CLIENT));
        }
        assert!(partials.add_part(&key(1, 1), 1, PartBody::default(), 32, CLIENT));
        let complete = partials.take(&key(1, 1)).unwrap();
        assert!(complete.is_complete());
        assert_eq!(complete.held_from, 96, "what every part holds");
        assert_eq!(partials.len(), 0);
        assert!(partials.of_object(&key(1, 1).id).is_empty());
    }

    #[test]
    fn found_by_object_by_engine_and_by_age() {
        let mut partials = Partials::default();
        for (n, instance) in [(3, 1), (1, 2), (1, 1)] {
            partials.open(key(n, instance), n.into(), 256, 2, (CLIENT, 0));
        }
        assert_eq!(partials.of_object(&key(1, 0).id), [key(1, 2), key(1, 1)]);
        assert_eq!(partials.of_instance(&[1; 16]), [key(3, 1), key(1, 1)]);
        partials.take(&key(3, 1));
        assert_eq!(partials.iter().next().unwrap().0, &key(1, 2));
    }

    #[test]
    fn parts_of_an_ended_partial_are_turned_away_once_each() {
        let mut partials = Partials::default();
        partials.mark_ended(key(1, 1), vec![true, false, false]);
        assert!(!partials.turned_away(&key(1, 2), 1));
        assert!(partials.turned_away(&key(1, 1), 1));
        assert!(partials.turned_away(&key(1, 1), 2));
        assert!(
            !partials.turned_away(&key(1, 1), 0),
            "all parts have come: the next store is a new one"
        );
        partials.mark_ended(key(1, 1), vec![false, true]);
        assert!(
            !partials.turned_away(&key(1, 1), 1),
            "a part of the next computation"
        );
        assert!(!partials.turned_away(&key(1, 1), 0));
        partials.mark_ended(key(1, 1), vec![false, true]);
        partials.forget_ended(&[1; 16]);
        assert!(!partials.turned_away(&key(1, 1), 0));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut partials = Partials::default();
        for n in 0..MAX_ENDED + 10 {
            let mut key = key(1, 1);
            key.id.key = ChunkKey::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes());
            partials.mark_ended(key, vec![false]);
        }
        assert_eq!(partials.ended.len(), MAX_ENDED);
    }
}
