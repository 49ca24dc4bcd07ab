//! Clients that an operator ends.
//!
//! A client that maps the pool may write what it was granted and read what it pinned for as long as its process lives: also
//! one that is stopped now and goes on later. So nothing of it is given to others before its lock byte is free. A kick closes the
//! connection, which a client that runs answers by letting go; of one that does not, it kills the process
//! (docs/decisions/0020-kicked-clients.md).

use std::rc::Rc;
use std::time::Duration;

use nix::unistd::geteuid;
use tokio::time::Instant;
use tracing::warn;

use super::opening::{Session, draining};
use super::session::Known;
use super::state::{Kicks, Server};
use crate::cache::ClientId;
use crate::object::ClientKind;
use crate::shm::process::{kill_process, process_facts};
use crate::wire::{ErrorCode, Kick, KickOutcome, Kicked, Reply, WireError};

/// The longest that a client may be given to let go.
const MAX_GRACE: Duration = Duration::from_secs(60);
/// How long the end of a killed process is waited for: the kernel takes down its memory first.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether the server is to stop meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// One client that is to end.
struct Target {
    known: Rc<Known>,
    client: Option<ClientId>,
    outcome: Option<KickOutcome>,
}

/// What a client is told whose connection is closed.
pub(super) fn reason() -> WireError {
    WireError::new(
        ErrorCode::Kicked,
        "an operator ended this client (kvasir clients --kick); it may connect again and begins anew",
        [],
    )
}

/// Ends clients, and comes back when nothing is held for them any more, or never will be.
pub(super) async fn kick(server: &Server, session: &Session, request: &Kick) -> Result<Reply, WireError> {
    let grace = Duration::from_millis(request.grace_ms.into());
    check(session, request, grace)?;
    let mut targets = targets(server, request);
    if targets.is_empty() {
        return Err(WireError::new(
            ErrorCode::UnknownClient,
            format_args!(
                "there is no client of {}; kvasir clients lists them",
                named(request)
            ),
            [request.client, request.pid.into()],
        ));
    }
    if targets.iter().any(|target| target.known.number == session.number) {
        return Err(WireError::new(
            ErrorCode::InvalidArgument,
            format_args!(
                "client {} of process {} is the one that asks; end that program instead",
                session.number, request.pid
            ),
            [session.number],
        ));
    }
    for target in &targets {
        if let Some(info) = server.sessions.borrow().get(&target.known.number) {
            info.kicked.notify_one();
        }
    }
    wait(server, &mut targets, KickOutcome::LetGo, grace).await?;
    if !request.spare {
        end_processes(server, &targets);
        wait(server, &mut targets, KickOutcome::Killed, KILL_PATIENCE).await?;
    }
    let by = by_whom(server, session);
    let mut kicks = server.kicks.get();
    let clients = targets.iter().map(|target| {
        let outcome = target.outcome.unwrap_or_else(|| left(&target.known));
        let word = count(&mut kicks, outcome);
        server.journal.kicked(by, &target.known, word);
        Kicked {
            client: target.known.number,
            pid: target.known.pid,
            outcome,
        }
    });
    let clients = clients.collect();
    server.kicks.set(kicks);
    Ok(Reply::Kick { clients })
}

fn check(session: &Session, request: &Kick, grace: Duration) -> Result<(), WireError> {
    let kind = session.hello.kind;
    if kind != ClientKind::Tool {
        return Err(WireError::new(
            ErrorCode::InvalidArgument,
            "only a tool may end clients; use kvasir clients --kick",
            [u64::from(kind.number())],
        ));
    }
    if request.client == 0 && request.pid == 0 {
        return Err(WireError::new(
            ErrorCode::InvalidArgument,
            "name a client by its number or by its process",
            [0],
        ));
    }
    if grace > MAX_GRACE {
        let (asked, limit) = (grace.as_millis(), MAX_GRACE.as_millis());
        return Err(WireError::new(
            ErrorCode::LimitExceeded,
            format_args!("a client gets at most {limit} ms to let go, not {asked}; ask for less"),
            [asked as u64, limit as u64],
        ));
    }
    Ok(())
}

fn named(request: &Kick) -> String {
    match (request.client, request.pid) {
        (number, 0) => format!("number {number}"),
        (0, pid) => format!("process {pid}"),
        (number, pid) => format!("number {number} and process {pid}"),
    }
}

