//! Frames over the server's socket, each exchange with a deadline. A connection that failed once is of no more use.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Shutdown, SockFlag, SockType, UnixAddr, connect, getsockopt, shutdown, socket,
};

use crate::client::ClientError;
use crate::shm::atfork::{ForkClosedFd, forks_so_far};
use crate::shm::fdpass::{recv_with_fds, send_with_fds};
use crate::shm::socket_path;
use crate::sync::shared::{AtomicBool, Ordering};
use crate::wire::{
    Encoder, ErrorCode, FirstBytes, FrameReader, MAX_FDS_PER_FRAME, Reply, Request, WireError, decode_reply,
};

/// How an exchange failed.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The server refused; the connection is as good as before.
    Refused(WireError),
    /// No answer by the deadline. The connection is of no more use, but nothing says that the server is gone.
    Late,
    /// The connection is to be dropped.
    Broken(String),
}

/// Why a call failed that was not answered by its deadline.
pub(crate) const LATE: &str = "the server did not answer in time";

impl From<CallError> for ClientError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(error) => Self::Refused(error),
            CallError::Late => Self::unavailable(LATE),
            CallError::Broken(reason) => Self::Unavailable { reason },
        }
    }
}

fn broken(what: &str, error: impl std::fmt::Display) -> CallError {
    CallError::Broken(format!("{what}: {error}"))
}

/// The socket of a connection. A forked child has no copy of it: the server would see neither the end of this process
/// nor of its calls while the child lives.
#[derive(Debug)]
pub(crate) struct Stream {
    fd: ForkClosedFd,
    /// The process at the other end, as this process's name space numbers it: 0 where it has no number there.
    server: u32,
    /// Whether the server said that an operator ended it.
    kicked: AtomicBool,
}

impl Stream {
    /// Whether the server said that an operator ended it. Says so once, to whoever asks first.
    pub(crate) fn take_kicked(&self) -> bool {
        self.kicked.swap(false, Ordering::Relaxed)
    }

    /// What tells the process at the other end from the next one there: its number, as far as it has one.
    pub(crate) fn server(&self) -> u32 {
        self.server
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, CallError> {
        let forked = || CallError::Broken("this connection was made before a fork".into());
        self.fd.fd().ok_or_else(forked)
    }

    /// Says that nothing more will be asked. The server closes the connection once all that was is done.
    pub(crate) fn end_requests(&self) {
        if let Some(fd) = self.fd.fd() {
            // Fails for one that has ended.
            let _ = shutdown(fd.as_raw_fd(), Shutdown::Write);
        }
    }

    /// Ends the connection for everybody who has the descriptor.
    pub(crate) fn hang_up(&self) {
        if let Some(fd) = self.fd.fd() {
            // Fails for one that has ended.
            let _ = shutdown(fd.as_raw_fd(), Shutdown::Both);
        }
    }
}

/// One connection.
pub(crate) struct Connection {
    stream: Arc<Stream>,
    path: PathBuf,
    /// Kept until the first answer has shown that a Kvasir server is at the other end.
    first: Option<FirstBytes>,
    encoder: Encoder,
    reader: FrameReader,
    next_id: u64,
    /// Descriptors that arrived and no frame has taken yet.
    descriptors: VecDeque<OwnedFd>,
    /// How many descriptors may still arrive.
    descriptors_expected: usize,
    /// Requests whose replies nobody waits for, oldest first.
    unawaited: VecDeque<u64>,
    /// Requests whose replies are waited for later, with those that have come.
    begun: Vec<(u64, Option<Reply>)>,
}

/// The id of an error that answers no request; those of requests count from 1.
const NO_REQUEST: u64 = 0;

/// Most replies that may be left unread: far less than the server queues for a peer.
const MAX_UNAWAITED: usize = 64;

impl Connection {
    /// Connects without waiting: a Unix socket either takes a connection at once or its queue is full.
    pub(crate) fn connect(path: &Path) -> Result<Self, CallError> {
        let what = format!("cannot connect to {}", path.display());
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let forks = forks_so_far().map_err(|e| broken(&what, e))?;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None).map_err(|e| broken(&what, e))?;
        let address = UnixAddr::new(path).map_err(|e| broken(&what, e))?;
        let mut stream = Stream {
            fd: ForkClosedFd::new(fd).map_err(|e| broken(&what, e))?,
            server: 0,
            kicked: AtomicBool::new(false),
        };
        // A child forked in between has a copy that nothing would close.
        if forks.is_none() || forks != forks_so_far().map_err(|e| broken(&what, e))? {
            return Err(broken(&what, "this process forked meanwhile"));
        }
        connect(stream.fd()?.as_raw_fd(), &address).map_err(|error| match error {
            Errno::EAGAIN => broken(&what, "the server takes no connections now"),
            error => broken(&what, socket_path::why_not(path, error)),
        })?;
        // The kernel notes who listens, and refuses nobody who asks.
        stream.server = getsockopt(&stream.fd()?, PeerCredentials).map_or(0, |peer| peer.pid() as u32);
        Ok(Self {
            stream: Arc::new(stream),
            path: path.to_owned(),
            first: Some(FirstBytes::default()),
            encoder: Encoder::new(),
            reader: FrameReader::new(),
            next_id: 1,
            descriptors: VecDeque::new(),
            descriptors_expected: MAX_FDS_PER_FRAME,
            unawaited: VecDeque::new(),
            begun: Vec::new(),
        })
    }

