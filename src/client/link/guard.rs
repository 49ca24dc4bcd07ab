//! One or more exchanges on the link, by whoever holds it.

use std::sync::Arc;
use std::time::Instant;

use super::connection::{CallError, Connection};
use super::core::Core;
use super::session::Session;
use crate::client::ClientError;
use crate::wire::{Reply, Request};

/// The right to use the connection. It goes back when this is dropped, or never if an exchange failed.
#[derive(Debug)]
pub(crate) struct LinkGuard {
    core: Arc<Core>,
    connection: Option<Box<Connection>>,
    session: Arc<Session>,
}

impl Core {
    /// Takes the link for one or more exchanges: see [`Core::take_link`].
    pub(crate) fn acquire(
        self: &Arc<Self>,
        session: Option<&Arc<Session>>,
        deadline: Instant,
    ) -> Result<LinkGuard, ClientError> {
        let (connection, session) = self.take_link(session, deadline)?;
        Ok(LinkGuard {
            core: Arc::clone(self),
            connection: Some(connection),
            session,
        })
    }
}

impl LinkGuard {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// One exchange. If it breaks, the client is degraded from here on.
    pub(crate) fn call(&mut self, request: &Request, deadline: Instant) -> Result<Reply, ClientError> {
        self.exchange(|connection| connection.call(request, deadline))
    }

    fn exchange<T>(
        &mut self,
        exchange: impl FnOnce(&mut Connection) -> Result<T, CallError>,
    ) -> Result<T, ClientError> {
        let Some(connection) = &mut self.connection else {
            return Err(ClientError::unavailable("the connection was dropped"));
        };
        let answer = exchange(connection);
        if let Err(error) = &answer {
            self.failed(error);
        }
        answer.map_err(ClientError::from)
    }

    /// Sends a request whose answer is waited for by [`Self::finish`], by whoever has the link then.
    pub(crate) fn begin(&mut self, request: &Request, deadline: Instant) -> Result<u64, ClientError> {
        self.exchange(|connection| connection.begin(request, deadline))
    }

    /// Waits for the answer to what was sent by [`Self::begin`].
    pub(crate) fn finish(&mut self, id: u64, deadline: Instant) -> Result<Reply, ClientError> {
        self.exchange(|connection| connection.finish(id, deadline))
    }

    /// Sends a request whose answer does not matter.
    pub(crate) fn post(&mut self, request: &Request, deadline: Instant) {
        if let Some(connection) = &mut self.connection
            && let Err(error) = connection.post(request, deadline)
        {
            self.failed(&error);
        }
    }

    fn failed(&mut self, error: &CallError) {
        match error {
            CallError::Refused(_) => {}
            CallError::Broken(reason) => self.give_up(reason),
            CallError::Late => {
                self.connection = None;
                self.core.degrade_late(&self.session);
            }
        }
    }

    /// Drops the connection: it cannot be trusted any more.
    pub(crate) fn give_up(&mut self, reason: &str) {
        self.connection = None;
        self.core.degrade(&self.session, reason);
    }
}

impl Drop for LinkGuard {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.core.give_back_link(connection, &self.session);
        }
    }
}
