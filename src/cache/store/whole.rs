//! Objects of one part: the item that brings the part makes them visible, and they are never incomplete objects.
//!
//! Only what is done in one turn goes this way. Large objects are filled in turns, and those whose buckets are full wait for a scan
//! of the pins: both are incomplete objects meanwhile.

use super::commit::Rest;
use super::context::Context;
use super::filling::AT_ONCE;
use super::parent::Place;
use super::publish::PUBLISH_STEPS;
use super::runs::GiveBack;
use crate::cache::evict::ends::EndRivals;
use crate::cache::steps::frame_steps;
use crate::cache::turn::Turn;
use crate::cache::{Core, CoreError};
use crate::index::body::{BODY_HEAD_WORDS, INLINE_WORDS, blocks_for};
use crate::object::{CommitOutcome, Extent, StoreItem, count_frames};
use crate::pool::RecordState;
use crate::pool::record::{Body, Holding, RecordWords, incarnation};

/// Words and chain blocks of a part of as many runs as are stored at once.
const MAX_WORDS: usize = BODY_HEAD_WORDS + AT_ONCE as usize;
const MAX_BLOCKS: usize = blocks_for(MAX_WORDS);

impl Core {
    /// Publishes an object of one part whose frames are granted to the client. Nothing when its buckets are full, and then nothing
    /// has changed.
    pub(super) fn store_whole<'a>(
        &mut self,
        turn: &mut Turn,
        context: &Context,
        item: &StoreItem,
        extents: &'a [Extent],
        place: &Place,
    ) -> Result<Option<(CommitOutcome, Rest<'a>)>, CoreError> {
        let refuse = |outcome| {
            Ok(Some((
                outcome,
                Rest::Give(GiveBack::new(context.client, extents)),
            )))
        };
        let parent = place.parent;
        // What it would hang under is not complete: nobody could find it.
        if parent.is_some_and(|parent| self.tree.get(parent).state != RecordState::Live) {
            return refuse(CommitOutcome::NoParent);
        }
        let Ok(slot) = self.index.free_slot(&item.id) else {
            return Ok(None);
        };
        let number = incarnation(self.boot_seq, self.publications + 1).ok_or(CoreError::Broken {
            what: "this boot has no incarnations left",
            a: self.boot_seq,
            b: self.publications,
        })?;
        let (words, count) = body_words(item, extents);
        let mut blocks = [0; MAX_BLOCKS];
        let blocks = &mut blocks[..blocks_for(count)];
        if !self.take_blocks(blocks) {
            self.counters.dropped_stores += 1;
            return refuse(CommitOutcome::Dropped);
        }
        let Some(record) = self
            .tree
            .open(context.domain, place.bit, parent, place.is_companion)
        else {
            blocks.iter().for_each(|block| self.chains.put(*block));
            return refuse(CommitOutcome::Dropped);
        };
        self.registry.record_opened(context.domain);
        self.publications += 1;
        let frames = count_frames(extents);
        turn.spend(PUBLISH_STEPS + frame_steps(extents.len(), frames) + frame_steps(1, frames));

        self.take_granted(context.client, extents)?;
        let directory = &self.pool.directory;
        // A restart must not find frames of a record that is free.
        directory.set_state(record, RecordState::Incomplete);
        self.pool.hold_for_incomplete(record, extents);
        let words = &words[..count];
        directory.write_chain(words, blocks)?;
        self.index.write_chain(words, blocks)?;
        self.pool.epochs.set(extents, number);
        let mut inline = [0; INLINE_WORDS];
        let some = count.min(INLINE_WORDS);
        inline[..some].copy_from_slice(&words[..some]);
        let body = Body {
            parts: 1,
            frames,
            words: count,
            first: blocks.first().copied(),
            inline,
        };
        let range = Holding {
            domain: context.domain,
            tokens: item.tokens,
            held_from: item.held_from,
        };
        let words = RecordWords::of_body(&item.id, range, number, &body);
        let above = parent.map(|parent| self.parent_words(parent)).transpose()?;
        directory.write_record(record, &words.shared, above)?;
        directory.set_state(record, RecordState::Live);
        self.pool.hold_for_object(frames)?;
        self.index.publish(record, &words, &[], slot, || ())?;
        self.now_live(record, frames, item.held_from, place.tail, item.bytes);
        let key = context.key(&item.id);
        let rest = match self.incomplete.rival_of(&key) {
            Some(_) => Rest::Rivals(EndRivals::new(key, record, number)),
            None => Rest::Nothing,
        };
        Ok(Some((CommitOutcome::Published, rest)))
    }

    /// Takes as many chain blocks as there is room for. False: there are not as many, and none is taken.
    fn take_blocks(&mut self, blocks: &mut [u32]) -> bool {
        for at in 0..blocks.len() {
            let Some(block) = self.chains.take() else {
                blocks[..at].iter().for_each(|block| self.chains.put(*block));
                return false;
            };
            blocks[at] = block;
        }
        true
    }
}

/// The words of a body of one part, and how many.
fn body_words(item: &StoreItem, extents: &[Extent]) -> ([u64; MAX_WORDS], usize) {
    let mut words = [0; MAX_WORDS];
    words[0] = item.bytes << 16 | extents.len() as u64;
    words[1] = item.checksum;
    for (word, run) in words[BODY_HEAD_WORDS..].iter_mut().zip(extents) {
        *word = run.to_word();
    }
    (words, BODY_HEAD_WORDS + extents.len())
}
