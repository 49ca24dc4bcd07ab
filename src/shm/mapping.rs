//! Owned mappings of shared files, and the only safe ways to reach the bytes in them.
//!
//! Unsafe is opened here. The invariant: `[base, base + len)` is one live shared mapping for as long as
//! the [`Mapping`] exists, readable always and writable for [`ReadWrite`]; the file behind it covers it
//! (checked against the file's size, which a seal or the owner keeps). Every access is checked by
//! `range`, and none forms a reference to plain bytes, since other processes write them.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::{fmt, io};

use super::ShmError;
use super::huge::{MadeHuge, huge_bytes, huge_page_bytes, reserved_page_bytes};
use super::memfd::{Memfd, file_len, page_size, seals, to_usize};
use super::raw_map::{Advice, RawMap};
use super::words::{LoadU32, LoadU64};
use crate::sync::shared::{AtomicU32, AtomicU64, Ordering};

/// The access of a mapping that can only be read. A store to it does not compile.
#[derive(Debug)]
pub enum ReadOnly {}

/// The access of a mapping that can be read and written.
#[derive(Debug)]
pub enum ReadWrite {}

mod sealed {
    pub trait Access: Send + Sync + 'static {
        const WRITABLE: bool;
    }
    impl Access for super::ReadOnly {
        const WRITABLE: bool = false;
    }
    impl Access for super::ReadWrite {
        const WRITABLE: bool = true;
    }
}

/// [`ReadOnly`] or [`ReadWrite`].
pub trait Access: sealed::Access {}
impl Access for ReadOnly {}
impl Access for ReadWrite {}

/// A shared mapping of a file: not inherited by forked children, not in core dumps, unmapped on drop.
///
/// ```
/// use kvasir::shm::{Memfd, OwnerAccess};
/// use kvasir::sync::shared::Ordering;
///
/// let memfd = Memfd::create("example", 4096, OwnerAccess::Read)?;
/// let (writer, reader) = (memfd.map()?, memfd.map_read_only()?);
/// writer.atomic_u64(64)?.store(7, Ordering::Release);
/// assert_eq!(reader.atomic_u64(64)?.load_acquire(), 7);
/// # Ok::<(), kvasir::shm::ShmError>(())
/// ```
///
/// A store through a read-only mapping is refused by the compiler:
///
/// ```compile_fail,E0599
/// use kvasir::shm::{Mapping, ReadOnly};
/// use kvasir::sync::shared::Ordering;
///
/// fn store(reader: &Mapping<ReadOnly>) {
///     reader.atomic_u64(64).unwrap().store(7, Ordering::Release);
/// }
/// ```
pub struct Mapping<A: Access> {
    raw: RawMap,
    access: PhantomData<A>,
}

impl<A: Access> Mapping<A> {
    /// Maps the first `len` bytes of a file that this process made, or that it holds locked.
    ///
    /// # Errors
    /// [`ShmError::TooShort`] when the file is smaller, [`ShmError::Os`] when the kernel refuses.
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Self, ShmError> {
        Self::build(fd, 0, len)
    }

    /// Maps the first `len` bytes of a file that another process made: its size must be sealed.
    ///
    /// # Errors
    /// [`ShmError::NotSealed`] besides those of [`Mapping::map`].
    pub fn map_foreign(fd: BorrowedFd<'_>, len: usize) -> Result<Self, ShmError> {
        Self::map_foreign_at(fd, 0, len)
    }

