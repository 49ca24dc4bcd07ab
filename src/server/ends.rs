//! The taking down of clients whose connection is closed, in turns between the requests of others.
//!
//! A connection that ends only says so here. One client after another, so that whoever is answered meanwhile waits for one
//! turn of this, however many have died.

use std::rc::Rc;

use tracing::{debug, warn};

use super::liveness;
use super::state::Server;
use super::turns::next_turn;
use crate::cache::{ClientGone, ClientId, CoreError, Disconnected, Progress, Tidy, Turn, Work};

/// Takes clients down as they come, for as long as the server lives.
pub(super) async fn take_down(server: Rc<Server>) {
    loop {
        server.ends.added.notified().await;
        while let Some(client) = server.ends.next() {
            end(&server, client).await;
            // What others left half-way, since their connection ended in the middle of a request.
            if let Err(error) = work(&server, Tidy::default()).await {
                warn!(%error, "what nobody reads any more could not be freed");
            }
            server.publish_counters();
        }
    }
}

/// What may be taken back now is; the rest is left to [`liveness::watch_orphans`].
async fn end(server: &Server, client: ClientId) {
    let slab = client.slab();
    match work(server, Disconnected::new(client)).await {
        Ok(()) | Err(CoreError::UnknownClient { .. }) => {}
        Err(error) => warn!(slab, %error, "pins of a closed connection were not dropped"),
    }
    if server.dying.borrow().has(client) {
        // The lock first: of a process that is seen to live after it was free, it was let go of.
        let free = server.core().is_alive(client).map(|alive| !alive);
        if matches!(free, Ok(false)) || free.is_ok() && !server.dying.borrow_mut().may_take(client) {
            return liveness::look_again(server, client, Ok(false));
        }
    }
    match work(server, ClientGone::new(client)).await {
        Ok(true) => {
            server.forget_holder(client);
            debug!(slab, "client is gone");
        }
        gone => {
            if matches!(gone, Err(CoreError::UnknownClient { .. })) {
                server.forget_holder(client);
            }
            liveness::look_again(server, client, gone);
        }
    }
}

async fn work<W: Work>(server: &Server, mut work: W) -> Result<W::Answer, CoreError> {
    let mut turn = Turn::new();
    loop {
        let progress = work.step(&mut server.core(), &mut turn)?;
        match progress {
            Progress::Done(answer) => return Ok(answer),
            Progress::More => next_turn(&mut turn).await,
        }
    }
}
