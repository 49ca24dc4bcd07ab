//! Who may connect.

use std::fs::File;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use nix::unistd::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tracing::warn;

use super::answer::exhausted;
use super::connection;
use super::limits::SPARE_CONNECTIONS;
use super::peer::Peer;
use super::state::Server;
use crate::shm::fdpass::{PeerCred, peer_cred};
use crate::shm::watched::WatchedSocket;
use crate::wire::{ErrorCode, Reply, WireError};

/// Connections that are accepted in one turn: a few microseconds each.
const BURST: u32 = 16;
/// How long to wait when the process or the machine has no descriptors left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Accepts until it is dropped.
pub(super) async fn accept(server: Rc<Server>, listener: UnixListener) {
    let mut reserve = Reserve::new();
    let (mut said, mut burst) = (false, 0);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                said = false;
                admit(&server, stream);
                reserve.fill();
                // A burst of connections is many turns, not one.
                burst += 1;
                if burst >= BURST {
                    burst = 0;
                    tokio::task::yield_now().await;
                }
            }
            Err(error) => {
                if !said {
                    warn!(%error, connections = server.connections(), "cannot accept a connection");
                }
                said = true;
                // With the descriptor that is set aside, whoever waits can be told; without it he waits in the queue.
                if reserve.0.take().is_none() || !turn_away(&server, &listener, &error).await {
                    tokio::time::sleep(EXHAUSTED_PAUSE).await;
                }
                reserve.fill();
            }
        }
    }
}

/// A descriptor that can be given up for another one.
struct Reserve(Option<File>);

impl Reserve {
    fn new() -> Self {
        let mut reserve = Self(None);
        reserve.fill();
        reserve
    }

    fn fill(&mut self) {
        if self.0.is_none() {
            self.0 = File::open("/dev/null").ok();
        }
    }
}

/// Accepts one connection only to say why it cannot be kept. False: not even that.
async fn turn_away(server: &Server, listener: &UnixListener, error: &io::Error) -> bool {
    let Some(refusal) = exhausted(error) else {
        return false;
    };
    match listener.accept().await {
        Ok((stream, _)) => {
            let pid = peer_cred(&stream).map_or(0, |cred| cred.pid);
            refuse(server, &stream, pid, refusal);
            true
        }
        Err(_) => false,
    }
}

fn admit(server: &Rc<Server>, stream: UnixStream) {
    let cred = match peer_cred(&stream) {
        Ok(cred) => cred,
        Err(error) => {
            warn!(%error, "a peer without credentials was refused");
            return;
        }
    };
    match check(server, cred) {
        Ok(()) => {
            // Counted before the task first runs: a burst of connections is accepted without a pause between.
            let counted = server.connection();
            let peer = Peer::watch(&stream, cred);
            let stream = stream
                .into_std()
                .and_then(|stream| WatchedSocket::new(stream.into()));
            match stream {
                Ok(stream) => {
                    tokio::task::spawn_local(connection::serve(Rc::clone(server), stream, peer, counted));
                }
                Err(error) => warn!(%error, pid = cred.pid, "a connection cannot be watched and is closed"),
            }
        }
        Err(error) => refuse(server, &stream, cred.pid, error),
    }
}

/// Says why, before the connection is closed.
fn refuse(server: &Server, stream: &UnixStream, pid: u32, error: WireError) {
    server.journal.refused(pid, &error);
    // A fresh socket takes a short reply at once; if it does not, the close says enough.
    let _: io::Result<usize> = server.encode(|encoder| {
        let frame = encoder.reply(0, &Reply::Error(error)).map_err(io::Error::other)?;
        stream.try_write(frame)
    });
}

fn check(server: &Server, cred: PeerCred) -> Result<(), WireError> {
    let own = geteuid().as_raw();
    if cred.uid != own {
        return Err(WireError::new(
            ErrorCode::PermissionDenied,
            format_args!(
                "this server belongs to uid {own} and serves no other, you are uid {}; run one as yourself",
                cred.uid
            ),
            [u64::from(cred.uid), u64::from(own)],
        ));
    }
    let limit = server.config.max_clients as usize + SPARE_CONNECTIONS;
    let connections = server.connections();
    if connections >= limit {
        return Err(WireError::new(
            ErrorCode::LimitExceeded,
            format_args!(
                "{connections} connections are open, the limit is {limit}; close some or raise --max-clients"
            ),
            [connections as u64, limit as u64],
        ));
    }
    Ok(())
}
