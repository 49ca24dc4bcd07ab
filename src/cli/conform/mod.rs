//! `kvasir conform`: plays the server's side of a script against a client, and says what is wrong with the client.
//!
//! Behind the kit is a real server. The kit passes frames on and looks at them; it answers a few itself, delays one, cuts
//! others into pieces, and restarts the server (docs/conformance.md).
//!
//! ```text
//! steps                 the steps, findings and the verdict
//! script                the prompts and their keys
//! inner, watch          the server, the kit's own engine, and frames that nobody may write
//! connection, commits   what is known of a connection; whether a commit is right
//! judge, replies        requests as they come by, and replies
//! relay                 one connection, between client and server
//! ```

mod acts;
mod commits;
mod connection;
mod inner;
mod judge;
mod relay;
mod replies;
mod script;
mod steps;
mod watch;

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::geteuid;

use self::inner::{Engine, Inner};
use self::judge::Judge;
use self::relay::{Channel, Goes, Relay};
use super::failure::Failure;
use super::output::print;
use crate::shm::fdpass::peer_cred;

/// Between the last answer of the first server and its end: the client gives back what it holds meanwhile.
const BEFORE_RESTART: Duration = Duration::from_millis(400);
/// How long there is no server.
const AWAY: Duration = Duration::from_millis(400);
/// The longest poll.
const TICK: Duration = Duration::from_millis(100);

/// Arguments of `kvasir conform`.
#[derive(Debug, Args)]
pub(super) struct ConformArgs {
    /// Where to listen for the client under test; nothing may be there yet
    #[arg(value_name = "SOCKET", required_unless_present = "stdio")]
    socket: Option<PathBuf>,
    /// Read the client's frames from standard input and answer on standard output; no descriptors, so some steps are skipped
    #[arg(long, conflicts_with = "socket")]
    stdio: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
    /// How long nothing may be heard of the client, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
    /// How long the late reply is held back, in milliseconds: less than the deadline of the client's calls
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    late: u64,
}

pub(super) fn run(args: &ConformArgs) -> ExitCode {
    let judge = match play(args) {
        Ok(judge) => judge,
        Err(error) => {
            let json = args.json && !args.stdio;
            return Failure::new("no_verdict", error, 1).report("conform", json);
        }
    };
    let text = match args.json {
        true => format!("{}\n", judge.sheet.to_json()),
        false => judge.sheet.to_text(),
    };
    let printed = if args.stdio {
        // Standard output has the frames.
        let written = io::stderr().lock().write_all(text.as_bytes());
        written.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
    } else {
        print(&text)
    };
    if judge.sheet.all_held() {
        printed
    } else {
        ExitCode::FAILURE
    }
}

/// The whole script.
fn play(args: &ConformArgs) -> Result<Judge, String> {
    let inner = Inner::start()?;
    let engine = Engine::start(inner.socket())?;
    let mut judge = Judge::new(engine, args.stdio, Duration::from_millis(args.late));
    let mut stage = Stage {
        listener: None,
        relays: Vec::new(),
        inner,
        heard: Instant::now(),
    };
    match &args.socket {
        Some(path) => stage.listener = Some(Listener::bind(path)?),
        None => {
            let relay = Relay::open(Channel::Pipes, stage.inner.socket(), 1);
            stage.relays.push(relay.map_err(|error| error.to_string())?);
        }
    }
    let patience = Duration::from_secs(args.patience);
    let mut restart_at = None;
    while stage.heard.elapsed() < patience {
        if !stage.inner.is_running() {
            return Err("stopped by a signal".into());
        }
        if judge.wants_restart() && restart_at.is_none() {
            restart_at = Some(Instant::now() + BEFORE_RESTART);
        }
        if judge.life == 1 && restart_at.is_some_and(|at| at <= Instant::now()) {
            stage.restart(&mut judge, args.socket.as_deref())?;
        }
        stage.wait_and_serve(&mut judge)?;
        if judge.is_done() && stage.relays.is_empty() {
            break;
        }
    }
    let left = stage.relays.iter().map(|relay| &relay.connection);
    judge.end_life(left);
    Ok(judge)
}

/// The socket that clients find.
struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    fn bind(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot listen on {}: {error}", path.display());
        let listener = UnixListener::bind(path).map_err(failed)?;
        let bound = Self {
            listener,
            path: path.to_owned(),
        };
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(bound)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It may have gone already.
        let _ = fs::remove_file(&self.path);
    }
}

/// The client's connections, and the server.
struct Stage {
    listener: Option<Listener>,
    relays: Vec<Relay>,
    inner: Inner,
    /// When something of the client was heard last.
    heard: Instant,
}

impl Stage {
    /// Waits until something is to be done, and does it.
    fn wait_and_serve(&mut self, judge: &mut Judge) -> Result<(), String> {
        let failed = |error: io::Error| error.to_string();
        let due = self.relays.iter().filter_map(Relay::due).min();
        let pause = due.map_or(TICK, |due| {
            due.saturating_duration_since(Instant::now()).min(TICK)
        });
        let mut fds: Vec<OwnedFd> = Vec::new();
        for relay in &self.relays {
            fds.extend(relay.fds().map_err(failed)?);
        }
        let listener = self.listener.as_ref().map(|bound| bound.listener.as_fd());
        let all = fds.iter().map(AsFd::as_fd).chain(listener);
        let mut polls: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // Rounded up, or a reply that is due in less than a millisecond is waited for in circles.
        let timeout = PollTimeout::try_from(pause.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        match poll(&mut polls, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.to_string()),
        }
        let ready: Vec<bool> = polls.iter().map(|poll| poll.any().unwrap_or(false)).collect();
        let mut ended = Vec::new();
        for (number, relay) in self.relays.iter_mut().enumerate() {
            let mut goes = Goes::On;
            // The server's side first: what it said before it closed is passed on.
            if ready[2 * number + 1] {
                goes = relay.server_is_readable(judge)?;
            }
            if goes == Goes::On {
                goes = relay.send_due();
            }
            if ready[2 * number] {
                self.heard = Instant::now();
                let heard = relay.client_is_readable(judge)?;
                goes = if heard == Goes::On { goes } else { heard };
            }
            if let Goes::Ended(partial) = goes {
                judge.closed(&relay.connection, partial);
                ended.push(number);
            }
        }
        for number in ended.into_iter().rev() {
            self.relays.remove(number);
        }
        if self.listener.is_some() && ready.last() == Some(&true) {
            self.accept(judge.life)?;
        }
        Ok(())
    }

    fn accept(&mut self, life: u32) -> Result<(), String> {
        let Some(bound) = &self.listener else {
            return Ok(());
        };
        let (stream, _) = bound.listener.accept().map_err(|error| error.to_string())?;
        // As at every server: only this user is served.
        if !peer_cred(&stream).is_ok_and(|peer| peer.uid == geteuid().as_raw()) {
            return Ok(());
        }
        let relay = Relay::open(Channel::Socket(stream), self.inner.socket(), life);
        self.relays.push(relay.map_err(|error| error.to_string())?);
        self.heard = Instant::now();
        Ok(())
    }

    /// Another server, after a while without any.
    fn restart(&mut self, judge: &mut Judge, socket: Option<&Path>) -> Result<(), String> {
        judge.end_life(self.relays.iter().map(|relay| &relay.connection));
        self.listener = None;
        self.relays.clear();
        self.inner.stop();
        thread::sleep(AWAY);
        self.inner.launch()?;
        judge.restarted(Engine::start(self.inner.socket())?);
        self.listener = socket.map(Listener::bind).transpose()?;
        self.heard = Instant::now();
        Ok(())
    }
}
