//! Commits: checked whole, then applied item by item. With its last part an object is published.
//!
//! May import everything of this module.
//!
//! Between two turns of a commit others store and evict. What was checked of the client's own stays true, since nobody else
//! changes it: its registration, and that its granted frames are its own. All else is looked at when an item is applied, and
//! becomes its outcome.

use super::api::{ClientId, CommitAnswer, CommitOutcome, CommitRequest, ObjectId, StoreItem};
use super::core::{Core, RankRegistration};
use super::ends::{EndPartial, EndRivals};
use super::error::CoreError;
use super::evict::{Later, Need, frame_steps};
use super::grants::Granting;
use super::guards::Spared;
use super::partials::{PartialKey, Seen};
use super::place::Place;
use super::publish::Publication;
use super::record::{Holding, RecordWords};
use super::registry::Domain;
use super::runs::{CheckGranted, CheckRuns, GiveBack};
use super::turn::{Progress, Turn, Work, finish};
use crate::geometry::ObjectKind;
use crate::pool::body::{MAX_PART_EXTENTS, PartBody};
use crate::pool::{Extent, Owner, RecordState, count_frames, frames_for};

/// Steps of checking the numbers of an item, of storing it, and of marking a tail.
const CHECK_STEPS: u32 = 2;
const STORE_STEPS: u32 = 8;
const SUPERSEDE_STEPS: u32 = 2;
/// Runs that are looked through in one step.
const RUNS_PER_STEP: usize = 16;

/// Who commits, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    client: ClientId,
    instance: [u8; 16],
    commits: u64,
    pub(super) domain: u32,
    pub(super) chunk: u32,
}

/// Where a commit is.
#[derive(Debug)]
enum Stage<'a> {
    /// Checks the numbers of each item.
    Check,
    /// Checks that no frame is named twice.
    Runs(CheckRuns),
    /// Checks that the frames of each item are the client's, or hold this very part already.
    Frames(CheckGranted),
    /// Stores item by item.
    Store,
    /// Marks tails as needless.
    Supersede,
    /// Ends what nobody will complete.
    Abandoned,
    /// Grants space for what comes next.
    Credit(Granting<'a>),
}

/// What one item brings along, before the next.
#[derive(Debug)]
enum Rest<'a> {
    Nothing,
    /// Its frames become free.
    Give(GiveBack<'a>),
    /// A partial ends.
    End(EndPartial),
    /// It is complete and becomes visible, perhaps after a scan of the pins.
    Publish {
        key: PartialKey,
        scan: Option<u64>,
    },
    /// It is visible.
    Rivals(EndRivals),
}

/// [`Core::commit`] in turns.
#[derive(Debug)]
pub struct Committing<'a> {
    client: ClientId,
    request: CommitRequest<'a>,
    context: Option<Context>,
    stage: Stage<'a>,
    /// The item that is next in its stage.
    next: usize,
    /// The runs of all items, as far as they have been checked.
    named: Vec<Extent>,
    /// Of each item, whether its frames hold this very part already: the commit is sent a second time.
    retries: Vec<bool>,
    published: u64,
    outcomes: Vec<CommitOutcome>,
    rest: Rest<'a>,
    ending: Option<EndPartial>,
}

impl<'a> Committing<'a> {
    /// What a client's step stored.
    pub fn new(client: ClientId, request: CommitRequest<'a>) -> Self {
        Self {
            client,
            request,
            context: None,
            stage: Stage::Check,
            next: 0,
            named: Vec::with_capacity(request.extents.len()),
            retries: Vec::with_capacity(request.items.len()),
            published: 0,
            outcomes: Vec::with_capacity(request.items.len()),
            rest: Rest::Nothing,
            ending: None,
        }
    }

