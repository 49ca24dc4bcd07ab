//! Asking what is there before it is copied.

use super::{Client, ClientError};
use crate::object::ObjectId;
use crate::wire::MAX_ITEMS;

impl Client {
    /// Per object whether the server has it now. For stores of what may be there already: a store copies first, and only
    /// its commit is told that the object exists. A server that is away has nothing.
    ///
    /// # Errors
    /// [`ClientError::TooManyItems`], [`ClientError::NoRegistration`], and [`ClientError::UnknownGroup`] or
    /// [`ClientError::InvalidArgument`] for a group or part that was not registered.
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
        for id in &ids {
            registered.check_part(id.group, part)?;
        }
        // Also a use: what is about to be stored again is as recent as if it had been.
        let (found, session) = match self.core.retrieve(&registered, 0, part, ids) {
            Ok(found) => found,
            Err(ClientError::Unavailable { .. }) => return Ok(vec![false; asked]),
            Err(error) => return Err(error),
        };
        self.core.let_go(&session, found.pin, None);
        Ok(found
            .locations
            .iter()
            .map(|location| location.incarnation != 0)
            .collect())
    }
}
