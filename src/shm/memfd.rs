//! Anonymous memory files: created, sized, restricted to their owner and sealed in one step.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{SysconfVar, ftruncate, sysconf};

use super::ShmError;

/// `MFD_NOEXEC_SEAL` (Linux 6.3): never executable, and it stays so. Some hosts refuse memfds without it.
const NOEXEC_SEAL: u32 = 0x8;

/// Who may open a memfd anew through `/proc`. Descriptors that were passed keep the access they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerAccess {
    /// Mode 0400: nobody but root can reopen it writable. For regions whose writers are handed a
    /// descriptor, and for all that clients only read.
    Read,
    /// Mode 0600: the owner's processes can reopen it writable. Needed where every client gets an open
    /// file description of its own to lock bytes with.
    ReadWrite,
}

impl OwnerAccess {
    fn mode(self) -> Mode {
        match self {
            Self::Read => Mode::S_IRUSR,
            Self::ReadWrite => Mode::S_IRUSR | Mode::S_IWUSR,
        }
    }
}

/// A memory file of fixed size: its size is sealed from the start.
///
/// Closing every descriptor and mapping of it, in whatever process, frees the memory; nothing is named.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    name: String,
    len: u64,
}

impl Memfd {
    /// Creates a zero-filled file of `len` bytes, shown as `memfd:kvasir-<name>` in `/proc`.
    ///
    /// The default mode of a memfd is 0777, which lets another uid reopen a read-only descriptor
    /// writable, so the mode is set before anybody can have seen the file.
    ///
    /// # Errors
    /// [`ShmError::BadLength`] for 0 or more than a file can have, [`ShmError::Os`] when a call fails.
    pub fn create(name: &str, len: u64, access: OwnerAccess) -> Result<Self, ShmError> {
        const MAX: u64 = i64::MAX as u64;
        let name = format!("kvasir-{name}");
        if len == 0 || len > MAX {
            return Err(ShmError::BadLength { len, max: MAX });
        }
        let fd = create_fd(&name, MFdFlags::empty()).map_err(|e| ShmError::os("memfd_create", &name, e))?;
        Self::prepare(fd, name, len, access)
    }

    /// The same of reserved huge pages of the system's default size, of which `len` has to be a multiple. They are promised when
    /// the file is mapped, and not before.
    ///
    /// # Errors
    /// As [`Memfd::create`]; also where the kernel has no such pages.
    pub fn create_reserved(name: &str, len: u64, access: OwnerAccess) -> Result<Self, ShmError> {
        let name = format!("kvasir-{name}");
        let fd = create_fd(&name, MFdFlags::MFD_HUGETLB)
            .map_err(|e| ShmError::os("memfd_create(MFD_HUGETLB)", &name, e))?;
        Self::prepare(fd, name, len, access)
    }

    fn prepare(fd: OwnedFd, name: String, len: u64, access: OwnerAccess) -> Result<Self, ShmError> {
        ftruncate(&fd, len as i64).map_err(|e| ShmError::os("ftruncate", &name, e))?;
        fchmod(&fd, access.mode()).map_err(|e| ShmError::os("fchmod", &name, e))?;
        let memfd = Self { fd, name, len };
        memfd.add_seals(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)?;
        Ok(memfd)
    }

    /// The size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always false: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The name shown in `/proc/<pid>/maps` behind `memfd:`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Forbids, for good and for every process, all writes and writable mappings made from now on.
    ///
    /// Mappings that exist stay writable, so map the region first. The set of seals is closed as well.
    ///
    /// # Errors
    /// [`ShmError::Os`] on kernels before 5.1, which do not know this seal.
    pub fn seal_future_writes(&self) -> Result<(), ShmError> {
        self.add_seals(SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL)
    }

    /// Forbids writes and writable mappings altogether; what remains is a file to lock bytes of.
    ///
    /// # Errors
    /// [`ShmError::Os`], also when a writable mapping exists.
    pub fn seal_writes(&self) -> Result<(), ShmError> {
        self.add_seals(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL)
    }

    /// Closes the set of seals, so that a peer with a writable descriptor cannot add one that would keep
    /// the next server from mapping the region.
    ///
    /// # Errors
    /// [`ShmError::Os`] when the kernel refuses.
    pub fn seal_seals(&self) -> Result<(), ShmError> {
        self.add_seals(SealFlag::F_SEAL_SEAL)
    }

