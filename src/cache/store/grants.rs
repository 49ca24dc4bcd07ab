//! Granted space: the space that clients may write into before they commit.

use super::guards::{Guarding, Spared};
use super::runs::{CheckGranted, CheckRuns, GiveBack};
use crate::cache::books::incomplete::STALE_COMMITS;
use crate::cache::books::share::{Need, Share};
use crate::cache::evict::ends::{EndIncomplete, LaterParts};
use crate::cache::evict::space::Space;
use crate::cache::steps::RUN_FRAMES;
use crate::cache::steps::frame_steps;
use crate::cache::turn::Turn;
use crate::cache::{ClientId, Core, CoreError, Progress, Work, finish};
use crate::keys::ChunkKey;
use crate::object::{Extent, GrantRequest, frames_for};
use crate::pool::accounting::Class;
use crate::wire::MAX_EXTENTS;

/// Steps of finding out what a client may yet have: a look at all clients.
const ROOM_STEPS: u32 = 16;
/// How often space is made again that others were faster to be granted.
const MISSES: u32 = 4;
/// Steps of granting a run, besides those for its frames.
const RUN_STEPS: u32 = 2;

/// Where a grant is.
#[derive(Debug)]
enum Stage<'a> {
    /// Notes what the space must not take.
    Guard(Guarding<'a>),
    /// Finds out how much the client may have.
    Share,
    /// Ends stale incomplete objects that the client has begun, behind one of that age: they take up its share.
    OwnStale {
        after: u64,
        ending: Option<EndIncomplete>,
    },
    /// Makes space.
    Space(Space),
    /// Grants so many frames, run by run.
    Take(u64),
}

/// Gives a client more space, as far as it may have more and space can be made.
#[derive(Debug)]
pub(crate) struct Granting<'a> {
    client: ClientId,
    frames: u64,
    need: Need,
    stage: Stage<'a>,
    /// Its own stale incomplete objects have ended.
    cleaned: bool,
    /// How often space that was made was gone when it was to be granted.
    missed: u32,
    extents: Vec<Extent>,
}

impl<'a> Granting<'a> {
    /// So many frames, that take nothing of what is spared.
    pub(crate) fn new(client: ClientId, frames: u64, need: Need, spared: Option<Spared<'a>>) -> Self {
        Self {
            client,
            frames,
            need,
            stage: spared.map_or(Stage::Share, |spared| Stage::Guard(Guarding::new(spared))),
            cleaned: false,
            missed: 0,
            extents: Vec::new(),
        }
    }

    /// Goes on until it is granted; what it is. Nothing: the turn is over.
    ///
    /// Never more runs than a reply can name: a pool in small pieces gives less than was asked for.
    pub(crate) fn step(
        &mut self,
        core: &mut Core,
        turn: &mut Turn,
    ) -> Result<Option<Vec<Extent>>, CoreError> {
        loop {
            match &mut self.stage {
                Stage::Guard(guarding) => {
                    if !guarding.step(core, turn, self.client)? {
                        return Ok(None);
                    }
                    self.stage = Stage::Share;
                }
                Stage::Share => {
                    turn.spend(ROOM_STEPS);
                    let (share, need) = (core.share(self.client)?, self.need);
                    let little = share.room(need) < self.frames.min(share.chunk);
                    if need == Need::Now && share.in_incomplete > 0 && little && !self.cleaned {
                        self.cleaned = true;
                        self.stage = Stage::OwnStale {
                            after: 0,
                            ending: None,
                        };
                        continue;
                    }
                    self.frames = self.frames.min(share.room(need));
                    if self.frames == 0 {
                        return self.nothing(core);
                    }
                    self.stage = Stage::Space(Space::new(Some(self.client), self.frames, need));
                }
                Stage::OwnStale { after, ending } => {
                    if let Some(ended) = ending {
                        if !ended.step(core, turn)? {
                            return Ok(None);
                        }
                        *ending = None;
                    }
                    if turn.is_over() {
                        return Ok(None);
                    }
                    turn.spend(1);
                    let next = core.incomplete.next_of_clients(Some((self.client, *after)));
                    let next = next.filter(|(_, incomplete)| {
                        incomplete.opened.0 == self.client && core.has_waited(incomplete, STALE_COMMITS)
                    });
                    match next {
                        Some((key, incomplete)) => {
                            *after = incomplete.seq;
                            if !core.is_guarded(self.client, incomplete.record) {
                                *ending = EndIncomplete::new(core, key, LaterParts::BeginAnew);
                            }
                        }
                        None => self.stage = Stage::Share,
                    }
                }
                Stage::Space(space) => {
                    if !space.step(core, turn)? {
                        return Ok(None);
                    }
                    let given = self.frames.min(core.pool.grantable());
                    if given == 0 && self.extents.is_empty() {
                        // While the pool grows nothing is given up yet.
                        core.counters.dropped_stores +=
                            u64::from(self.need == Need::Now && !core.is_growing());
                        return self.nothing(core);
                    }
                    // Room that is not touched before it is used: a long list that moves when it grows takes long.
                    let most = given.min(MAX_EXTENTS as u64) as usize;
                    self.extents
                        .reserve_exact(most.saturating_sub(self.extents.len()));
                    self.stage = Stage::Take(given);
                }
                Stage::Take(left) => {
                    let left = *left;
                    if left == 0 || self.extents.len() >= MAX_EXTENTS {
                        core.unguard(self.client)?;
                        return Ok(Some(std::mem::take(&mut self.extents)));
                    }
                    if turn.is_over() {
                        return Ok(None);
                    }
                    self.take(core, turn, left)?;
                }
            }
        }
    }

