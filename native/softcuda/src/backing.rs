//! The bytes of device memory: a memory file that other processes can be given, mapped once for the stand-in itself.
//!
//! Unsafe is opened here for the mapping. The invariant: `base` is a shared mapping of `mapped` bytes that is made in
//! `Backing::over` and unmapped when the `Backing` is dropped; the file cannot shrink, because its size is sealed.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr;

const PAGE: u64 = 4096;
const MAGIC: [u8; 8] = *b"softcuda";
const FOOTER: usize = 40;

/// What a memory file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Memory of `cuMemAlloc`.
    Plain = 1,
    /// Memory of `cuMemCreate`.
    Virtual = 2,
    /// The words of an event.
    Event = 3,
}

/// One memory file.
#[derive(Debug)]
pub(crate) struct Backing {
    file: File,
    base: *mut u8,
    mapped: usize,
    /// Bytes that the caller asked for.
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    /// The UUID of its device.
    pub(crate) uuid: [u8; 16],
}

// SAFETY: the mapping may be used and unmapped by any thread; what is written there are plain bytes and atomics.
unsafe impl Send for Backing {}
// SAFETY: as above. Accesses that race are races of the program that runs on the stand-in, as on a card.
unsafe impl Sync for Backing {}

impl Backing {
    /// Fresh memory of zeroes.
    pub(crate) fn new(kind: Kind, bytes: u64, uuid: [u8; 16]) -> io::Result<Self> {
        // SAFETY: the name is a C string; the call has no other precondition.
        let fd =
            unsafe { libc::memfd_create(c"softcuda".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let body = bytes.next_multiple_of(PAGE);
        file.set_len(body + PAGE)?;
        let mut footer = [0; FOOTER];
        footer[..8].copy_from_slice(&MAGIC);
        footer[8] = kind as u8;
        footer[16..24].copy_from_slice(&bytes.to_le_bytes());
        footer[24..40].copy_from_slice(&uuid);
        file.write_all_at(&footer, body)?;
        // SAFETY: a call on an own descriptor.
        unsafe {
            libc::fcntl(
                file.as_raw_fd(),
                libc::F_ADD_SEALS,
                libc::F_SEAL_SHRINK | libc::F_SEAL_GROW,
            )
        };
        Self::over(file)
    }

    /// Memory that another process made; `None` if the descriptor is something else.
    pub(crate) fn adopt(file: File) -> Option<Self> {
        Self::over(file).ok()
    }

    fn over(file: File) -> io::Result<Self> {
        let not_ours = || io::Error::from(io::ErrorKind::InvalidData);
        // SAFETY: a call on an own descriptor, without an argument.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(not_ours());
        }
        let mapped = file.metadata()?.len();
        let body = mapped.checked_sub(PAGE).ok_or_else(not_ours)?;
        let mut footer = [0; FOOTER];
        file.read_exact_at(&mut footer, body)?;
        let kind = match footer[8] {
            1 => Kind::Plain,
            2 => Kind::Virtual,
            3 => Kind::Event,
            _ => return Err(not_ours()),
        };
        let bytes = u64::from_le_bytes(footer[16..24].try_into().unwrap_or_default());
        if footer[..8] != MAGIC || bytes > body {
            return Err(not_ours());
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice, of a file that cannot shrink.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            file,
            base: base.cast(),
            mapped: mapped as usize,
            bytes,
            kind,
            uuid: footer[24..40].try_into().unwrap_or_default(),
        })
    }

    /// The stand-in's own address of the byte at `offset`.
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        if offset > self.bytes {
            fatal!("offset {offset} lies outside of memory of {} bytes", self.bytes);
        }
        self.base.wrapping_add(offset as usize)
    }

    /// A descriptor of the same file, for another process.
    pub(crate) fn duplicate(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// How another process finds the file: this process, the descriptor, the inode, that a number that was used again
    /// is not taken for it.
    pub(crate) fn name(&self) -> io::Result<[u8; 64]> {
        let mut name = [0; 64];
        name[..8].copy_from_slice(&MAGIC);
        name[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        name[12..16].copy_from_slice(&self.file.as_raw_fd().to_le_bytes());
        name[16..24].copy_from_slice(&self.file.metadata()?.ino().to_le_bytes());
        name[24] = self.kind as u8;
        Ok(name)
    }

    /// Opens the file that `name` names, and the process that it is of.
    pub(crate) fn by_name(name: &[u8; 64], kind: Kind) -> Option<(Self, u32)> {
        let word = |at: usize| u32::from_le_bytes(name[at..at + 4].try_into().unwrap_or_default());
        let (pid, fd) = (word(8), word(12));
        if name[..8] != MAGIC || name[24] != kind as u8 {
            return None;
        }
        let path = format!("/proc/{pid}/fd/{fd}");
        let file = File::options().read(true).write(true).open(path).ok()?;
        let inode = file.metadata().ok()?.ino();
        if inode.to_le_bytes() != name[16..24] {
            return None;
        }
        let backing = Self::adopt(file)?;
        (backing.kind == kind).then_some((backing, pid))
    }

    /// Says to all processes that this description of the file is in use. The kernel takes it back with the last
    /// descriptor, however the process ends.
    pub(crate) fn hold(&self) -> bool {
        self.lock(libc::F_OFD_SETLK, libc::F_RDLCK).is_some()
    }

    /// Whether another description holds the file.
    pub(crate) fn is_held_elsewhere(&self) -> bool {
        self.lock(libc::F_OFD_GETLK, libc::F_WRLCK)
            .is_some_and(|found| found != libc::F_UNLCK as i16)
    }

    fn lock(&self, command: i32, kind: i32) -> Option<i16> {
        // SAFETY: all zeroes is a valid `flock`.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as i16;
        lock.l_len = 1;
        // SAFETY: an own descriptor and a `flock` that lives across the call.
        let result = unsafe { libc::fcntl(self.file.as_raw_fd(), command, &mut lock) };
        (result >= 0).then_some(lock.l_type)
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: the mapping of `over`, which nothing names any more: regions and events own their backing.
        unsafe { libc::munmap(self.base.cast(), self.mapped) };
    }
}
