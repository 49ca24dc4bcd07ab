//! Replies that wait to be sent. A peer that does not read them is given up, never waited for.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::cache::Turn;
use crate::shm::fdpass::send_with_fds;
use crate::shm::watched::WatchedSocket;
use crate::wire::MAX_FRAME_BYTES;

/// Room for the longest reply behind another.
const MAX_QUEUED_BYTES: usize = 2 * (MAX_FRAME_BYTES + crate::wire::PREFIX_BYTES);
/// Short replies are put together up to so many bytes, which is also what is sent at once.
const PIECE_BYTES: usize = 64 << 10;
/// What an idle connection keeps.
const IDLE_BYTES: usize = 16 << 10;
/// Steps of a system call, and bytes that count as one more.
const SEND_STEPS: u32 = 8;
const BYTES_PER_STEP: usize = 2048;

/// The peer did not read its replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    /// Bytes that wait.
    pub(super) queued: usize,
}

/// Bytes to send, and the descriptors that go with the first of them.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pieces: VecDeque<Vec<u8>>,
    /// Of the first piece.
    sent: usize,
    queued: usize,
    fds: Vec<OwnedFd>,
}

impl Outbox {
    /// Whether everything was sent.
    pub(super) fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Adds a frame.
    pub(super) fn push(&mut self, frame: &[u8]) -> Result<(), Full> {
        self.reserve(frame.len())?;
        match self.pieces.back_mut() {
            Some(last) if last.len() + frame.len() <= PIECE_BYTES => last.extend_from_slice(frame),
            _ => self.pieces.push_back(frame.to_vec()),
        }
        Ok(())
    }

    /// Adds a long frame as it is: copying it would take longer than a turn.
    pub(super) fn push_long(&mut self, frame: Vec<u8>) -> Result<(), Full> {
        self.reserve(frame.len())?;
        // An empty one is only kept for its memory.
        self.pieces.retain(|piece| !piece.is_empty());
        self.pieces.push_back(frame);
        Ok(())
    }

    /// Adds the first frame of a connection, with descriptors: nothing may be waiting before it.
    pub(super) fn push_first(&mut self, frame: &[u8], fds: Vec<OwnedFd>) -> Result<(), Full> {
        self.fds = fds;
        self.push(frame)
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), Full> {
        let queued = self.queued + bytes;
        if queued > MAX_QUEUED_BYTES {
            return Err(Full { queued });
        }
        self.queued = queued;
        Ok(())
    }

    /// Forgets the first frame of a connection if none of it was sent. False: some was, or it had no descriptors.
    pub(super) fn give_up_first(&mut self) -> bool {
        let unsent = self.sent == 0 && !self.fds.is_empty();
        if unsent {
            self.fds.clear();
            self.pieces.clear();
            self.queued = 0;
        }
        unsent
    }

    /// Sends as much as the socket takes while the turn lasts.
    pub(super) fn flush(&mut self, stream: &WatchedSocket, turn: &mut Turn) -> io::Result<()> {
        while self.queued > 0 && !turn.is_over() {
            let Some(piece) = self.pieces.front() else { break };
            let end = piece.len().min(self.sent + PIECE_BYTES);
            let pending = &piece[self.sent..end];
            let fds: Vec<_> = self.fds.iter().map(AsFd::as_fd).collect();
            turn.spend(SEND_STEPS);
            let bytes = match stream.try_write(|stream| send_with_fds(stream, pending, &fds)) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            turn.spend((bytes / BYTES_PER_STEP) as u32);
            // They have travelled with the first byte; the copies here have to go, the liveness file's above all.
            self.fds.clear();
            self.sent += bytes;
            self.queued -= bytes;
            if self.sent == piece.len() {
                self.sent = 0;
                self.drop_first();
            }
        }
        Ok(())
    }

    /// Forgets the first piece, and keeps its memory when it is the only one and small.
    fn drop_first(&mut self) {
        let Some(mut first) = self.pieces.pop_front() else {
            return;
        };
        if self.pieces.is_empty() && first.capacity() <= IDLE_BYTES {
            first.clear();
            self.pieces.push_back(first);
        }
    }
}
