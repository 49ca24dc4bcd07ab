//! The life of a server: start, ready, serve, drain.

use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal as OsSignal;
use sd_notify::NotifyState;
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tracing::{debug, error, info, warn};

use super::config::Config;
use super::listen::{self, SocketName};
use super::state::Server;
use super::{ServerError, accept, ends, limits, liveness, name_watch, placement};
use crate::control::Health;
use crate::pool::{Prefault, PrefaultEvent};
use crate::shm::process::{set_not_dumpable, signal_is_ignored};

/// How long connections have to read their last replies once the server is told to stop.
const DRAIN_PATIENCE: Duration = Duration::from_secs(4);
/// How long a service manager may take to hear of the server's state.
const NOTIFY_PATIENCE: Duration = Duration::from_millis(100);
/// How often the control region says that the server is alive, while a client is connected.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Heartbeats between two looks at the names of socket and lock.
const BEATS_PER_LOOK: u64 = 10;

/// Runs a server until it is told to stop. `started` is when the process began, for the log.
///
/// # Errors
/// [`ServerError`] when it cannot start. A stop by a signal is a success.
pub fn run(config: Config, started: Instant) -> Result<(), ServerError> {
    set_not_dumpable()?;
    limits::open_files(&config);
    info!(config = %config.to_toml()?.trim_end().replace('\n', ", "), "starting");
    let failed = |what| move |source| ServerError::Runtime { what, source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed("starting the event loop"))?;
    // Before anything has a name: a stop that comes early has to clean up as well.
    let signals = {
        let _context = runtime.enter();
        Signals::new()?
    };
    let (listener, name) = listen::listen(&config.socket)?;
    let served = serve(config, started, &runtime, signals, listener, &name);
    // Whatever happened, nothing named stays behind.
    let removed = name.remove();
    served?;
    removed?;
    info!("stopped");
    Ok(())
}

fn serve(
    config: Config,
    started: Instant,
    runtime: &tokio::runtime::Runtime,
    signals: Signals,
    listener: std::os::unix::net::UnixListener,
    name: &SocketName,
) -> Result<(), ServerError> {
    let failed = |what| move |source| ServerError::Runtime { what, source };
    let server = Server::new(config, started)?;
    let tasks = LocalSet::new();
    let result = tasks.block_on(runtime, async {
        listener
            .set_nonblocking(true)
            .map_err(failed("preparing the socket"))?;
        let listener = UnixListener::from_std(listener).map_err(failed("preparing the socket"))?;
        serve_until_stopped(&server, listener, signals, name).await
    });
    // Connections that outlasted their patience end here.
    drop(tasks);
    server.control.set_health(Health::Stopped);
    result
}

async fn serve_until_stopped(
    server: &Rc<Server>,
    listener: UnixListener,
    mut signals: Signals,
    name: &SocketName,
) -> Result<(), ServerError> {
    let accepting = tokio::task::spawn_local(accept::accept(Rc::clone(server), listener));
    tokio::task::spawn_local(ends::take_down(Rc::clone(server)));
    tokio::task::spawn_local(liveness::watch_orphans(Rc::clone(server)));
    tokio::task::spawn_local(beat(Rc::clone(server)));
    name_watch::start(server, name.names());
    server.control.set_health(Health::Serving);
    announce(server);
    placement::announce(server);
    // After the announcement: a large pool takes seconds, and only what is present is granted anyway.
    let prefault = start_prefault(server)?;

    let signal = signals.next().await;
    info!(signal, connections = server.connections(), "stopping");
    accepting.abort();
    // Clients first. What follows may take its time: a file system, a service manager.
    server.drain();
    prefault.stop();
    tokio::task::yield_now().await;
    notify(NotifyState::Stopping);
    if let Err(error) = name.remove_socket() {
        warn!(%error, "the socket's name could not be removed");
    }
    tokio::select! {
        () = all_ended(server) => {}
        () = tokio::time::sleep(DRAIN_PATIENCE) => {
            warn!(connections = server.connections(), "stopping with connections that do not end");
        }
        signal = signals.next() => warn!(signal, "stopping at once"),
    }
    Ok(())
}

async fn all_ended(server: &Server) {
    while server.connections() > 0 {
        server.connections_ended.notified().await;
    }
}

/// Says, to whoever started this process and in one line of the log, that clients can connect.
fn announce(server: &Server) {
    info!(
        socket = %server.config.socket.display(),
        pool_bytes = server.core().counters().1.total,
        start_ms = format_args!("{:.1}", server.started.elapsed().as_secs_f64() * 1e3),
        "ready"
    );
    notify(NotifyState::Ready);
}