    /// The socket, for noticing a hang-up while no call is made.
    pub(crate) fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// One exchange: sends a request and waits for its reply until the deadline.
    pub(crate) fn call(&mut self, request: &Request, deadline: Instant) -> Result<Reply, CallError> {
        let id = self.next_id;
        self.next_id += 1;
        if let Err(error) = self.send(id, request, deadline) {
            // What the server said before it closed is worth more than that it has.
            return match (&error, self.last_words()) {
                (CallError::Broken(_), Some(refusal)) => Err(CallError::Refused(refusal)),
                _ => Err(error),
            };
        }
        as_answer(self.reply_to(id, deadline)?)
    }

    /// Sends a request whose answer is waited for by [`Self::finish`]. Others may be sent and answered meanwhile.
    pub(crate) fn begin(&mut self, request: &Request, deadline: Instant) -> Result<u64, CallError> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(id, request, deadline)?;
        self.begun.push((id, None));
        Ok(id)
    }

    /// Waits for the answer to what [`Self::begin`] sent.
    pub(crate) fn finish(&mut self, id: u64, deadline: Instant) -> Result<Reply, CallError> {
        let at = self.begun.iter().position(|(begun, _)| *begun == id);
        let Some(at) = at else {
            return Err(broken("waiting", format_args!("request {id} was not sent")));
        };
        let reply = match self.begun.swap_remove(at).1 {
            Some(reply) => reply,
            None => self.reply_to(id, deadline)?,
        };
        as_answer(reply)
    }

    /// Sends a request whose answer does not matter. It is read, and thrown away, by a later exchange.
    pub(crate) fn post(&mut self, request: &Request, deadline: Instant) -> Result<(), CallError> {
        if self.unawaited.len() == MAX_UNAWAITED
            && let Some(oldest) = self.unawaited.pop_front()
        {
            self.reply_to(oldest, deadline)?;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.send(id, request, deadline)?;
        self.unawaited.push_back(id);
        Ok(())
    }

    /// The error that a server has sent to nobody's request before it closed the connection.
    pub(crate) fn last_words(&mut self) -> Option<WireError> {
        // Behind the answers that nobody has read yet.
        for _ in 0..=self.unawaited.len() + self.begun.len() {
            match self.receive(Instant::now()).ok()? {
                (NO_REQUEST, Reply::Error(error)) => return Some(error),
                (found, reply) => {
                    if let Some((_, place)) = self.begun.iter_mut().find(|(begun, _)| *begun == found) {
                        *place = Some(reply);
                    }
                }
            }
        }
        None
    }

    /// The reply to one request, past those that nobody waits for. An error that answers no request is one for all: the
    /// server takes no more of them.
    fn reply_to(&mut self, id: u64, deadline: Instant) -> Result<Reply, CallError> {
        loop {
            let (found, reply) = self.receive(deadline)?;
            // An error that answers no request is about the connection: it is the answer to whatever was sent.
            if found == id || found == NO_REQUEST && matches!(reply, Reply::Error(_)) {
                return Ok(reply);
            }
            if let Some((_, place)) = self.begun.iter_mut().find(|(begun, _)| *begun == found) {
                *place = Some(reply); // for whoever waits for it later
                continue;
            }
            let Some(at) = self.unawaited.iter().position(|&unawaited| unawaited == found) else {
                return Err(broken(
                    "the server answered",
                    format_args!("request {found} instead of {id}"),
                ));
            };
            self.unawaited.remove(at);
        }
    }

    /// The descriptors that came with the replies so far; none may come later.
    pub(crate) fn take_descriptors(&mut self) -> VecDeque<OwnedFd> {
        self.descriptors_expected = 0;
        std::mem::take(&mut self.descriptors)
    }

    fn send(&mut self, id: u64, request: &Request, deadline: Instant) -> Result<(), CallError> {
        let frame = self.encoder.request(id, request);
        let mut rest = frame.map_err(|error| broken("the request cannot be sent", error))?;
        while !rest.is_empty() {
            match send_with_fds(self.stream.fd()?, rest, &[]) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(&self.stream, PollFlags::POLLOUT, deadline)?;
                }
                // The peer has hung up. Why it did may be there to be read, and if not, then its end.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                    ) =>
                {
                    return Ok(());
                }
                Err(error) => return Err(broken("sending failed", error)),
            }
        }
        Ok(())
    }

    fn receive(&mut self, deadline: Instant) -> Result<(u64, Reply), CallError> {
        loop {
            let frame = self.reader.next_frame();
            let (first, path) = (self.first.as_ref(), &self.path);
            if let Some(frame) = frame.map_err(|error| not_valid(first, path, "frame", error))? {
                let decoded = decode_reply(frame).map_err(|error| not_valid(first, path, "reply", error))?;
                self.first = None;
                if matches!(&decoded.1, Reply::Error(error) if error.code == ErrorCode::Kicked) {
                    self.stream.kicked.store(true, Ordering::Relaxed);
                }
                return Ok(decoded);
            }
            let space = self.reader.space();
            let space = space.map_err(|error| not_valid(first, path, "frame", error))?;
            match recv_with_fds(self.stream.fd()?, space, self.descriptors_expected) {
                Ok(received) if received.bytes == 0 => {
                    return Err(closed(first, path));
                }
                Ok(received) => {
                    if let Some(first) = &mut self.first {
                        first.add(&space[..received.bytes]);
                    }
                    self.reader.received(received.bytes);
                    self.descriptors_expected -= received.fds.len();
                    self.descriptors.extend(received.fds);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(&self.stream, PollFlags::POLLIN, deadline)?;
                }
                // What a close looks like when not everything was read.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(closed(first, path));
                }
                Err(error) => return Err(broken("receiving failed", error)),
            }
        }
    }
}

