//! What the recovery thread sleeps on: a call that wants it awake, a hang-up, or another server at the path.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::connection::poll_timeout;

/// How often the socket's name is looked at while a server is waited for: one `stat`.
const LOOK: Duration = Duration::from_millis(250);

/// Wakes the recovery thread. It has a descriptor as soon as there is one to be had: a process that has none left cannot
/// connect either, and then there is no connection to sleep on at the same time.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    event: OnceLock<EventFd>,
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake {
    fn woken(&self) -> MutexGuard<'_, bool> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake(&self) {
        // Under the lock, as whoever takes it back does: neither is ever left over alone.
        let mut woken = self.woken();
        *woken = true;
        self.changed.notify_all();
        if let Some(event) = self.event.get() {
            // Full means that it is awake already.
            let _ = event.write(1);
        }
    }

    /// Sleeps until somebody wakes it, one of the streams hangs up, or the time is over. Whether a stream has hung up.
    pub(crate) fn sleep(&self, streams: &[BorrowedFd<'_>], time: Duration) -> bool {
        let event = self.event();
        // After the descriptor was made: whoever wakes from here on writes to it.
        if self.take(event) {
            return self.hung_up(streams);
        }
        let Some(event) = event else {
            let woken = self
                .changed
                .wait_timeout_while(self.woken(), time, |woken| !*woken);
            *woken.unwrap_or_else(PoisonError::into_inner).0 = false;
            return self.hung_up(streams);
        };
        let mut fds = vec![PollFd::new(event.as_fd(), PollFlags::POLLIN)];
        fds.extend(watched(streams));
        let _ = poll(&mut fds, poll_timeout(time));
        let gone = fds[1..].iter().any(is_gone);
        drop(fds);
        self.take(Some(event));
        gone
    }

    /// Takes back that somebody wants it awake. Whether somebody did.
    fn take(&self, event: Option<&EventFd>) -> bool {
        let mut woken = self.woken();
        if let Some(event) = event {
            // Empty is an error of a descriptor that does not block, and what is wanted.
            let _ = event.read();
        }
        std::mem::take(&mut *woken)
    }

    /// Sleeps as [`Wake::sleep`] does, and no longer than until the name leads to another socket. Whether it does.
    pub(crate) fn sleep_beside(
        &self,
        streams: &[BorrowedFd<'_>],
        time: Duration,
        path: &Path,
        seen: Option<SocketFile>,
    ) -> bool {
        let begin = Instant::now();
        loop {
            let left = time.saturating_sub(begin.elapsed());
            let slept = Instant::now();
            if self.sleep(streams, left.min(LOOK)) {
                return true;
            }
            if SocketFile::at(path) != seen {
                return true;
            }
            // Woken, or at the end.
            if left <= LOOK || slept.elapsed() < left.min(LOOK) {
                return false;
            }
        }
    }

    fn event(&self) -> Option<&EventFd> {
        if self.event.get().is_none() {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            let event = EventFd::from_value_and_flags(0, flags).ok()?;
            // Only the recovery thread comes here, so there is none yet.
            let _ = self.event.set(event);
        }
        self.event.get()
    }

    /// Whether one of the streams has hung up.
    pub(crate) fn hung_up(&self, streams: &[BorrowedFd<'_>]) -> bool {
        let mut fds: Vec<PollFd<'_>> = watched(streams).collect();
        let _ = poll(&mut fds, poll_timeout(Duration::ZERO));
        fds.iter().any(is_gone)
    }
}

/// A hang-up is told whatever is asked for.
fn watched<'a>(streams: &'a [BorrowedFd<'a>]) -> impl Iterator<Item = PollFd<'a>> {
    streams
        .iter()
        .map(|stream| PollFd::new(*stream, PollFlags::empty()))
}

fn is_gone(fd: &PollFd<'_>) -> bool {
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR;
    fd.revents().is_some_and(|events| events.intersects(gone))
}

/// What tells one socket at a path from the next. Inode numbers are given out again, so the time counts too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketFile {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl SocketFile {
    /// The socket that a path leads to now; nothing where there is none.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Arc;

    use super::*;

    /// Never reached by a test that passes.
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_wake_before_the_sleep_is_not_lost() {
        let wake = Wake::default();
        wake.wake();
        assert!(!wake.sleep(&[], LONG));
        wake.wake();
        assert!(!wake.sleep(&[], LONG), "nor with a descriptor");
    }

    #[test]
    fn a_hang_up_ends_the_sleep() {
        let (one, other) = UnixStream::pair().unwrap();
        let wake = Arc::new(Wake::default());
        let sleeper = Arc::clone(&wake);
        let thread = std::thread::spawn(move || sleeper.sleep(&[one.as_fd()], LONG));
        drop(other);
        assert!(thread.join().unwrap());
    }

    #[test]
    fn another_socket_under_the_same_name_ends_the_sleep() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let seen = SocketFile::at(&path);
        assert!(seen.is_some());
        assert!(!Wake::default().sleep_beside(&[], Duration::from_millis(1), &path, seen));
        let (wake, place) = (Arc::new(Wake::default()), path.clone());
        let thread = std::thread::spawn(move || wake.sleep_beside(&[], LONG, &place, seen));
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        let _next = UnixListener::bind(&path).unwrap();
        assert!(thread.join().unwrap());
    }
}