/// Tells the service manager. A thread does it, so that one that does not read keeps nobody waiting for long.
fn notify(state: NotifyState<'static>) {
    // Set to nothing is not set.
    if std::env::var_os("NOTIFY_SOCKET").is_none_or(|socket| socket.is_empty()) {
        return;
    }
    let (told, wait) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("kvasir-notify".into());
    let result = thread
        .spawn(move || {
            // Nobody listens any more when it took too long.
            let _ = told.send(sd_notify::notify(&[state]));
        })
        .and_then(|_| match wait.recv_timeout(NOTIFY_PATIENCE) {
            Ok(result) => result,
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        });
    if let Err(error) = result {
        warn!(%error, "the service manager could not be notified");
    }
}

/// Makes the pool's pages present in the background and tells the core how far that is.
fn start_prefault(server: &Rc<Server>) -> Result<Prefault, ServerError> {
    let (sender, mut events) = mpsc::unbounded_channel();
    let prefault = server.core().start_prefault(move |event| {
        // Fails only when the server is gone, and then nobody wants to know.
        let _ = sender.send(event);
    })?;
    let server = Rc::clone(server);
    tokio::task::spawn_local(async move {
        while let Some(event) = events.recv().await {
            prefault_event(&server, event);
        }
    });
    Ok(prefault)
}

fn prefault_event(server: &Server, event: PrefaultEvent) {
    match event {
        PrefaultEvent::Ready(bytes) => {
            if let Err(error) = server.core().prefaulted(bytes) {
                error!(%error, bytes, "prefaulted pages could not be taken over");
            }
        }
        PrefaultEvent::Done => {
            server.core().prefault_ended();
            debug!("all of the pool is present");
        }
        PrefaultEvent::Limited { ready, available } => {
            server.core().prefault_ended();
            warn!(
                pool_bytes = server.core().counters().1.total,
                present_bytes = ready,
                available_bytes = available,
                "the pool stays smaller than configured until there is more memory; reduce --pool-size, or give the \
                 server more"
            );
        }
        PrefaultEvent::NoHugePages { ready } => {
            server.core().prefault_ended();
            warn!(
                pool_bytes = server.core().counters().1.total,
                present_bytes = ready,
                "the pool stays smaller than configured until there are more huge pages; reduce --pool-size, reserve huge \
                 pages, or use --huge-pages try"
            );
        }
        PrefaultEvent::Seen(seen) => placement::seen(server, seen),
        PrefaultEvent::Failed(error) => {
            server.core().prefault_ended();
            warn!(%error, "the pool stays smaller than configured");
        }
    }
    server.publish_counters();
}

/// Stores the clock while there is anybody to read it.
async fn beat(server: Rc<Server>) {
    let mut looked_at = 0;
    let mut beats = 0_u64;
    loop {
        server.session_began.notified().await;
        while !server.sessions.borrow().is_empty() {
            server.control.beat();
            looked_at = liveness::look_at_connected(&server, looked_at);
            beats += 1;
            if beats.is_multiple_of(BEATS_PER_LOOK) {
                server.look_at_names.notify_one();
            }
            tokio::time::sleep(HEARTBEAT).await;
        }
    }
}

/// The signals that stop a server, without those that were ignored when it started: `nohup` and a shell's background
/// jobs mean that.
struct Signals {
    terminate: Option<Signal>,
    interrupt: Option<Signal>,
    hangup: Option<Signal>,
}

impl Signals {
    fn new() -> Result<Self, ServerError> {
        let wanted = |which: OsSignal| -> Result<Option<Signal>, ServerError> {
            if signal_is_ignored(which)? {
                info!(signal = which.as_str(), "was ignored at the start and stays so");
                return Ok(None);
            }
            let kind = SignalKind::from_raw(which as i32);
            let listened = signal(kind).map_err(|source| ServerError::Runtime {
                what: "preparing for signals",
                source,
            });
            listened.map(Some)
        };
        Ok(Self {
            terminate: wanted(OsSignal::SIGTERM)?,
            interrupt: wanted(OsSignal::SIGINT)?,
            hangup: wanted(OsSignal::SIGHUP)?,
        })
    }

    async fn next(&mut self) -> &'static str {
        async fn one(signal: &mut Option<Signal>) {
            match signal {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            () = one(&mut self.terminate) => "SIGTERM",
            () = one(&mut self.interrupt) => "SIGINT",
            () = one(&mut self.hangup) => "SIGHUP",
        }
    }
}
