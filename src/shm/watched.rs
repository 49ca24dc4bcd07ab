//! A connected socket in the event loop, which is told of bytes to read, and of room to write only while it waits for room.
//!
//! A socket that is always watched for room is told of it each time that the peer reads a reply: a server would wake up twice for each
//! request, and the second time for nothing.
//!
//! Unsafe is opened here for the registration with the event loop. The invariant: the registration shares the descriptor,
//! so it is the same open file from the first to the last moment.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};

/// A socket that does not block.
#[derive(Debug)]
pub(crate) struct WatchedSocket {
    socket: Rc<OwnedFd>,
    /// None once the event loop has refused it.
    registered: Option<AsyncFd<Rc<OwnedFd>>>,
    /// Whether it is watched for room to write.
    room: bool,
}

impl WatchedSocket {
    /// Registers a socket, which must not block, with the event loop of this thread.
    ///
    /// # Errors
    /// The event loop's.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let socket = Rc::new(fd);
        Ok(Self {
            registered: Some(register(&socket, Interest::READABLE)?),
            socket,
            room: false,
        })
    }

    /// Comes back when there is something to read or, if `room` is waited for, room to write.
    ///
    /// # Errors
    /// The event loop's; it is of no more use then.
    pub(crate) async fn ready(&mut self, room: bool) -> io::Result<Ready> {
        self.watch(room)?;
        let interest = match room {
            true => Interest::READABLE | Interest::WRITABLE,
            false => Interest::READABLE,
        };
        self.registered()?
            .ready(interest)
            .await
            .map(|guard| guard.ready())
    }

    /// Comes back when there is room to write, whatever there is to read.
    ///
    /// # Errors
    /// As [`Self::ready`].
    pub(crate) async fn has_room(&mut self) -> io::Result<()> {
        self.watch(true)?;
        self.registered()?.ready(Interest::WRITABLE).await.map(drop)
    }

    /// Reads, unless it is known that nothing is there.
    ///
    /// # Errors
    /// What `read` says, or that nothing is there.
    pub(crate) fn try_read<T>(&self, read: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        self.registered()?
            .try_io(Interest::READABLE, |fd| read(fd.as_fd()))
    }

    /// Writes, unless it is known that there is no room.
    ///
    /// # Errors
    /// What `write` says, or that there is no room.
    pub(crate) fn try_write<T>(&self, write: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        match self.room {
            true => self
                .registered()?
                .try_io(Interest::WRITABLE, |fd| write(fd.as_fd())),
            false => write(self.as_fd()),
        }
    }

    /// Registers it anew if it is to be told of something else. What is ready by then is told again.
    fn watch(&mut self, room: bool) -> io::Result<()> {
        if self.room != room {
            let interest = match room {
                true => Interest::READABLE | Interest::WRITABLE,
                false => Interest::READABLE,
            };
            // First: an event loop has a descriptor once.
            self.registered = None;
            self.registered = Some(register(&self.socket, interest)?);
            self.room = room;
        }
        Ok(())
    }

    fn registered(&self) -> io::Result<&AsyncFd<Rc<OwnedFd>>> {
        let refused = || {
            io::Error::new(
                io::ErrorKind::NotConnected,
                "the event loop has refused this socket",
            )
        };
        self.registered.as_ref().ok_or_else(refused)
    }
}

impl AsFd for WatchedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn register(socket: &Rc<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<Rc<OwnedFd>>> {
    // SAFETY: an `OwnedFd` gives the same descriptor every time it is asked and keeps it open until it is dropped, and the
    // registration has a share of it.
    let registered = unsafe { AsyncFd::register_with_interest(Rc::clone(socket), interest) };
    registered.map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    /// Long enough for an event loop to be told of what has happened.
    const A_WHILE: Duration = Duration::from_millis(50);

    fn pair() -> (WatchedSocket, UnixStream) {
        let (own, peer) = UnixStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        (WatchedSocket::new(own.into()).unwrap(), peer)
    }

    fn write(socket: &WatchedSocket, bytes: &[u8]) -> io::Result<usize> {
        socket.try_write(|fd| Ok(nix::unistd::write(fd, bytes)?))
    }

    fn read(socket: &WatchedSocket) -> io::Result<usize> {
        socket.try_read(|fd| Ok(nix::unistd::read(fd, &mut [0; 64])?))
    }

    /// Whether the kernel is to tell the event loop of room.
    fn is_watched_for_room(socket: &WatchedSocket) -> bool {
        let line = format!("tfd: {:>8} events: ", socket.as_fd().as_raw_fd());
        let files = std::fs::read_dir("/proc/self/fdinfo").unwrap();
        let files = files.filter_map(|file| std::fs::read_to_string(file.ok()?.path()).ok());
        let mut events: Vec<u32> = files
            .flat_map(|text| {
                let events = text.lines().filter_map(|of| of.strip_prefix(&line));
                let events = events.filter_map(|of| of.split_whitespace().next());
                let events = events.map(|hex| u32::from_str_radix(hex, 16).unwrap());
                events.collect::<Vec<_>>()
            })
            .collect();
        events.dedup(); // an event loop may have several descriptors
        let [events] = events[..] else {
            panic!("watched for {events:?}");
        };
        events & libc::EPOLLOUT as u32 != 0
    }

    #[tokio::test]
    async fn a_peer_that_reads_its_replies_wakes_nobody_up() {
        let (mut socket, mut peer) = pair();
        assert!(!is_watched_for_room(&socket));
        let room = tokio::time::timeout(A_WHILE, socket.ready(true)).await;
        assert!(room.unwrap().unwrap().is_writable());
        assert!(is_watched_for_room(&socket));
        peer.write_all(b"request").unwrap();
        assert!(socket.ready(false).await.unwrap().is_readable());
        assert!(!is_watched_for_room(&socket));
    }

    #[tokio::test]
    async fn room_is_waited_for_where_there_is_none_and_what_came_meanwhile_is_not_lost() {
        let (mut socket, mut peer) = pair();
        let mut written = 0;
        while let Ok(bytes) = write(&socket, &[7; 4096]) {
            written += bytes;
        }
        let room = tokio::time::timeout(A_WHILE, socket.ready(true)).await;
        assert!(room.is_err(), "{room:?}");
        peer.write_all(b"request").unwrap();
        assert!(!socket.ready(true).await.unwrap().is_writable());
        peer.read_exact(&mut vec![0; written]).unwrap();
        socket.has_room().await.unwrap();
        assert_eq!(write(&socket, b"reply").unwrap(), 5);
        assert!(socket.ready(false).await.unwrap().is_readable());
        assert_eq!(read(&socket).unwrap(), 7);
        assert_eq!(read(&socket).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(peer);
        assert!(socket.ready(false).await.unwrap().is_read_closed());
    }
}
