//! Waiting in the event loop until a descriptor that is no socket can be read.
//!
//! Unsafe is opened here for the registration with the event loop. The invariant: the registration owns the descriptor,
//! so it is the same open file from the first to the last moment.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor of something that becomes readable: a process that ends, a watched name that changes.
#[derive(Debug)]
pub(crate) struct Readable(AsyncFd<OwnedFd>);

impl Readable {
    /// Registers a descriptor, which must not block, with the event loop of this thread.
    ///
    /// # Errors
    /// The event loop's, for a descriptor that cannot be waited for.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` gives the same descriptor every time it is asked, keeps it open until it is dropped, and is
        // owned by the registration from here on.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(registered.map_err(io::Error::from)?))
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }

    /// Whether there is something to read now.
    pub(crate) fn is_ready(&self) -> bool {
        let mut fds = [PollFd::new(self.0.get_ref().as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Comes back when there is something to read, and later again only when there is something new.
    ///
    /// # Errors
    /// The event loop's, when it is ending.
    pub(crate) async fn news(&self) -> io::Result<()> {
        self.0.readable().await.map(|mut ready| ready.clear_ready())
    }
}
