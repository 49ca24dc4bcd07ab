//! A lock file that a dead holder may have left behind.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use super::ShmError;
use super::lock::try_lock_file;

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
    /// Whether [`LockFile::acquire`] made the file.
    created: bool,
}

impl LockFile {
    /// Makes the file (mode 0600), or opens the one that a dead holder left, and locks it without waiting.
    ///
    /// A file that is there already is taken only if it can be such a leftover: a regular file of this user that
    /// is empty or holds one process id. Nothing is written to any other.
    ///
    /// # Errors
    /// [`ShmError::NotALockFile`] for a file that is something else, [`ShmError::Os`] when the file cannot be
    /// opened, read or written.
    pub fn acquire(path: &Path) -> Result<LockAttempt, ShmError> {
        let failed = |call| move |e: io::Error| ShmError::os(call, path.display().to_string(), e);
        loop {
            let Some((file, created)) = open_or_create(path)? else {
                continue;
            };
            let ours = file.metadata().map_err(failed("fstat"))?;
            if let Some(found) = unfit(&ours) {
                return Err(ShmError::NotALockFile {
                    path: path.to_owned(),
                    found,
                });
            }
            if !try_lock_file(file.as_fd())? {
                return Ok(LockAttempt::Held {
                    holder_pid: read_pid(&file),
                });
            }
            // The holder before us may have removed the name between our open and our lock; then this
            // lock protects nothing, and the next process would take another file of the same name.
            if !is_named(&ours, path)? {
                continue;
            }
            if !is_leftover(&file).map_err(failed("read"))? {
                let bytes = file.metadata().map_err(failed("fstat"))?.len();
                return Err(ShmError::NotALockFile {
                    path: path.to_owned(),
                    found: format!("a file of {bytes} bytes that does not hold one process id"),
                });
            }
            let mut lock = Self {
                file,
                path: path.to_owned(),
                created,
            };
            lock.write_pid().map_err(failed("write"))?;
            return Ok(LockAttempt::Taken(lock));
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode of the file.
    ///
    /// # Errors
    /// The system's.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        self.file.metadata().map(|file| (file.dev(), file.ino()))
    }

    /// Removes the name while the lock is held, then unlocks. A name that is gone, or that has become another
    /// file (the lock of a later holder), is left as it is.
    ///
    /// # Errors
    /// [`ShmError::Os`] when the name cannot be removed.
    pub fn remove(self) -> Result<(), ShmError> {
        let path = &self.path;
        let failed = |call| move |e: io::Error| ShmError::os(call, path.display().to_string(), e);
        let ours = self.file.metadata().map_err(failed("fstat"))?;
        if !is_named(&ours, &self.path)? {
            return Ok(());
        }
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("unlink")(e)),
            _ => Ok(()),
        }
    }

    /// Undoes [`LockFile::acquire`] for a holder that did not come to use the lock: removes the file if it was
    /// made by it, and leaves a file that was there before.
    ///
    /// # Errors
    /// As for [`LockFile::remove`].
    pub fn give_up(self) -> Result<(), ShmError> {
        if self.created { self.remove() } else { Ok(()) }
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

/// Opens the file, or makes it and says so. `None`: it went away in between.
fn open_or_create(path: &Path) -> Result<Option<(File, bool)>, ShmError> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .mode(0o600)
        // Whatever turns out to be there, opening it must neither wait nor give us a terminal.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    match options.clone().create_new(true).open(path) {
        Ok(file) => return Ok(Some((file, true))),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(ShmError::os("open", path.display().to_string(), e)),
    }
    let error = match options.open(path) {
        Ok(file) => return Ok(Some((file, false))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => e,
    };
    // What cannot be opened is named where that explains it.
    match std::fs::symlink_metadata(path).ok().as_ref().and_then(unfit) {
        Some(found) => Err(ShmError::NotALockFile {
            path: path.to_owned(),
            found,
        }),
        None => Err(ShmError::os("open", path.display().to_string(), error)),
    }
}

/// What a file is that cannot be a lock file of this user.
fn unfit(metadata: &Metadata) -> Option<String> {
    let kind = metadata.file_type();
    let own = geteuid().as_raw();
    if kind.is_symlink() {
        Some("a symbolic link".into())
    } else if kind.is_dir() {
        Some("a directory".into())
    } else if !kind.is_file() {
        Some("not a regular file".into())
    } else if metadata.uid() != own {
        Some(format!(
            "a file of uid {}, this process is uid {own}",
            metadata.uid()
        ))
    } else {
        None
    }
}

/// Whether the path still names the file.
fn is_named(file: &Metadata, path: &Path) -> Result<bool, ShmError> {
    match std::fs::symlink_metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (file.dev(), file.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(ShmError::os("stat", path.display().to_string(), e)),
    }
}

/// More than the digits of any process id and the end of the line.
const PID_LINE_LIMIT: u64 = 32;

/// Whether the file holds what a holder leaves: nothing (it died before it wrote) or its process id.
fn is_leftover(file: &File) -> io::Result<bool> {
    let mut text = Vec::new();
    file.take(PID_LINE_LIMIT).read_to_end(&mut text)?;
    let digits = text.strip_suffix(b"\n").unwrap_or(&text);
    let is_pid = digits.len() <= 10 && digits.iter().all(u8::is_ascii_digit);
    Ok(text.is_empty() || (is_pid && !digits.is_empty()))
}

fn read_pid(file: &File) -> Option<u32> {
    let mut text = String::new();
    let mut reader = file.take(PID_LINE_LIMIT);
    reader.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
#[path = "tests/lock_file.rs"]
mod tests;
