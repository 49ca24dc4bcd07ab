//! Locks that belong to an open file description: they end when its last descriptor is closed, which the
//! kernel does when a process dies, however it dies.
//!
//! Unlike the older record locks they are not lost when some library opens and closes the same file, and
//! unlike `flock` they cover single bytes.

use std::io;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use super::ShmError;

/// Takes the write lock on one byte for the open file description of `fd`, which must be writable.
/// False when another description holds it; true also when this one already did.
///
/// # Errors
/// [`ShmError::Os`] when the kernel refuses, for example for a read-only descriptor.
pub fn try_lock_byte(fd: BorrowedFd<'_>, offset: u64) -> Result<bool, ShmError> {
    set_lock(fd, libc::F_WRLCK, offset, 1)
}

/// Gives the lock on one byte back. The description need not have held it.
///
/// # Errors
/// [`ShmError::Os`] when the kernel refuses.
pub fn unlock_byte(fd: BorrowedFd<'_>, offset: u64) -> Result<(), ShmError> {
    set_lock(fd, libc::F_UNLCK, offset, 1).map(drop)
}

/// Whether an open file description other than that of `fd` holds the lock on a byte.
///
/// # Errors
/// [`ShmError::Os`] when the kernel refuses.
pub fn byte_is_locked(fd: BorrowedFd<'_>, offset: u64) -> Result<bool, ShmError> {
    let mut lock = flock(libc::F_WRLCK, offset, 1)?;
    fcntl(fd, FcntlArg::F_OFD_GETLK(&mut lock))
        .map_err(|e| ShmError::os("fcntl(F_OFD_GETLK)", format!("byte {offset}"), e))?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Takes the write lock on a whole file; see [`try_lock_byte`].
#[cfg(feature = "server")]
pub(super) fn try_lock_file(fd: BorrowedFd<'_>) -> Result<bool, ShmError> {
    set_lock(fd, libc::F_WRLCK, 0, 0)
}

fn set_lock(fd: BorrowedFd<'_>, kind: libc::c_int, offset: u64, len: i64) -> Result<bool, ShmError> {
    let lock = flock(kind, offset, len)?;
    match fcntl(fd, FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(e) => Err(ShmError::os("fcntl(F_OFD_SETLK)", format!("byte {offset}"), e)),
    }
}

fn flock(kind: libc::c_int, offset: u64, len: i64) -> Result<libc::flock, ShmError> {
    let start = i64::try_from(offset).map_err(|_| {
        ShmError::os(
            "fcntl",
            format!("byte {offset}"),
            io::Error::from(Errno::EOVERFLOW),
        )
    })?;
    Ok(libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0, // must be zero for locks of a description
    })
}

#[cfg(test)]
#[path = "tests/lock.rs"]
mod tests;
