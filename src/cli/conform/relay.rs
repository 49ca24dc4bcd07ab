//! Between the client and the real server: frames one way, shaped replies the other.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::acts::{Act, Shape};
use super::connection::Connection;
use super::judge::Judge;
use crate::shm::Mapping;
use crate::shm::fdpass::{FdPassError, recv_with_fds, send_with_fds};
use crate::wire::{
    Encoder, ErrorCode, FrameReader, Hello, HelloReply, MAX_FDS_PER_FRAME, RegionKind, Reply, Request,
    WireError, decode_reply, decode_request, explain_request, grow,
};

/// How long a client may leave a reply unread.
const READ_PATIENCE: Duration = Duration::from_secs(5);
/// Between two pieces of a reply: long enough that the client reads the first for itself.
const PIECE_PAUSE: Duration = Duration::from_millis(3);
/// Where replies are cut: in the length, behind it, in the table.
const CUTS: [usize; 4] = [1, 3, 4, 11];

/// Where a client's frames come from, and its replies go.
pub(super) enum Channel {
    Socket(UnixStream),
    Pipes,
}

impl Channel {
    pub(super) fn fd(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Socket(stream) => stream.as_fd().try_clone_to_owned(),
            Self::Pipes => io::stdin().as_fd().try_clone_to_owned(),
        }
    }

    fn receive(&self, space: &mut [u8]) -> io::Result<usize> {
        match self {
            // No frame of a client announces descriptors.
            Self::Socket(stream) => recv_with_fds(stream, space, 0).map(|received| received.bytes),
            Self::Pipes => nix::unistd::read(io::stdin(), space).map_err(io::Error::from),
        }
    }

    fn send(&self, mut bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
        let Self::Socket(stream) = self else {
            let mut out = io::stdout().lock();
            out.write_all(bytes)?;
            return out.flush();
        };
        let mut fds: Vec<BorrowedFd<'_>> = fds.iter().map(OwnedFd::as_fd).collect();
        while !bytes.is_empty() {
            let sent = send_with_fds(stream, bytes, &fds)?;
            fds.clear();
            bytes = &bytes[sent..];
        }
        Ok(())
    }
}

/// A reply that waits for its time.
struct Waiting {
    due: Instant,
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    pieces: bool,
}

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goes {
    On,
    /// It has ended; so many bytes of a frame had come.
    Ended(usize),
}

/// One connection of the client and its other half to the server.
pub(super) struct Relay {
    channel: Channel,
    server: UnixStream,
    from_client: FrameReader,
    /// Bytes of frames that are not whole yet.
    partial: usize,
    from_server: FrameReader,
    fds: VecDeque<OwnedFd>,
    waiting: VecDeque<Waiting>,
    encoder: Encoder,
    pub(super) connection: Connection,
}

impl Relay {
    pub(super) fn open(channel: Channel, server: &Path, life: u32) -> io::Result<Self> {
        if let Channel::Socket(stream) = &channel {
            stream.set_write_timeout(Some(READ_PATIENCE))?;
        }
        let server = UnixStream::connect(server)?;
        server.set_write_timeout(Some(READ_PATIENCE))?;
        Ok(Self {
            channel,
            server,
            from_client: FrameReader::before_hello(),
            partial: 0,
            from_server: FrameReader::new(),
            fds: VecDeque::new(),
            waiting: VecDeque::new(),
            encoder: Encoder::new(),
            connection: Connection::new(life),
        })
    }

    /// The client's side and the server's, to wait for.
    pub(super) fn fds(&self) -> io::Result<[OwnedFd; 2]> {
        Ok([self.channel.fd()?, self.server.as_fd().try_clone_to_owned()?])
    }