    /// The next item of this stage, and its runs.
    fn item(&mut self) -> Result<Option<(&'a StoreItem, &'a [Extent])>, CoreError> {
        let Some(item) = self.request.items.get(self.next) else {
            self.next = 0;
            return Ok(None);
        };
        self.next += 1;
        let first = item.first_extent as usize;
        let extents = self
            .request
            .extents
            .get(first..first + item.extent_count as usize);
        let extents = extents.ok_or(CoreError::InvalidArgument {
            field: "first extent plus extent count",
            value: first as u64 + u64::from(item.extent_count),
            expected: "it must not exceed the number of extents in the commit",
        })?;
        Ok(Some((item, extents)))
    }

    fn check(&mut self, core: &Core, turn: &mut Turn, context: &Context) -> Result<(), CoreError> {
        let Some((item, extents)) = self.item()? else {
            self.stage = Stage::Runs(CheckRuns::default());
            return Ok(());
        };
        // Items that together name more runs than there are name some twice. Said before anything is done for each of them.
        if self.named.len() + extents.len() > self.request.extents.len() {
            return Err(CoreError::InvalidExtent {
                extent: extents[0],
                frames: core.pool.frames().into(),
                why: "names a frame a second time",
            });
        }
        turn.spend(CHECK_STEPS + (extents.len() / RUNS_PER_STEP) as u32);
        let unknown = CoreError::NotRegistered {
            what: "this client as a rank of the domain",
        };
        let registration = core.client(self.client)?.registration.as_ref();
        let registration = registration
            .filter(|r| r.domain == context.domain)
            .ok_or(unknown)?;
        core.check_item(context, registration, item, extents)?;
        self.named.extend_from_slice(extents);
        Ok(())
    }

    /// Whether the frames of the next item are the client's, or hold its part already.
    fn check_frames(&mut self, core: &Core, turn: &mut Turn, context: &Context) -> Result<(), CoreError> {
        let Stage::Frames(granted) = &mut self.stage else {
            return Ok(());
        };
        let mut granted = std::mem::take(granted);
        let Some((item, extents)) = self.item()? else {
            self.stage = Stage::Store;
            self.published = core.publications;
            return Ok(());
        };
        turn.spend(1);
        let retry = core.holds_already(turn, context, item, extents)?;
        if !retry && !granted.step(core, turn, self.client, extents)? {
            self.next -= 1;
        } else {
            self.retries.push(retry);
            granted = CheckGranted::default();
        }
        self.stage = Stage::Frames(granted);
        Ok(())
    }

    fn store(&mut self, core: &mut Core, turn: &mut Turn, context: &Context) -> Result<(), CoreError> {
        let at = self.next;
        let Some((item, extents)) = self.item()? else {
            self.stage = Stage::Supersede;
            return Ok(());
        };
        turn.spend(STORE_STEPS);
        let retry = self.retries[at];
        let (outcome, rest) = core.store(turn, context, item, extents, retry)?;
        self.outcomes.push(outcome);
        self.rest = rest;
        Ok(())
    }

    /// Goes on with what the last item brought along. False: the turn is over.
    fn rest(&mut self, core: &mut Core, turn: &mut Turn) -> Result<bool, CoreError> {
        loop {
            let done = match &mut self.rest {
                Rest::Nothing => return Ok(true),
                Rest::Give(give) => give.step(core, turn)?,
                Rest::End(ending) => ending.step(core, turn)?,
                Rest::Rivals(rivals) => rivals.step(core, turn)?,
                Rest::Publish { key, scan } => {
                    let (key, scan) = (*key, *scan);
                    if !scan.map_or(Ok(true), |scan| core.sweep(turn, scan))? {
                        return Ok(false);
                    }
                    let (outcome, rest) = match core.publish(turn, &key, scan)? {
                        Publication::Published(rivals) => (CommitOutcome::Published, Rest::Rivals(rivals)),
                        Publication::Refused(outcome, ending) => {
                            (outcome, ending.map_or(Rest::Nothing, Rest::End))
                        }
                        Publication::Crowded => {
                            let scan = Some(core.sweep.next());
                            (CommitOutcome::Dropped, Rest::Publish { key, scan })
                        }
                    };
                    if let Some(last) = self.outcomes.last_mut() {
                        *last = outcome;
                    }
                    self.rest = rest;
                    continue;
                }
            };
            if !done {
                return Ok(false);
            }
            self.rest = Rest::Nothing;
        }
    }

