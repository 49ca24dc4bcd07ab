//! Regions that lie in a shared mapping.
//!
//! Unsafe is opened here for [`HostMemory::new`]. The invariant: a `Mapping<ReadWrite>` is one live mapping of a file
//! that cannot shrink for as long as it exists, which [`HostMemory::keeping`] extends to the life of the region.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use super::HostMemory;
use crate::shm::{Mapping, ReadWrite};

impl HostMemory {
    /// The whole of a mapping, kept alive by the region.
    pub fn mapped(mapping: Arc<Mapping<ReadWrite>>) -> Self {
        let len = mapping.len();
        let base = NonNull::new(mapping.base_mut()).expect("a mapping never starts at null");
        // SAFETY: the range is one mapping of `len` bytes, readable and writable until `mapping` is dropped, which
        // `keeping` puts off; `Mapping` never hands out references to plain bytes. Other processes may write it.
        unsafe { Self::new(base, len) }.keeping(mapping)
    }
}
