//! The background thread: it notices that the server is gone and brings the connection back to where it was.
//!
//! What the last server shared is read meanwhile, also when that server is dead: until there is another session, or the
//! boot word says that it is history.
//!
//! After a hang-up it tries at once, then after 10 ms, doubling to 1 s. A step that the server refuses is tried again
//! at the heartbeat, and as soon as there is another server: the connection that was refused is kept meanwhile, so that
//! its end is noticed and the server's status shows who waits; and where there is none, the socket's name is looked at.
//! While all is well it sleeps in `poll`.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::core::Core;
use super::exchange::ahead;
use super::populate::When;
use super::session::{Session, unexpected};
use super::wake::SocketFile;
use super::wanted::{Registered, Wanted};
use crate::client::ClientError;
use crate::object::ClientKind;
use crate::sync::shared::Ordering;
use crate::wire::{Reply, Request};

const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// For so long a server may still count what this client has let go: it takes connections down beside its other work.
const LET_GO: Duration = Duration::from_secs(3);
/// A server that has another chunk size keeps it as long as it lives, so what counts is the next one. In case its start
/// goes unnoticed.
const SAME_SERVER_RETRY: Duration = Duration::from_secs(3600);

/// An attempt that failed, and the session of a server that refused in the midst of it.
#[derive(Debug)]
struct Failed {
    error: ClientError,
    refused: Option<Box<Session>>,
    /// The process that answered, where one did.
    asked: Option<u32>,
}

impl From<ClientError> for Failed {
    fn from(error: ClientError) -> Self {
        Self {
            error,
            refused: None,
            asked: None,
        }
    }
}

/// Runs until the client is closed.
pub(crate) fn run(core: &Arc<Core>) {
    let mut retry = FIRST_RETRY;
    let mut let_go: Option<Instant> = None;
    while !core.is_closed() {
        if let Some(session) = core.linked_session() {
            #[cfg(feature = "cuda")]
            core.use_device();
            watch(core, &session);
            #[cfg(feature = "cuda")]
            core.sweep_copies();
            retry = FIRST_RETRY;
            continue;
        }
        // Before the attempt: a server that starts while it runs is another one.
        let socket = SocketFile::at(&core.config.socket);
        // A defect here must not leave the engine without its thread.
        let attempt = catch_unwind(AssertUnwindSafe(|| attempt(core)));
        let attempt =
            attempt.unwrap_or_else(|_| Err(ClientError::unavailable("the recovery attempt panicked").into()));
        let Err(Failed {
            error,
            refused,
            asked,
        }) = attempt
        else {
            continue;
        };
        // Nobody answers: soon again. Somebody answers no: it will take a person or a restart to change that.
        let by_same = |session: &Session| asked == Some(session.stream.server());
        // Who has ended the connection and answers is not dead: what is held of its slab may be what it hands out next.
        let answers = |session: &Session| by_same(session) && session.has_ended() && asked != Some(0);
        let pause = match error {
            ClientError::Unavailable { .. } => {
                core.end_reads(answers);
                retry
            }
            // Who answers is not late, and what was read from while it seemed so may be what keeps this client out. Another
            // server is kept out of nothing by it. (Without numbers the two cannot be told apart.)
            _ if core.end_reads(by_same) => {
                let_go = Some(Instant::now());
                retry = FIRST_RETRY;
                retry
            }
            _ if let_go.is_some_and(|at| at.elapsed() < LET_GO) => retry,
            ClientError::ChunkSizeChanged { .. } => SAME_SERVER_RETRY,
            _ => core.config.heartbeat,
        };
        core.attempt_failed(error);
        let news = wait(core, refused.as_deref(), pause, socket);
        if news && SocketFile::at(&core.config.socket) != socket {
            retry = FIRST_RETRY;
            continue;
        }
        if news {
            // Of the end of a connection, which a server may make again and again.
            core.wake.sleep(&[], retry);
        }
        retry = (retry * 2).min(LAST_RETRY);
    }
}

/// Sleeps until the next attempt. Whether there is news: another server at the path, or the end of one.
fn wait(core: &Core, refused: Option<&Session>, pause: Duration, socket: Option<SocketFile>) -> bool {
    // An end is news once.
    let late = core.session().filter(|session| !session.has_ended());
    let sessions = refused.into_iter().chain(late.as_deref());
    // A copy in a forked child has none, nor this thread.
    let streams: Vec<BorrowedFd<'_>> = sessions.filter_map(|session| session.stream.fd().ok()).collect();
    let news = core
        .wake
        .sleep_beside(&streams, pause, &core.config.socket, socket);
    core.end_reads(|session| !session.is_current());
    if let Some(late) = &late
        && late.stream.fd().is_ok_and(|fd| core.wake.hung_up(&[fd]))
    {
        late.end();
    }
    news
}

/// Sleeps until the connection hangs up, the client has dropped it, or the heartbeat finds another boot. A heartbeat in which
/// nothing was stored gives the space for stores back: others can make use of it, and the next store asks anew.
fn watch(core: &Arc<Core>, session: &Arc<Session>) {
    let begin = Instant::now();
    let Ok(stream) = session.stream.fd() else {
        return; // a copy in a forked child, which has no such thread
    };
    if core.wake.sleep(&[stream], core.config.heartbeat) {
        core.hung_up(session);
    } else if !session.is_current() {
        core.degrade(session, "the server restarted");
    } else if begin.elapsed() >= core.config.heartbeat && session.was_idle() {
        // Refused or lost: then the connection is not what it was, and the next heartbeat finds it so.
        let _ = core.give_back(session);
    }
}