    /// Maps `len` bytes from `offset`, a multiple of the page size, of a file that another process made.
    ///
    /// # Errors
    /// [`ShmError::Misaligned`] besides those of [`Mapping::map_foreign`].
    pub fn map_foreign_at(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, ShmError> {
        // The seal first: once it is seen, the size read afterwards can only have grown.
        let present = seals(fd)?;
        let needed = libc::F_SEAL_SHRINK as u32;
        if present & needed != needed {
            return Err(ShmError::NotSealed {
                seals: present,
                missing: needed & !present,
            });
        }
        Self::build(fd, offset, len)
    }

    fn build(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, ShmError> {
        let max = isize::MAX as u64;
        let end = offset
            .checked_add(len as u64)
            .filter(|&end| len > 0 && end <= max);
        let end = end.ok_or(ShmError::BadLength { len: len as u64, max })?;
        let page = page_size() as u64;
        if !offset.is_multiple_of(page) {
            return Err(ShmError::Misaligned { offset, align: page });
        }
        let actual = file_len(fd)?;
        if actual < end {
            return Err(ShmError::TooShort {
                expected: end,
                actual,
            });
        }
        // The kernel would map whole pages of such a file, and so more than was asked for.
        if let Some(page) = reserved_page_bytes(fd).filter(|page| !len.is_multiple_of(*page)) {
            return Err(ShmError::Misaligned {
                offset: len as u64,
                align: page as u64,
            });
        }
        let raw = RawMap::map(fd, offset, len, A::WRITABLE)
            .map_err(|e| ShmError::os("mmap", format!("{len} bytes"), e))?;
        // A child that inherited the mapping could outlive the locks that protect it, and a core dump
        // would hold every tenant's KV.
        raw.advise(Advice::DontFork, 0..len)
            .map_err(|e| ShmError::os("madvise(DONTFORK)", format!("{len} bytes"), e))?;
        raw.advise(Advice::DontDump, 0..len)
            .map_err(|e| ShmError::os("madvise(DONTDUMP)", format!("{len} bytes"), e))?;
        Ok(Self {
            raw,
            access: PhantomData,
        })
    }

    /// The number of bytes mapped; at least one.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Always false: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The first byte, for the copy engine. Valid for reads of [`Mapping::len`] bytes while the mapping lives.
    pub fn base(&self) -> *const u8 {
        self.raw.base().as_ptr().cast_const()
    }

    /// A pointer to `bytes` bytes at `offset`, valid for reads while the mapping lives.
    ///
    /// # Errors
    /// [`ShmError::OutOfRange`].
    pub fn ptr_at(&self, offset: usize, bytes: usize) -> Result<*const u8, ShmError> {
        Ok(self.range(offset, bytes)?.as_ptr().cast_const())
    }

    /// A word that can only be loaded, whatever the access of the mapping.
    ///
    /// # Errors
    /// [`ShmError::Misaligned`] or [`ShmError::OutOfRange`].
    pub fn load_only_u64(&self, offset: usize) -> Result<LoadU64<'_>, ShmError> {
        Ok(LoadU64(self.u64_at(offset)?))
    }

    /// A half word that can only be loaded, whatever the access of the mapping.
    ///
    /// # Errors
    /// [`ShmError::Misaligned`] or [`ShmError::OutOfRange`].
    pub fn load_only_u32(&self, offset: usize) -> Result<LoadU32<'_>, ShmError> {
        Ok(LoadU32(self.u32_at(offset)?))
    }

    /// Copies words out with one relaxed load each: no word is torn, the set of them may be.
    ///
    /// # Errors
    /// [`ShmError::Misaligned`] or [`ShmError::OutOfRange`].
    pub fn load_words(&self, offset: usize, into: &mut [u64]) -> Result<(), ShmError> {
        let first = self.words_at(offset, into.len())?;
        for (i, word) in into.iter_mut().enumerate() {
            // SAFETY: `words_at` checked that `into.len()` aligned words lie in the mapping.
            *word = unsafe { AtomicU64::from_ptr(first.as_ptr().add(i)) }.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies bytes out. What a peer writes meanwhile may or may not be in the copy, byte by byte.
    ///
    /// # Errors
    /// [`ShmError::OutOfRange`].
    pub fn read_bytes(&self, offset: usize, into: &mut [u8]) -> Result<(), ShmError> {
        let from = self.range(offset, into.len())?.as_ptr();
        for (i, byte) in into.iter_mut().enumerate() {
            // SAFETY: `range` checked that `into.len()` bytes from `from` lie in the mapping. Volatile,
            // so the compiler assumes nothing about a value that other processes may change.
            *byte = unsafe { from.add(i).read_volatile() };
        }
        Ok(())
    }

    /// Asks for the cache line at `offset` ahead of its use. A hint: offsets outside of the mapping are left alone.
    pub fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Ok(line) = self.range(offset, 1) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: without effect on what the program reads or writes, and no fault whatever is at the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    fn range(&self, offset: usize, bytes: usize) -> Result<NonNull<u8>, ShmError> {
        let len = self.raw.len();
        if offset.checked_add(bytes).is_none_or(|end| end > len) {
            return Err(ShmError::OutOfRange { offset, bytes, len });
        }
        // SAFETY: `offset <= offset + bytes <= len`, so the pointer is in the mapping or one past its end.
        Ok(unsafe { self.raw.base().add(offset) })
    }

    fn words_at(&self, offset: usize, words: usize) -> Result<NonNull<u64>, ShmError> {
        // Mappings start on a page boundary, so an aligned offset is an aligned address.
        if !offset.is_multiple_of(8) {
            return Err(ShmError::Misaligned {
                offset: offset as u64,
                align: 8,
            });
        }
        Ok(self.range(offset, words.saturating_mul(8))?.cast())
    }

    fn u64_at(&self, offset: usize) -> Result<&AtomicU64, ShmError> {
        let at = self.words_at(offset, 1)?;
        // SAFETY: eight aligned bytes in the mapping, which outlives the borrow of `self`; all Rust code
        // reaches them by atomics or volatile copies. Callers hand out loads only when it is read-only.
        Ok(unsafe { AtomicU64::from_ptr(at.as_ptr()) })
    }

    fn u32_at(&self, offset: usize) -> Result<&AtomicU32, ShmError> {
        if !offset.is_multiple_of(4) {
            return Err(ShmError::Misaligned {
                offset: offset as u64,
                align: 4,
            });
        }
        let at = self.range(offset, 4)?.cast::<u32>();
        // SAFETY: as in `u64_at`, with four bytes.
        Ok(unsafe { AtomicU32::from_ptr(at.as_ptr()) })
    }
}

impl Mapping<ReadOnly> {
    /// The word at `offset`; it can be loaded but not stored.
    ///
    /// # Errors
    /// [`ShmError::Misaligned`] or [`ShmError::OutOfRange`].
    pub fn atomic_u64(&self, offset: usize) -> Result<LoadU64<'_>, ShmError> {
        self.load_only_u64(offset)
    }

    /// The half word at `offset`; it can be loaded but not stored.
    ///
    /// # Errors
    /// [`ShmError::Misaligned`] or [`ShmError::OutOfRange`].
    pub fn atomic_u32(&self, offset: usize) -> Result<LoadU32<'_>, ShmError> {
        self.load_only_u32(offset)
    }
}

