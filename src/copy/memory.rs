//! Registered host memory: handles, never references.
//!
//! Unsafe is opened here. The invariant: `[base, base + len)` is one allocation or mapping that stays
//! valid for reads (and for writes, unless read-only) as long as the handle or a clone of it lives, by the contract of
//! [`HostMemory::new`]. No `&[u8]` or `&mut [u8]` to it is ever formed, so a process that writes it at the
//! same time can tear the payload but break no rule of the language.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::error::{CopyError, Side};
use crate::shm::page_size;

/// A place in one of the regions of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Index into the slice of regions given at execution.
    pub region: u16,
    /// Byte offset in that region.
    pub offset: u64,
}

impl Span {
    /// Shorthand for the two fields.
    pub const fn new(region: u16, offset: u64) -> Self {
        Self { region, offset }
    }

    /// Whether `next` begins where `len` bytes from here end.
    pub(super) fn continues(self, len: u64, next: Span) -> bool {
        self.region == next.region && self.offset.checked_add(len) == Some(next.offset)
    }
}

/// A piece as addresses.
#[derive(Clone, Copy)]
pub(super) struct Resolved {
    pub(super) src: *const u8,
    pub(super) dst: *mut u8,
    pub(super) len: usize,
}

/// A piece as addresses; without a destination it is only summed.
#[derive(Clone, Copy)]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) struct SummedRun {
    pub(super) src: *const u8,
    pub(super) dst: Option<*mut u8>,
    pub(super) len: usize,
}

/// A region that copies may read and, unless it is [read-only](Self::read_only), write.
///
/// A clone is another handle to the same bytes: one for the client's copies, one for whoever fills the region.
#[derive(Clone)]
pub struct HostMemory {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Keeps the memory alive; `None` when the maker of the handle answers for that.
    owner: Option<Arc<dyn Send + Sync>>,
}

// SAFETY: the handle is an address range without thread affinity; the contract of `new` says that access
// from any thread is allowed, and `owner` is `Send + Sync` by its type.
unsafe impl Send for HostMemory {}
// SAFETY: as above; all methods take `&self` and only copy bytes through raw pointers.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// A handle to the `len` bytes from `base`.
    ///
    /// # Safety
    ///
    /// - The range is part of one allocation or mapping, at most `isize::MAX` bytes long, and stays valid
    ///   for reads and writes while the handle or a clone of it lives (reads only, if [`read_only`](Self::read_only)
    ///   follows at once). A file behind a mapping is not truncated meanwhile.
    /// - No Rust reference to a byte of the range is used while a copy through the handle runs.
    /// - Threads of this process order their accesses against such copies. Other processes, and devices,
    ///   need not: they can only tear the bytes, and nothing is decided by payload bytes.
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self {
            base,
            len,
            writable: true,
            owner: None,
        }
    }

    /// Forbids the region as a destination.
    pub fn read_only(mut self) -> Self {
        self.writable = false;
        self
    }

    /// Ties `owner`, e.g. the mapping that the range lies in, to the life of the handle. Owners add up.
    pub fn keeping(mut self, owner: Arc<dyn Send + Sync>) -> Self {
        self.owner = Some(match self.owner.take() {
            // Dropping the first owner here would free memory that the handle still names.
            Some(first) => Arc::new((first, owner)),
            None => owner,
        });
        self
    }

    /// A fresh region of zeroes, aligned to the machine's page, freed with the handle: for staging, benchmarks and tests.
    ///
    /// # Panics
    ///
    /// If `len` exceeds `isize::MAX` less a page.
    pub fn zeroed(len: usize) -> Self {
        let heap = Heap::zeroed(len);
        // SAFETY: the range is one allocation of `len` bytes, which `keeping` ties to the handle; only
        // this handle knows its address, so no reference to it exists.
        unsafe { Self::new(heap.base, len) }.keeping(Arc::new(heap))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether copies may write here.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Copies `into.len()` bytes from `offset` out of the region, through the caches.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), CopyError> {
        self.check(Side::Source, 0, Span { region: 0, offset }, into.len() as u64)?;
        // SAFETY: the range was just checked to lie in the region, which is readable; `into` is ordinary
        // memory that no region may overlap while it is borrowed (contract of `new`).
        unsafe {
            ptr::copy_nonoverlapping(
                self.base.as_ptr().add(offset as usize),
                into.as_mut_ptr(),
                into.len(),
            )
        };
        Ok(())
    }

    /// Copies `from` into the region at `offset`, through the caches.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), CopyError> {
        self.check(
            Side::Destination,
            0,
            Span { region: 0, offset },
            from.len() as u64,
        )?;
        // SAFETY: the range was just checked to lie in the region and the region to be writable; `from`
        // is ordinary memory that no region may overlap while it is borrowed (contract of `new`).
        unsafe {
            ptr::copy_nonoverlapping(from.as_ptr(), self.base.as_ptr().add(offset as usize), from.len())
        };
        Ok(())
    }

    /// Refuses a range that is not inside the region, or a write to a read-only one.
    pub(crate) fn check(&self, side: Side, piece: usize, span: Span, len: u64) -> Result<(), CopyError> {
        let region_len = self.len as u64;
        let Span { region, offset } = span;
        if offset.checked_add(len).is_none_or(|end| end > region_len) {
            return Err(CopyError::OutOfBounds {
                piece,
                side,
                region,
                offset,
                len,
                region_len,
            });
        }
        if side == Side::Destination && !self.writable {
            return Err(CopyError::ReadOnly { piece, region });
        }
        Ok(())
    }

    /// First address, for comparing ranges. Regions lie inside the address space, so base + len is exact.
    pub(crate) fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory")
            .field("base", &self.base)
            .field("len", &self.len)
            .field("writable", &self.writable)
            .field("owned", &self.owner.is_some())
            .finish()
    }
}

/// Zeroed, page-aligned memory of this process.
struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an allocation may be freed by any thread; `Heap` offers nothing else.
unsafe impl Send for Heap {}
// SAFETY: as above, `&Heap` gives no access at all.
unsafe impl Sync for Heap {}

impl Heap {
    fn zeroed(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), page_size()).expect("length fits the address space");
        // SAFETY: the layout is at least one byte long.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else {
            handle_alloc_error(layout)
        };
        Self { base, layout }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this very layout and is freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}
