//! What movements cost that are made in more than one place.

/// Steps that it takes to take an object out of the index and out of the tree.
pub(super) const CONDEMN_STEPS: u32 = 8;
/// Frames of a run that change hands at once.
pub(super) const RUN_FRAMES: u32 = 512;
/// Frames whose words count as one step: two cache lines of owners, two of epochs.
const FRAMES_PER_STEP: u64 = 16;

/// Steps of changing the owner of so many frames in so many runs.
pub(super) fn frame_steps(runs: usize, frames: u64) -> u32 {
    runs as u32 + (frames / FRAMES_PER_STEP) as u32
}
