//! Credit: the space that clients may write into before they commit.
//!
//! May import everything of this module.

use super::api::{ClientId, GrantRequest};
use super::core::Core;
use super::credit::Share;
use super::ends::EndPartial;
use super::error::CoreError;
use super::evict::{Later, Need, Space, frame_steps};
use super::guards::{Guarding, Guards, Under};
use super::runs::{CheckGranted, CheckRuns, GiveBack};
use super::turn::{Progress, Turn, Work, finish};
use crate::pool::accounting::Class;
use crate::pool::{Extent, frames_for};
use crate::wire::MAX_EXTENTS;

/// Frames of a run that change hands at once.
pub(super) const RUN_FRAMES: u32 = 512;
/// Steps of finding out what a client may yet have: a look at all clients.
const ROOM_STEPS: u32 = 16;
/// How often space is made again that others were faster to be granted.
const MISSES: u32 = 4;
/// Steps of granting a run, besides those for its frames.
const RUN_STEPS: u32 = 2;

/// Where it is.
#[derive(Debug)]
enum Stage<'a> {
    /// Finds out how much the client may have.
    Room,
    /// Finds out what is spared.
    Guards(Guarding<'a>),
    /// Looks for stale partials that the client has begun, after one of that age: they take up its share.
    Own { after: u64 },
    /// Ends one of them, of that age.
    End { ending: EndPartial, seq: u64 },
    /// Makes space for so many frames.
    Space { space: Space, wanted: u64 },
    /// Grants what there is, up to so many frames.
    Give { left: u64 },
}

/// Gives a client more credit, as far as it may have more and space can be made.
#[derive(Debug)]
pub(super) struct Granting<'a> {
    client: ClientId,
    frames: u64,
    need: Need,
    /// What nothing is evicted of; nothing: nothing is evicted at all.
    under: Option<Under<'a>>,
    /// That, found.
    guards: Option<Guards>,
    /// The client's own stale partials have ended.
    own_ended: bool,
    stage: Stage<'a>,
    /// How often space that was made was gone when it was to be granted.
    missed: u32,
    extents: Vec<Extent>,
}

impl<'a> Granting<'a> {
    /// For stores that hang under these, which are spared.
    pub(super) fn new(client: ClientId, frames: u64, need: Need, under: Under<'a>) -> Self {
        Self {
            client,
            frames,
            need,
            under: Some(under),
            guards: None,
            own_ended: false,
            stage: Stage::Room,
            missed: 0,
            extents: Vec::new(),
        }
    }

    /// For stores to come, of what is free.
    fn of_free(client: ClientId, frames: u64, published: u64) -> Self {
        Self {
            under: None,
            ..Self::new(client, frames, Need::Ahead { published }, Under::Chunks(&[]))
        }
    }

    /// Goes on until it is granted; what it is. Nothing: the turn is over.
    ///
    /// Never more runs than a reply can name: a pool in small pieces gives less than was asked for.
    pub(super) fn step(
        &mut self,
        core: &mut Core,
        turn: &mut Turn,
    ) -> Result<Option<Vec<Extent>>, CoreError> {
        loop {
            if turn.is_over() {
                return Ok(None);
            }
            match &mut self.stage {
                Stage::Room => {
                    turn.spend(ROOM_STEPS);
                    match self.room(core)? {
                        Some(stage) => self.stage = stage,
                        None => return self.end(core, false),
                    }
                }
                Stage::Guards(guarding) => {
                    let Some(guards) = guarding.step(core, turn, self.client)? else {
                        return Ok(None);
                    };
                    self.guards = Some(guards);
                    self.stage = Stage::Room;
                }
                Stage::Own { after } => {
                    turn.spend(1);
                    let next = core.partials.next_of(self.client, *after);
                    let stale = next.filter(|(_, partial)| core.is_stale(partial));
                    let Some((key, partial)) = stale else {
                        self.own_ended = true;
                        self.stage = Stage::Room;
                        continue;
                    };
                    let (seq, guards) = (partial.seq, self.guards.as_ref());
                    let spared = guards.is_some_and(|guards| guards.spare(partial.record, &core.records));
                    match EndPartial::new(core, key, Later::Welcome).filter(|_| !spared) {
                        Some(ending) => self.stage = Stage::End { ending, seq },
                        None => *after = seq,
                    }
                }
                Stage::End { ending, seq } => {
                    let after = *seq;
                    if !ending.step(core, turn)? {
                        return Ok(None);
                    }
                    self.stage = Stage::Own { after };
                }
                Stage::Space { space, wanted } => {
                    if !space.step(core, turn)? {
                        return Ok(None);
                    }
                    let left = (*wanted).min(core.pool.grantable());
                    if left == 0 {
                        return self.end(core, true);
                    }
                    self.stage = Stage::Give { left };
                }
                Stage::Give { left } => {
                    if *left == 0 || self.extents.len() >= MAX_EXTENTS {
                        return self.end(core, false);
                    }
                    let last = self.extents.last().and_then(|last| last.end());
                    let run = core.pool.grant_run(self.client.slab, *left, RUN_FRAMES, last)?;
                    let Some(run) = run else {
                        // Others were granted it between two turns.
                        if self.missed >= MISSES {
                            return self.end(core, true);
                        }
                        self.missed += 1;
                        self.frames = *left;
                        self.stage = Stage::Room;
                        continue;
                    };
                    turn.spend(RUN_STEPS + frame_steps(1, run.count.into()));
                    core.client_mut(self.client)?.credit.add(run);
                    *left -= u64::from(run.count);
                    match self.extents.last_mut() {
                        Some(before) if last == Some(run.frame) => before.count += run.count,
                        _ => self.extents.push(run),
                    }
                }
            }
        }
    }