    /// A read-only descriptor with an open file description of its own, fit to be sent to a client.
    ///
    /// # Errors
    /// See [`reopen_read_only`].
    pub fn reopen_read_only(&self) -> Result<OwnedFd, ShmError> {
        reopen_read_only(self.as_fd())
    }

    /// A writable descriptor with an open file description of its own.
    ///
    /// # Errors
    /// See [`reopen_read_write`].
    pub fn reopen_read_write(&self) -> Result<OwnedFd, ShmError> {
        reopen_read_write(self.as_fd())
    }

    fn add_seals(&self, seals: SealFlag) -> Result<(), ShmError> {
        fcntl(&self.fd, FcntlArg::F_ADD_SEALS(seals))
            .map(drop)
            .map_err(|e| ShmError::os("fcntl(F_ADD_SEALS)", &self.name, e))
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Memfd> for OwnedFd {
    fn from(memfd: Memfd) -> Self {
        memfd.fd
    }
}

fn create_fd(name: &str, more: MFdFlags) -> Result<OwnedFd, Errno> {
    let base = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | more;
    match memfd_create(name, base | MFdFlags::from_bits_retain(NOEXEC_SEAL)) {
        // An older kernel does not know the flag; the mode set afterwards has no execute bit either.
        Err(Errno::EINVAL) => memfd_create(name, base),
        other => other,
    }
}

/// Opens the file of `fd` again, read-only: a new open file description, whatever access `fd` has.
///
/// # Errors
/// [`ShmError::Os`] when `/proc` is not mounted or descriptors have run out.
pub fn reopen_read_only(fd: BorrowedFd<'_>) -> Result<OwnedFd, ShmError> {
    reopen(fd, false)
}

/// Opens the file of `fd` again, readable and writable: a new open file description.
///
/// # Errors
/// [`ShmError::Os`] when the file's mode forbids it (see [`OwnerAccess`]), when `/proc` is not mounted, or
/// when descriptors have run out.
pub fn reopen_read_write(fd: BorrowedFd<'_>) -> Result<OwnedFd, ShmError> {
    reopen(fd, true)
}

fn reopen(fd: BorrowedFd<'_>, write: bool) -> Result<OwnedFd, ShmError> {
    // std opens with O_CLOEXEC. The link names the file itself, so this works for unnamed files too.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(libc::O_NOCTTY)
        .open(&path)
        .map(OwnedFd::from)
        .map_err(|e| ShmError::os("open", path, e))
}

/// The seals of a file as the kernel's bits.
///
/// # Errors
/// [`ShmError::Os`] when the file cannot have seals at all, which a file on disk cannot.
pub(crate) fn seals(fd: BorrowedFd<'_>) -> Result<u32, ShmError> {
    let bits =
        fcntl(fd, FcntlArg::F_GET_SEALS).map_err(|e| ShmError::os("fcntl(F_GET_SEALS)", "a file", e))?;
    Ok(bits as u32)
}

/// The size in bytes of the file of `fd`.
///
/// # Errors
/// [`ShmError::Os`] when the kernel does not say.
pub(crate) fn file_len(fd: BorrowedFd<'_>) -> Result<u64, ShmError> {
    let file = fd
        .try_clone_to_owned()
        .map(File::from)
        .map_err(|e| ShmError::os("dup", "a file", e))?;
    Ok(file
        .metadata()
        .map_err(|e| ShmError::os("fstat", "a file", e))?
        .len())
}

/// The page size of this machine: 4 KiB, 16 KiB or 64 KiB, depending on the kernel.
pub fn page_size() -> usize {
    // The call cannot fail for this name; should it ever, the largest page size in use is safe everywhere
    // that rounding up is what pages are used for.
    match sysconf(SysconfVar::PAGE_SIZE) {
        Ok(Some(bytes)) if bytes > 0 => bytes as usize,
        _ => 64 * 1024,
    }
}

pub(super) fn to_usize(len: u64) -> Result<usize, ShmError> {
    usize::try_from(len)
        .ok()
        .filter(|&n| n <= isize::MAX as usize)
        .ok_or_else(|| {
            ShmError::os(
                "mmap",
                format!("{len} bytes"),
                io::Error::from(io::ErrorKind::OutOfMemory),
            )
        })
}
