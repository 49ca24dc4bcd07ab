//! Reads the index. Readers, the server among them, never wait: what is unstable, dead or does not match is a miss.

use super::body::{BodyCursor, BodyPiece};
use super::layout::{IndexLayout, RECORD_BYTES, SLOTS};
use super::record::{META_DEAD, META_UNSTABLE, RecordView, SHARED_WORDS, WORD_META};
use crate::object::ObjectId;
use crate::shm::mapping::{Access, Mapping};
use crate::sync::shared::{Ordering, fence};

/// Reads an index through any mapping of it.
#[derive(Debug)]
pub struct IndexReader<'a, A: Access> {
    mapping: &'a Mapping<A>,
    layout: IndexLayout,
}

impl<'a, A: Access> IndexReader<'a, A> {
    /// A reader of a mapping whose layout is known.
    pub fn new(mapping: &'a Mapping<A>, layout: IndexLayout) -> Self {
        Self { mapping, layout }
    }

    /// The record that seems to hold an object: what a reader pins before it looks again with
    /// [`IndexReader::view`].
    pub fn probe(&self, id: &ObjectId) -> Option<u32> {
        self.lookup(id).map(|view| view.record)
    }

    /// A record as it is now, if it is live and holds the object.
    pub fn view(&self, record: u32, id: &ObjectId) -> Option<RecordView> {
        if record >= self.layout.frames() {
            return None;
        }
        let at = self.layout.record_at(record);
        let meta = self.mapping.load_only_u64(at).ok()?;
        let before = meta.load_acquire();
        if before == META_UNSTABLE || before == META_DEAD {
            return None;
        }
        let mut words = [0; SHARED_WORDS];
        self.mapping.load_words(at, &mut words).ok()?;
        fence(Ordering::Acquire);
        if meta.load_relaxed() != before || words[WORD_META] != before {
            return None;
        }
        RecordView::decode(record, &words, id)
    }

    /// Begins a walk through the body of a record. `None` when it says that it has more words than there are.
    pub(crate) fn walk(&self, view: &RecordView) -> Option<BodyCursor> {
        let cursor = BodyCursor::new(view.body, &view.inline);
        (cursor.blocks_ahead() <= self.layout.chains.blocks as usize).then_some(cursor)
    }

    /// Goes on with it. The inner one is `None` at its end; the outer one when the words are no body, which only those of a record
    /// are that is being changed.
    pub(crate) fn next_piece(&self, cursor: &mut BodyCursor) -> Option<Option<BodyPiece>> {
        self.layout.chains.next_piece(self.mapping, cursor)
    }

    /// Whether a record is the same still, so that what was read of its body is.
    pub(crate) fn is_same(&self, view: &RecordView) -> bool {
        fence(Ordering::Acquire);
        let meta = self.mapping.load_only_u64(self.layout.record_at(view.record));
        meta.is_ok_and(|meta| meta.load_relaxed() == view.incarnation)
    }

    /// The body words of a record. `None` when it has changed meanwhile.
    pub fn body(&self, view: &RecordView, words: &mut Vec<u64>) -> Option<()> {
        self.layout
            .chains
            .read(self.mapping, view.body, &view.inline, words)?;
        fence(Ordering::Acquire);
        let meta = self
            .mapping
            .load_only_u64(self.layout.record_at(view.record))
            .ok()?;
        (meta.load_relaxed() == view.incarnation).then_some(())
    }

    /// Has the buckets of an object brought into the cache, for a lookup that comes a few lookups later.
    pub fn prefetch_buckets(&self, id: &ObjectId) {
        for bucket in self.layout.spots(id).0 {
            self.mapping.prefetch(self.layout.bucket_at(bucket));
        }
    }

    /// The same for what seems to be its record; its buckets should be there.
    pub fn prefetch_record(&self, id: &ObjectId) {
        let (buckets, tag) = self.layout.spots(id);
        for bucket in buckets {
            let mut slots = [0; SLOTS];
            let loaded = self.mapping.load_words(self.layout.bucket_at(bucket), &mut slots);
            let same = |slot: &&u64| **slot != 0 && (**slot >> 32) as u32 == tag;
            if let (Ok(()), Some(slot)) = (loaded, slots.iter().find(same)) {
                let at = self.layout.record_at((*slot as u32).wrapping_sub(1));
                self.mapping.prefetch(at);
                self.mapping.prefetch(at + RECORD_BYTES / 2);
                return;
            }
        }
    }

    /// The live record of an object.
    pub fn lookup(&self, id: &ObjectId) -> Option<RecordView> {
        let (buckets, tag) = self.layout.spots(id);
        for bucket in buckets {
            let mut slots = [0; SLOTS];
            self.mapping
                .load_words(self.layout.bucket_at(bucket), &mut slots)
                .ok()?;
            // One fence for the line instead of eight acquire loads.
            fence(Ordering::Acquire);
            for slot in slots {
                if slot != 0
                    && (slot >> 32) as u32 == tag
                    && let Some(view) = self.view((slot as u32).wrapping_sub(1), id)
                {
                    return Some(view);
                }
            }
        }
        None
    }
}
