//! Making space: which objects and partials go, and how their frames become free.
//!
//! May import everything of this module. Protocol: docs/shm-layout.md, "evict".
//!
//! A batch takes leaves, and those that become leaves by it. A reader's pin that is seen before costs
//! nothing; one that is seen only after the object was taken out of the index keeps the object's frames, and
//! those of everything it hangs under, in limbo until the pin is gone.

use super::api::{ClientId, ObjectId};
use super::core::Core;
use super::error::CoreError;
use super::partials::{Partial, PartialKey};
use super::record::{COUNTER_BITS, WORD_KEY, WORD_META, WORD_SHAPE, key_of_words};
use super::records::Records;
use crate::pool::RecordState;
use crate::sync::shared::{Ordering, fence};

/// Objects that a batch takes when it can: the fence and the scan of all slabs are paid once for them.
const BATCH: usize = 64;
/// A batch that has freed this fraction of the pool is large enough with fewer objects.
const BATCH_FRACTION: u64 = 32;
/// A partial is stale when the client that began it has committed this often since: its engine works in
/// step, so the missing ranks have passed it by.
const STALE_COMMITS: u64 = 8;
/// A partial is abandoned, and ends also without need, after so many commits: more than the steps by which the stages of a
/// pipeline are apart.
const ABANDONED_COMMITS: u64 = 64;

/// Whether parts of an ended partial that have yet to come are turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Later {
    /// They begin the object anew.
    Welcome,
    /// They are turned away: the object would never be complete.
    TurnedAway,
    /// As before, and this part, which will not come, counts as having come.
    SkippedBy(u16),
}

/// What space is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Something that is to be stored.
    Now,
    /// Stores to come. They take nothing that may be what comes next hangs under: no object that was published after so
    /// many publications, and no partial that may yet be completed.
    Ahead {
        /// Publications before the commit that asks.
        published: u64,
    },
}

/// An object that is out of the index.
pub(super) struct Condemned {
    record: u32,
    parent: Option<u32>,
}

impl Core {
    /// Tries to have `frames` frames that can be granted: stale partials go first, then objects, then the
    /// other partials, the oldest first. Nothing goes while the prefault will yet bring free frames.
    /// What the client stores under stays, and so do fresh partials of its own engine: its other ranks are at them.
    pub(super) fn make_space(&mut self, client: ClientId, frames: u64, need: Need) -> Result<(), CoreError> {
        if self.is_growing() {
            return Ok(());
        }
        while self.pool.grantable() < frames {
            if let Some(key) = self.oldest_partial(client, true) {
                self.end_partial(&key, Later::Welcome)?;
                continue;
            }
            let missing = frames - self.pool.grantable();
            if self.evict_batch(Some(client), missing, need)? > 0 {
                continue;
            }
            match self.oldest_partial(client, false).filter(|_| need == Need::Now) {
                Some(key) => self.end_partial(&key, Later::TurnedAway)?,
                None => break,
            }
        }
        Ok(())
    }

    fn oldest_partial(&self, client: ClientId, stale: bool) -> Option<PartialKey> {
        let own = self.client(client).map(|entry| entry.info.engine_instance);
        let may_go = |key: &PartialKey, partial: &Partial| match stale {
            true => self.has_waited(partial, STALE_COMMITS),
            false => own.as_ref().is_ok_and(|own| key.instance != *own),
        };
        let mut all = self.partials.iter();
        all.find(|(key, partial)| may_go(key, partial) && !self.is_guarded(client, partial.record))
            .map(|(key, _)| *key)
    }

    /// Ends the stale partials that a client has begun, but for what it stores under: they take up its share.
    pub(super) fn end_own_stale_partials(&mut self, client: ClientId) -> Result<(), CoreError> {
        let own = self.partials.iter().filter(|(_, p)| p.opened.0 == client);
        let stale = own.take_while(|(_, p)| self.has_waited(p, STALE_COMMITS));
        let stale = stale.filter(|(_, p)| !self.is_guarded(client, p.record));
        let stale: Vec<PartialKey> = stale.map(|(key, _)| *key).collect();
        for key in stale {
            self.end_partial(&key, Later::Welcome)?;
        }
        Ok(())
    }

    /// Whether the client that began a partial has committed that often since, or is gone.
    fn has_waited(&self, partial: &Partial, commits: u64) -> bool {
        let (client, opened) = partial.opened;
        self.client(client)
            .map_or(true, |c| c.commits - opened >= commits)
    }

