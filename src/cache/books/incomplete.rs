//! Objects some of whose parts are missing. Each belongs to one engine instance.
//!
//! Everything that is asked of them has its own order, so that nothing looks at those of others. Trees and not hash
//! tables: a table of a million entries that grows keeps everybody waiting.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::part::Part;
use super::prepared::Prepared;
use crate::cache::ClientId;
use crate::object::{Extent, ObjectId, count_frames};
use crate::pool::body::PartBody;

/// An incomplete object is stale when the client that began it has committed this often since: its engine works in
/// step, so the missing ranks have passed it by.
pub(crate) const STALE_COMMITS: u64 = 8;

/// Marks of ended incomplete objects that are remembered.
const MAX_ENDED: usize = 65536;

/// Names an incomplete object: two engines build two of one object, and what two domains call by one key is not the
/// same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct IncompleteKey {
    /// The engine.
    pub(crate) instance: [u8; 16],
    /// Number of the domain, whose sizes and numbers of parts hold for all of it.
    pub(crate) domain: u32,
    /// The object.
    pub(crate) id: ObjectId,
}

/// An incomplete object.
#[derive(Clone, Debug)]
pub(crate) struct Incomplete {
    /// Its record; its frames name it as their owner.
    pub(crate) record: u32,
    /// Tokens of the object.
    pub(crate) tokens: u32,
    /// The first token that all parts so far hold.
    pub(crate) held_from: u32,
    /// The parts that are there, in the order of their numbers: what is missing takes no memory.
    parts: Vec<Part>,
    /// Parts of the whole object.
    of: u16,
    /// Parts whose last runs are yet to come.
    begun: u16,
    /// What was done for it to become visible.
    prepared: Option<Box<Prepared>>,
    /// The client that brought the first part, and how many commits it had made by then.
    pub(crate) opened: (ClientId, u64),
    /// Its age: no two have the same, ever.
    pub(crate) seq: u64,
}

impl Incomplete {
    /// Whether all parts are there.
    pub(crate) fn is_complete(&self) -> bool {
        self.parts.len() == usize::from(self.of) && self.begun == 0
    }

    /// The parts that are there, by number.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// A part, if it is there.
    pub(crate) fn part(&self, number: u16) -> Option<&Part> {
        let at = self.parts.binary_search_by_key(&number, |p| p.number).ok()?;
        self.parts.get(at)
    }

    /// Which parts have come.
    pub(crate) fn seen(&self) -> Seen {
        let mut seen = Seen::none(self.of);
        for part in &self.parts {
            seen.note(part.number);
        }
        seen
    }

    /// Chain blocks that were taken for it.
    pub(crate) fn blocks(&self) -> usize {
        self.prepared.as_ref().map_or(0, |prepared| prepared.blocks.len())
    }

    /// What it leaves behind: its parts, and the blocks, if anything was prepared for it.
    pub(crate) fn into_rest(self) -> (Vec<Part>, Option<Vec<u32>>) {
        (self.parts, self.prepared.map(|prepared| prepared.blocks))
    }

    /// The runs of all parts that are there.
    pub(crate) fn extents(&self) -> Vec<Extent> {
        let parts = self.parts.iter();
        parts.flat_map(|part| part.body.extents.iter().copied()).collect()
    }
}

/// Which parts of an object have come, a bit for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    of: u16,
    /// Of the first 64 parts, which are all in most engines.
    first: u64,
    others: Box<[u64]>,
}

impl Seen {
    /// None of so many parts.
    pub(crate) fn none(of: u16) -> Self {
        let words = usize::from(of).div_ceil(64);
        Self {
            of,
            first: 0,
            others: vec![0; words.saturating_sub(1)].into_boxed_slice(),
        }
    }

    /// Only this of so many parts.
    pub(crate) fn only(part: u16, of: u16) -> Self {
        let mut seen = Self::none(of);
        seen.note(part);
        seen
    }

