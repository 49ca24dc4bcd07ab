//! Work of the cache that is cut to fit the turns of the server's one thread.

use super::core::Core;
use super::error::CoreError;
use crate::cache::turn::Turn;

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
/// Between two turns other requests change the cache: what was found earlier has to be looked at again before it is
/// relied on. Work that is dropped half-way leaves the cache consistent; what it took for its client is the client's,
/// and goes with it.
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
