//! One mapping of a file: where it starts, how long it is, and its end.
//!
//! Unsafe is opened here. The invariant: `[base, base + len)` was mapped by [`RawMap::map`] for this value alone, and is
//! unmapped once, when the value is dropped.
//!
//! A mapping that is large enough starts on a boundary of huge pages. The kernel uses one entry for a huge page only where
//! address and file offset agree in their low bits, and it does not see to that by itself.

#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::huge::{huge_page_bytes, reserved_page_bytes};

/// What the kernel is told about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    DontFork,
    DontDump,
    PopulateRead,
    PopulateWrite,
    Huge,
    Collapse,
}

impl Advice {
    fn number(self) -> libc::c_int {
        /// Linux 6.1; not in every version of the C library's headers.
        const MADV_COLLAPSE: libc::c_int = 25;
        match self {
            Self::DontFork => libc::MADV_DONTFORK,
            Self::DontDump => libc::MADV_DONTDUMP,
            Self::PopulateRead => libc::MADV_POPULATE_READ,
            Self::PopulateWrite => libc::MADV_POPULATE_WRITE,
            Self::Huge => libc::MADV_HUGEPAGE,
            Self::Collapse => MADV_COLLAPSE,
        }
    }
}

/// A shared mapping, unmapped on drop.
pub(super) struct RawMap {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the value is an address range that nothing but itself unmaps. What may be done with the bytes from several threads is
// for those to say who hand out pointers to them.
unsafe impl Send for RawMap {}
// SAFETY: as above; no method changes the value.
unsafe impl Sync for RawMap {}

impl RawMap {
    /// Maps `len` bytes from `offset`. The caller has checked that the file covers them.
    pub(super) fn map(fd: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        let length = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
        let at = i64::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let access = if writable {
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE
        } else {
            ProtFlags::PROT_READ
        };
        let place = alignment(fd, offset, len).and_then(|align| Place::reserve(len, align));
        let fixed = if place.is_some() {
            MapFlags::MAP_FIXED
        } else {
            MapFlags::empty()
        };
        let address = place.as_ref().map(|place| place.start);
        // SAFETY: without an address the kernel chooses one where nothing is. With one, `place` holds the whole range, and nothing
        // but this function knows of it.
        let mapped = unsafe { mmap(address, length, access, MapFlags::MAP_SHARED | fixed, fd, at) };
        if let Some(place) = place {
            // Also when it failed: the kernel may have made room there before it found that it cannot map the file, and by now
            // somebody else may have mapped something. What is left of the reservation costs nothing but addresses.
            place.keep(len);
        }
        let mapped = mapped?;
        Ok(Self {
            base: mapped.cast(),
            len,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Advises the kernel about a range, which the caller has checked to be inside. Its start is rounded down to a page.
    pub(super) fn advise(&self, advice: Advice, range: Range<usize>) -> io::Result<()> {
        let page = super::page_size();
        let start = range.start / page * page;
        // SAFETY: the range is inside of this value's mapping, as far as its last page, and none of the advices changes what
        // the mapping holds or where it is.
        let rc = unsafe {
            libc::madvise(
                self.base.as_ptr().add(start).cast(),
                range.end - start,
                advice.number(),
            )
        };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl Drop for RawMap {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping, and nothing reaches it any more. It can only fail for a range that is none.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

/// What the start of a mapping has to be a multiple of, if that can be had and is of use.
fn alignment(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Option<usize> {
    let huge = huge_page_bytes().max(reserved_page_bytes(fd))?;
    (len >= huge && offset.is_multiple_of(huge as u64)).then_some(huge)
}

/// Addresses that are set aside for a mapping. What is not kept is given back.
struct Place {
    start: NonZeroUsize,
    reserved: Range<usize>,
    base: NonNull<libc::c_void>,
}

impl Place {
    /// Nothing where there are not as many addresses: the mapping is then wherever the kernel puts it.
    fn reserve(len: usize, align: usize) -> Option<Self> {
        let wanted = NonZeroUsize::new(len.checked_add(align)?)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: the kernel chooses addresses where nothing is, and nothing can be reached through them.
        let base = unsafe { mmap_anonymous(None, wanted, ProtFlags::PROT_NONE, flags) }.ok()?;
        let first = base.as_ptr() as usize;
        let start = NonZeroUsize::new(first.next_multiple_of(align))?;
        Some(Self {
            start,
            reserved: first..first + wanted.get(),
            base,
        })
    }

    /// The first `len` bytes from the start are this value's no more; the rest is given back.
    fn keep(self, len: usize) {
        let end = (self.start.get() + len).next_multiple_of(super::page_size());
        self.give_back(self.start.get()..end);
    }

    /// Unmaps what was reserved but for the addresses of `kept`.
    fn give_back(&self, kept: Range<usize>) {
        for rest in [self.reserved.start..kept.start, kept.end..self.reserved.end] {
            if rest.start < rest.end {
                let at = self
                    .base
                    .as_ptr()
                    .wrapping_byte_add(rest.start - self.reserved.start);
                if let Some(at) = NonNull::new(at) {
                    // SAFETY: reserved by this value, and not part of what was mapped since.
                    let _ = unsafe { munmap(at, rest.len()) };
                }
            }
        }
    }
}
