//! The process at the other end of a connection, and its end.
//!
//! A socket stays open as long as any process has it, and a child has its parent's. So the process itself is watched: a
//! connection ends with the process that made it.

use std::rc::Rc;

use tokio::net::UnixStream;
use tokio::sync::Notify;
use tracing::debug;

use crate::shm::fdpass::PeerCred;
use crate::shm::process::peer_pidfd;
use crate::shm::readable::Readable;

/// One peer.
pub(super) struct Peer {
    pub(super) cred: PeerCred,
    /// Readable once the process has ended. Without one only [`Peer::gone`] tells.
    pub(super) process: Option<Rc<Readable>>,
    /// Told by whoever finds out in another way that it is gone.
    pub(super) gone: Rc<Notify>,
    /// Told by an operator who ends it.
    pub(super) kicked: Rc<Notify>,
}

impl Peer {
    /// Watches the process that connected.
    pub(super) fn watch(stream: &UnixStream, cred: PeerCred) -> Self {
        let process = peer_pidfd(stream, cred.pid).unwrap_or_else(|error| {
            debug!(pid = cred.pid, %error, "a peer's process cannot be watched, its lock alone will tell");
            None
        });
        let process = process.and_then(|fd| Readable::new(fd).ok()).map(Rc::new);
        Self {
            cred,
            process,
            gone: Rc::default(),
            kicked: Rc::default(),
        }
    }

    /// Comes back when the process is gone.
    pub(super) async fn ended(&self) {
        let process = async {
            match &self.process {
                Some(process) if process.news().await.is_ok() => {}
                // Nobody can watch, or no longer, since the event loop is ending.
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = process => {}
            () = self.gone.notified() => {}
        }
    }
}
