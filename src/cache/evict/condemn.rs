//! Making space: which objects and incomplete objects go, and how their frames become free.
//!
//! Protocol: docs/shm-layout.md, "evict".
//!
//! A batch takes leaves, and those that become leaves by it. A reader's pin that is seen before costs nothing; one
//! that is seen only after the object was taken out of the index keeps the object's frames, and those of everything it
//! hangs under, in limbo until the pin is gone. Between two turns nothing is halfway: what was taken out waits in the
//! core for the next scan of the pins, whoever makes it.

use crate::cache::books::share::Need;
use crate::cache::books::wasted::Waste;
use crate::cache::turn::Turn;
use crate::cache::{ClientId, Core, CoreError};
use crate::index::record::{WORD_KEY, WORD_META, WORD_SHAPE};
use crate::object::ObjectId;
use crate::pool::RecordState;
use crate::pool::record::{COUNTER_BITS, key_of_words};

/// Steps that it takes to free an object, besides those for its frames and runs.
const FREE_STEPS: u32 = 8;
/// Steps of making a record the most recent.
const TOUCH_STEPS: u32 = 2;
impl Core {
    /// Whether a record that may go does not go for this need of a client.
    pub(crate) fn stays(&self, record: u32, client: Option<ClientId>, need: Need) -> Result<bool, CoreError> {
        if client.is_some_and(|client| self.is_guarded(client, record)) {
            return Ok(true);
        }
        let Need::Ahead { published } = need else {
            return Ok(false);
        };
        let incarnation = self.pool.directory.shared_words(record)?[WORD_META];
        Ok(incarnation > self.boot_seq << COUNTER_BITS | published)
    }

    /// Reads a little of what a client has touched. How many entries.
    pub(crate) fn read_touched(&mut self, turn: &mut Turn, slab: usize, most: usize) -> usize {
        let records = &mut self.tree;
        let total = self.pool.frames();
        let read = self
            .slabs
            .read_touched(slab, total, most, |record| records.touch(record));
        turn.spend(u32::from(self.slabs.is_open(slab)) + TOUCH_STEPS * read as u32);
        read
    }

    /// Evicts one record at once.
    #[cfg(test)]
    pub(crate) fn evict_one(&mut self, record: u32) -> Result<(), CoreError> {
        self.condemn(record)?;
        self.sweep_now()
    }

    /// Takes an object out of the index and out of the tree. Whether its frames become free is decided by the next
    /// scan.
    pub(crate) fn condemn(&mut self, record: u32) -> Result<(), CoreError> {
        let id = self.id_of(record)?;
        self.move_children_up(record, &id)?;
        let parent = self.tree.get(record).parent;
        let chunk_before = self.tree.chunk_before(record);
        self.index.kill(record, &id);
        self.tree.enter_limbo(record);
        self.pool.directory.set_state(record, RecordState::Limbo);
        self.show_companions(parent);
        self.show_companions(chunk_before);
        self.tree.attach(record, None);
        self.sweep.condemn(record, parent);
        self.counters.evicted_objects += 1;
        Ok(())
    }

    /// Has the index name the companions of a record, and which tails of the next chunk are there.
    pub(crate) fn show_companions(&self, record: Option<u32>) {
        if let Some(record) = record {
            let entry = self.tree.get(record);
            self.index
                .set_companions(record, entry.frames, entry.companions, entry.tails);
        }
    }

    /// Of a superseded tail: hangs the states and windows of its key under its parent.
    fn move_children_up(&mut self, record: u32, id: &ObjectId) -> Result<(), CoreError> {
        let entry = *self.tree.get(record);
        let mut below = entry.companions.groups;
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
            self.tree.move_up(child, entry.parent);
            let parent = entry.parent.map(|p| self.parent_words(p)).transpose()?;
            self.pool.directory.set_parent(child, parent)?;
        }
        Ok(())
    }

    /// Frees the frames of an object that is out of the index and that nobody reads, in this turn and in later ones.
    pub(crate) fn free_object(&mut self, turn: &mut Turn, record: u32) -> Result<(), CoreError> {
        turn.spend(FREE_STEPS);
        let body = self.pool.directory.walk(record)?;
        let frames = self.tree.get(record).frames;
        self.pool.directory.set_state(record, RecordState::Incomplete);
        self.pool.hold_for_waste(frames.into())?;
        self.tree.waste(record);
        self.waste.push_back(Waste::of_object(record, body));
        self.free_waste(turn).map(drop)
    }

    /// A record is free. Pieces of memory that went with it.
    pub(crate) fn close_record(&mut self, record: u32) -> u32 {
        let domain = self.tree.get(record).domain;
        self.tree.close(record);
        self.registry.record_closed(domain)
    }

    /// The object that a record holds.
    pub(crate) fn id_of(&self, record: u32) -> Result<ObjectId, CoreError> {
        let words = self.pool.directory.shared_words(record)?;
        let mut key = [0; 4];
        key.copy_from_slice(&words[WORD_KEY..WORD_SHAPE]);
        Ok(ObjectId {
            key: key_of_words(key),
            group: words[WORD_SHAPE] as u16,
        })
    }

    /// What a directory record says of its parent.
    pub(crate) fn parent_words(&self, parent: u32) -> Result<(u32, [u64; 4]), CoreError> {
        let words = self.pool.directory.shared_words(parent)?;
        let mut key = [0; 4];
        key.copy_from_slice(&words[WORD_KEY..WORD_SHAPE]);
        Ok((parent, key))
    }
}
