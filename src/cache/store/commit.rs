//! What a commit checks, and how one item is stored. With its last part an object is published.
//!
//! The commit itself, in turns, is in `committing`.

use super::context::Context;
use super::filling::{AT_ONCE, Filling};
use super::parent::Place;
use super::runs::GiveBack;
use crate::cache::books::incomplete::{IncompleteKey, Seen};
use crate::cache::books::registry::Domain;
use crate::cache::core::RankRegistration;
use crate::cache::evict::ends::EndRivals;
use crate::cache::evict::ends::{EndIncomplete, LaterParts};
use crate::cache::steps::frame_steps;
use crate::cache::turn::Turn;
use crate::cache::{Core, CoreError};
use crate::geometry::ObjectKind;
use crate::object::{CommitOutcome, Extent, ObjectId, StoreItem, count_frames, frames_for};
use crate::pool::RecordState;
use crate::pool::body::{MAX_PART_EXTENTS, PartBody};
use crate::pool::record::{Holding, RecordWords};

/// Steps of finding the places of an object among all incomplete ones; of one that is complete they are close by still.
const INCOMPLETE_STEPS: u32 = 16;

/// What one item brings along, before the next.
#[derive(Debug)]
pub(crate) enum Rest<'a> {
    Nothing,
    /// Its frames become free.
    Give(GiveBack<'a>),
    /// Its runs become those of its part.
    Fill(Filling<'a>),
    /// An incomplete object ends.
    End(EndIncomplete),
    /// It is complete and becomes visible, perhaps after a scan of the pins.
    Publish {
        key: IncompleteKey,
        seq: u64,
        scan: Option<u64>,
    },
    /// It is visible.
    Rivals(EndRivals),
}

impl Core {
    /// Checks the numbers of an item against what the client has registered.
    pub(crate) fn check_item(
        &self,
        context: &Context,
        registration: &RankRegistration,
        item: &StoreItem,
        extents: &[Extent],
    ) -> Result<(), CoreError> {
        let domain = self.domain(context.domain)?;
        let invalid = |field, value, expected| CoreError::InvalidGroup {
            group: item.id.group,
            field,
            value,
            expected,
        };
        let mine = registration.parts.iter().find(|(g, _)| *g == item.id.group);
        let group = domain.group(item.id.group);
        let (Some((_, part)), Some(group)) = (mine, group) else {
            let number = item.id.group.into();
            return Err(invalid(
                "number",
                number,
                "it must be one that this rank has registered",
            ));
        };
        if *part != item.part || !registration.stores {
            let expected = "it must be the part that this rank has registered to store";
            return Err(invalid("part", item.part.into(), expected));
        }
        let aligned = u64::from(item.tokens).is_multiple_of(domain.alignment);
        if item.tokens == 0 || item.tokens > context.chunk || !aligned {
            return Err(CoreError::InvalidArgument {
                field: "tokens of an item",
                value: item.tokens.into(),
                expected: "it must be a multiple of the alignment, up to the chunk size",
            });
        }
        let windowed = matches!(
            group.kind,
            ObjectKind::Window { .. } | ObjectKind::ChunkedLocal { .. }
        );
        if item.held_from > 0 && (!windowed || item.held_from >= item.tokens) {
            let expected = "only a window's object may begin with holes, and it must hold some of its tokens";
            return Err(invalid("first held token", item.held_from.into(), expected));
        }
        let expected = if item.skipped {
            Some(0)
        } else {
            group.part_bytes(item.part, item.tokens, domain.alignment)
        };
        let expected = expected.ok_or(CoreError::Broken {
            what: "a registered part has no size",
            a: item.id.group.into(),
            b: item.part.into(),
        })?;
        let frames = count_frames(extents);
        let bytes = if item.skipped { 0 } else { item.bytes };
        if bytes != expected || frames != frames_for(expected) {
            return Err(CoreError::SizeMismatch {
                group: item.id.group,
                part: item.part,
                tokens: item.tokens.into(),
                bytes,
                frames,
                expected,
                expected_frames: frames_for(expected),
            });
        }
        if extents.len() > MAX_PART_EXTENTS {
            return Err(CoreError::LimitExceeded {
                what: "extents of one part",
                asked: extents.len() as u64,
                limit: MAX_PART_EXTENTS as u64,
            });
        }
        Ok(())
    }

    pub(crate) fn store<'a>(
        &mut self,
        turn: &mut Turn,
        context: &Context,
        item: &StoreItem,
        extents: &'a [Extent],
        retry: bool,
    ) -> Result<(CommitOutcome, Rest<'a>), CoreError> {
        let key = context.key(&item.id);
        let registration = self.client(context.client)?.registration.as_ref();
        let replaced = registration.is_none_or(|r| r.is_replaced());
        let refuse = |outcome| (outcome, Rest::Give(GiveBack::new(context.client, extents)));
        let holder = self.index.reader().lookup(&item.id);
        let exists = holder.is_some_and(|view| view.domain == context.domain);
        if holder.is_some() && !exists {
            // An object of another domain has this name, and the index has one of a name. Keys are computed from their
            // domain, so whoever stores this does not do that: it is not there, and cannot be.
            return Ok(match (item.skipped, retry) {
                (true, _) => (CommitOutcome::Skipped, Rest::Nothing),
                (false, true) => (CommitOutcome::Dropped, Rest::Nothing),
                (false, false) => refuse(CommitOutcome::Dropped),
            });
        }
        if item.skipped {
            return self.skip(context, item, exists);
        }
        if retry {
            let outcome = match (exists, self.incomplete.get(&key).is_some()) {
                (true, _) => CommitOutcome::Published,
                (false, true) => CommitOutcome::PartAccepted,
                // An item before this one took its place in the index.
                (false, false) => CommitOutcome::Dropped,
            };
            return Ok((outcome, Rest::Nothing));
        }
        if exists {
            self.note_not_needed(context, item)?;
            return Ok(refuse(CommitOutcome::Exists));
        }
        // Another client has taken this one's place between two turns: its parts are of another computation.
        if replaced {
            return Ok(refuse(CommitOutcome::Dropped));
        }
        if self.incomplete.turned_away(&key, item.part) {
            return Ok(refuse(CommitOutcome::Skipped));
        }
        let steps = frame_steps(extents.len(), count_frames(extents));
        if let Some(incomplete) = self.incomplete.get(&key) {
            if incomplete.part(item.part).is_some() || incomplete.tokens != item.tokens {
                return Ok(refuse(CommitOutcome::Exists));
            }
        } else {
            let place = match self.place_of(context, item)? {
                Ok(place) => place,
                Err(refusal) => return Ok(refuse(refusal)),
            };
            if place.parts == 1
                && steps <= AT_ONCE
                && let Some(stored) = self.store_whole(turn, context, item, extents, &place)?
            {
                return Ok(stored);
            }
            if !self.open_incomplete(context, item, &place)? {
                return Ok(refuse(CommitOutcome::Dropped));
            }
        }
        let Some((record, seq)) = self.incomplete.get(&key).map(|p| (p.record, p.seq)) else {
            return Ok(refuse(CommitOutcome::Dropped));
        };
        let mut part = PartBody {
            bytes: item.bytes,
            checksum: item.checksum,
            extents: Vec::with_capacity(extents.len()),
        };
        if steps > AT_ONCE {
            self.incomplete
                .begin_part(&key, item.part, part, item.held_from, context.client);
            let filling = Filling::new(context.client, key, (record, seq), item.part, extents);
            return Ok((CommitOutcome::PartAccepted, Rest::Fill(filling)));
        }
        turn.spend(steps);
        self.take_granted(context.client, extents)?;
        self.pool.hold_for_incomplete(record, extents);
        part.extents.extend_from_slice(extents);
        let complete = self
            .incomplete
            .add_part(&key, item.part, part, item.held_from, context.client);
        match complete {
            true => self.completed(context, item, (record, seq)),
            false => {
                turn.spend(INCOMPLETE_STEPS);
                Ok((CommitOutcome::PartAccepted, Rest::Nothing))
            }
        }
    }

    /// All parts of an object are there: it hangs where it belongs, and becomes visible.
    pub(crate) fn completed<'a>(
        &mut self,
        context: &Context,
        item: &StoreItem,
        (record, seq): (u32, u64),
    ) -> Result<(CommitOutcome, Rest<'a>), CoreError> {
        let key = context.key(&item.id);
        if !self.hang_complete(context, item, record)? {
            let ending = EndIncomplete::new(self, &key, LaterParts::Refused);
            return Ok((CommitOutcome::NoParent, ending.map_or(Rest::Nothing, Rest::End)));
        }
        // The outcome is set when it is known.
        let scan = None;
        Ok((CommitOutcome::Dropped, Rest::Publish { key, seq, scan }))
    }

    fn note_not_needed(&mut self, context: &Context, item: &StoreItem) -> Result<(), CoreError> {
        let domain = self.domain(context.domain)?;
        let parts = domain.group(item.id.group).map_or(1, |group| group.parts);
        self.incomplete
            .not_needed(context.key(&item.id), item.part, parts);
        Ok(())
    }

    fn skip<'a>(
        &mut self,
        context: &Context,
        item: &StoreItem,
        exists: bool,
    ) -> Result<(CommitOutcome, Rest<'a>), CoreError> {
        let key = context.key(&item.id);
        if exists {
            self.note_not_needed(context, item)?;
            return Ok((CommitOutcome::Exists, Rest::Nothing));
        }
        if let Some(ending) = EndIncomplete::new(self, &key, LaterParts::RefusedAndSkipped(item.part)) {
            return Ok((CommitOutcome::Skipped, Rest::End(ending)));
        }
        if !self.incomplete.turned_away(&key, item.part) {
            let parts = self
                .domain(context.domain)?
                .group(item.id.group)
                .map_or(1, |g| g.parts);
            self.incomplete.mark_ended(key, Seen::only(item.part, parts));
        }
        Ok((CommitOutcome::Skipped, Rest::Nothing))
    }

    /// Begins an object in its place. False: it cannot be begun.
    fn open_incomplete(
        &mut self,
        context: &Context,
        item: &StoreItem,
        place: &Place,
    ) -> Result<bool, CoreError> {
        let (bit, parent) = (place.bit, place.parent);
        let Some(record) = self.tree.open(context.domain, bit, parent, place.is_companion) else {
            return Ok(false);
        };
        self.registry.record_opened(context.domain);
        // What a restart finds of an object that is not complete: its name, and frames that name it.
        let range = Holding {
            domain: context.domain,
            tokens: item.tokens,
            held_from: 0,
        };
        let words = RecordWords::encode(&item.id, range, 0, &[], &[]);
        let parent = parent.map(|p| self.parent_words(p)).transpose()?;
        self.pool.directory.write_record(record, &words.shared, parent)?;
        self.pool.directory.set_state(record, RecordState::Incomplete);
        let opened = (context.client, context.commits);
        let key = context.key(&item.id);
        self.incomplete
            .open(key, record, item.tokens, place.parts, opened);
        Ok(true)
    }

    /// Marks a tail that other objects have made needless. What is no tail is left alone.
    pub(crate) fn supersede(&mut self, context: &Context, id: &ObjectId) {
        if let Some((record, tokens)) = self.live(context.domain, id)
            && tokens < context.chunk
        {
            self.tree.supersede(record);
        }
    }

    /// The live record of an object of a domain, and its tokens.
    pub(crate) fn live(&self, domain: u32, id: &ObjectId) -> Option<(u32, u32)> {
        let view = self.index.reader().lookup(id)?;
        (view.domain == domain).then_some((view.record, view.tokens))
    }

    pub(crate) fn domain(&self, domain: u32) -> Result<&Domain, CoreError> {
        self.registry
            .get(domain)
            .ok_or(CoreError::NotRegistered { what: "the domain" })
    }
}
