//! Handles on shared words that this process may load but not store.
//!
//! On read-only memory only relaxed loads are promised to be plain loads (an ordered one may be built from
//! an exchange, which would fault), so the acquiring loads here are a relaxed one and a fence.

use crate::sync::shared::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
impl AtomicU64 {
    /// As that of `std`.
    ///
    /// # Safety
    /// As that of `std`.
    #[allow(unsafe_code)]
    pub unsafe fn from_ptr<'a>(ptr: *mut u64) -> &'a Self {
        // SAFETY: the wrapper is one word of the same form and nothing else; the rest is the caller's promise.
        unsafe { &*ptr.cast::<Self>() }
    }
}

/// A shared word that this process may only load.
#[derive(Clone, Copy, Debug)]
pub struct LoadU64<'a>(pub(super) &'a AtomicU64);

impl LoadU64<'_> {
    /// The value, without ordering.
    pub fn load_relaxed(self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The value; what its writer did before a release store of it is visible afterwards.
    pub fn load_acquire(self) -> u64 {
        let value = self.0.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }
}

/// A shared half word that this process may only load.
#[derive(Clone, Copy, Debug)]
pub struct LoadU32<'a>(pub(super) &'a AtomicU32);

impl LoadU32<'_> {
    /// The value, without ordering.
    pub fn load_relaxed(self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// The value; what its writer did before a release store of it is visible afterwards.
    pub fn load_acquire(self) -> u32 {
        let value = self.0.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }
}