    /// Notes a part, if there is one of that number. Whether it had come before.
    pub(crate) fn note(&mut self, part: u16) -> bool {
        if part >= self.of {
            return false;
        }
        let word = match usize::from(part / 64).checked_sub(1) {
            None => &mut self.first,
            Some(at) => &mut self.others[at],
        };
        let bit = 1 << (part % 64);
        let before = *word & bit != 0;
        *word |= bit;
        before
    }

    /// Whether all have come.
    pub(crate) fn is_all(&self) -> bool {
        let others = self.others.iter().map(|word| word.count_ones()).sum::<u32>();
        self.first.count_ones() + others == u32::from(self.of)
    }
}

/// An incomplete object that ended before all its parts had come: the parts still to come are turned away.
#[derive(Clone, Debug)]
struct Ended {
    seen: Seen,
    seq: u64,
}

/// An engine in one domain.
type Engine = ([u8; 16], u32);

/// All incomplete objects.
#[derive(Debug, Default)]
pub(crate) struct IncompleteObjects {
    all: BTreeMap<IncompleteKey, Incomplete>,
    order: BTreeMap<u64, IncompleteKey>,
    /// By age: those of each object, of each engine and of each client that has begun any.
    of_object: BTreeSet<(ObjectId, u64)>,
    of_engine: BTreeSet<(Engine, u64)>,
    of_client: BTreeSet<(ClientId, u64)>,
    by_record: BTreeMap<u32, IncompleteKey>,
    /// Frames of the parts of each client; nothing of one that has none.
    frames: BTreeMap<ClientId, u64>,
    ended: BTreeMap<IncompleteKey, Ended>,
    ended_order: BTreeMap<u64, IncompleteKey>,
    ended_of: BTreeSet<(Engine, u64)>,
    seq: u64,
}

impl IncompleteObjects {
    /// Number of incomplete objects.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// An incomplete object.
    pub(crate) fn get(&self, key: &IncompleteKey) -> Option<&Incomplete> {
        self.all.get(key)
    }

    /// Begins an incomplete object that has no part yet.
    pub(crate) fn open(
        &mut self,
        key: IncompleteKey,
        record: u32,
        tokens: u32,
        parts: u16,
        opened: (ClientId, u64),
    ) {
        self.seq += 1;
        self.order.insert(self.seq, key);
        self.of_object.insert((key.id, self.seq));
        self.of_engine.insert((key.engine(), self.seq));
        self.of_client.insert((opened.0, self.seq));
        self.by_record.insert(record, key);
        let incomplete = Incomplete {
            record,
            tokens,
            held_from: 0,
            parts: Vec::with_capacity(1),
            of: parts,
            begun: 0,
            prepared: None,
            opened,
            seq: self.seq,
        };
        self.all.insert(key, incomplete);
    }

    /// Adds a part that was missing and holds the tokens from `held_from` on. Whether that completes the object.
    pub(crate) fn add_part(
        &mut self,
        key: &IncompleteKey,
        part: u16,
        body: PartBody,
        held_from: u32,
        client: ClientId,
    ) -> bool {
        let Some(incomplete) = self.all.get_mut(key) else {
            return false;
        };
        let part = Part {
            number: part,
            frames: count_frames(&body.extents),
            body,
            by: client,
        };
        // One that is there already, or is none of the object's, is the caller's to turn away.
        let (Err(at), true) = (
            incomplete.parts.binary_search_by_key(&part.number, |p| p.number),
            part.number < incomplete.of,
        ) else {
            debug_assert!(false, "part {} of {} is not missing", part.number, incomplete.of);
            return false;
        };
        incomplete.held_from = incomplete.held_from.max(held_from);
        *self.frames.entry(client).or_default() += part.frames;
        incomplete.parts.insert(at, part);
        incomplete.is_complete()
    }

