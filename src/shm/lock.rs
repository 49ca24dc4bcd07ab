//! Locks that belong to an open file description: they end when its last descriptor is closed, which the
//! kernel does when a process dies, however it dies.
//!
//! May import this module's `error`. No unsafe code.
//!
//! Unlike the older record locks they are not lost when some library opens and closes the same file, and
//! unlike `flock` they cover single bytes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

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

/// What became of an attempt to take a [`LockFile`].
#[derive(Debug)]
pub enum LockAttempt {
    /// This process holds it now.
    Taken(LockFile),
    /// A living process holds it.
    Held {
        /// The process id that the holder wrote down; `None` when it has not yet.
        holder_pid: Option<u32>,
    },
}

/// A file that is locked whole by at most one process, with the holder's process id as its text.
///
/// Dropping it unlocks but leaves the file, as a crash would; [`LockFile::remove`] takes the name away too.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: PathBuf,
}

impl LockFile {
    /// Opens or makes the file (mode 0600, no symbolic link) and locks it without waiting.
    ///
    /// # Errors
    /// [`ShmError::Os`] when the file cannot be opened, read or written.
    pub fn acquire(path: &Path) -> Result<LockAttempt, ShmError> {
        let failed = |call| move |e: io::Error| ShmError::os(call, path.display().to_string(), e);
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(path)
                .map_err(failed("open"))?;
            if !set_lock(file.as_fd(), libc::F_WRLCK, 0, 0)? {
                return Ok(LockAttempt::Held {
                    holder_pid: read_pid(&file),
                });
            }
            // The holder before us may have removed the name between our open and our lock; then this
            // lock protects nothing, and the next process would take another file of the same name.
            let ours = file.metadata().map_err(failed("fstat"))?;
            match std::fs::symlink_metadata(path) {
                Ok(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => {}
                Ok(_) => continue,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(failed("stat")(e)),
            }
            let mut lock = Self {
                file,
                path: path.to_owned(),
            };
            lock.write_pid().map_err(failed("write"))?;
            return Ok(LockAttempt::Taken(lock));
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the name while the lock is held, then unlocks.
    ///
    /// # Errors
    /// [`ShmError::Os`] when the name cannot be removed.
    pub fn remove(self) -> Result<(), ShmError> {
        std::fs::remove_file(&self.path)
            .map_err(|e| ShmError::os("unlink", self.path.display().to_string(), e))
    }

    fn write_pid(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file
            .write_all(format!("{}\n", std::process::id()).as_bytes())
    }
}

impl AsFd for LockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn read_pid(file: &File) -> Option<u32> {
    let mut text = String::new();
    let mut reader = file.take(32);
    reader.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
