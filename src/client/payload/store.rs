//! Storing: pages straight into granted extents, then commits that publish what a step stored.

use std::sync::Arc;

use super::request::{Checked, StoreOutcome, StoreRequest, check, check_path};
use super::storing::Storing;
use crate::client::ClientError;
use crate::client::link::core::Core;
use crate::client::link::stats::Stat;
use crate::object::ObjectId;
use crate::wire::MAX_ITEMS;

impl Core {
    /// See [`crate::client::Client::store`].
    pub(crate) fn store(
        self: &Arc<Self>,
        requests: &[StoreRequest],
        supersedes: &[ObjectId],
    ) -> Result<Vec<StoreOutcome>, ClientError> {
        self.check_process()?;
        let outcomes = self.try_store(requests, supersedes);
        if outcomes.is_err() {
            let given = requests.iter().filter(|request| request.blocks.is_some());
            self.count(Stat::DroppedStores, given.count() as u64);
        }
        outcomes
    }

    fn try_store(
        self: &Arc<Self>,
        requests: &[StoreRequest],
        supersedes: &[ObjectId],
    ) -> Result<Vec<StoreOutcome>, ClientError> {
        let memory = self.memory()?;
        let registered = self.registered_or_wanted()?;
        if requests.len() > MAX_ITEMS || supersedes.len() > MAX_ITEMS {
            return Err(ClientError::TooManyItems {
                given: requests.len().max(supersedes.len()),
                limit: MAX_ITEMS,
            });
        }
        check_path(&memory, &registered)?;
        let checked = check(&memory, &registered, requests)?;
        let (mut outcomes, mut copied) = (vec![StoreOutcome::Unavailable; requests.len()], Vec::new());
        if let Some(session) = self.linked_session() {
            session.pool()?;
            let parts = requests.len();
            let mut store = Storing::new(self, &memory, &registered, &session, supersedes, parts);
            match store.run(&checked) {
                Ok(()) | Err(ClientError::Unavailable { .. }) => {}
                Err(error) => return Err(error),
            }
            (outcomes, copied) = (store.outcomes, store.copied);
        }
        self.count_stores(&checked, &outcomes, &copied);
        Ok(outcomes)
    }

    fn count_stores(&self, checked: &[Checked<'_>], outcomes: &[StoreOutcome], copied: &[bool]) {
        let (mut stores, mut bytes, mut dropped) = (0, 0, 0);
        for (position, (item, outcome)) in checked.iter().zip(outcomes).enumerate() {
            match outcome {
                _ if item.request.blocks.is_none() => {}
                StoreOutcome::Dropped | StoreOutcome::Unavailable => dropped += 1,
                _ if copied.get(position) == Some(&true) => {
                    stores += 1;
                    bytes += item.bytes;
                }
                _ => {}
            }
        }
        for (stat, count) in [
            (Stat::Stores, stores),
            (Stat::StoredBytes, bytes),
            (Stat::DroppedStores, dropped),
        ] {
            if count > 0 {
                self.count(stat, count);
            }
        }
    }
}