impl Mapping<ReadWrite> {
    /// The first byte, for the copy engine. Valid for reads and writes of [`Mapping::len`] bytes while the
    /// mapping lives.
    pub fn base_mut(&self) -> *mut u8 {
        self.raw.base().as_ptr()
    }

    /// A pointer to `bytes` bytes at `offset`, valid for reads and writes while the mapping lives.
    ///
    /// # Errors
    /// [`ShmError::OutOfRange`].
    pub fn ptr_at_mut(&self, offset: usize, bytes: usize) -> Result<*mut u8, ShmError> {
        Ok(self.range(offset, bytes)?.as_ptr())
    }

    /// The word at `offset`.
    ///
    /// # Errors
    /// [`ShmError::Misaligned`] or [`ShmError::OutOfRange`].
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, ShmError> {
        self.u64_at(offset)
    }

    /// The half word at `offset`.
    ///
    /// # Errors
    /// [`ShmError::Misaligned`] or [`ShmError::OutOfRange`].
    pub fn atomic_u32(&self, offset: usize) -> Result<&AtomicU32, ShmError> {
        self.u32_at(offset)
    }

    /// Copies words in with one relaxed store each.
    ///
    /// # Errors
    /// [`ShmError::Misaligned`] or [`ShmError::OutOfRange`].
    pub fn store_words(&self, offset: usize, from: &[u64]) -> Result<(), ShmError> {
        let first = self.words_at(offset, from.len())?;
        for (i, word) in from.iter().enumerate() {
            // SAFETY: `words_at` checked that `from.len()` aligned words lie in the writable mapping.
            unsafe { AtomicU64::from_ptr(first.as_ptr().add(i)) }.store(*word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`ShmError::OutOfRange`].
    pub fn write_bytes(&self, offset: usize, from: &[u8]) -> Result<(), ShmError> {
        let to = self.range(offset, from.len())?.as_ptr();
        for (i, byte) in from.iter().enumerate() {
            // SAFETY: `range` checked that `from.len()` bytes from `to` lie in the writable mapping.
            unsafe { to.add(i).write_volatile(*byte) };
        }
        Ok(())
    }

    /// Makes the pages of a byte range present and writable now instead of at first touch. What the
    /// range holds does not change, also not while others write it.
    ///
    /// # Errors
    /// [`ShmError::OutOfRange`]; [`ShmError::Os`] when memory has run out, instead of the `SIGBUS` that a
    /// touch would raise.
    pub fn prefault(&self, range: Range<usize>) -> Result<(), ShmError> {
        let bytes = range.end.saturating_sub(range.start);
        self.range(range.start, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        loop {
            match self.raw.advise(Advice::PopulateWrite, range.clone()) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Kernels before 5.14 do not know the advice.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return self.touch(range),
                Err(e) => {
                    return Err(ShmError::os(
                        "madvise(POPULATE_WRITE)",
                        format!("bytes {range:?}"),
                        e,
                    ));
                }
            }
        }
    }

    /// Enters the pages of a byte range into this process's page tables now instead of by a fault for each at first
    /// touch. For pages that are present already; others are made as by a read. What the range holds does not change.
    ///
    /// # Errors
    /// [`ShmError::OutOfRange`]; [`ShmError::Os`] when the kernel cannot or (before 5.14) does not know how. Nothing is
    /// lost then: touches fault as they would have.
    pub fn populate(&self, range: Range<usize>) -> Result<(), ShmError> {
        let bytes = range.end.saturating_sub(range.start);
        self.range(range.start, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // Reading maps sixteen pages by one fault where writing maps one, twice as fast in all. A shared mapping of memory has
        // writable entries either way, but only x86-64 sets their dirty bits itself on every machine.
        let (advice, name) = if cfg!(target_arch = "x86_64") {
            (Advice::PopulateRead, "madvise(POPULATE_READ)")
        } else {
            (Advice::PopulateWrite, "madvise(POPULATE_WRITE)")
        };
        loop {
            match self.raw.advise(advice, range.clone()) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(ShmError::os(name, format!("bytes {range:?}"), e)),
            }
        }
    }

    /// Says, before its pages are made, that huge ones are welcome. A kernel that has none is left as it is.
    pub fn welcome_huge_pages(&self) {
        let _ = self.raw.advise(Advice::Huge, 0..self.len());
    }

    /// Makes the whole huge pages of a range huge, one after the other, as far as the kernel can, whatever its settings say; and what
    /// lies in them present. Before each it asks whether to go on. What the range holds does not change.
    ///
    /// # Errors
    /// As [`Mapping::prefault`].
    pub fn make_huge(&self, range: Range<usize>, go_on: impl Fn() -> bool) -> Result<MadeHuge, ShmError> {
        let mut found = MadeHuge::default();
        let Some(huge) = huge_page_bytes() else {
            return Ok(found);
        };
        let whole = range.start.next_multiple_of(huge)..range.end / huge * huge;
        for start in whole.step_by(huge).take_while(|_| go_on()) {
            // One small page of it, for the kernel refuses what holds nothing at all. The others are zeroed in their new place.
            self.prefault(start..start + 1)?;
            match self.raw.advise(Advice::Collapse, start..start + huge) {
                Ok(()) => found.made += 1,
                Err(error) => {
                    *found
                        .refused
                        .entry(error.raw_os_error().unwrap_or(0))
                        .or_default() += 1
                }
            }
        }
        Ok(found)
    }

    /// Bytes of it that the kernel says are mapped by huge pages. `None`: it does not say.
    pub fn huge_bytes(&self) -> Option<u64> {
        let start = self.base() as usize;
        huge_bytes(&(start..start + self.len()))
    }

    /// Writes one word of every page of the range with the value it has.
    fn touch(&self, range: Range<usize>) -> Result<(), ShmError> {
        let page = page_size();
        let first = range.start / page * page;
        for offset in (first..range.end).step_by(page) {
            if offset + 8 > self.len() {
                break; // a last page of fewer than eight bytes is left to its first use
            }
            let word = self.u64_at(offset)?;
            // Exchanging a value for itself needs the page to be writable and loses no concurrent store.
            let value = word.load(Ordering::Relaxed);
            let _ = word.compare_exchange(value, value, Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl<A: Access> fmt::Debug for Mapping<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = if A::WRITABLE { "read-write" } else { "read-only" };
        f.debug_struct("Mapping")
            .field("len", &self.len())
            .field("access", &access)
            .finish_non_exhaustive()
    }
}

impl Memfd {
    /// Maps the whole file readable and writable.
    ///
    /// # Errors
    /// See [`Mapping::map`].
    pub fn map(&self) -> Result<Mapping<ReadWrite>, ShmError> {
        Mapping::<ReadWrite>::map(self.as_fd(), to_usize(self.len())?)
    }

    /// Maps the whole file read-only.
    ///
    /// # Errors
    /// See [`Mapping::map`].
    pub fn map_read_only(&self) -> Result<Mapping<ReadOnly>, ShmError> {
        Mapping::<ReadOnly>::map(self.as_fd(), to_usize(self.len())?)
    }
}

#[cfg(test)]
#[path = "tests/mapping.rs"]
mod tests;
