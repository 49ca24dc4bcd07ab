//! Objects whose bytes a reader found wrong.
//!
//! May import everything of this module.

use super::api::{ClientId, ObjectId};
use super::core::Core;
use super::error::CoreError;
use crate::keys::ChunkKey;
use crate::pool::RecordState;

impl Core {
    /// Takes objects out of the index, and with each all that hangs under it: nothing below it can be reached without
    /// it. Their space is free once nobody reads them. Objects that are not there are left alone.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::NotRegistered`], [`CoreError::UnknownClient`].
    pub fn discard(
        &mut self,
        client: ClientId,
        domain_seed: ChunkKey,
        ids: &[ObjectId],
    ) -> Result<(), CoreError> {
        self.require_chunk_size()?;
        self.client(client)?;
        let (domain, _) = self.registry.find(&domain_seed)?;
        for id in ids {
            if let Some((record, _)) = self.live(domain, id) {
                self.discard_tree(record)?;
                self.counters.discarded_objects += 1;
            }
        }
        Ok(())
    }

    fn discard_tree(&mut self, root: u32) -> Result<(), CoreError> {
        // Rare, so the records are gone through instead of keeping lists of children. An incomplete object among them ends
        // when its last part arrives and its parent is not live.
        let mut depths: Vec<(u32, u32)> = Vec::new();
        for (record, entry) in self.records.iter() {
            if entry.state == RecordState::Live
                && let Some(depth) = self.depth_under(root, record)
            {
                depths.push((depth, record));
            }
        }
        depths.sort_unstable_by(|a, b| b.cmp(a));
        let mut condemned = Vec::with_capacity(depths.len());
        for (_, record) in depths {
            condemned.push(self.condemn(record)?);
        }
        self.retire(condemned)?;
        Ok(())
    }

    /// How far below `root` a record hangs; 0 for the root itself.
    fn depth_under(&self, root: u32, record: u32) -> Option<u32> {
        let (mut at, mut depth) = (record, 0);
        while at != root {
            at = self.records.get(at).parent?;
            depth += 1;
        }
        Some(depth)
    }
}
