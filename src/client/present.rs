//! Asking what is there before it is copied.

use super::{Client, ClientError};
use crate::wire::{MAX_ITEMS, ObjectId, Reply, Request, Retrieve};

impl Client {
    /// Per object whether the server has it now. For stores of what may be there already: a store copies first, and only
    /// its commit is told that the object exists. A server that is away has nothing.
    ///
    /// # Errors
    /// [`ClientError::TooManyItems`], [`ClientError::NoRegistration`], and [`ClientError::Refused`] for a group or part
    /// that the domain does not have.
    pub fn present(&self, part: u16, ids: Vec<ObjectId>) -> Result<Vec<bool>, ClientError> {
        self.core.check_process()?;
        let (asked, registered) = (ids.len(), self.registered_or_wanted()?);
        if asked > MAX_ITEMS {
            return Err(ClientError::TooManyItems {
                given: asked,
                limit: MAX_ITEMS,
            });
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        // Also a use: what is about to be stored again is as recent as if it had been.
        let retrieve = Request::Retrieve(Retrieve {
            domain_seed: registered.seed,
            session: 0,
            part,
            ids,
        });
        let (found, session) = match self.core.call(None, &retrieve) {
            Ok((Reply::Retrieve(found), session)) if found.places.len() == asked => (found, session),
            Ok((reply, session)) => return Err(self.core.distrust(&session, &reply)),
            Err(ClientError::Unavailable { .. }) => return Ok(vec![false; asked]),
            Err(error) => return Err(error),
        };
        let deadline = self.core.deadline();
        if found.pin != 0
            && let Ok(mut link) = self.core.acquire(Some(&session), deadline)
        {
            let pins = vec![found.pin];
            link.post(&Request::Release { pins }, deadline);
        }
        Ok(found.places.iter().map(|place| place.incarnation != 0).collect())
    }
}
