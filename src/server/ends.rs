//! The taking down of clients whose connection is closed, in turns between the requests of others.
//!
//! May import `cache`. No unsafe code.
//!
//! A connection that ends only says so here. One client after another, so that whoever is answered meanwhile waits for one
//! turn of this, however many have died.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::sync::Notify;
use tracing::{debug, warn};

use super::dispatch::next_turn;
use super::liveness;
use super::state::Server;
use crate::cache::{ClientGone, ClientId, CoreError, Disconnected, Progress, Tidy, Work};
use crate::index::turn::Turn;

/// Clients that are to be taken down.
#[derive(Debug, Default)]
pub(super) struct Ends {
    queue: RefCell<VecDeque<ClientId>>,
    added: Notify,
}

impl Ends {
    /// One more.
    pub(super) fn add(&self, client: ClientId) {
        self.queue.borrow_mut().push_back(client);
        self.added.notify_one();
    }

    fn next(&self) -> Option<ClientId> {
        self.queue.borrow_mut().pop_front()
    }
}

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
    match work(server, ClientGone::new(client)).await {
        Ok(true) => debug!(slab, "client is gone"),
        gone => liveness::look_again(server, client, gone),
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
