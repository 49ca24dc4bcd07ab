//! Copies between rings and the pool, on threads of their own: the thread that serves has no time for them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::offload::Offload;
use crate::copy::{CopyEngine, CopyError, CopyPlan, HostMemory, Span};
use crate::shm::ShmError;
use crate::shm::ring::{RingError, RingMemory};

/// Bytes that are copied before somebody else's copies have their turn.
const PIECE_BYTES: u64 = 2 << 20;
/// Moves of a piece: each costs something beside its bytes.
const PIECE_MOVES: usize = 4096;
/// What a ring that is not mapped is copied through.
const STAGE_BYTES: usize = 64 << 10;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    IntoPool,
    IntoRing,
}

/// A run of bytes. Both places were checked to lie in their regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) ring: u64,
    pub(super) pool: u64,
    pub(super) bytes: u64,
}

/// What is copied between.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) ring: RingMemory,
    pub(super) pool: HostMemory,
    pub(super) direction: Direction,
}

impl Job {
    /// Makes all moves, piece by piece. Comes back when the last of them has ended, whatever became of it.
    pub(super) async fn run(self, threads: &Offload, moves: Vec<Move>) -> Result<(), RingError> {
        // Cutting very many takes long too.
        let pieces = match moves.len() > PIECE_MOVES {
            true => threads.run(move || pieces(moves)).await,
            false => pieces(moves),
        };
        for piece in pieces {
            let job = self.clone();
            threads.run(move || job.copy(&piece)).await?;
        }
        Ok(())
    }

    fn copy(&self, moves: &[Move]) -> Result<(), RingError> {
        match &self.ring {
            RingMemory::Mapped(mapping) => {
                let ring = HostMemory::mapped(mapping.clone());
                let mut plan = CopyPlan::with_capacity(moves.len());
                for step in moves {
                    let (ring, pool) = (Span::new(0, step.ring), Span::new(0, step.pool));
                    match self.direction {
                        Direction::IntoPool => plan.push(ring, pool, step.bytes),
                        Direction::IntoRing => plan.push(pool, ring, step.bytes),
                    }
                }
                let (ring, pool) = ([ring], std::slice::from_ref(&self.pool));
                let copied = match self.direction {
                    Direction::IntoPool => CopyEngine::detect().execute(&plan, &ring, pool),
                    Direction::IntoRing => CopyEngine::detect().execute(&plan, pool, &ring),
                };
                copied.map(drop).map_err(outside)
            }
            RingMemory::File(file) => {
                let mut stage = vec![0; STAGE_BYTES];
                moves
                    .iter()
                    .try_for_each(|step| self.stage(file, *step, &mut stage))
            }
        }
    }

    /// A named ring is no mapping here, so that whoever cuts its file short gets an error and this process no signal.
    fn stage(&self, file: &File, step: Move, stage: &mut [u8]) -> Result<(), RingError> {
        let mut done = 0;
        while done < step.bytes {
            let bytes = (step.bytes - done).min(stage.len() as u64) as usize;
            let stage = &mut stage[..bytes];
            let (ring, pool) = (step.ring + done, step.pool + done);
            match self.direction {
                Direction::IntoPool => {
                    file.read_exact_at(stage, ring).map_err(gone("pread"))?;
                    self.pool.write(pool, stage).map_err(outside)?;
                }
                Direction::IntoRing => {
                    self.pool.read(pool, stage).map_err(outside)?;
                    file.write_all_at(stage, ring).map_err(gone("pwrite"))?;
                }
            }
            done += bytes as u64;
        }
        Ok(())
    }
}

fn gone(call: &'static str) -> impl Fn(io::Error) -> RingError {
    move |error| ShmError::os(call, "a named ring", error).into()
}

/// Cannot be, since both places were checked.
fn outside(error: CopyError) -> RingError {
    RingError::Copy {
        what: error.to_string(),
    }
}

/// The moves in pieces of bounded size.
fn pieces(moves: Vec<Move>) -> Vec<Vec<Move>> {
    let mut pieces = Vec::new();
    let (mut piece, mut room) = (Vec::new(), PIECE_BYTES);
    for mut step in moves {
        while step.bytes > 0 {
            let bytes = step.bytes.min(room);
            piece.push(Move { bytes, ..step });
            step.ring += bytes;
            step.pool += bytes;
            step.bytes -= bytes;
            room -= bytes;
            if room == 0 || piece.len() == PIECE_MOVES {
                pieces.push(std::mem::take(&mut piece));
                room = PIECE_BYTES;
            }
        }
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_and_all_of_it() {
        let step = |ring, pool, bytes| Move { ring, pool, bytes };
        let cut = pieces(vec![
            step(64, 1 << 20, 100),
            step(192, 0, 5 * PIECE_BYTES),
            step(0, 9, 1),
        ]);
        let sizes: Vec<u64> = cut
            .iter()
            .map(|piece| piece.iter().map(|m| m.bytes).sum())
            .collect();
        assert_eq!(sizes[..5], [PIECE_BYTES; 5]);
        assert_eq!(sizes[5..], [101]);
        let flat: Vec<Move> = cut.into_iter().flatten().collect();
        assert_eq!(flat[0], step(64, 1 << 20, 100));
        assert!(
            flat[1..]
                .windows(2)
                .take(5)
                .all(|w| w[0].ring + w[0].bytes == w[1].ring)
        );
        assert_eq!(flat.last(), Some(&step(0, 9, 1)));
        let many = vec![step(0, 0, 1); PIECE_MOVES + 1];
        assert_eq!(
            pieces(many).iter().map(Vec::len).collect::<Vec<_>>(),
            [PIECE_MOVES, 1]
        );
        assert_eq!(pieces(vec![]).len(), 0);
    }
}
