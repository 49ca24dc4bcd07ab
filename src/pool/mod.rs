//! The pool: frames, extents, epochs, the directory, prefault.

pub mod accounting;
pub mod alloc;
pub mod body;
pub mod directory;
pub mod epochs;
mod error;
#[allow(clippy::module_inception)]
mod pool;
mod prefault;

pub use directory::{Owner, RecordState};
pub use epochs::{ABI_VERSION, EpochReader};
pub use error::PoolError;
pub use pool::{MAX_BOOT_SEQ, Pool, PoolConfig};
pub use prefault::{PREFAULT_STEP, Prefault, PrefaultEvent, prefault_reserve};