    fn supersede(&mut self, core: &mut Core, turn: &mut Turn, context: &Context) -> Result<(), CoreError> {
        turn.spend(SUPERSEDE_STEPS);
        if let Some(id) = self.request.supersedes.get(self.next) {
            self.next += 1;
            core.supersede(context, id);
            return Ok(());
        }
        core.client_mut(self.client)?.commits += 1;
        self.stage = Stage::Abandoned;
        Ok(())
    }

    /// Goes on with what nobody will complete. False: the turn is over.
    fn end_abandoned(&mut self, core: &mut Core, turn: &mut Turn) -> Result<bool, CoreError> {
        if self.ending.is_none() {
            turn.spend(1);
            self.ending = core.abandoned_by(self.client);
        }
        let Some(ending) = &mut self.ending else {
            let held = core.client(self.client)?.credit.frames();
            let missing = frames_for(self.request.credit_bytes).saturating_sub(held);
            let need = Need::Ahead {
                published: self.published,
            };
            let spared = (missing > core.pool.grantable()).then_some(Spared::Items(self.request.items));
            self.stage = Stage::Credit(Granting::new(self.client, missing, need, spared));
            return Ok(true);
        };
        let done = ending.step(core, turn)?;
        if done {
            self.ending = None;
        }
        Ok(done)
    }
}

