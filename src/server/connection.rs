//! One connection: from the first frame to the last reply.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::Ready;
use tokio::sync::watch;
use tokio::time::Instant;

use super::answer::exhausted;
use super::dispatch;
use super::kick;
use super::offload::{self, LONG_BYTES, reply_bytes};
use super::opening::{self, Session};
use super::outbox::{Full, Outbox};
use super::peer::Peer;
use super::state::{ConnectionCount, Server};
use super::turns::{next_turn, waiting};
use crate::cache::Turn;
use crate::shm::fdpass::{FdPassError, recv_with_fds};
use crate::shm::watched::WatchedSocket;
use crate::wire::{
    DecodeError, EncodeError, ErrorCode, FrameError, FrameReader, Reply, Request, WireError, decode_request,
};

/// How long a peer may stay silent after connecting.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// How long the last replies of a connection may take to be read.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// Steps of a receive, besides those for what it brings.
const RECEIVE_STEPS: u32 = 8;

/// How often a connection is read from once the server is stopping: a peer that keeps sending cannot hold it up.
const LAST_RECEIVES: usize = 64;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the peer closed it")]
    PeerClosed,
    /// Somebody else may still have its socket.
    #[error("the process that opened it has ended")]
    PeerEnded,
    /// The peer broke a rule and was told so.
    #[error("refused ({0:?})")]
    Refused(ErrorCode),
    #[error("the peer does not read its replies, {} bytes wait", .0.queued)]
    Slow(Full),
    #[error("an operator ended it")]
    Kicked,
    #[error("the server is stopping")]
    Drained,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// What a connection waits for.
enum Event {
    Ready(Ready),
    Draining,
    PeerEnded,
    Kicked,
    NoHello,
    Failed(io::Error),
}

struct Connection {
    server: Rc<Server>,
    stream: WatchedSocket,
    peer: Peer,
    reader: FrameReader,
    outbox: Outbox,
    session: Option<Session>,
    drain: watch::Receiver<bool>,
    /// What is left until others have theirs. It goes on from one receive to the next: a peer that always has more to be read is
    /// no reason to keep the others waiting. A peer that had to be waited for begins anew.
    turn: Turn,
}

/// Serves one peer until either side ends it; `_counted` says for as long that the connection exists.
pub(super) async fn serve(server: Rc<Server>, stream: WatchedSocket, peer: Peer, _counted: ConnectionCount) {
    let drain = server.watch_drain();
    let mut connection = Connection {
        server,
        stream,
        peer,
        reader: FrameReader::before_hello(),
        outbox: Outbox::default(),
        session: None,
        drain,
        turn: Turn::new(),
    };
    let end = connection.run().await;
    connection.say(&end);
    if matches!(
        end,
        End::PeerClosed | End::Refused(_) | End::Kicked | End::Drained
    ) {
        // Bounded, so that a peer that reads nothing cannot hold up a stop.
        let _ = tokio::time::timeout(CLOSE_PATIENCE, connection.flush_all()).await;
    }
}

impl Connection {
    /// The line about the end of this connection.
    fn say(&self, end: &End) {
        let (journal, why) = (&self.server.journal, end.to_string());
        let sessions = self.server.sessions.borrow();
        let session = self.session.as_ref().map(Session::number);
        match (session.and_then(|number| sessions.get(&number)), end) {
            (Some(session), _) => journal.went(session, &why),
            // Its refusal was said already; one that came and said nothing is nobody's business.
            (None, End::Refused(_) | End::PeerClosed | End::PeerEnded | End::Kicked | End::Drained) => {}
            (None, End::Slow(_) | End::Io(_)) => journal.closed(self.peer.cred.pid, &why),
        }
    }

    async fn run(&mut self) -> End {
        let hello_deadline = Instant::now() + HELLO_PATIENCE;
        loop {
            let step = match self.next_event(hello_deadline).await {
                Event::Ready(ready) => self.transfer(ready).await,
                Event::Draining => return self.last_frames().await,
                Event::PeerEnded => return End::PeerEnded,
                Event::Kicked => return self.kicked(),
                Event::NoHello => {
                    let seconds = HELLO_PATIENCE.as_secs();
                    let error = WireError::new(
                        ErrorCode::HelloExpected,
                        format_args!("no hello within {seconds} s of connecting; send it first"),
                        [],
                    );
                    return self.refuse(0, error);
                }
                Event::Failed(error) => return End::Io(error),
            };
            if let Err(end) = step {
                return end;
            }
        }
    }

