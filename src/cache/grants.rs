//! Credit: the space that clients may write into before they commit.
//!
//! May import everything of this module.

use super::api::ClientId;
use super::core::Core;
use super::error::CoreError;
use super::evict::{Need, Space, frame_steps};
use super::runs::{CheckGranted, CheckRuns, GiveBack};
use super::turn::{Progress, Turn, Work, finish};
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

/// Gives a client more credit, as far as it may have more and space can be made.
#[derive(Debug)]
pub(super) struct Granting {
    client: ClientId,
    frames: u64,
    need: Need,
    space: Option<Space>,
    /// Frames that are yet to be granted, once there is space.
    left: Option<u64>,
    /// How often space that was made was gone when it was to be granted.
    missed: u32,
    extents: Vec<Extent>,
}

impl Granting {
    pub(super) fn new(client: ClientId, frames: u64, need: Need) -> Self {
        Self {
            client,
            frames,
            need,
            space: None,
            left: None,
            missed: 0,
            extents: Vec::new(),
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
        'space: loop {
            let space = match &mut self.space {
                Some(space) => space,
                None => {
                    turn.spend(ROOM_STEPS);
                    let wanted = self.frames.min(core.credit_room(self.client)?);
                    if wanted == 0 {
                        return Ok(Some(Vec::new()));
                    }
                    self.frames = wanted;
                    self.space.insert(Space::new(wanted, self.need))
                }
            };
            let mut left = match self.left {
                Some(left) => left,
                None => {
                    if !space.step(core, turn)? {
                        return Ok(None);
                    }
                    let given = self.frames.min(core.pool.grantable());
                    let nothing = given == 0 && self.extents.is_empty();
                    core.counters.dropped_stores += u64::from(nothing && self.need == Need::Now);
                    given
                }
            };
            while left > 0 && self.extents.len() < MAX_EXTENTS {
                self.left = Some(left);
                if turn.is_over() {
                    return Ok(None);
                }
                let last = self.extents.last().and_then(|last| last.end());
                let run = core.pool.grant_run(self.client.slab, left, RUN_FRAMES, last)?;
                let Some(run) = run else {
                    // Others were granted it between two turns.
                    if self.missed >= MISSES {
                        break;
                    }
                    self.missed += 1;
                    (self.space, self.left) = (Some(Space::new(left, self.need)), None);
                    self.frames = left;
                    continue 'space;
                };
                turn.spend(RUN_STEPS + frame_steps(1, run.count.into()));
                core.client_mut(self.client)?.credit.add(run);
                left -= u64::from(run.count);
                match self.extents.last_mut() {
                    Some(before) if last == Some(run.frame) => before.count += run.count,
                    _ => self.extents.push(run),
                }
            }
            return Ok(Some(std::mem::take(&mut self.extents)));
        }
    }
}

/// [`Core::grant`] in turns.
#[derive(Debug)]
pub struct Grant {
    client: ClientId,
    frames: u64,
    granting: Option<Granting>,
}

impl Grant {
    /// For a client, up to so many bytes.
    pub fn new(client: ClientId, bytes: u64) -> Self {
        Self {
            client,
            frames: frames_for(bytes),
            granting: None,
        }
    }
}

impl Work for Grant {
    type Answer = Vec<Extent>;

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<Vec<Extent>>, CoreError> {
        let granting = match &mut self.granting {
            Some(granting) => granting,
            None => {
                core.require_chunk_size()?;
                core.attached(self.client)?;
                let granting = Granting::new(self.client, self.frames, Need::Now);
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
    /// Grants space to write into: up to `bytes`, rounded up to whole frames. Less, and maybe nothing, when
    /// the credit limit is reached or no space can be made: what cannot be stored is dropped, not awaited.
    ///
    /// One client holds at most half of the pool, all together three quarters, but each may have one object
    /// of every group it has registered.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::NotAttached`], [`CoreError::UnknownClient`].
    pub fn grant(&mut self, client: ClientId, bytes: u64) -> Result<Vec<Extent>, CoreError> {
        finish(self, Grant::new(client, bytes))
    }

    /// Takes granted space back unused: all of it or, when one frame is not granted, none.
    ///
    /// # Errors
    /// [`CoreError::InvalidExtent`], [`CoreError::ExtentNotGranted`], [`CoreError::UnknownClient`].
    pub fn abort(&mut self, client: ClientId, extents: &[Extent]) -> Result<(), CoreError> {
        finish(self, Abort::new(client, extents))
    }

    /// Frames that a client may still be granted.
    fn credit_room(&self, client: ClientId) -> Result<u64, CoreError> {
        let total = u64::from(self.pool.frames());
        let entry = self.client(client)?;
        let held = entry.credit.frames();
        let all: u64 = self.clients.iter().flatten().map(|c| c.credit.frames()).sum();
        let usual = (total / 2)
            .saturating_sub(held)
            .min((total * 3 / 4).saturating_sub(all));
        let one_chunk = self.chunk_frames(client)?.saturating_sub(held);
        Ok(usual.max(one_chunk))
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