impl Work for Committing<'_> {
    type Answer = CommitAnswer;

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<CommitAnswer>, CoreError> {
        let context = match self.context {
            Some(context) => context,
            None => {
                let context = core.context(self.client, &self.request)?;
                *self.context.insert(context)
            }
        };
        loop {
            if turn.is_over() {
                return Ok(Progress::More);
            }
            match &mut self.stage {
                Stage::Check => self.check(core, turn, &context)?,
                Stage::Runs(check) => {
                    if check.step(core, turn, &self.named)? {
                        self.named = Vec::new();
                        self.stage = Stage::Frames(CheckGranted::default());
                    }
                }
                Stage::Frames(_) => self.check_frames(core, turn, &context)?,
                Stage::Store => {
                    if self.rest(core, turn)? {
                        self.store(core, turn, &context)?;
                    }
                }
                Stage::Supersede => self.supersede(core, turn, &context)?,
                Stage::Abandoned => {
                    self.end_abandoned(core, turn)?;
                }
                Stage::Credit(granting) => {
                    let Some(granted) = granting.step(core, turn)? else {
                        return Ok(Progress::More);
                    };
                    let outcomes = std::mem::take(&mut self.outcomes);
                    return Ok(Progress::Done(CommitAnswer { outcomes, granted }));
                }
            }
        }
    }
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
        finish(self, Committing::new(client, *request))
    }

    fn context(&self, client: ClientId, request: &CommitRequest<'_>) -> Result<Context, CoreError> {
        self.require_chunk_size()?;
        let entry = self.attached(client)?;
        let (domain, layout) = self.registry.find(&request.domain_seed)?;
        let unknown = CoreError::NotRegistered {
            what: "this client as a rank of the domain",
        };
        let registered = entry.registration.as_ref().filter(|r| r.domain == domain);
        if registered.ok_or(unknown)?.replaced {
            return Err(CoreError::NotRegistered {
                what: "this client, since another one of its engine has the same rank of the domain now,",
            });
        }
        Ok(Context {
            client,
            instance: entry.info.engine_instance,
            commits: entry.commits,
            domain,
            chunk: layout.chunk,
        })
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
    fn holds_already(
        &self,
        turn: &mut Turn,
        context: &Context,
        item: &StoreItem,
        extents: &[Extent],
    ) -> Result<bool, CoreError> {
        let Some(first) = extents.first().filter(|_| !item.skipped) else {
            return Ok(false);
        };
        // Only then is it worth a look at the whole body.
        let Owner::Record(holder) = self.pool.directory.owner(first.frame)? else {
            return Ok(false);
        };
        turn.spend(frame_steps(extents.len(), 0));
        if let Some((record, _)) = self.live(context.domain, &item.id) {
            if record != holder {
                return Ok(false);
            }
            let (parts, blocks) = self.pool.directory.body(record)?;
            turn.spend(2 * blocks.len() as u32);
            let part = parts.get(usize::from(item.part));
            return Ok(part.is_some_and(|p| p.extents == extents));
        }
        let partial = self.partials.get(&context.key(&item.id));
        let part = partial.and_then(|partial| partial.part(item.part));
        Ok(part.is_some_and(|part| part.body.extents == extents))
    }

    fn store<'a>(
        &mut self,
        turn: &mut Turn,
        context: &Context,
        item: &StoreItem,
        extents: &'a [Extent],
        retry: bool,
    ) -> Result<(CommitOutcome, Rest<'a>), CoreError> {
        let key = context.key(&item.id);
        let registration = self.client(context.client)?.registration.as_ref();
        let replaced = registration.is_none_or(|r| r.replaced);
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
            let outcome = match (exists, self.partials.get(&key).is_some()) {
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
        if self.partials.turned_away(&key, item.part) {
            return Ok(refuse(CommitOutcome::Skipped));
        }
        if let Some(partial) = self.partials.get(&key) {
            if partial.part(item.part).is_some() || partial.tokens != item.tokens {
                return Ok(refuse(CommitOutcome::Exists));
            }
        } else if let Some(refusal) = self.open_partial(context, item)? {
            return Ok(refuse(refusal));
        }
        let Some(record) = self.partials.get(&key).map(|p| p.record) else {
            return Ok(refuse(CommitOutcome::Dropped));
        };
        turn.spend(frame_steps(extents.len(), count_frames(extents)));
        self.take_credit(context.client, extents)?;
        self.pool.hold_for_partial(record, extents);
        let part = PartBody {
            bytes: item.bytes,
            checksum: item.checksum,
            extents: extents.to_vec(),
        };
        let complete = self
            .partials
            .add_part(&key, item.part, part, item.held_from, context.client);
        if !complete {
            return Ok((CommitOutcome::PartAccepted, Rest::Nothing));
        }
        if !self.hang_complete(context, item, record)? {
            let ending = EndPartial::new(self, &key, Later::TurnedAway);
            return Ok((CommitOutcome::NoParent, ending.map_or(Rest::Nothing, Rest::End)));
        }
        // The outcome is set when it is known.
        Ok((CommitOutcome::Dropped, Rest::Publish { key, scan: None }))
    }

    fn note_not_needed(&mut self, context: &Context, item: &StoreItem) -> Result<(), CoreError> {
        let domain = self.domain(context.domain)?;
        let parts = domain.group(item.id.group).map_or(1, |group| group.parts);
        self.partials.not_needed(context.key(&item.id), item.part, parts);
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
        if let Some(ending) = EndPartial::new(self, &key, Later::SkippedBy(item.part)) {
            return Ok((CommitOutcome::Skipped, Rest::End(ending)));
        }
        if !self.partials.turned_away(&key, item.part) {
            let parts = self
                .domain(context.domain)?
                .group(item.id.group)
                .map_or(1, |g| g.parts);
            self.partials.mark_ended(key, Seen::only(item.part, parts));
        }
        Ok((CommitOutcome::Skipped, Rest::Nothing))
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
            domain: self.domain,
            id: *id,
        }
    }
}
