//! The pool: frames, extents, epochs, the directory, prefault.
//!
//! May import `sync`, `shm`, `copy`.

mod error;
mod frames;
mod prefault;

pub use error::PoolError;
pub use frames::{Extent, FRAME_BYTES, count_frames, frames_for};
pub use prefault::{Prefault, PrefaultEvent};
