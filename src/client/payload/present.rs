//! Asking what is there before it is copied.

use std::sync::Arc;

use super::by_ring::RING_ITEMS;
use crate::client::link::core::Core;
use crate::client::link::wanted::Registered;
use crate::client::{ClientError, Maps};
use crate::object::ObjectId;
use crate::wire::MAX_ITEMS;

impl Core {
    /// See [`crate::client::Client::present`].
    pub(crate) fn present(self: &Arc<Self>, part: u16, ids: Vec<ObjectId>) -> Result<Vec<bool>, ClientError> {
        self.check_process()?;
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
        let round = match self.config.maps {
            Maps::Ring => RING_ITEMS,
            _ => MAX_ITEMS,
        };
        let rounds: Result<Vec<_>, ClientError> = ids
            .chunks(round)
            .map(|ids| self.present_once(&registered, part, ids.to_vec()))
            .collect();
        Ok(rounds?.concat())
    }

    fn present_once(
        self: &Arc<Self>,
        registered: &Registered,
        part: u16,
        ids: Vec<ObjectId>,
    ) -> Result<Vec<bool>, ClientError> {
        let asked = ids.len();
        // Also a use: what is about to be stored again is as recent as if it had been.
        let (found, session) = match self.retrieve(registered, 0, part, ids) {
            Ok(found) => found,
            Err(ClientError::Unavailable { .. }) => return Ok(vec![false; asked]),
            Err(error) => return Err(error),
        };
        self.let_go(&session, found.pin, None);
        Ok(found
            .locations
            .iter()
            .map(|location| location.incarnation != 0)
            .collect())
    }
}