    /// What is to be done, as much as the client may have; nothing where that is nothing.
    fn room(&self, core: &Core) -> Result<Option<Stage<'a>>, CoreError> {
        let share = core.share(self.client)?;
        let wanted = self.frames.min(share.room(self.need));
        let there = core.pool.grantable();
        let give = |left: u64| (left > 0).then_some(Stage::Give { left });
        let Some(under) = self.under else {
            return Ok(give(wanted.min(there)));
        };
        let needs_own = self.need == Need::Now && share.in_partials > 0 && !self.own_ended;
        let needs_own = needs_own && wanted < self.frames.min(share.chunk);
        // While the pool grows nothing goes.
        let needs_space = wanted > there && !core.is_growing();
        if (needs_own || needs_space) && self.guards.is_none() {
            return Ok(Some(Stage::Guards(Guarding::new(under))));
        }
        if needs_own {
            return Ok(Some(Stage::Own { after: 0 }));
        }
        if !needs_space {
            return Ok(give(wanted.min(there)));
        }
        let engine = core.client(self.client)?.info.engine_instance;
        let space = Space::new(wanted, self.need).sparing(self.guards.clone().unwrap_or_default(), engine);
        Ok(Some(Stage::Space { space, wanted }))
    }

    /// What was granted. `lacked`: there was no room for more.
    fn end(&mut self, core: &mut Core, lacked: bool) -> Result<Option<Vec<Extent>>, CoreError> {
        if self.extents.is_empty() && self.need == Need::Now {
            // A step that could store nothing is a step all the same: partials that fill a client's share become stale by it.
            core.client_mut(self.client)?.commits += 1;
            // While the pool grows nothing is given up yet. Who has its share gives up nothing that there was no room for.
            core.counters.dropped_stores += u64::from(lacked && !core.is_growing());
        }
        Ok(Some(std::mem::take(&mut self.extents)))
    }
}

/// [`Core::grant_for`] in turns.
#[derive(Debug)]
pub struct Grant<'a> {
    client: ClientId,
    request: GrantRequest<'a>,
    granting: Option<Granting<'a>>,
}

impl<'a> Grant<'a> {
    /// For a client.
    pub fn new(client: ClientId, request: GrantRequest<'a>) -> Self {
        Self {
            client,
            request,
            granting: None,
        }
    }
}

impl Work for Grant<'_> {
    type Answer = Vec<Extent>;

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<Vec<Extent>>, CoreError> {
        let granting = match &mut self.granting {
            Some(granting) => granting,
            None => {
                core.require_chunk_size()?;
                core.attached(self.client)?;
                let frames = frames_for(self.request.bytes);
                let granting = match self.request.ahead {
                    true => Granting::of_free(self.client, frames, core.publications),
                    false => {
                        let under = Under::Chunks(self.request.under);
                        Granting::new(self.client, frames, Need::Now, under)
                    }
                };
                self.granting.insert(granting)
            }
        };
        let granted = granting.step(core, turn)?;
        Ok(granted.map_or(Progress::More, Progress::Done))
    }
}