    /// Ends the oldest partials as far as they are abandoned: nobody will complete them, but for a later computation of the
    /// same, whose parts they must not be mixed with.
    pub(super) fn end_abandoned_partials(&mut self) -> Result<(), CoreError> {
        loop {
            let oldest = self.partials.iter().next();
            let Some(key) = oldest
                .filter(|(_, partial)| self.has_waited(partial, ABANDONED_COMMITS))
                .map(|(key, _)| *key)
            else {
                return Ok(());
            };
            self.end_partial(&key, Later::Welcome)?;
        }
    }

    /// Evicts until `frames` frames are free again, and a whole batch if there is as much. Frames freed.
    fn evict_batch(&mut self, client: Option<ClientId>, frames: u64, need: Need) -> Result<u64, CoreError> {
        let total = self.pool.frames();
        let records = &mut self.records;
        self.slabs.drain_touched(total, |record| records.touch(record));
        let pinned = self.slabs.pinned(total);
        let enough = (u64::from(total) / BATCH_FRACTION).max(1);
        let (mut condemned, mut spared, mut expected) = (Vec::new(), Vec::new(), 0);
        while expected < frames || (condemned.len() < BATCH && expected < enough) {
            let Some(victim) = self.records.next_victim() else {
                break;
            };
            let guarded = client.is_some_and(|client| self.is_guarded(client, victim));
            if guarded || pinned.contains(&victim) || self.is_too_new(victim, need)? {
                spared.push(victim);
                continue;
            }
            expected += u64::from(self.records.get(victim).frames);
            condemned.push(self.condemn(victim)?);
        }
        for record in spared {
            self.records.spare(record);
        }
        self.retire(condemned)
    }

    fn is_too_new(&self, record: u32, need: Need) -> Result<bool, CoreError> {
        let Need::Ahead { published } = need else {
            return Ok(false);
        };
        let incarnation = self.pool.directory.shared_words(record)?[WORD_META];
        Ok(incarnation > self.boot_seq << COUNTER_BITS | published)
    }

    /// Evicts one record, to make room in its bucket: should it go to limbo, its slot is free all the same.
    pub(super) fn evict_one(&mut self, record: u32) -> Result<(), CoreError> {
        let condemned = self.condemn(record)?;
        self.retire(vec![condemned])?;
        Ok(())
    }

    /// Takes an object out of the index and out of the tree.
    pub(super) fn condemn(&mut self, record: u32) -> Result<Condemned, CoreError> {
        let id = self.id_of(record)?;
        self.move_children_up(record, &id)?;
        let parent = self.records.get(record).parent;
        let chunk_before = self.records.chunk_before(record);
        self.index.kill(record, &id);
        self.records.enter_limbo(record);
        self.show_children(parent);
        self.show_children(chunk_before);
        self.records.attach(record, None);
        self.counters.evicted_objects += 1;
        Ok(Condemned { record, parent })
    }

    /// Has the index say what hangs beside a record, and which tails of the next chunk are there.
    pub(super) fn show_children(&self, record: Option<u32>) {
        if let Some(record) = record {
            let entry = self.records.get(record);
            self.index
                .set_children(record, entry.frames, entry.groups, entry.tails);
        }
    }

    /// Of a superseded tail: hangs the states and windows of its key under its parent.
    fn move_children_up(&mut self, record: u32, id: &ObjectId) -> Result<(), CoreError> {
        let entry = *self.records.get(record);
        let mut below = entry.groups.below;
        while below != 0 {
            let bit = below & below.wrapping_neg();
            below &= !bit;
            let child = self.registry.get(entry.domain).and_then(|domain| {
                let group = domain.group_of_bit(bit)?.group;
                let id = ObjectId { group, ..*id };
                self.index.reader().probe(&id)
            });
            let child = child.ok_or(CoreError::Broken {
                what: "a record names a child that is not in the index",
                a: record.into(),
                b: bit.into(),
            })?;
            self.records.move_up(child, entry.parent);
            let parent = entry.parent.map(|p| self.parent_words(p)).transpose()?;
            self.pool.directory.set_parent(child, parent)?;
        }
        Ok(())
    }

