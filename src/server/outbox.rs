//! Replies that wait to be sent. A peer that does not read them is given up, never waited for.
//!
//! May import `shm`. No unsafe code.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::shm::fdpass::send_with_fds;
use crate::wire::MAX_FRAME_BYTES;

/// Room for the longest reply behind another.
const MAX_QUEUED_BYTES: usize = 2 * (MAX_FRAME_BYTES + crate::wire::PREFIX_BYTES);
/// What an idle connection keeps.
const IDLE_BYTES: usize = 16 << 10;

/// The peer did not read its replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    /// Bytes that wait.
    pub(super) queued: usize,
}

/// Bytes to send, and the descriptors that go with the first of them.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<OwnedFd>,
}

impl Outbox {
    /// Whether everything was sent.
    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Adds a frame.
    pub(super) fn push(&mut self, frame: &[u8]) -> Result<(), Full> {
        let queued = self.bytes.len() - self.sent + frame.len();
        if queued > MAX_QUEUED_BYTES {
            return Err(Full { queued });
        }
        self.bytes.extend_from_slice(frame);
        Ok(())
    }

    /// Adds the first frame of a connection, with descriptors: nothing may be waiting before it.
    pub(super) fn push_first(&mut self, frame: &[u8], fds: Vec<OwnedFd>) -> Result<(), Full> {
        self.fds = fds;
        self.push(frame)
    }

    /// Forgets the first frame of a connection if none of it was sent. False: some was, or it had no descriptors.
    pub(super) fn give_up_first(&mut self) -> bool {
        let unsent = self.sent == 0 && !self.fds.is_empty();
        if unsent {
            self.fds.clear();
            self.bytes.clear();
        }
        unsent
    }

    /// Sends as much as the socket takes.
    pub(super) fn flush(&mut self, stream: &UnixStream) -> io::Result<()> {
        while self.sent < self.bytes.len() {
            let pending = &self.bytes[self.sent..];
            let fds: Vec<_> = self.fds.iter().map(AsFd::as_fd).collect();
            match stream.try_io(Interest::WRITABLE, || send_with_fds(stream, pending, &fds)) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            // They have travelled with the first byte; the copies here have to go, the liveness file's above all.
            self.fds.clear();
        }
        self.bytes.clear();
        self.bytes.shrink_to(IDLE_BYTES);
        self.sent = 0;
        Ok(())
    }
}