/// [`Core::abort`] in turns.
#[derive(Debug)]
pub struct Abort<'a> {
    client: ClientId,
    extents: &'a [Extent],
    check: CheckRuns,
    granted: CheckGranted,
    give: Option<GiveBack<'a>>,
}

impl<'a> Abort<'a> {
    /// Of a client's granted space.
    pub fn new(client: ClientId, extents: &'a [Extent]) -> Self {
        Self {
            client,
            extents,
            check: CheckRuns::default(),
            granted: CheckGranted::default(),
            give: None,
        }
    }
}

impl Work for Abort<'_> {
    type Answer = ();

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<()>, CoreError> {
        core.client(self.client)?;
        if !self.check.step(core, turn, self.extents)? {
            return Ok(Progress::More);
        }
        if !self.granted.step(core, turn, self.client, self.extents)? {
            return Ok(Progress::More);
        }
        // Between two of a client's own requests nobody else changes what it was granted.
        let give = self
            .give
            .get_or_insert_with(|| GiveBack::new(self.client, self.extents));
        match give.step(core, turn)? {
            true => Ok(Progress::Done(())),
            false => Ok(Progress::More),
        }
    }
}

impl Core {
    /// Grants space for what hangs under nothing: [`Core::grant_for`] with the rest left out.
    ///
    /// # Errors
    /// As [`Core::grant_for`].
    pub fn grant(&mut self, client: ClientId, bytes: u64) -> Result<Vec<Extent>, CoreError> {
        self.grant_for(client, &GrantRequest::of(bytes))
    }

    /// Grants space to write into: up to `bytes`, rounded up to whole frames. Less, and maybe nothing, when
    /// the client has its share or no space can be made: what cannot be stored is dropped, not awaited. Only while the pool is
    /// being made present may asking again help. How much one client may hold is said in `credit`.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::NotAttached`], [`CoreError::UnknownClient`].
    pub fn grant_for(
        &mut self,
        client: ClientId,
        request: &GrantRequest<'_>,
    ) -> Result<Vec<Extent>, CoreError> {
        finish(self, Grant::new(client, *request))
    }

    /// Takes granted space back unused: all of it or, when one frame is not granted, none.
    ///
    /// # Errors
    /// [`CoreError::InvalidExtent`], [`CoreError::ExtentNotGranted`], [`CoreError::UnknownClient`].
    pub fn abort(&mut self, client: ClientId, extents: &[Extent]) -> Result<(), CoreError> {
        finish(self, Abort::new(client, extents))
    }

    /// What a client holds, and what it is measured by.
    fn share(&self, client: ClientId) -> Result<Share, CoreError> {
        let entry = self.client(client)?;
        let (mut storing, mut all_credit) = (0, 0);
        for other in self.clients.iter().flatten() {
            storing += u64::from(other.registration.as_ref().is_some_and(|r| r.stores));
            all_credit += other.credit.frames();
        }
        let registered = entry.registration.as_ref().map(|r| r.domain);
        let domain = registered.and_then(|domain| self.registry.get(domain));
        let parts = domain.and_then(|domain| domain.groups.iter().map(|group| group.parts).max());
        Ok(Share {
            pool: self.pool.frames().into(),
            storing,
            parts: parts.unwrap_or(1).into(),
            chunk: self.chunk_frames(client)?,
            credit: entry.credit.frames(),
            in_partials: self.partials.frames_of(client),
            all_credit,
            all: self.pool.books().frames(Class::Granted),
        })
    }

    /// Frames of one full chunk of everything that a client stores.
    fn chunk_frames(&self, client: ClientId) -> Result<u64, CoreError> {
        let Some(registration) = &self.client(client)?.registration else {
            return Ok(0);
        };
        let Some(domain) = self.registry.get(registration.domain) else {
            return Ok(0);
        };
        let bytes = registration.parts.iter().filter_map(|(group, part)| {
            domain
                .group(*group)?
                .part_bytes(*part, domain.chunk, domain.alignment)
        });
        Ok(bytes.map(frames_for).sum())
    }
}
