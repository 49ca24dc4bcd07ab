//! The background thread: it notices that the server is gone and brings the connection back to where it was.
//!
//! After a hang-up it tries at once, then after 10 ms, doubling to 1 s. A step that the server refuses is tried again
//! at the heartbeat. While all is well it sleeps in `poll`.

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};

use super::ClientError;
use super::calls::ahead;
use super::connection::{Connection, poll_timeout};
use super::populate::When;
use super::session::{Session, unexpected};
use super::state::Core;
use super::wanted::{Registered, Wanted, domain_seed};
use crate::wire::{PeerKind, Reply, Request};

const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// Runs until the client is closed.
pub(super) fn run(core: &Arc<Core>) {
    let mut retry = FIRST_RETRY;
    while !core.is_closed() {
        if let Some(session) = core.session() {
            watch(core, &session);
            retry = FIRST_RETRY;
            continue;
        }
        // A defect here must not leave the engine without its thread.
        let attempt = catch_unwind(AssertUnwindSafe(|| attempt(core)));
        let attempt =
            attempt.unwrap_or_else(|_| Err(ClientError::unavailable("the recovery attempt panicked")));
        let Err(error) = attempt else {
            continue;
        };
        // Nobody answers: soon again. Somebody answers no: it will take a person or a restart to change that.
        let pause = match error {
            ClientError::Unavailable { .. } => retry,
            _ => core.config.heartbeat,
        };
        retry = (retry * 2).min(LAST_RETRY);
        core.attempt_failed(error);
        pause_for(core, pause);
    }
}

/// Sleeps until the connection hangs up, the client has dropped it, or the heartbeat finds another boot. A heartbeat in which
/// nothing was stored gives the space for stores back: others can make use of it, and the next store asks anew.
fn watch(core: &Arc<Core>, session: &Arc<Session>) {
    let mut fds = [
        PollFd::new(session.stream.as_fd(), PollFlags::empty()), // a hang-up is always told
        PollFd::new(core.wake_fd().as_fd(), PollFlags::POLLIN),
    ];
    let woken = poll(&mut fds, poll_timeout(core.config.heartbeat));
    let [stream, _] = fds;
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR;
    drain(core);
    if stream.revents().is_some_and(|events| events.intersects(gone)) {
        core.degrade(session, "the server closed the connection");
    } else if !session.is_current() {
        core.degrade(session, "the server restarted");
    } else if woken == Ok(0) && session.was_idle() {
        // Refused or lost: then the connection is not what it was, and the next heartbeat finds it so.
        let _ = core.give_back(session);
    }
}

fn pause_for(core: &Core, pause: Duration) {
    let mut fds = [PollFd::new(core.wake_fd().as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut fds, poll_timeout(pause));
    drain(core);
}

fn drain(core: &Core) {
    // Empty is an error of a descriptor that does not block, and what is wanted.
    let _ = core.wake_fd().read();
}

/// One attempt: connect, and everything that was agreed before.
fn attempt(core: &Core) -> Result<(), ClientError> {
    let generation = core.begin_attempt();
    let (connection, mut session) =
        Session::open(&core.config, generation, &core.populated, core.deadline())?;
    let mut connection = Box::new(connection);
    loop {
        let mut wanted = core.wanted();
        negotiate(core, &mut connection, &mut wanted)?;
        register(core, &mut connection, &mut wanted)?;
        let stores = wanted.registered.as_ref().is_some_and(|own| own.request.stores);
        if stores && core.config.kind == PeerKind::Worker && session.credit_bytes() == 0 {
            take_credit(core, &mut connection, &session, core.config.credit_bytes)?;
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
pub(super) fn confirm(
    request: crate::wire::RegisterKvCache,
    reply: &Reply,
) -> Result<Registered, ClientError> {
    let Reply::Register(reply) = reply else {
        return Err(unexpected(reply));
    };
    let seed = domain_seed(&request, reply.chunk_size)?;
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
fn take_credit(
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

/// Starts the thread.
pub(super) fn spawn(core: &Arc<Core>) -> std::io::Result<()> {
    let core = Arc::clone(core);
    let thread = std::thread::Builder::new().name("kvasir-recover".into());
    thread.spawn(move || run(&core)).map(drop)
}
