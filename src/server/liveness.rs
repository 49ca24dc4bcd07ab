//! When a client is gone, and what is taken back then.
//!
//! May import `cache`. No unsafe code.
//!
//! A closed connection ends the pins that were made over it, and nothing else. What the client may still be writing
//! or reading comes back when its lock byte is free, which the kernel sees to when the process ends. There is no
//! event for that, so it is asked; but only while there is a client without a connection.

use std::rc::Rc;
use std::time::Duration;

use tracing::{debug, warn};

use super::state::Server;
use crate::cache::ClientId;

/// A killed process closes its socket a moment before its lock, so the first look comes soon.
const FIRST_LOOK: Duration = Duration::from_millis(10);
/// A client that only lost its connection can live for long.
const LAST_LOOK: Duration = Duration::from_millis(200);

/// Takes back what may be taken back now and leaves the rest to [`watch_orphans`].
pub(super) fn disconnected(server: &Server, client: ClientId) {
    let gone = {
        let mut core = server.core();
        if let Err(error) = core.disconnected(client) {
            warn!(slab = client.slab(), %error, "pins of a closed connection were not dropped");
        }
        core.client_gone(client)
    };
    match gone {
        Ok(true) => debug!(slab = client.slab(), "client is gone"),
        Ok(false) => {
            server.orphans.borrow_mut().push(client);
            server.orphan_added.notify_one();
        }
        Err(error) => warn!(slab = client.slab(), %error, "client could not be taken down"),
    }
}

/// Asks about clients without a connection until none is left, and sleeps until there is one again.
pub(super) async fn watch_orphans(server: Rc<Server>) {
    loop {
        server.orphan_added.notified().await;
        let mut pause = FIRST_LOOK;
        while !server.orphans.borrow().is_empty() {
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (2 * pause).min(LAST_LOOK),
                () = server.orphan_added.notified() => {
                    pause = FIRST_LOOK;
                    continue;
                }
            }
            look(&server);
        }
    }
}

/// Asks about each orphan once.
fn look(server: &Server) {
    let orphans = server.orphans.take();
    let before = orphans.len();
    let mut core = server.core();
    let living: Vec<ClientId> = orphans
        .into_iter()
        .filter(|&client| match core.client_gone(client) {
            Ok(gone) => !gone,
            Err(error) => {
                warn!(slab = client.slab(), %error, "client could not be taken down");
                false
            }
        })
        .collect();
    drop(core);
    let gone = before - living.len();
    server.orphans.borrow_mut().extend(living);
    if gone > 0 {
        debug!(gone, "clients without a connection are gone");
        server.publish_counters();
    }
}