/// One attempt: connect, and everything that was agreed before.
fn attempt(core: &Core) -> Result<(), Failed> {
    let generation = core.begin_attempt();
    let connection = Connection::connect(&core.config.socket).map_err(ClientError::from)?;
    let asked = Some(connection.stream().server());
    let mut answered = false;
    let opened = Session::open(
        &core.config,
        connection,
        generation,
        &core.populated,
        &mut answered,
        core.deadline(),
    );
    let (connection, mut session) = opened.map_err(|error| {
        // A dying server still takes connections, and a late one.
        let said = answered || !matches!(error, ClientError::Unavailable { .. });
        Failed {
            error,
            refused: None,
            asked: asked.filter(|_| said),
        }
    })?;
    // Before this rank registers anew, which ends what it had under way over another connection.
    core.await_unanswered(core.deadline());
    let mut connection = Box::new(connection);
    loop {
        let mut wanted = core.wanted();
        let agreed = negotiate(core, &mut connection, &mut wanted);
        let agreed = agreed.and_then(|()| register(core, &mut connection, &mut wanted));
        if let Err(error) = agreed {
            let is_kept = !matches!(error, ClientError::Unavailable { .. });
            let refused = is_kept.then(|| Box::new(session));
            return Err(Failed {
                error,
                refused,
                asked,
            });
        }
        let stores = wanted.registered.as_ref().is_some_and(|own| own.request.stores);
        if stores && core.config.kind == ClientKind::Worker && session.granted_bytes() == 0 {
            take_grant(core, &mut connection, &session, core.config.grant_bytes)?;
        }
        match core.install(connection, session, &wanted) {
            None => return Ok(()),
            // The engine asked for something else meanwhile: that too, then.
            Some(back) => (connection, session) = back,
        }
    }
}

/// Negotiates with the original alignment and asks for the size agreed on before.
fn negotiate(core: &Core, connection: &mut Connection, wanted: &mut Wanted) -> Result<(), ClientError> {
    let Some(mut request) = wanted.negotiate.clone() else {
        return Ok(());
    };
    if let Some(size) = wanted.chunk_size {
        request.previous_size = size;
    }
    let reply = match connection.call(&Request::Negotiate(request), core.deadline())? {
        Reply::Negotiate(reply) => reply,
        reply => return Err(unexpected(&reply)),
    };
    let offered = reply.chunk_size;
    if let Some(agreed) = wanted.chunk_size
        && agreed != offered
    {
        return Err(ClientError::ChunkSizeChanged { agreed, offered });
    }
    wanted.chunk_size = Some(offered);
    wanted.warnings = reply.warnings;
    Ok(())
}

fn register(core: &Core, connection: &mut Connection, wanted: &mut Wanted) -> Result<(), ClientError> {
    let Some(request) = wanted.register.clone() else {
        return Ok(());
    };
    let reply = connection.call(&Request::RegisterKvCache(request.clone()), core.deadline())?;
    let registered = confirm(request, &reply)?;
    wanted.registered = Some(Arc::new(registered));
    Ok(())
}

/// What a registration's reply confirms, after checking that both sides derive the same keys.
pub(crate) fn confirm(
    request: crate::wire::RegisterKvCache,
    reply: &Reply,
) -> Result<Registered, ClientError> {
    let Reply::Register(reply) = reply else {
        return Err(unexpected(reply));
    };
    let seed = request.domain.seed(reply.chunk_size)?;
    if seed != reply.domain_seed {
        return Err(ClientError::SeedMismatch);
    }
    Ok(Registered {
        request,
        seed,
        domain: reply.domain,
        kept_frames_max: reply.kept_frames_max,
    })
}

/// Space for the first store. None to be had now is no reason to do without lookups.
fn take_grant(
    core: &Core,
    connection: &mut Connection,
    session: &Session,
    bytes: u64,
) -> Result<(), ClientError> {
    if bytes == 0 {
        return Ok(());
    }
    match connection.call(&ahead(bytes), core.deadline()) {
        Ok(Reply::Grant { extents }) => {
            let pool = session.pool()?;
            pool.gain(extents, When::Later);
            Ok(())
        }
        Ok(reply) => Err(unexpected(&reply)),
        Err(super::connection::CallError::Refused(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Starts the thread, unless there is one. A process that may have no more threads has none, and is asked again later.
pub(crate) fn ensure(core: &Arc<Core>) -> Result<(), ClientError> {
    if core.recovers.load(Ordering::Acquire) || core.recovers.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let shared = Arc::clone(core);
    let thread = std::thread::Builder::new().name("kvasir-recover".into());
    let started = thread.spawn(move || run(&shared));
    started.map(drop).map_err(|error| {
        core.recovers.store(false, Ordering::Release);
        let error = ClientError::unavailable(format!("no thread for the connection: {error}"));
        core.attempt_failed(error.clone());
        error
    })
}