    async fn next_event(&mut self, hello_deadline: Instant) -> Event {
        let waits_for_room = !self.outbox.is_empty();
        let event = async {
            tokio::select! {
                ready = self.stream.ready(waits_for_room) => ready.map_or_else(Event::Failed, Event::Ready),
                _ = self.drain.wait_for(|draining| *draining) => Event::Draining,
                () = self.peer.ended() => Event::PeerEnded,
                () = self.peer.kicked.notified() => Event::Kicked,
                () = tokio::time::sleep_until(hello_deadline), if self.session.is_none() => Event::NoHello,
            }
        };
        waiting(&mut self.turn, event).await
    }

    /// Moves what the socket is ready for.
    async fn transfer(&mut self, ready: Ready) -> Result<(), End> {
        self.pause().await;
        if ready.is_writable() {
            self.flush()?;
        }
        if ready.is_readable() {
            self.receive().await?;
        }
        Ok(())
    }

    /// Answers what had arrived before the stop; nothing new is read after that.
    async fn last_frames(&mut self) -> End {
        for _ in 0..LAST_RECEIVES {
            match self.receive().await {
                Ok(true) => {}
                Ok(false) => break,
                Err(end) => return end,
            }
        }
        End::Drained
    }

    /// Receives once and answers the frames that are whole. False: nothing was there.
    async fn receive(&mut self) -> Result<bool, End> {
        let space = match self.reader.space() {
            Ok(space) => space,
            Err(error) => return Err(self.refuse_frame(error)),
        };
        let (stream, room) = (&self.stream, space.len());
        // No frame of a client announces descriptors, so none is accepted.
        let mut receive = || recv_with_fds(stream, space, 0);
        let received = if self.server.is_draining() {
            // The last look, also at what the event loop has not heard of yet.
            receive()
        } else {
            stream.try_read(|_| receive())
        };
        match received {
            Ok(received) if received.bytes == 0 => Err(self.ended()),
            Ok(received) => {
                if received.bytes < room && !self.server.is_draining() {
                    self.note_all_received();
                }
                self.reader.received(received.bytes);
                self.turn
                    .spend(RECEIVE_STEPS + offload::steps(received.bytes) / 4);
                self.answer_frames().await?;
                self.flush()?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(match FdPassError::of(&error) {
                Some(broken) => self.refuse_descriptors(broken),
                None => End::Io(error),
            }),
        }
    }

    /// There was less than there was room for, so nothing more is there: it is waited for without asking for it in vain first, which
    /// is a quarter of the system calls of a short request. What comes later is an event of its own; an end is not forgotten.
    fn note_all_received(&self) {
        let _ = self
            .stream
            .try_read(|_| Err::<(), io::Error>(io::ErrorKind::WouldBlock.into()));
    }

    /// Has the others have their turn when this one is over.
    async fn pause(&mut self) {
        if self.turn.is_over() {
            next_turn(&mut self.turn).await;
        }
    }

    async fn answer_frames(&mut self) -> Result<(), End> {
        loop {
            if self.turn.is_over() {
                self.pause().await;
                // What was answered goes out first.
                self.flush()?;
            }
            let decoded = match self.reader.take_long_frame(LONG_BYTES) {
                Ok(Some(frame)) => {
                    self.flush()?;
                    self.server.offload.decode(frame).await
                }
                Ok(None) => match self.reader.next_frame() {
                    Ok(Some(frame)) => {
                        self.turn.spend(offload::steps(frame.len()));
                        decode_request(frame)
                    }
                    Ok(None) => return Ok(()),
                    Err(error) => return Err(self.refuse_frame(error)),
                },
                Err(error) => return Err(self.refuse_frame(error)),
            };
            match decoded {
                Ok((id, request)) => self.answer(id, request).await?,
                Err(bad) => {
                    let error = bad.error.to_wire();
                    if self.session.is_none() || error.code.closes_connection() {
                        return Err(self.refuse(bad.id, error));
                    }
                    self.server.journal.refused(self.peer.cred.pid, &error);
                    self.reply(bad.id, &Reply::Error(error))?;
                }
            }
        }
    }

    async fn answer(&mut self, id: u64, request: Request) -> Result<(), End> {
        let Some(session) = &mut self.session else {
            return self.open(id, request).await;
        };
        let reply = dispatch::answer(&self.server, session, request, &mut self.turn).await;
        match reply {
            Reply::Error(error) => {
                if error.code.closes_connection() {
                    return Err(self.refuse(id, error));
                }
                self.server.journal.refused(self.peer.cred.pid, &error);
                self.reply(id, &Reply::Error(error))
            }
            reply if reply_bytes(&reply) > LONG_BYTES => self.long_reply(id, reply).await,
            reply => self.reply(id, &reply),
        }
    }

    /// Queues a reply that takes long to write.
    async fn long_reply(&mut self, id: u64, reply: Reply) -> Result<(), End> {
        match self.server.offload.encode(id, reply).await {
            Ok(frame) => self.outbox.push_long(frame).map_err(End::Slow),
            Err((error, reply)) => self.too_long(id, error, &reply),
        }
    }

    /// The first frame.
    async fn open(&mut self, id: u64, request: Request) -> Result<(), End> {
        let Request::Hello(hello) = request else {
            let error = WireError::new(
                ErrorCode::HelloExpected,
                "the first message of a connection has to be a hello",
                [],
            );
            return Err(self.refuse(id, error));
        };
        let opened = match opening::open(&self.server, hello, &self.peer).await {
            Ok(opened) => opened,
            Err(error) => return Err(self.refuse(id, error)),
        };
        self.session = Some(opened.session);
        self.reader.opened();
        let reply = Reply::Hello(opened.reply);
        let outbox = &mut self.outbox;
        self.server
            .encode(|encoder| match encoder.reply(id, &reply) {
                Ok(frame) => outbox.push_first(frame, opened.fds),
                Err(error) => Err(Full { queued: error.bytes }),
            })
            .map_err(End::Slow)
    }

    fn reply(&mut self, id: u64, reply: &Reply) -> Result<(), End> {
        self.turn.spend(offload::steps(reply_bytes(reply)));
        let outbox = &mut self.outbox;
        let too_large = self.server.encode(|encoder| match encoder.reply(id, reply) {
            Ok(frame) => outbox.push(frame).map(|()| None),
            Err(error) => Ok(Some(error)),
        });
        match too_large.map_err(End::Slow)? {
            Some(error) => self.too_long(id, error, reply),
            None => Ok(()),
        }
    }

    /// Says that a reply does not fit, and undoes what it promised.
    fn too_long(&mut self, id: u64, too_large: EncodeError, reply: &Reply) -> Result<(), End> {
        if let Some(session) = &mut self.session {
            dispatch::take_back(&self.server, session, reply);
        }
        let error = WireError::new(
            ErrorCode::LimitExceeded,
            format_args!("the reply would not fit: {too_large}"),
            [too_large.bytes as u64, too_large.limit as u64],
        );
        self.reply(id, &Reply::Error(error))
    }

    /// Says why, as an answer to no request. What was held for the client is taken back from here on, not when it has read that.
    fn kicked(&mut self) -> End {
        self.session = None;
        match self.reply(0, &Reply::Error(kick::reason())) {
            Ok(()) => End::Kicked,
            Err(end) => end,
        }
    }

    /// Queues the last reply of this connection.
    fn refuse(&mut self, id: u64, error: WireError) -> End {
        let code = error.code;
        if code == ErrorCode::RingBroken {
            self.server.rings.count_broken();
        }
        self.server.journal.refused(self.peer.cred.pid, &error);
        match self.reply(id, &Reply::Error(error)) {
            Ok(()) => End::Refused(code),
            Err(end) => end,
        }
    }

    fn refuse_frame(&mut self, error: FrameError) -> End {
        let error = match error {
            FrameError::TooLarge { bytes, limit } => {
                WireError::new(ErrorCode::FrameTooLarge, error, [bytes as u64, limit as u64])
            }
            FrameError::Empty => WireError::new(ErrorCode::Malformed, error, []),
        };
        self.refuse(0, error)
    }

    fn refuse_descriptors(&mut self, broken: FdPassError) -> End {
        let numbers = match broken {
            FdPassError::Surplus { received, limit } | FdPassError::Truncated { received, limit } => {
                vec![received as u64, limit as u64]
            }
            FdPassError::TooMany { .. } | FdPassError::NoBytes { .. } => vec![],
        };
        self.refuse(0, WireError::new(ErrorCode::Descriptors, broken, numbers))
    }

    /// The peer has closed its side, which is fine between two frames.
    fn ended(&mut self) -> End {
        if !self.reader.is_partial() {
            return End::PeerClosed;
        }
        let cut = DecodeError::Malformed("the connection ended inside it".into());
        self.refuse(0, cut.to_wire())
    }

    fn flush(&mut self) -> Result<(), End> {
        let Err(error) = self.outbox.flush(&self.stream, &mut self.turn) else {
            return Ok(());
        };
        // The descriptors of the first reply could not be sent: too many of this user's are on their way.
        match exhausted(&error) {
            Some(refusal) if self.outbox.give_up_first() => Err(self.refuse(0, refusal)),
            _ => Err(End::Io(error)),
        }
    }

    async fn flush_all(&mut self) -> io::Result<()> {
        loop {
            self.outbox.flush(&self.stream, &mut self.turn)?;
            if self.outbox.is_empty() {
                return Ok(());
            }
            self.stream.has_room().await?;
            self.pause().await;
        }
    }
}
