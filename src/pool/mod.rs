//! The pool, which is the server's: which frame is whose, and what is written of the objects in it. Clients map the
//! frames and the epochs, and read both with [`crate::index`].

pub(crate) mod accounting;
pub(crate) mod alloc;
mod backing;
pub(crate) mod body;
pub(crate) mod directory;
pub(crate) mod epochs;
mod error;
pub(crate) mod memory;
#[allow(clippy::module_inception)]
mod pool;
mod prefault;
pub(crate) mod record;

pub use backing::{Backing, HugePages, MemoryConfig};
pub use directory::{Owner, RecordState};
pub use error::{NoHugePages, PoolError};
pub use pool::{MAX_BOOT_SEQ, Pool, PoolConfig};
pub use prefault::{PREFAULT_STEP, Prefault, PrefaultEvent, Seen, prefault_reserve};