    fn take(&mut self, core: &mut Core, turn: &mut Turn, left: u64) -> Result<(), CoreError> {
        let last = self.extents.last().and_then(|last| last.end());
        let run = core.pool.grant_run(self.client.slab, left, RUN_FRAMES, last)?;
        let Some(run) = run else {
            // Others were granted it between two turns.
            self.missed += 1;
            self.frames = left;
            self.stage = match self.missed {
                MISSES => Stage::Take(0),
                _ => Stage::Space(Space::new(Some(self.client), left, self.need)),
            };
            return Ok(());
        };
        turn.spend(RUN_STEPS + frame_steps(1, run.count.into()));
        core.client_mut(self.client)?.granted.add(run);
        self.stage = Stage::Take(left - u64::from(run.count));
        match self.extents.last_mut() {
            Some(before) if last == Some(run.frame) => before.count += run.count,
            _ => self.extents.push(run),
        }
        Ok(())
    }

    /// A step that could store nothing is a step all the same: incomplete objects that fill a client's share become
    /// stale by it.
    fn nothing(&self, core: &mut Core) -> Result<Option<Vec<Extent>>, CoreError> {
        core.unguard(self.client)?;
        core.client_mut(self.client)?.commits += u64::from(self.need == Need::Now);
        Ok(Some(Vec::new()))
    }
}

/// [`Core::grant_for`] in turns.
#[derive(Debug)]
pub struct Grant<'a> {
    client: ClientId,
    bytes: u64,
    under: &'a [ChunkKey],
    ahead: bool,
    granting: Option<Granting<'a>>,
}

impl<'a> Grant<'a> {
    /// For a client, up to so many bytes for what hangs under nothing.
    pub fn new(client: ClientId, bytes: u64) -> Self {
        Self {
            client,
            bytes,
            under: &[],
            ahead: false,
            granting: None,
        }
    }

    /// For what a client asks.
    pub fn asked(client: ClientId, request: &'a GrantRequest) -> Self {
        Self {
            under: &request.under,
            ahead: request.ahead,
            ..Self::new(client, request.bytes)
        }
    }

    fn begin(&self, core: &Core) -> Result<Granting<'a>, CoreError> {
        core.require_chunk_size()?;
        core.attached(self.client)?;
        let frames = frames_for(self.bytes);
        if self.ahead {
            let need = Need::Ahead {
                published: core.publications,
            };
            let free = frames.min(core.pool.grantable());
            return Ok(Granting::new(self.client, free, need, None));
        }
        let makes_room = frames > core.pool.grantable() || core.incomplete.frames_of(self.client) > 0;
        let spared = makes_room.then_some(Spared::Chunks(self.under));
        Ok(Granting::new(self.client, frames, Need::Now, spared))
    }
}

impl Work for Grant<'_> {
    type Answer = Vec<Extent>;

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<Vec<Extent>>, CoreError> {
        let granting = match &mut self.granting {
            Some(granting) => granting,
            None => {
                let granting = self.begin(core)?;
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
        finish(self, Grant::new(client, bytes))
    }

    /// Grants space to write into: up to `bytes`, rounded up to whole frames. Less, and maybe nothing, when the client
    /// has its share or no space can be made: what cannot be stored is dropped, not awaited. Only while the pool is
    /// being made present may asking again help. How much one client may hold is said in `share`.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::NotAttached`], [`CoreError::UnknownClient`].
    pub fn grant_for(&mut self, client: ClientId, request: &GrantRequest) -> Result<Vec<Extent>, CoreError> {
        finish(self, Grant::asked(client, request))
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
        let clients = self.clients.iter().flatten();
        let storing = clients.filter(|c| c.registration.as_ref().is_some_and(|r| r.stores));
        let registered = entry.registration.as_ref().map(|r| r.domain);
        let domain = registered.and_then(|domain| self.registry.get(domain));
        let parts = domain.and_then(|domain| domain.groups.iter().map(|group| group.parts).max());
        Ok(Share {
            pool: self.pool.frames().into(),
            storing: storing.count() as u64,
            parts: parts.unwrap_or(1).into(),
            chunk: self.chunk_frames(client)?,
            granted: entry.granted.frames(),
            in_incomplete: self.incomplete.frames_of(client),
            all_granted: self.clients.iter().flatten().map(|c| c.granted.frames()).sum(),
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
