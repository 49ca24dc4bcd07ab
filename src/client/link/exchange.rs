//! Exchanges on the present connection, and what a set-up and an acknowledgement make of a server that is away.

use std::sync::Arc;

use super::core::Core;
use super::session::{Session, unexpected};
use super::wanted::Registered;
use crate::client::ClientError;
use crate::object::GrantRequest;
use crate::wire::{Reply, Request};

impl Core {
    /// One exchange on the present connection, or on that of `session` only.
    pub(crate) fn call(
        self: &Arc<Self>,
        session: Option<&Arc<Session>>,
        request: &Request,
    ) -> Result<(Reply, Arc<Session>), ClientError> {
        let deadline = self.deadline();
        let mut link = self.acquire(session, deadline)?;
        let reply = link.call(request, deadline)?;
        Ok((reply, Arc::clone(link.session())))
    }

    /// One exchange of those that set a connection up. A server that cannot serve for now is one that is away: the
    /// connection goes, so that all of it is asked again.
    pub(crate) fn set_up(self: &Arc<Self>, request: &Request) -> Result<(Reply, Arc<Session>), ClientError> {
        let deadline = self.deadline();
        let mut link = self.acquire(None, deadline)?;
        match link.call(request, deadline) {
            Ok(reply) => Ok((reply, Arc::clone(link.session()))),
            Err(ClientError::Refused(error)) if error.code.is_passing() => {
                link.give_up(&error.to_string());
                self.end_unused();
                Err(ClientError::unavailable(error))
            }
            Err(error) => {
                self.end_unused();
                Err(error)
            }
        }
    }

    /// Lets go of a session that ended before anything was agreed over it: there is nothing to read, and its slab may be what the
    /// server hands out next.
    fn end_unused(&self) {
        if self.registered().is_none() {
            self.end_reads(|session| {
                session.has_ended()
                    && session
                        .attached()
                        .is_none_or(|attached| !attached.knows_domains())
            });
        }
    }

    /// Drops a connection whose reply does not answer the request.
    pub(crate) fn distrust(&self, session: &Session, reply: &Reply) -> ClientError {
        let error = unexpected(reply);
        self.degrade(session, &error.to_string());
        error
    }

    /// An exchange that is answered with nothing; a server that is away has nothing to give back either.
    pub(crate) fn acknowledge(
        self: &Arc<Self>,
        session: Option<&Arc<Session>>,
        request: &Request,
    ) -> Result<(), ClientError> {
        match self.call(session, request) {
            Ok((Reply::Ack, _)) | Err(ClientError::Unavailable { .. }) => Ok(()),
            Ok((reply, session)) => Err(self.distrust(&session, &reply)),
            Err(error) => Err(error),
        }
    }

    /// The registration that the server confirmed, or the one that still waits for a server: enough to check a call.
    pub(crate) fn registered_or_wanted(&self) -> Result<Arc<Registered>, ClientError> {
        if let Some(registered) = self.registered() {
            return Ok(registered);
        }
        let request = self.wanted().register.ok_or(ClientError::NoRegistration)?;
        let seed = request.domain.seed(self.chunk_size().unwrap_or(0))?;
        Ok(Arc::new(Registered {
            request,
            seed,
            domain: None,
            kept_frames_max: 0,
        }))
    }

    /// Gives all space that is held for stores back.
    pub(crate) fn give_back(self: &Arc<Self>, session: &Arc<Session>) -> Result<(), ClientError> {
        let extents = session.pool()?.granted().take_all();
        if extents.is_empty() {
            return Ok(());
        }
        self.acknowledge(Some(session), &Request::Abort { extents })
    }
}

/// Asks for space for stores to come.
pub(crate) fn ahead(bytes: u64) -> Request {
    Request::Grant(GrantRequest {
        bytes,
        ahead: true,
        ..GrantRequest::default()
    })
}
