//! The pool's mapping as memory that devices reach.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::copy::HostMemory;
use crate::device::{Context, DeviceError, PinnedMemory, Registering};

/// How far the registration of the pool with the driver has come. Until it is there, and when it has failed, copies go
/// through a staging buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolPinning {
    /// It has not begun: there is no pool.
    None,
    /// It is under way, or waits until the server has made all of the pool present.
    UnderWay {
        /// Pieces that are registered.
        pieces: usize,
        /// All pieces.
        of: usize,
    },
    /// Copies go straight to and from the pool.
    Pinned {
        /// Pieces that it is registered in.
        pieces: usize,
    },
    /// It failed, and what had been registered was undone. It is tried again with the next server.
    Failed(DeviceError),
}

/// Of one mapping of a pool.
#[derive(Debug, Default)]
pub(crate) struct Pinning(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    None,
    UnderWay {
        registering: Registering,
        pieces: usize,
    },
    Pinned(PinnedMemory),
    Failed(DeviceError),
}

impl Pinning {
    /// Begins to register `pool` in a thread, once `ready` says that all of it is present: to register is to make present,
    /// and the pages are to be the server's. Once for a mapping. `ended` is told what came of it.
    pub(crate) fn begin(
        &self,
        context: &Context,
        pool: HostMemory,
        piece_bytes: u64,
        ready: impl Fn() -> bool + Send + 'static,
        ended: impl FnOnce(Result<(), &DeviceError>) + Send + 'static,
    ) {
        let mut state = self.state();
        if !matches!(*state, State::None) {
            return;
        }
        let pieces = (pool.len() as u64).div_ceil(piece_bytes.max(1)) as usize;
        *state = match PinnedMemory::register_when(context, pool, piece_bytes, ready, ended) {
            Ok(registering) => State::UnderWay { registering, pieces },
            Err(error) => State::Failed(error),
        };
    }

    /// The registered pool, if it is there.
    pub(crate) fn get(&self) -> Option<PinnedMemory> {
        match &*self.look() {
            State::Pinned(pool) => Some(pool.clone()),
            _ => None,
        }
    }

    pub(crate) fn shown(&self) -> PoolPinning {
        match &*self.look() {
            State::None => PoolPinning::None,
            State::UnderWay { registering, pieces } => PoolPinning::UnderWay {
                pieces: registering.pieces(),
                of: *pieces,
            },
            State::Pinned(pool) => PoolPinning::Pinned {
                pieces: pool.pieces(),
            },
            State::Failed(error) => PoolPinning::Failed(error.clone()),
        }
    }

    /// The state, after what the thread has done by now.
    fn look(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        if let State::UnderWay { registering, .. } = &mut *state
            && let Some(result) = registering.take()
        {
            *state = match result {
                Ok(pool) => State::Pinned(pool),
                Err(error) => State::Failed(error),
            };
        }
        state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