    /// When the next reply is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.due).min()
    }

    /// Takes what the client has sent.
    pub(super) fn client_is_readable(&mut self, judge: &mut Judge) -> Result<Goes, String> {
        let space = match self.from_client.space() {
            Ok(space) => space,
            Err(error) => return Ok(self.not_a_frame(judge, &error)),
        };
        match self.channel.receive(space) {
            Ok(0) => return Ok(Goes::Ended(self.partial)),
            Ok(bytes) => {
                self.partial += bytes;
                self.from_client.received(bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Goes::On),
            Err(error) => {
                if let Some(broken) = FdPassError::of(&error) {
                    judge.malformed(
                        &self.connection,
                        "no descriptors: only HelloReply carries any",
                        &broken.to_string(),
                    );
                    self.last_words(ErrorCode::Descriptors, &broken.to_string());
                }
                return Ok(Goes::Ended(0));
            }
        }
        loop {
            let frame = match self.from_client.next_frame() {
                Ok(Some(frame)) => frame.to_vec(),
                Ok(None) => return Ok(Goes::On),
                Err(error) => return Ok(self.not_a_frame(judge, &error)),
            };
            self.partial -= frame.len();
            if let Goes::Ended(partial) = self.take(&frame, judge) {
                return Ok(Goes::Ended(partial));
            }
        }
    }

    fn take(&mut self, frame: &[u8], judge: &mut Judge) -> Goes {
        let (id, request) = match decode_request(frame) {
            Ok(decoded) => decoded,
            Err(bad) => {
                let (expected, found) = explain_request(frame).unwrap_or((
                    "a request of the schema, with fields that it can have",
                    bad.error.to_string(),
                ));
                judge.malformed(&self.connection, expected, &found);
                // The server says the same, and does with the connection what it does.
                return self.forward(frame);
            }
        };
        match judge.request(&mut self.connection, id, &request) {
            Act::Forward => match over_pipes(&self.channel, &request) {
                Some(request) => match self.encoder.request(id, &request) {
                    Ok(frame) => {
                        let frame = frame.to_vec();
                        self.forward(&frame)
                    }
                    Err(_) => Goes::Ended(0),
                },
                None => self.forward(frame),
            },
            Act::Answer(reply) => self.say(id, &reply),
            Act::Refuse(reply) => {
                self.say(id, &reply);
                Goes::Ended(0)
            }
        }
    }

    fn forward(&mut self, frame: &[u8]) -> Goes {
        match self.server.write_all(frame) {
            Ok(()) => Goes::On,
            Err(_) => Goes::Ended(0),
        }
    }

    /// Sends a reply of the kit's own.
    fn say(&mut self, id: u64, reply: &Reply) -> Goes {
        let Ok(frame) = self.encoder.reply(id, reply) else {
            return Goes::Ended(0);
        };
        match self.channel.send(frame, &[]) {
            Ok(()) => Goes::On,
            Err(_) => Goes::Ended(0),
        }
    }

    fn last_words(&mut self, code: ErrorCode, text: &str) {
        self.say(0, &Reply::Error(WireError::new(code, text, [])));
    }

    /// A length that no frame has: there is no way to go on reading.
    fn not_a_frame(&mut self, judge: &mut Judge, error: &crate::wire::FrameError) -> Goes {
        let expected = "a length (u32, little-endian) of the frame behind it, at most 4096 before the reply to Hello and \
                        4194304 after it";
        judge.malformed(&self.connection, expected, &error.to_string());
        self.last_words(ErrorCode::FrameTooLarge, &error.to_string());
        Goes::Ended(0)
    }

    /// Takes what the server has sent.
    pub(super) fn server_is_readable(&mut self, judge: &mut Judge) -> Result<Goes, String> {
        let failed = |error: &dyn std::fmt::Display| format!("the kit's own server: {error}");
        let space = self.from_server.space().map_err(|error| failed(&error))?;
        match recv_with_fds(&self.server, space, MAX_FDS_PER_FRAME) {
            // It closes after what it was sent, and has said why.
            Ok(received) if received.bytes == 0 => {
                self.send_all();
                return Ok(Goes::Ended(0));
            }
            Ok(received) => {
                self.fds.extend(received.fds);
                self.from_server.received(received.bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Goes::Ended(0)),
            Err(error) => return Err(failed(&error)),
        }
        while let Some(frame) = self.from_server.next_frame().map_err(|error| failed(&error))? {
            let frame = frame.to_vec();
            let (id, reply) = decode_reply(&frame).map_err(|error| failed(&error))?;
            let shape = judge.reply(&mut self.connection, id, &reply)?;
            self.pass_on(judge, id, &reply, frame, shape)?;
        }
        Ok(Goes::On)
    }

    fn pass_on(
        &mut self,
        judge: &Judge,
        id: u64,
        reply: &Reply,
        frame: Vec<u8>,
        shape: Shape,
    ) -> Result<(), String> {
        let mut fds = Vec::new();
        let mut bytes = frame;
        if let Reply::Hello(hello) = reply {
            self.from_client.opened();
            fds = self.keep_slab(hello)?;
            if matches!(self.channel, Channel::Pipes) {
                fds.clear();
                let without = HelloReply {
                    regions: vec![],
                    ..hello.clone()
                };
                let frame = self.encoder.reply(id, &Reply::Hello(without));
                bytes = frame.map_err(|error| error.to_string())?.to_vec();
            }
        }
        if shape.grown
            && let Some(grown) = grow(&bytes)
        {
            bytes = grown;
        }
        let delay = if shape.late { judge.late } else { Duration::ZERO };
        self.waiting.push_back(Waiting {
            due: Instant::now() + delay,
            bytes,
            fds,
            pieces: shape.pieces,
        });
        Ok(())
    }

    /// Takes the descriptors of a hello, and keeps a view of the client's slab. Nothing of the liveness file is kept: its
    /// lock would outlive the client.
    fn keep_slab(&mut self, hello: &HelloReply) -> Result<Vec<OwnedFd>, String> {
        let fds: Vec<OwnedFd> = self.fds.drain(..).collect();
        for (region, fd) in hello.regions.iter().zip(&fds) {
            if region.kind == RegionKind::PinSlab {
                let slab = Mapping::map_foreign_at(fd.as_fd(), region.offset, region.bytes as usize);
                self.connection.slab = Some(slab.map_err(|error| format!("the client's slab: {error}"))?);
            }
        }
        Ok(fds)
    }

    /// Sends the replies that are due.
    pub(super) fn send_due(&mut self) -> Goes {
        let now = Instant::now();
        while let Some(at) = self.waiting.iter().position(|waiting| waiting.due <= now) {
            let Some(waiting) = self.waiting.remove(at) else {
                break;
            };
            if self.send(&waiting).is_err() {
                // The client has closed, or does not read; its side says which.
                return Goes::Ended(0);
            }
        }
        Goes::On
    }

    fn send(&self, waiting: &Waiting) -> io::Result<()> {
        let mut fds: &[OwnedFd] = &waiting.fds;
        let mut done = 0;
        for cut in CUTS
            .into_iter()
            .filter(|&cut| waiting.pieces && cut < waiting.bytes.len())
        {
            self.channel.send(&waiting.bytes[done..cut], fds)?;
            thread::sleep(PIECE_PAUSE);
            fds = &[];
            done = cut;
        }
        self.channel.send(&waiting.bytes[done..], fds)
    }

    /// Sends everything, whenever it is due.
    fn send_all(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            if self.send(&waiting).is_err() {
                return;
            }
        }
    }
}

/// The request that the server gets instead, where descriptors cannot ride.
fn over_pipes(channel: &Channel, request: &Request) -> Option<Request> {
    match (channel, request) {
        (Channel::Pipes, Request::Hello(hello)) if hello.wants_pool => Some(Request::Hello(Hello {
            wants_pool: false,
            ..hello.clone()
        })),
        _ => None,
    }
}
