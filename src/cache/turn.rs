//! Turns of the server's one thread, and work that is cut to fit them.
//!
//! May import this module's `core` and `error`. No unsafe code.
//!
//! A turn is a number of steps, not a time: what it comes to is the same on every machine and in every run, so tests
//! can count it. A step stands for a few cache misses (a record looked at, a frame freed), half a microsecond at the
//! worst; work of more steps than a turn has stops, others are served, and it goes on where it stopped.

use super::core::Core;
use super::error::CoreError;

/// Steps in one turn. An ordinary lookup takes more than 96 and is to be one turn, of 20 us; kinds whose steps miss the caches count
/// more of them, so that 128 stay well below the 100 us that a turn may take.
pub const TURN_STEPS: u32 = 128;

/// What is left of a turn.
#[derive(Debug)]
pub struct Turn {
    left: u32,
    #[cfg(test)]
    spent: u32,
}

impl Turn {
    /// A whole turn.
    pub fn new() -> Self {
        Self {
            left: TURN_STEPS,
            #[cfg(test)]
            spent: 0,
        }
    }

    /// A turn of so many steps.
    #[cfg(test)]
    pub(super) fn of(steps: u32) -> Self {
        Self {
            left: steps,
            spent: 0,
        }
    }

    /// A turn without an end, for callers that nobody waits behind: tests, benches, tools.
    pub fn endless() -> Self {
        Self {
            left: u32::MAX,
            #[cfg(test)]
            spent: 0,
        }
    }

    /// Counts steps that were made.
    pub fn spend(&mut self, steps: u32) {
        #[cfg(test)]
        {
            self.spent = self.spent.saturating_add(steps);
        }
        if self.left != u32::MAX {
            self.left = self.left.saturating_sub(steps);
        }
    }

    /// Steps that were made of a whole turn, or more where the last ones went beyond it.
    #[cfg(test)]
    pub(super) fn spent(&self) -> u32 {
        self.spent
    }

    /// Whether it is somebody else's turn.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }
}

impl Default for Turn {
    fn default() -> Self {
        Self::new()
    }
}

/// How far a piece of work is.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// It is finished, with this result.
    Done(T),
    /// The turn is over; call again with a new one.
    More,
}

/// A request of the cache that may take more than one turn.
///
/// Between two turns other requests change the cache: what was found earlier has to be looked at again before
/// it is relied on. Work that is dropped half-way leaves the cache consistent; what it took for its client is the client's, and goes with it.
pub trait Work {
    /// What it leads to.
    type Answer;

    /// Goes on until it is finished or the turn is over.
    ///
    /// # Errors
    /// Those of the request. The work is over then.
    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<Self::Answer>, CoreError>;
}

/// Does all of a piece of work at once.
///
/// # Errors
/// Those of the work.
pub fn finish<W: Work>(core: &mut Core, mut work: W) -> Result<W::Answer, CoreError> {
    let mut turn = Turn::endless();
    loop {
        if let Progress::Done(answer) = work.step(core, &mut turn)? {
            return Ok(answer);
        }
    }
}
