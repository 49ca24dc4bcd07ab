//! The pool: frames, extents, epochs, the directory, prefault.

pub(crate) mod accounting;
pub(crate) mod alloc;
pub(crate) mod body;
pub(crate) mod directory;
pub(crate) mod epochs;
mod error;
#[allow(clippy::module_inception)]
mod pool;
mod prefault;

pub use directory::{Owner, RecordState};
pub use epochs::{ABI_VERSION, EpochReader};
pub use error::PoolError;
pub use pool::{MAX_BOOT_SEQ, Pool, PoolConfig};
pub use prefault::{PREFAULT_STEP, Prefault, PrefaultEvent, prefault_reserve};