/// What a reply is for whoever waits for it: a refusal of the request, or the end of the connection.
fn as_answer(reply: Reply) -> Result<Reply, CallError> {
    match reply {
        // Of no use to this client as long as it lives, and nothing that is wrong with the connection.
        Reply::Error(error)
            if matches!(
                error.code,
                ErrorCode::ProtocolVersion | ErrorCode::PermissionDenied
            ) =>
        {
            Err(CallError::Refused(error))
        }
        Reply::Error(error) if error.code.closes_connection() => Err(broken("the server refused", error)),
        // A server that is going away is one that is away: it closes the connection next, and nothing that it would
        // still take outlives it.
        Reply::Error(error) if error.code == ErrorCode::Draining => Err(CallError::Broken(error.message)),
        Reply::Error(error) => Err(CallError::Refused(error)),
        reply => Ok(reply),
    }
}

/// Bytes that are no answer: before the first answer, whoever sent them is no Kvasir server.
fn not_valid(
    first: Option<&FirstBytes>,
    path: &Path,
    what: &str,
    error: impl std::fmt::Display,
) -> CallError {
    match first {
        Some(first) => CallError::Broken(first.not_kvasir(path)),
        None => broken(&format!("the server's {what} is not valid"), error),
    }
}

fn closed(first: Option<&FirstBytes>, path: &Path) -> CallError {
    CallError::Broken(match first {
        Some(first) if !first.is_empty() => first.not_kvasir(path),
        Some(_) => format!(
            "what listens on {} closed the connection without an answer",
            path.display()
        ),
        None => "the server closed the connection".into(),
    })
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("stream", &self.stream)
            .field("next_id", &self.next_id)
            .finish_non_exhaustive()
    }
}

/// Waits until the socket is ready, has failed, or the deadline has passed.
fn wait(stream: &Stream, flags: PollFlags, deadline: Instant) -> Result<(), CallError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(CallError::Late);
        }
        let mut fds = [PollFd::new(stream.fd()?, flags)];
        match poll(&mut fds, poll_timeout(left)) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(broken("poll failed", error.desc())),
        }
    }
}

/// A duration as poll takes it, rounded up so that nobody spins through the last millisecond.
pub(crate) fn poll_timeout(left: Duration) -> PollTimeout {
    let ms = left.as_nanos().div_ceil(1_000_000);
    PollTimeout::try_from(i32::try_from(ms).unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn last_words_are_found_behind_answers_that_nobody_has_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut connection = Connection::connect(&path).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        connection.post(&Request::GetChunkSize, deadline).unwrap();
        let begun = connection.begin(&Request::GetChunkSize, deadline).unwrap();
        let mut encoder = Encoder::new();
        let kicked = WireError::new(ErrorCode::Kicked, "an operator", []);
        for (id, reply) in [
            (1, Reply::Ack),
            (begun, Reply::Ack),
            (NO_REQUEST, Reply::Error(kicked.clone())),
        ] {
            server.write_all(encoder.reply(id, &reply).unwrap()).unwrap();
        }
        drop(server);
        assert_eq!(connection.last_words().map(|words| words.code), Some(kicked.code));
        assert!(matches!(connection.finish(begun, deadline), Ok(Reply::Ack)));
        assert!(connection.stream().take_kicked());
        assert!(!connection.stream().take_kicked(), "it is said once");
        assert!(connection.last_words().is_none());
    }
}
