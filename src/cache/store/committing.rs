//! Commits in turns: checked whole, then applied item by item.
//!
//! Between two turns of a commit others store and evict. What was checked of the client's own stays true, since nobody
//! else changes it: its registration, and that its granted frames are its own. All else is looked at when an item is
//! applied, and becomes its outcome.

use super::commit::Rest;
use super::context::Context;
use super::filling::{Filled, Retry};
use super::grants::Granting;
use super::guards::Spared;
use super::publish::Publication;
use super::runs::{CheckGranted, CheckRuns};
use crate::cache::books::share::Need;
use crate::cache::evict::ends::EndIncomplete;
use crate::cache::turn::Turn;
use crate::cache::{ClientId, Core, CoreError, Progress, Work, finish};
use crate::object::{CommitAnswer, CommitOutcome, CommitRequest, Extent, StoreItem, frames_for};

/// Steps of checking the numbers of an item, of storing it, and of marking a tail.
const CHECK_STEPS: u32 = 2;
const STORE_STEPS: u32 = 16;
const SUPERSEDE_STEPS: u32 = 2;
/// Runs that are looked through in one step.
const RUNS_PER_STEP: usize = 16;
/// Runs that are noted at once.
const RUNS_AT_ONCE: usize = 512;

/// Where a commit is.
#[derive(Debug)]
enum Stage<'a> {
    /// Checks the numbers of each item.
    Check,
    /// Checks that no frame is named twice.
    Runs(CheckRuns),
    /// Checks that the frames of each item are the client's, or hold this very part already.
    Frames(CheckGranted, Retry),
    /// Stores item by item.
    Store,
    /// Marks tails as needless.
    Supersede,
    /// Ends what nobody will complete.
    Abandoned,
    /// Grants space for what comes next.
    Grant(Box<Granting<'a>>),
}

/// [`Core::commit`] in turns.
#[derive(Debug)]
pub struct Committing<'a> {
    client: ClientId,
    request: &'a CommitRequest,
    context: Option<Context>,
    stage: Stage<'a>,
    /// The item that is next in its stage.
    next: usize,
    /// The runs of all items, as far as they have been checked, and how many of them are the next item's.
    named: Vec<Extent>,
    named_of_item: usize,
    /// Of each item, whether its frames hold this very part already: the commit is sent a second time.
    retries: Vec<bool>,
    published: u64,
    outcomes: Vec<CommitOutcome>,
    rest: Rest<'a>,
    ending: Option<EndIncomplete>,
}

