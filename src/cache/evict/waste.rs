//! What is no object any more: its frames become free piece by piece.
//!
//! It waits in the core and hangs under nothing, and its record is that of an incomplete object until its last frame
//! is free. So nothing is halfway between two turns, and whoever has a turn next goes on with it: an object may have
//! more runs and frames than a turn has steps.

use crate::cache::books::wasted::{Runs, Waste};
use crate::cache::steps::{RUN_FRAMES, frame_steps};
use crate::cache::turn::Turn;
use crate::cache::{Core, CoreError};
use crate::index::body::BodyPiece;
use crate::object::Extent;
use crate::pool::{PoolError, RecordState};

impl Waste {
    /// Goes on until all of it is free. False: the turn is over.
    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<bool, PoolError> {
        while !turn.is_over() {
            let run = match self.run.take() {
                Some(run) => Some(run),
                None => self.next_run(core, turn)?,
            };
            match run {
                Some(run) => self.piece(core, turn, run),
                None if self.epochs => {
                    self.epochs = false;
                    match &mut self.runs {
                        Runs::Body(body) => **body = core.pool.directory.walk(self.record)?,
                        Runs::Parts { at, .. } => *at = (0, 0),
                    }
                }
                None => return Ok(self.free_blocks(core, turn)),
            }
        }
        Ok(false)
    }

    /// Frees blocks that were taken for it. False: the turn is over.
    fn free_blocks(&mut self, core: &mut Core, turn: &mut Turn) -> bool {
        if let Runs::Parts { blocks, .. } = &mut self.runs {
            while let Some(block) = blocks.last() {
                if turn.is_over() {
                    return false;
                }
                turn.spend(1);
                core.chains.put(*block);
                blocks.pop();
            }
        }
        true
    }

    fn piece(&mut self, core: &mut Core, turn: &mut Turn, run: Extent) {
        let count = run.count.min(RUN_FRAMES);
        let now = Extent::new(run.frame, count);
        self.run = (count < run.count).then(|| Extent::new(run.frame + count, run.count - count));
        if self.epochs {
            turn.spend(frame_steps(1, count.into()));
            core.pool.epochs.set(&[now], 0);
            return;
        }
        turn.spend(frame_steps(2, count.into()));
        let freed = core.pool.free_granted(&[now]);
        if self.freed.is_ok() {
            self.freed = freed;
        }
    }

    /// The next run. Blocks of a body become free on the way.
    fn next_run(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Option<Extent>, PoolError> {
        match &mut self.runs {
            Runs::Body(body) => loop {
                match core.pool.directory.next_piece(self.record, body)? {
                    Some(BodyPiece::Run(run)) => return Ok(Some(run)),
                    Some(BodyPiece::Block(block)) => {
                        turn.spend(1);
                        if !self.epochs {
                            core.chains.put(block);
                        }
                    }
                    Some(BodyPiece::Part { .. } | BodyPiece::Checksum(_)) => {}
                    None => return Ok(None),
                }
            },
            Runs::Parts { parts, at, .. } => {
                while let Some(part) = parts.get_mut(at.0) {
                    if let Some(run) = part.body.extents.get(at.1) {
                        at.1 += 1;
                        return Ok(Some(*run));
                    }
                    turn.spend(u32::from(at.0 > 0));
                    *at = (at.0 + 1, 0);
                    if !self.epochs {
                        part.body.extents = Vec::new();
                    }
                }
                Ok(None)
            }
        }
    }

    /// Frames and chain blocks that are yet to become free, for the audit.
    pub(crate) fn held(&self, core: &Core) -> Result<(u64, usize), PoolError> {
        let rest = self.run.map_or(0, |run| u64::from(run.count));
        match &self.runs {
            Runs::Parts { parts, at, blocks } => {
                let (rest, at) = if self.epochs { (0, (0, 0)) } else { (rest, *at) };
                let ahead = parts.iter().enumerate().skip(at.0);
                let runs = ahead.flat_map(|(number, part)| {
                    let done = if number == at.0 { at.1 } else { 0 };
                    part.body.extents.iter().skip(done)
                });
                let frames = runs.map(|run| u64::from(run.count)).sum::<u64>();
                Ok((rest + frames, blocks.len()))
            }
            Runs::Body(body) => {
                let (mut frames, mut body) = match self.epochs {
                    true => (0, core.pool.directory.walk(self.record)?),
                    false => (rest, (**body).clone()),
                };
                let blocks = body.blocks_ahead();
                while let Some(piece) = core.pool.directory.next_piece(self.record, &mut body)? {
                    if let BodyPiece::Run(run) = piece {
                        frames += u64::from(run.count);
                    }
                }
                Ok((frames, blocks))
            }
        }
    }
}

impl Core {
    /// Goes on with what is no object any more until all of it is free. False: the turn is over.
    ///
    /// # Errors
    /// [`CoreError::Pool`] when the books are wrong.
    pub(crate) fn free_waste(&mut self, turn: &mut Turn) -> Result<bool, CoreError> {
        // What cannot be walked through stays as it is: an error each time would keep everybody from their space.
        while let Some(mut waste) = self.waste.pop_front() {
            if !waste.step(self, turn)? {
                self.waste.push_front(waste);
                return Ok(false);
            }
            self.pool.directory.set_state(waste.record, RecordState::Free);
            let pieces = self.close_record(waste.record);
            turn.spend(pieces);
            waste.freed?;
        }
        Ok(true)
    }
}