    /// Adds a part that was missing and none of whose runs are there yet: see [`Incomplete objects::add_run`].
    pub(crate) fn begin_part(
        &mut self,
        key: &IncompleteKey,
        part: u16,
        body: PartBody,
        held_from: u32,
        client: ClientId,
    ) {
        if let Some(incomplete) = self.all.get_mut(key) {
            incomplete.begun += 1;
        }
        self.add_part(key, part, body, held_from, client);
    }

    /// Adds some frames to a part that was begun, to its last run or as one more. False when it is not there any more.
    pub(crate) fn add_run(
        &mut self,
        key: &IncompleteKey,
        seq: u64,
        part: u16,
        run: Extent,
        goes_on: bool,
    ) -> bool {
        let incomplete = self.all.get_mut(key).filter(|incomplete| incomplete.seq == seq);
        let Some(part) =
            incomplete.and_then(|incomplete| incomplete.parts.iter_mut().find(|p| p.number == part))
        else {
            return false;
        };
        match part.body.extents.last_mut() {
            Some(last) if goes_on => last.count += run.count,
            _ => part.body.extents.push(run),
        }
        part.frames += u64::from(run.count);
        *self.frames.entry(part.by).or_default() += u64::from(run.count);
        true
    }

    /// The last run of a part that was begun has come. Whether that completes the object.
    pub(crate) fn end_part(&mut self, key: &IncompleteKey, seq: u64) -> bool {
        let Some(incomplete) = self.all.get_mut(key).filter(|incomplete| incomplete.seq == seq) else {
            return false;
        };
        incomplete.begun -= 1;
        incomplete.is_complete()
    }

    /// The parts of a complete object, and how far it is prepared to become visible, of which `begin` is the beginning.
    pub(crate) fn preparing(
        &mut self,
        key: &IncompleteKey,
        begin: impl FnOnce(&[Part]) -> Option<Prepared>,
    ) -> Option<(&[Part], &mut Prepared)> {
        let incomplete = self.all.get_mut(key)?;
        if incomplete.prepared.is_none() {
            incomplete.prepared = Some(Box::new(begin(&incomplete.parts)?));
        }
        Some((&incomplete.parts, incomplete.prepared.as_mut()?))
    }

    /// How far a complete object is prepared.
    pub(crate) fn prepared(&self, key: &IncompleteKey) -> Option<&Prepared> {
        self.all.get(key)?.prepared.as_deref()
    }

    /// Takes an incomplete object out.
    pub(crate) fn take(&mut self, key: &IncompleteKey) -> Option<Incomplete> {
        let incomplete = self.all.remove(key)?;
        for part in &incomplete.parts {
            if let Entry::Occupied(mut held) = self.frames.entry(part.by) {
                *held.get_mut() -= part.frames;
                if *held.get() == 0 {
                    held.remove();
                }
            }
        }
        self.order.remove(&incomplete.seq);
        self.of_object.remove(&(key.id, incomplete.seq));
        self.of_engine.remove(&(key.engine(), incomplete.seq));
        self.of_client.remove(&(incomplete.opened.0, incomplete.seq));
        self.by_record.remove(&incomplete.record);
        Some(incomplete)
    }

    /// Frames of the parts that a client has brought to incomplete objects.
    pub(crate) fn frames_of(&self, client: ClientId) -> u64 {
        self.frames.get(&client).copied().unwrap_or_default()
    }

    /// The incomplete object of a record.
    pub(crate) fn of_record(&self, record: u32) -> Option<(&IncompleteKey, &Incomplete)> {
        self.all.get_key_value(self.by_record.get(&record)?)
    }

    /// The oldest incomplete object of a name, of whatever engine and domain, but this one.
    pub(crate) fn rival_of(&self, key: &IncompleteKey) -> Option<&IncompleteKey> {
        let of_object = self.of_object.range((key.id, 0)..=(key.id, u64::MAX));
        let mut keys = of_object.filter_map(|(_, seq)| self.order.get(seq));
        keys.find(|rival| *rival != key)
    }

