//! Whose turn it is to read a model, among the processes of a machine that want to know the same.
//!
//! The lock is the kernel's, so it goes with the process that holds it. The file holds how far that one has come: a
//! holder that comes no further (it is stopped, or its disk hangs) is not waited for, and then two read the same.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use super::remembered::Remembered;
use super::{WeightsError, pause};

/// Between two looks at the lock.
const POLL: Duration = Duration::from_millis(50);

/// A holder that has read nothing for this long is not waited for.
#[cfg(not(test))]
const STALLED: Duration = Duration::from_secs(30);
/// Short in tests that wait for it.
#[cfg(test)]
const STALLED: Duration = Duration::from_secs(2);

/// The turn of this process; ends when dropped.
pub(super) struct Turn {
    lock: Flock<File>,
    read: AtomicU64,
}

impl Turn {
    /// Shows those who wait that so many bytes more have been read.
    pub(super) fn tell(&self, bytes: u64) {
        let read = self.read.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // Who cannot see it waits for a while and then reads by itself.
        let _ = self.lock.write_all_at(&read.to_le_bytes(), 0);
    }
}

/// Waits for the turn to read the weights at `path`. `None`: read without one, there is nowhere to agree or nobody to
/// wait for.
pub(super) fn turn(
    memory: &Remembered,
    path: &Path,
    cancelled: &AtomicBool,
) -> Result<Option<Turn>, WeightsError> {
    let Ok(metadata) = fs::metadata(path) else {
        return Ok(None);
    };
    let name = format!("{:x}-{:x}.lock", metadata.dev(), metadata.ino());
    let Some(mut file) = memory.lock_file(&name) else {
        return Ok(None);
    };
    let (mut seen, mut since) = (None, Instant::now());
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                let read = AtomicU64::new(0);
                return Ok(Some(Turn { lock, read }));
            }
            Err((file, nix::errno::Errno::EWOULDBLOCK)) => file,
            Err(_) => return Ok(None), // this file system has no locks
        };
        let mut word = [0; 8];
        let now = file.read_at(&mut word, 0).ok().map(|_| word);
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() >= STALLED {
            return Ok(None);
        }
        pause(POLL, cancelled)?;
    }
}