/// The clients that are meant, with and without a connection.
fn targets(server: &Server, request: &Kick) -> Vec<Target> {
    let is_meant = |known: &Known| {
        (request.client == 0 || known.number == request.client)
            && (request.pid == 0 || known.pid == request.pid)
    };
    let target = |known: &Rc<Known>, client| Target {
        known: Rc::clone(known),
        client,
        outcome: None,
    };
    let sessions = server.sessions.borrow();
    let connected = sessions.values().filter(|info| is_meant(&info.known));
    let mut targets: Vec<Target> = connected.map(|info| target(&info.known, info.client)).collect();
    let holders = server.holders.borrow();
    let orphans = holders
        .iter()
        .filter(|(_, known)| is_meant(known) && !sessions.contains_key(&known.number));
    targets.extend(orphans.map(|(client, known)| target(known, Some(*client))));
    targets
}

/// Waits until nothing is held for any of them, or the time is over. Those that have gone get this outcome.
async fn wait(
    server: &Server,
    targets: &mut [Target],
    outcome: KickOutcome,
    time: Duration,
) -> Result<(), WireError> {
    let deadline = Instant::now() + time;
    loop {
        let left = server.left.notified();
        tokio::pin!(left);
        // From here on no end is missed.
        left.as_mut().enable();
        for target in targets.iter_mut().filter(|target| target.outcome.is_none()) {
            if is_gone(server, target) {
                target.outcome = Some(outcome);
            }
        }
        let now = Instant::now();
        if now >= deadline || targets.iter().all(|target| target.outcome.is_some()) {
            return Ok(());
        }
        if server.is_draining() {
            return Err(draining());
        }
        tokio::select! {
            () = left => {}
            () = tokio::time::sleep_until(deadline.min(now + LOOK)) => {}
        }
    }
}

fn is_gone(server: &Server, target: &Target) -> bool {
    let holds = |client| server.holders.borrow().contains_key(&client);
    !server.sessions.borrow().contains_key(&target.known.number) && !target.client.is_some_and(holds)
}

/// Kills the processes of those that still hold their lock, each once.
fn end_processes(server: &Server, targets: &[Target]) {
    for target in targets.iter().filter(|target| target.outcome.is_none()) {
        let is_alive = |client| server.core().is_alive(client).is_ok_and(|alive| alive);
        if !target.client.is_some_and(is_alive) {
            continue;
        }
        if let Err(why) = end_process(&target.known) {
            warn!(pid = target.known.pid, why, "a client's process was not killed");
        }
    }
}

fn end_process(known: &Known) -> Result<(), String> {
    let Some(process) = &known.process else {
        return Err("this kernel has no descriptors of processes; end it yourself".into());
    };
    if known.pid == std::process::id() {
        return Err("it is the server's own".into());
    }
    let uid = process_facts(known.pid).map(|facts| facts.uid);
    if known.process_has_ended() {
        return Ok(());
    }
    // It was of this uid when it connected, and what the kernel allows this process is more than that says.
    match uid {
        Some(uid) if uid == geteuid().as_raw() => {
            kill_process(process.fd()).map_err(|error| error.to_string())
        }
        Some(uid) => Err(format!("it belongs to uid {uid} now")),
        None => Err("the system does not say whose it is".into()),
    }
}

/// What a client is that nobody could end.
fn left(known: &Known) -> KickOutcome {
    match known.process_has_ended() {
        true => KickOutcome::HeldByOther,
        false => KickOutcome::Kept,
    }
}

/// The outcome in words of the log, counted.
fn count(kicks: &mut Kicks, outcome: KickOutcome) -> &'static str {
    let (counter, word) = match outcome {
        KickOutcome::LetGo => (&mut kicks.let_go, "let go of everything"),
        KickOutcome::Killed => (&mut kicks.killed, "its process was killed"),
        KickOutcome::Kept => (&mut kicks.kept, "keeps what it holds"),
        KickOutcome::HeldByOther => (
            &mut kicks.kept,
            "its process has ended, but a child or another holder still has its lock",
        ),
    };
    *counter += 1;
    word
}

/// The process of the operator.
fn by_whom(server: &Server, session: &Session) -> u32 {
    let sessions = server.sessions.borrow();
    sessions.get(&session.number).map_or(0, |info| info.pid)
}
