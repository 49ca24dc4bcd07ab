//! `--export NAME`: rings with a name, for clients that cannot receive descriptors.
//!
//! A ring is a file in the directory of POSIX shared memory from the client's hello until it attaches; then its name goes, and the
//! memory with the last mapping. So a name is there for the moment of opening only. What a killed server leaves is removed by
//! the next `kvasir serve` of the same user: the name of every server is locked as long as it lives, and what belongs to a
//! name that nobody holds is nobody's.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::unistd::geteuid;
use tracing::{info, warn};

use super::config::is_name;
use crate::shm::ShmError;
use crate::shm::lock_file::{LockAttempt, LockFile};

/// Where `shm_open` puts names on Linux.
const DIRECTORY: &str = "/dev/shm";
const PREFIX: &str = "kvasir.";
const LOCK: &str = ".lock";
const RING: &str = ".ring";
/// Somebody who cleans up holds a lock for a moment.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// Why a server cannot export under a name.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A living server has it.
    #[error(
        "another server exports under the name {name}{}; stop it first or use another name",
        pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The name.
        name: String,
        /// The process, if it is known.
        pid: Option<u32>,
    },
    /// The lock could not be used.
    #[error("lock of the exported name: {0}")]
    Lock(#[from] ShmError),
}

/// A name that this server has.
#[derive(Debug)]
pub(super) struct Export {
    directory: PathBuf,
    name: String,
    next: Cell<u64>,
    lock: Option<LockFile>,
}

/// A file with a name, until this is dropped.
#[derive(Debug)]
pub(super) struct NamedFile {
    path: PathBuf,
}

impl Drop for NamedFile {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

impl Export {
    /// Takes a name, and removes what a server that died has left under it.
    pub(super) fn open(name: &str) -> Result<Self, ExportError> {
        Self::open_in(Path::new(DIRECTORY), name)
    }

    fn open_in(directory: &Path, name: &str) -> Result<Self, ExportError> {
        let path = directory.join(format!("{PREFIX}{name}{LOCK}"));
        let mut tries = 0;
        let lock = loop {
            match LockFile::acquire(&path)? {
                LockAttempt::Taken(lock) => break lock,
                LockAttempt::Held { .. } if tries < TRIES => {
                    tries += 1;
                    thread::sleep(PAUSE);
                }
                LockAttempt::Held { holder_pid } => {
                    let name = name.to_owned();
                    return Err(ExportError::InUse {
                        name,
                        pid: holder_pid,
                    });
                }
            }
        };
        remove_rings(directory, name);
        Ok(Self {
            directory: directory.to_owned(),
            name: name.to_owned(),
            next: Cell::new(0),
            lock: Some(lock),
        })
    }

    /// Makes an empty file, for this user only.
    pub(super) fn create(&self) -> Result<(Arc<File>, NamedFile), ShmError> {
        let number = self.next.get();
        self.next.set(number + 1);
        let path = self
            .directory
            .join(format!("{PREFIX}{}.{number}{RING}", self.name));
        let failed = |call| {
            let what = path.display().to_string();
            move |error: io::Error| ShmError::os(call, what, error)
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(failed("open"))?;
        let named = NamedFile { path: path.clone() };
        // Whatever the umask was.
        let private = fs::Permissions::from_mode(0o600);
        file.set_permissions(private).map_err(failed("fchmod"))?;
        Ok((Arc::new(file), named))
    }
}

impl NamedFile {
    /// The path that the client opens.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        remove_rings(&self.directory, &self.name);
        if let Some(lock) = self.lock.take()
            && let Err(error) = lock.remove()
        {
            warn!(%error, "the lock of the exported name could not be removed");
        }
    }
}

/// Removes what servers of this user have left that have died. Those of living ones are locked and stay.
pub(super) fn clean_up() {
    clean_up_in(Path::new(DIRECTORY));
}

fn clean_up_in(directory: &Path) {
    let names: BTreeSet<String> = own_files(directory)
        .filter_map(|file| exported_name(&file).map(str::to_owned))
        .collect();
    for name in names {
        let path = directory.join(format!("{PREFIX}{name}{LOCK}"));
        match LockFile::acquire(&path) {
            Ok(LockAttempt::Taken(lock)) => {
                remove_rings(directory, &name);
                info!(name, "removed what a server that died had exported");
                if let Err(error) = lock.remove() {
                    warn!(%error, "the lock of a dead server's name could not be removed");
                }
            }
            Ok(LockAttempt::Held { .. }) => {}
            Err(error) => warn!(%error, "what a dead server exported could not be removed"),
        }
    }
}

/// The name that a file of the directory belongs to.
fn exported_name(file: &str) -> Option<&str> {
    let rest = file.strip_prefix(PREFIX)?;
    let name = match rest.strip_suffix(LOCK) {
        Some(name) => name,
        None => rest.strip_suffix(RING)?.rsplit_once('.')?.0,
    };
    is_name(name).then_some(name)
}

fn remove_rings(directory: &Path, name: &str) {
    for file in own_files(directory) {
        if file.ends_with(RING) && exported_name(&file) == Some(name) {
            remove(&directory.join(file));
        }
    }
}

/// Regular files of this user.
fn own_files(directory: &Path) -> impl Iterator<Item = String> {
    let own = geteuid().as_raw();
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let metadata = entry.metadata().ok()?; // of the entry itself, no link is followed
        let name = entry.file_name().into_string().ok()?;
        (name.starts_with(PREFIX) && metadata.is_file() && metadata.uid() == own).then_some(name)
    })
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            warn!(path = %path.display(), %error, "an exported name could not be removed");
        }
        _ => {}
    }
}

#[cfg(test)]
#[path = "tests/export.rs"]
mod tests;
