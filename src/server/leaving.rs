//! Clients that are leaving: what `ends` takes down, and what `liveness` asks about again.

use std::cell::RefCell;
use std::collections::VecDeque;

use tokio::sync::Notify;

use crate::cache::ClientId;

/// Clients that are to be taken down.
#[derive(Debug, Default)]
pub(super) struct Ends {
    queue: RefCell<VecDeque<ClientId>>,
    pub(super) added: Notify,
}

impl Ends {
    /// One more.
    pub(super) fn add(&self, client: ClientId) {
        self.queue.borrow_mut().push_back(client);
        self.added.notify_one();
    }

    pub(super) fn next(&self) -> Option<ClientId> {
        self.queue.borrow_mut().pop_front()
    }
}

/// A client without a connection whose lock was not free when it was last asked about.
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) client: ClientId,
    /// Whether it was said that asking failed, which is said once.
    pub(super) failed: bool,
    pub(super) looks: u32,
}