    /// The second half of a batch: what no reader holds becomes free. Children come before parents.
    pub(super) fn retire(&mut self, condemned: Vec<Condemned>) -> Result<u64, CoreError> {
        // Pairs with the fence of a reader between its pin and its look at the record.
        fence(Ordering::SeqCst);
        let pinned = self.slabs.pinned(self.pool.frames());
        let held = |records: &Records, record: u32| {
            let entry = records.get(record);
            pinned.contains(&record) || entry.pins > 0 || entry.children > 0
        };
        let mut freed = 0;
        for Condemned { record, parent } in condemned {
            if held(&self.records, record) {
                self.pool.directory.set_state(record, RecordState::Limbo);
                self.records.attach(record, parent);
                self.limbo.insert(record);
            } else {
                freed += self.free_object(record)?;
            }
        }
        // Those of earlier batches; one that goes may let the one go that it hangs under.
        loop {
            let may_go = |r: &u32| !held(&self.records, *r);
            let Some(record) = self.limbo.iter().copied().find(may_go) else {
                return Ok(freed);
            };
            self.limbo.remove(&record);
            freed += self.free_object(record)?;
        }
    }

    /// Frees the frames of an object that is out of the index and that nobody reads. Frames freed.
    fn free_object(&mut self, record: u32) -> Result<u64, CoreError> {
        let (parts, blocks) = self.pool.directory.body(record)?;
        let frames = self.records.get(record).frames.into();
        for part in &parts {
            self.pool.epochs.set(&part.extents, 0);
        }
        self.pool.directory.set_state(record, RecordState::Free);
        let mut freed = Ok(());
        for part in &parts {
            let part = self.pool.free_used(&part.extents);
            freed = freed.and(part);
        }
        for block in blocks {
            self.chains.put(block);
        }
        self.close_record(record);
        freed?;
        Ok(frames)
    }

    /// Ends a partial and everything that hangs under it: their frames are free again.
    pub(super) fn end_partial(&mut self, key: &PartialKey, later: Later) -> Result<(), CoreError> {
        let mut doomed = vec![*key];
        let mut at = 0;
        while let Some(key) = doomed.get(at) {
            at += 1;
            let Some(record) = self.partials.get(key).map(|p| p.record) else {
                continue;
            };
            doomed.extend(self.partials_under(record));
        }
        // Children before parents.
        for ended in doomed.into_iter().rev() {
            let Some(partial) = self.partials.take(&ended) else {
                continue;
            };
            self.pool.directory.set_state(partial.record, RecordState::Free);
            let freed = self.pool.free_granted(&partial.extents());
            self.close_record(partial.record);
            self.counters.ended_partials += 1;
            freed?;
            let mut seen: Vec<bool> = partial.parts.iter().map(Option::is_some).collect();
            match later {
                Later::Welcome => continue,
                Later::SkippedBy(part) if ended == *key => seen[usize::from(part)] = true,
                Later::SkippedBy(_) | Later::TurnedAway => {}
            }
            self.partials.mark_ended(ended, seen);
        }
        Ok(())
    }

    /// The partials that hang under a record.
    pub(super) fn partials_under(&self, record: u32) -> Vec<PartialKey> {
        if self.records.get(record).children == 0 {
            return Vec::new();
        }
        let under = |partial: &Partial| self.records.get(partial.record).parent == Some(record);
        let all = self.partials.iter();
        all.filter(|(_, p)| under(p)).map(|(key, _)| *key).collect()
    }

    /// Drops every unpinned object and all partials. Returns how many objects went.
    ///
    /// # Errors
    /// [`CoreError::Pool`] when the books are wrong.
    pub fn clear(&mut self) -> Result<u64, CoreError> {
        let keys: Vec<PartialKey> = self.partials.iter().map(|(key, _)| *key).collect();
        for key in keys {
            self.end_partial(&key, Later::TurnedAway)?;
        }
        let before = self.counters.evicted_objects;
        // What leaves limbo in one batch may be all that kept others.
        while self.evict_batch(None, u64::MAX, Need::Now)? > 0 {}
        Ok(self.counters.evicted_objects - before)
    }

    pub(super) fn close_record(&mut self, record: u32) {
        let domain = self.records.get(record).domain;
        self.records.close(record);
        self.registry.record_closed(domain);
    }

    /// The object that a record holds.
    pub(super) fn id_of(&self, record: u32) -> Result<ObjectId, CoreError> {
        let words = self.pool.directory.shared_words(record)?;
        let mut key = [0; 4];
        key.copy_from_slice(&words[WORD_KEY..WORD_SHAPE]);
        Ok(ObjectId {
            key: key_of_words(key),
            group: words[WORD_SHAPE] as u16,
        })
    }

    /// What a directory record says of its parent.
    pub(super) fn parent_words(&self, parent: u32) -> Result<(u32, [u64; 4]), CoreError> {
        let words = self.pool.directory.shared_words(parent)?;
        let mut key = [0; 4];
        key.copy_from_slice(&words[WORD_KEY..WORD_SHAPE]);
        Ok((parent, key))
    }
}
