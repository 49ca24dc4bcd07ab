//! Commits: checked whole, then applied item by item. With its last part an object is published.
//!
//! May import everything of this module.

use super::api::{ClientId, CommitAnswer, CommitOutcome, CommitRequest, ObjectId, StoreItem};
use super::core::{Core, RankRegistration};
use super::error::CoreError;
use super::evict::Later;
use super::partials::PartialKey;
use super::place::Place;
use super::record::{Holding, RecordWords};
use super::registry::Domain;
use crate::geometry::ObjectKind;
use crate::pool::body::{MAX_PART_EXTENTS, PartBody};
use crate::pool::{Extent, RecordState, count_frames, frames_for};

/// An item whose numbers are right.
struct Checked<'a> {
    item: &'a StoreItem,
    extents: &'a [Extent],
    /// The frames hold this very part already: the commit is sent a second time.
    retry: bool,
}

/// Who commits, and where.
pub(super) struct Context {
    client: ClientId,
    instance: [u8; 16],
    commits: u64,
    pub(super) domain: u32,
    pub(super) chunk: u32,
}

impl Core {
    /// Publishes what a step stored. An error refuses the whole commit and changes nothing.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::NotAttached`], [`CoreError::NotRegistered`],
    /// [`CoreError::InvalidGroup`], [`CoreError::InvalidArgument`], [`CoreError::SizeMismatch`],
    /// [`CoreError::InvalidExtent`], [`CoreError::ExtentNotGranted`].
    pub fn commit(
        &mut self,
        client: ClientId,
        request: &CommitRequest<'_>,
    ) -> Result<CommitAnswer, CoreError> {
        self.require_chunk_size()?;
        let entry = self.attached(client)?;
        let (domain, layout) = self.registry.find(&request.domain_seed)?;
        let context = Context {
            client,
            instance: entry.info.engine_instance,
            commits: entry.commits,
            domain,
            chunk: layout.chunk,
        };
        let checked = self.check_commit(&context, request)?;
        let published = self.publications;
        let mut outcomes = Vec::with_capacity(checked.len());
        for item in &checked {
            outcomes.push(self.store(&context, item)?);
        }
        for id in request.supersedes {
            self.supersede(&context, id);
        }
        let entry = self.client_mut(client)?;
        entry.commits += 1;
        self.end_abandoned_partials()?;
        let entry = self.client_mut(client)?;
        let missing = frames_for(request.credit_bytes).saturating_sub(entry.credit.frames());
        let granted = self.renew(client, missing, request.items, published)?;
        Ok(CommitAnswer { outcomes, granted })
    }

