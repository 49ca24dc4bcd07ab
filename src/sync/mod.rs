//! The one place atomics come from: `std`, or `loom` when built with `--cfg loom`.
//!
//! Two kinds of atomics exist here because loom can only follow the ones it allocates itself:
//!
//! - the re-exports at the root are loom's under loom. State machines that are model-checked use these,
//!   usually behind a small trait (see `control::binding::WordCell`);
//! - [`shared`] is `std`: words at an address inside a mapping, which another process sees too. Under loom a model can have
//!   some of these words followed as well (`modelled`), so that it runs the product's own code.
//!
//! Without `--cfg loom` the two are the same types.

#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread,
};

#[cfg(loom)]
pub use loom::{
    hint::spin_loop,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread,
};

#[cfg(loom)]
pub(crate) mod modelled;

/// Atomics placed in memory that other processes map: the processor's own.
pub mod shared {
    #[cfg(loom)]
    pub use super::modelled::{AtomicU64, fence};
    pub use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    #[cfg(not(loom))]
    pub use std::sync::atomic::{AtomicU64, fence};
}