    /// The youngest of an engine in a domain that is not younger than that.
    pub(crate) fn youngest_of(&self, key: Engine, seq: u64) -> Option<(&IncompleteKey, &Incomplete)> {
        let (_, seq) = self.of_engine.range((key, 0)..=(key, seq)).next_back()?;
        self.all.get_key_value(self.order.get(seq)?)
    }

    /// The oldest that a client has begun.
    pub(crate) fn oldest_of(&self, client: ClientId) -> Option<(&IncompleteKey, &Incomplete)> {
        let (_, seq) = self.of_client.range((client, 0)..=(client, u64::MAX)).next()?;
        self.all.get_key_value(self.order.get(seq)?)
    }

    /// The next in the order of the clients that have begun them, and of each the oldest first: behind that client's
    /// of that age, or the first of all.
    pub(crate) fn next_of_clients(
        &self,
        after: Option<(ClientId, u64)>,
    ) -> Option<(&IncompleteKey, &Incomplete)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (_, seq) = self.of_client.range((from, Bound::Unbounded)).next()?;
        self.all.get_key_value(self.order.get(seq)?)
    }

    /// The youngest that is not younger than that.
    pub(crate) fn youngest(&self, seq: u64) -> Option<(&IncompleteKey, &Incomplete)> {
        let (_, key) = self.order.range(..=seq).next_back()?;
        self.all.get_key_value(key)
    }

    /// The age of the youngest.
    pub(crate) fn last_seq(&self) -> u64 {
        self.seq
    }

    /// All incomplete objects, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&IncompleteKey, &Incomplete)> + '_ {
        self.order.values().filter_map(|key| self.all.get_key_value(key))
    }

    /// Remembers that an incomplete object has ended and which of its parts have come, so that the rest do not begin
    /// it anew. Nothing to remember when all have.
    pub(crate) fn mark_ended(&mut self, key: IncompleteKey, seen: Seen) {
        if seen.is_all() {
            return;
        }
        self.forget(&key);
        self.seq += 1;
        self.ended.insert(key, Ended { seen, seq: self.seq });
        self.ended_order.insert(self.seq, key);
        self.ended_of.insert((key.engine(), self.seq));
        while self.ended.len() > MAX_ENDED {
            let Some(oldest) = self.ended_order.values().next().copied() else {
                break;
            };
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, key: &IncompleteKey) {
        if let Some(ended) = self.ended.remove(key) {
            self.ended_order.remove(&ended.seq);
            self.ended_of.remove(&(key.engine(), ended.seq));
        }
    }

    /// Whether a part belongs to an incomplete object that has ended; it is then noted as having come. One that comes
    /// again is of another computation: the parts that have not come never will.
    pub(crate) fn turned_away(&mut self, key: &IncompleteKey, part: u16) -> bool {
        let Some(ended) = self.ended.get_mut(key) else {
            return false;
        };
        let again = ended.seen.note(part);
        if again || ended.seen.is_all() {
            self.forget(key);
        }
        !again
    }

    /// Notes a part that came while the object was there. Should the object go now, the computation's other parts do
    /// not begin one that this part would be missing from.
    pub(crate) fn not_needed(&mut self, key: IncompleteKey, part: u16, parts: u16) {
        if !self.turned_away(&key, part) {
            self.mark_ended(key, Seen::only(part, parts));
        }
    }

    /// Forgets one mark of an engine in a domain that is not younger than that: its ranks begin anew. False when there
    /// is none.
    pub(crate) fn forget_one(&mut self, engine: Engine, seq: u64) -> bool {
        let oldest = self.ended_of.range((engine, 0)..=(engine, seq)).next();
        let key = oldest.and_then(|(_, seq)| self.ended_order.get(seq)).copied();
        if let Some(key) = key {
            self.forget(&key);
        }
        key.is_some()
    }
}

impl IncompleteKey {
    /// Whose it is.
    pub(crate) fn engine(&self) -> Engine {
        (self.instance, self.domain)
    }
}

#[cfg(test)]
#[path = "tests/incomplete.rs"]
mod tests;