    fn check_commit<'a>(
        &self,
        context: &Context,
        request: &CommitRequest<'a>,
    ) -> Result<Vec<Checked<'a>>, CoreError> {
        let unknown = CoreError::NotRegistered {
            what: "this client as a rank of the domain",
        };
        let registration = self.client(context.client)?.registration.as_ref();
        let registration = registration
            .filter(|r| r.domain == context.domain)
            .ok_or(unknown)?;
        let mut checked = Vec::with_capacity(request.items.len());
        let mut named = Vec::new();
        for item in request.items {
            let first = item.first_extent as usize;
            let extents = request.extents.get(first..first + item.extent_count as usize);
            let extents = extents.ok_or(CoreError::InvalidArgument {
                field: "first extent plus extent count",
                value: first as u64 + u64::from(item.extent_count),
                expected: "it must not exceed the number of extents in the commit",
            })?;
            self.check_item(context, registration, item, extents)?;
            named.extend_from_slice(extents);
            checked.push(Checked {
                item,
                extents,
                retry: false,
            });
        }
        self.check_runs(&named)?;
        for entry in &mut checked {
            entry.retry = self.holds_already(context, entry)?;
            if !entry.retry {
                for extent in entry.extents {
                    self.check_granted(context.client, *extent)?;
                }
            }
        }
        Ok(checked)
    }

    /// Checks the numbers of an item against what the client has registered.
    fn check_item(
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

    /// Whether exactly these runs are this part of the object, or of this engine's partial of it, already.
    fn holds_already(&self, context: &Context, entry: &Checked<'_>) -> Result<bool, CoreError> {
        let item = entry.item;
        if item.skipped {
            return Ok(false);
        }
        if let Some((record, _)) = self.live(context.domain, &item.id) {
            let (parts, _) = self.pool.directory.body(record)?;
            let part = parts.get(usize::from(item.part));
            return Ok(part.is_some_and(|p| p.extents == entry.extents));
        }
        let partial = self.partials.get(&context.key(&item.id));
        let part = partial.and_then(|p| p.parts.get(usize::from(item.part))?.as_ref());
        Ok(part.is_some_and(|(body, _)| body.extents == entry.extents))
    }

    fn store(&mut self, context: &Context, entry: &Checked<'_>) -> Result<CommitOutcome, CoreError> {
        let item = entry.item;
        let key = context.key(&item.id);
        let exists = self.index.reader().probe(&item.id).is_some();
        if item.skipped {
            return self.skip(context, item, exists);
        }
        if entry.retry {
            return Ok(match (exists, self.partials.get(&key).is_some()) {
                (true, _) => CommitOutcome::Published,
                (false, true) => CommitOutcome::PartAccepted,
                // An item before this one took its place in the index.
                (false, false) => CommitOutcome::Dropped,
            });
        }
        if exists {
            self.note_not_needed(context, item)?;
            return self.refuse(context, entry, CommitOutcome::Exists);
        }
        if self.partials.turned_away(&key, item.part) {
            return self.refuse(context, entry, CommitOutcome::Skipped);
        }
        if let Some(partial) = self.partials.get(&key) {
            let taken = partial
                .parts
                .get(usize::from(item.part))
                .is_none_or(Option::is_some);
            if taken || partial.tokens != item.tokens {
                return self.refuse(context, entry, CommitOutcome::Exists);
            }
        } else if let Some(refusal) = self.open_partial(context, item)? {
            return self.refuse(context, entry, refusal);
        }
        let Some(record) = self.partials.get(&key).map(|p| p.record) else {
            return self.refuse(context, entry, CommitOutcome::Dropped);
        };
        self.take_credit(context.client, entry.extents)?;
        self.pool.hold_for_partial(record, entry.extents);
        let part = PartBody {
            bytes: item.bytes,
            checksum: item.checksum,
            extents: entry.extents.to_vec(),
        };
        if self
            .partials
            .add_part(&key, item.part, part, item.held_from, context.client)
        {
            if !self.hang_complete(context, item, record)? {
                self.end_partial(&key, Later::TurnedAway)?;
                return Ok(CommitOutcome::NoParent);
            }
            return self.publish(&key);
        }
        Ok(CommitOutcome::PartAccepted)
    }

    fn refuse(
        &mut self,
        context: &Context,
        entry: &Checked<'_>,
        outcome: CommitOutcome,
    ) -> Result<CommitOutcome, CoreError> {
        self.give_back(context.client, entry.extents)?;
        Ok(outcome)
    }

    fn note_not_needed(&mut self, context: &Context, item: &StoreItem) -> Result<(), CoreError> {
        let domain = self.domain(context.domain)?;
        let parts = domain.group(item.id.group).map_or(1, |group| group.parts);
        self.partials.not_needed(context.key(&item.id), item.part, parts);
        Ok(())
    }

    fn skip(
        &mut self,
        context: &Context,
        item: &StoreItem,
        exists: bool,
    ) -> Result<CommitOutcome, CoreError> {
        let key = context.key(&item.id);
        if exists {
            self.note_not_needed(context, item)?;
            return Ok(CommitOutcome::Exists);
        }
        if self.partials.get(&key).is_some() {
            self.end_partial(&key, Later::SkippedBy(item.part))?;
        } else if !self.partials.turned_away(&key, item.part) {
            let parts = self
                .domain(context.domain)?
                .group(item.id.group)
                .map_or(1, |g| g.parts);
            let seen = (0..parts).map(|p| p == item.part).collect();
            self.partials.mark_ended(key, seen);
        }
        Ok(CommitOutcome::Skipped)
    }

    /// Begins an object. The outcome when it cannot be begun.
    fn open_partial(
        &mut self,
        context: &Context,
        item: &StoreItem,
    ) -> Result<Option<CommitOutcome>, CoreError> {
        let domain = self.domain(context.domain)?;
        let Some(group) = domain.group(item.id.group) else {
            return Ok(Some(CommitOutcome::Dropped));
        };
        let (bit, parts) = (group.bit, group.parts);
        let place = match domain.may_precede_anchor(group) {
            true => Place::Root,
            false => self.place(context, domain, group, item),
        };
        let (parent, beside) = match place {
            Place::Root => (None, false),
            Place::Under { record, beside } => (Some(record), beside),
            Place::Missing => return Ok(Some(CommitOutcome::NoParent)),
        };
        let Some(record) = self.records.open(context.domain, bit, parent, beside) else {
            return Ok(Some(CommitOutcome::Dropped));
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
        self.pool.directory.set_state(record, RecordState::Partial);
        let opened = (context.client, context.commits);
        let key = context.key(&item.id);
        self.partials.open(key, record, item.tokens, parts, opened);
        Ok(None)
    }

    /// Marks a tail that other objects have made needless. What is no tail is left alone.
    fn supersede(&mut self, context: &Context, id: &ObjectId) {
        if let Some((record, tokens)) = self.live(context.domain, id)
            && tokens < context.chunk
        {
            self.records.supersede(record);
        }
    }

    /// The live record of an object of a domain, and its tokens.
    pub(super) fn live(&self, domain: u32, id: &ObjectId) -> Option<(u32, u32)> {
        let view = self.index.reader().lookup(id)?;
        (view.domain == domain).then_some((view.record, view.tokens))
    }

    pub(super) fn domain(&self, domain: u32) -> Result<&Domain, CoreError> {
        self.registry
            .get(domain)
            .ok_or(CoreError::NotRegistered { what: "the domain" })
    }
}

impl Context {
    pub(super) fn key(&self, id: &ObjectId) -> PartialKey {
        PartialKey {
            instance: self.instance,
            id: *id,
        }
    }
}
