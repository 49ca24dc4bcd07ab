//! What copies go through while the pool is not registered.

use std::sync::{Mutex, PoisonError};

use crate::copy::{CopyPlan, HostMemory, Piece, Span};
use crate::device::{Context, PINNED_PIECE_BYTES, PinnedMemory, PlanMemory};

/// Bytes of a stage: enough that a copy's own cost does not count, and little enough to be had at any time.
pub(crate) const STAGE_BYTES: u64 = 8 << 20;

/// Stages that a direction keeps for its next calls.
const KEPT: usize = 2;

/// A buffer that one call has at a time.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) host: [HostMemory; 1],
    /// Nothing where it could not be registered: the driver then copies through memory of its own, and waits.
    pinned: Option<PinnedMemory>,
}

impl Stage {
    fn new(context: &Context) -> Self {
        let host = HostMemory::zeroed(STAGE_BYTES as usize);
        let pinned = PinnedMemory::register(context, host.clone(), PINNED_PIECE_BYTES).ok();
        Self { host: [host], pinned }
    }

    /// As the device's side of a plan.
    pub(crate) fn memory(&self) -> &dyn PlanMemory {
        match &self.pinned {
            Some(pinned) => pinned,
            None => &self.host[0],
        }
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned.is_some()
    }
}

/// The stages of one direction. One that a copy may still use is never given back.
#[derive(Debug, Default)]
pub(crate) struct Stages(Mutex<Vec<Stage>>);

impl Stages {
    pub(crate) fn take(&self, context: &Context) -> Stage {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| Stage::new(context))
    }

    pub(crate) fn give_back(&self, stage: Stage) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.push(stage);
        }
    }
}

/// Which side of a plan the pages are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From pages into the pool.
    Store,
    /// From the pool into pages.
    Load,
}

/// What goes through a stage at a time: the device's copies, and the host's.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) device: CopyPlan,
    pub(crate) host: CopyPlan,
    pub(crate) bytes: u64,
}

/// The pieces of a plan in windows of at most `most` bytes, in order. Long pieces are cut.
pub(crate) fn windows(pieces: &[Piece], way: Way, most: u64) -> Vec<Window> {
    let mut windows = vec![Window::default()];
    for piece in pieces {
        let mut done = 0;
        while done < piece.len {
            if windows.last().is_none_or(|window| window.bytes == most) {
                windows.push(Window::default());
            }
            let Some(window) = windows.last_mut() else { break };
            let len = (piece.len - done).min(most - window.bytes);
            let place = |span: Span| Span::new(span.region, span.offset + done);
            let (src, dst, stage) = (place(piece.src), place(piece.dst), Span::new(0, window.bytes));
            match way {
                Way::Store => {
                    window.device.push(src, stage, len);
                    window.host.push(stage, dst, len);
                }
                Way::Load => {
                    window.host.push(src, stage, len);
                    window.device.push(stage, dst, len);
                }
            }
            window.bytes += len;
            done += len;
        }
    }
    windows.retain(|window| window.bytes > 0);
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(plan: &CopyPlan) -> Vec<(u64, u64, u64)> {
        let pieces = plan.pieces().iter();
        pieces.map(|p| (p.src.offset, p.dst.offset, p.len)).collect()
    }

    #[test]
    fn windows_hold_every_byte_once_and_long_pieces_are_cut() {
        let mut plan = CopyPlan::new();
        for (src, dst, len) in [(10, 1000, 60), (200, 2000, 100), (500, 3000, 1)] {
            plan.push(Span::new(3, src), Span::new(0, dst), len);
        }
        let cut = windows(plan.pieces(), Way::Store, 64);
        let bytes: Vec<u64> = cut.iter().map(|window| window.bytes).collect();
        assert_eq!(bytes, [64, 64, 33]);
        assert_eq!(shown(&cut[0].device), [(10, 0, 60), (200, 60, 4)]);
        assert_eq!(shown(&cut[0].host), [(0, 1000, 60), (60, 2000, 4)]);
        assert_eq!(shown(&cut[1].device), [(204, 0, 64)]);
        assert_eq!(shown(&cut[2].host), [(0, 2068, 32), (32, 3000, 1)]);
        let back = windows(plan.pieces(), Way::Load, 64);
        assert_eq!(shown(&back[0].host), [(10, 0, 60), (200, 60, 4)]);
        assert_eq!(shown(&back[2].device), [(0, 2068, 32), (32, 3000, 1)]);
        assert_eq!(windows(&[], Way::Load, 64), []);
    }
}