impl<'a> Committing<'a> {
    /// What a client's step stored.
    pub fn new(client: ClientId, request: &'a CommitRequest) -> Self {
        Self {
            client,
            request,
            context: None,
            stage: Stage::Check,
            next: 0,
            named: Vec::with_capacity(request.extents.len()),
            named_of_item: 0,
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
        let from = self.named_of_item;
        let some = &extents[from..extents.len().min(from + RUNS_AT_ONCE)];
        turn.spend(CHECK_STEPS + (some.len() / RUNS_PER_STEP) as u32);
        if from > 0 {
            self.name(some, extents.len());
            return Ok(());
        }
        // Items that together name more runs than there are name some twice. Said before anything is done for each of
        // them.
        if self.named.len() + extents.len() > self.request.extents.len() {
            return Err(CoreError::InvalidExtent {
                extent: extents[0],
                frames: core.pool.frames().into(),
                why: "names a frame a second time",
            });
        }
        let unknown = CoreError::NotRegistered {
            what: "this client as a rank of the domain",
        };
        let registration = core.client(self.client)?.registration.as_ref();
        let registration = registration
            .filter(|r| r.domain == context.domain)
            .ok_or(unknown)?;
        core.check_item(context, registration, item, extents)?;
        self.name(some, extents.len());
        Ok(())
    }

    /// Notes some of so many runs of an item. If there are more, it comes again.
    fn name(&mut self, some: &[Extent], of: usize) {
        let named = self.named_of_item + some.len();
        self.named.extend_from_slice(some);
        self.named_of_item = match named < of {
            true => named,
            false => 0,
        };
        self.next -= usize::from(named < of);
    }

    /// Whether the frames of the next item are the client's, or hold its part already.
    fn check_frames(&mut self, core: &Core, turn: &mut Turn, context: &Context) -> Result<(), CoreError> {
        let Stage::Frames(granted, retry) = &mut self.stage else {
            return Ok(());
        };
        let (mut granted, mut held) = (std::mem::take(granted), std::mem::take(retry));
        let Some((item, extents)) = self.item()? else {
            self.stage = Stage::Store;
            self.published = core.publications;
            return Ok(());
        };
        turn.spend(1);
        // As long as it is not known whether it is, nothing is checked of what is granted.
        let retry = match granted.has_begun() {
            true => Some(false),
            false => held.step(core, turn, context, item, extents)?,
        };
        let known = match retry {
            Some(false) => granted.step(core, turn, self.client, extents)?,
            Some(true) => true,
            None => false,
        };
        if known {
            self.retries.push(retry == Some(true));
            (granted, held) = (CheckGranted::default(), Retry::default());
        } else {
            self.next -= 1;
        }
        self.stage = Stage::Frames(granted, held);
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
    fn rest(&mut self, core: &mut Core, turn: &mut Turn, context: &Context) -> Result<bool, CoreError> {
        loop {
            let done = match &mut self.rest {
                Rest::Nothing => return Ok(true),
                Rest::Give(give) => give.step(core, turn)?,
                Rest::End(ending) => ending.step(core, turn)?,
                Rest::Rivals(rivals) => rivals.step(core, turn)?,
                Rest::Fill(filling) => {
                    let (outcome, rest) = match filling.step(core, turn)? {
                        Filled::Not => return Ok(false),
                        Filled::Part => (CommitOutcome::PartAccepted, Rest::Nothing),
                        Filled::Object(record) => {
                            let item = &self.request.items[self.next - 1];
                            core.completed(context, item, record)?
                        }
                        Filled::Gone(rest) => (CommitOutcome::Dropped, Rest::Give(rest)),
                    };
                    self.become_of_last(outcome, rest);
                    continue;
                }
                Rest::Publish { key, seq, scan } => {
                    let (key, seq, scan) = (*key, *seq, *scan);
                    if !scan.map_or(Ok(true), |scan| core.sweep(turn, scan))? {
                        return Ok(false);
                    }
                    let (outcome, rest) = match core.publish(turn, &key, seq, scan)? {
                        Publication::Published(rivals) => (CommitOutcome::Published, Rest::Rivals(rivals)),
                        Publication::Refused(outcome, ending) => {
                            (outcome, ending.map_or(Rest::Nothing, Rest::End))
                        }
                        Publication::Crowded => {
                            let scan = Some(core.sweep.next());
                            (CommitOutcome::Dropped, Rest::Publish { key, seq, scan })
                        }
                        Publication::Preparing => return Ok(false),
                    };
                    self.become_of_last(outcome, rest);
                    continue;
                }
            };
            if !done {
                return Ok(false);
            }
            self.rest = Rest::Nothing;
        }
    }

    /// What became of the last item, and what that brings along.
    fn become_of_last(&mut self, outcome: CommitOutcome, rest: Rest<'a>) {
        if let Some(last) = self.outcomes.last_mut() {
            *last = outcome;
        }
        self.rest = rest;
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
            let held = core.client(self.client)?.granted.frames();
            let missing = frames_for(self.request.grant_bytes).saturating_sub(held);
            let need = Need::Ahead {
                published: self.published,
            };
            let spared = (missing > core.pool.grantable()).then_some(Spared::Items(&self.request.items));
            let granting = Granting::new(self.client, missing, need, spared);
            self.stage = Stage::Grant(Box::new(granting));
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
                let context = core.context(self.client, self.request)?;
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
                        self.stage = Stage::Frames(CheckGranted::default(), Retry::default());
                    }
                }
                Stage::Frames(..) => self.check_frames(core, turn, &context)?,
                Stage::Store => {
                    if self.rest(core, turn, &context)? {
                        self.store(core, turn, &context)?;
                    }
                }
                Stage::Supersede => self.supersede(core, turn, &context)?,
                Stage::Abandoned => {
                    self.end_abandoned(core, turn)?;
                }
                Stage::Grant(granting) => {
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
    pub fn commit(&mut self, client: ClientId, request: &CommitRequest) -> Result<CommitAnswer, CoreError> {
        finish(self, Committing::new(client, request))
    }
}
