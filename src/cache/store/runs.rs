//! Runs that a client names: whether they are its own, and how they stop to be.

use crate::cache::steps::{RUN_FRAMES, frame_steps};
use crate::cache::turn::Turn;
use crate::cache::{ClientId, Core, CoreError};
use crate::object::Extent;
use crate::pool::Owner;

/// So few runs are sorted to see whether two name one frame: a few microseconds.
const SORTED: usize = 256;
/// Words of the set that are cleared in one step.
const WORDS_PER_STEP: usize = 1024;
/// Frames of a run that are marked at once: words of the set.
const MARKED_FRAMES: u32 = 1 << 16;

/// Runs of a request must lie in the pool and name each frame once. More than a few are looked at in turns.
#[derive(Debug, Default)]
pub(crate) struct CheckRuns {
    /// Runs that were looked at, and frames of the next one.
    runs: usize,
    frames: u32,
    /// A bit for each frame that was named.
    named: Vec<u64>,
    done: bool,
}

impl CheckRuns {
    /// Goes on until all were looked at. False: the turn is over.
    pub(crate) fn step(
        &mut self,
        core: &Core,
        turn: &mut Turn,
        extents: &[Extent],
    ) -> Result<bool, CoreError> {
        let frames = core.pool.frames();
        if self.done {
            return Ok(true);
        }
        if extents.len() <= SORTED {
            turn.spend(extents.len() as u32 / 8);
            self.done = true;
            return sorted(extents, frames).map(|()| true);
        }
        if self.named.is_empty() {
            self.named = vec![0; (frames as usize).div_ceil(64)];
            turn.spend((self.named.len() / WORDS_PER_STEP) as u32);
        }
        while let Some(extent) = extents.get(self.runs) {
            if turn.is_over() {
                return Ok(false);
            }
            if !extent.is_within(frames) {
                return Err(invalid(*extent, frames, "is empty or outside the pool"));
            }
            let first = extent.frame + self.frames;
            let count = (extent.count - self.frames).min(MARKED_FRAMES);
            turn.spend(1 + count / 1024);
            if !self.mark(first, count) {
                return Err(invalid(*extent, frames, "names a frame a second time"));
            }
            self.frames += count;
            if self.frames == extent.count {
                (self.runs, self.frames) = (self.runs + 1, 0);
            }
        }
        self.done = true;
        Ok(true)
    }

    /// Notes that some frames were named. False when one of them was before.
    fn mark(&mut self, first: u32, count: u32) -> bool {
        let (mut at, end) = (first, first + count);
        while at < end {
            let bits = (64 - at % 64).min(end - at);
            let mask = (u64::MAX >> (64 - bits)) << (at % 64);
            let word = &mut self.named[at as usize / 64];
            if *word & mask != 0 {
                return false;
            }
            *word |= mask;
            at += bits;
        }
        true
    }
}

fn invalid(extent: Extent, frames: u32, why: &'static str) -> CoreError {
    CoreError::InvalidExtent {
        extent,
        frames: frames.into(),
        why,
    }
}

fn sorted(extents: &[Extent], frames: u32) -> Result<(), CoreError> {
    if let Some(extent) = extents.iter().find(|e| !e.is_within(frames)) {
        return Err(invalid(*extent, frames, "is empty or outside the pool"));
    }
    let mut sorted = extents.to_vec();
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        if pair[1].frame < pair[0].frame + pair[0].count {
            return Err(invalid(pair[1], frames, "names a frame a second time"));
        }
    }
    Ok(())
}

/// All frames of some runs must be in a client's grant.
#[derive(Debug, Default)]
pub(crate) struct CheckGranted {
    /// Runs that were looked at, and frames of the next one.
    runs: usize,
    frames: u32,
}

impl CheckGranted {
    /// Whether some were looked at.
    pub(crate) fn has_begun(&self) -> bool {
        (self.runs, self.frames) != (0, 0)
    }

