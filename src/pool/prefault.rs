//! Making the pool's pages present in the background.

use super::PoolError;

/// What the prefault thread reports.
#[derive(Debug)]
pub enum PrefaultEvent {
    /// The first bytes of the pool are present.
    Ready(u64),
    /// All of the pool is present.
    Done,
    /// No more will be: memory has run out, most likely. What was reported stays.
    Failed(PoolError),
}

/// The thread. Dropping it stops it after the step it is in.
#[derive(Debug)]
pub struct Prefault {}