    /// Goes on until all were looked at. False: the turn is over.
    pub(crate) fn step(
        &mut self,
        core: &Core,
        turn: &mut Turn,
        client: ClientId,
        extents: &[Extent],
    ) -> Result<bool, CoreError> {
        while let Some(extent) = extents.get(self.runs) {
            if turn.is_over() {
                return Ok(false);
            }
            let count = (extent.count - self.frames).min(RUN_FRAMES);
            turn.spend(frame_steps(1, count.into()));
            let piece = Extent::new(extent.frame + self.frames, count);
            core.check_granted(client, piece).map_err(|error| match error {
                CoreError::ExtentNotGranted { frame, .. } => CoreError::ExtentNotGranted {
                    frame,
                    extent: *extent,
                },
                error => error,
            })?;
            self.frames += count;
            if self.frames == extent.count {
                (self.runs, self.frames) = (self.runs + 1, 0);
            }
        }
        Ok(true)
    }
}

/// Granted frames that nobody needs any more become free, piece by piece.
#[derive(Debug)]
pub(crate) struct GiveBack<'a> {
    client: ClientId,
    extents: &'a [Extent],
    /// Frames of the first that are free already.
    freed: u32,
}

impl<'a> GiveBack<'a> {
    pub(crate) fn new(client: ClientId, extents: &'a [Extent]) -> Self {
        Self {
            client,
            extents,
            freed: 0,
        }
    }

    /// All but so many frames of the first.
    pub(crate) fn behind(client: ClientId, extents: &'a [Extent], frames: u32) -> Self {
        Self {
            client,
            extents,
            freed: frames,
        }
    }

    /// Goes on until all are free. False: the turn is over.
    pub(crate) fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<bool, CoreError> {
        while let Some((first, rest)) = self.extents.split_first() {
            if turn.is_over() {
                return Ok(false);
            }
            let count = (first.count - self.freed).min(RUN_FRAMES);
            let piece = Extent::new(first.frame + self.freed, count);
            turn.spend(frame_steps(3, count.into()));
            core.take_granted(self.client, &[piece])?;
            core.pool.free_granted(&[piece])?;
            self.freed += count;
            if self.freed == first.count {
                (self.extents, self.freed) = (rest, 0);
            }
        }
        Ok(true)
    }
}

impl Core {
    /// Granted frames are no longer the client's to write.
    pub(crate) fn take_granted(&mut self, client: ClientId, extents: &[Extent]) -> Result<(), CoreError> {
        let granted = &mut self.client_mut(client)?.granted;
        for extent in extents {
            if !granted.remove(*extent) {
                return Err(CoreError::Broken {
                    what: "the directory grants frames that the client's granted space does not have",
                    a: extent.frame.into(),
                    b: extent.count.into(),
                });
            }
        }
        Ok(())
    }

    /// Every frame of a run must be in the client's grant: the directory's word, and only that.
    pub(crate) fn check_granted(&self, client: ClientId, extent: Extent) -> Result<(), CoreError> {
        for frame in extent.frames() {
            match self.pool.directory.owner(frame)? {
                Owner::Granted { slab, .. } if slab == client.slab => {}
                _ => return Err(CoreError::ExtentNotGranted { frame, extent }),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CoreConfig;
    use crate::object::FRAME_BYTES;

    /// Few runs are sorted, many are marked: both find the same.
    #[test]
    fn frames_that_are_named_twice_are_found_among_few_and_among_many() {
        let core = Core::create(CoreConfig {
            pool_bytes: 4096 * FRAME_BYTES,
            ..CoreConfig::default()
        })
        .unwrap();
        for runs in [SORTED, 4 * SORTED] {
            let good: Vec<Extent> = (0..runs as u32)
                .rev()
                .map(|run| Extent::new(run * 3, 2))
                .collect();
            let check = |extents: &[Extent]| {
                let mut check = CheckRuns::default();
                loop {
                    match check.step(&core, &mut Turn::new(), extents) {
                        Ok(true) => return true,
                        Ok(false) => {}
                        Err(_) => return false,
                    }
                }
            };
            assert!(check(&good));
            for bad in [
                Extent::new(4, 1),
                Extent::new(5, 70),
                Extent::new(3, 0),
                Extent::new(4090, 7),
                Extent::new(u32::MAX, 2),
            ] {
                let mut extents = good.clone();
                extents[runs / 2] = bad;
                assert!(!check(&extents), "{bad:?} among {runs}");
            }
        }
    }
}
