//! Objects whose bytes a reader found wrong.
//!
//! May import everything of this module.

use std::collections::{HashMap, HashSet};

use super::api::{ClientId, ObjectId};
use super::core::Core;
use super::error::CoreError;
use crate::keys::ChunkKey;
use crate::pool::RecordState;

impl Core {
    /// Takes objects out of the index, and with each all that hangs under it: nothing below it can be reached without
    /// it. Their space is free once nobody reads them. An object that is not there any more, or was stored anew since it
    /// was read, is left alone.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::NotRegistered`], [`CoreError::UnknownClient`].
    pub fn discard(
        &mut self,
        client: ClientId,
        domain_seed: ChunkKey,
        objects: &[(ObjectId, u64)],
    ) -> Result<(), CoreError> {
        self.require_chunk_size()?;
        self.client(client)?;
        let (domain, _) = self.registry.find(&domain_seed)?;
        let mut roots = HashSet::new();
        for (id, incarnation) in objects {
            let found = self.index.reader().lookup(id);
            let found = found.filter(|view| view.incarnation == *incarnation);
            if let Some(view) = found.filter(|view| self.records.get(view.record).domain == domain) {
                roots.insert(view.record);
            }
        }
        if roots.is_empty() {
            return Ok(());
        }
        let mut condemned = Vec::new();
        for record in self.trees(&roots) {
            condemned.push(self.condemn(record)?);
        }
        self.retire(condemned)?;
        self.counters.discarded_objects += roots.len() as u64;
        Ok(())
    }

    /// The live records that are or hang under one of the roots, the deepest first.
    ///
    /// One pass over all records, which discards are rare enough for. An incomplete object among them ends when its last
    /// part arrives and its parent is not live.
    fn trees(&self, roots: &HashSet<u32>) -> Vec<u32> {
        // Per record its depth, and whether it is in one of the trees.
        let mut known: HashMap<u32, (u32, bool)> = HashMap::new();
        let mut found = Vec::new();
        let mut path = Vec::new();
        for (record, entry) in self.records.iter() {
            let mut at = Some(record);
            while let Some(record) = at.filter(|record| !known.contains_key(record)) {
                path.push(record);
                at = self.records.get(record).parent;
            }
            let mut above = at.and_then(|at| known.get(&at).copied());
            for record in path.drain(..).rev() {
                let (depth, inside) = above.map_or((0, false), |(depth, inside)| (depth + 1, inside));
                let own = (depth, inside || roots.contains(&record));
                known.insert(record, own);
                above = Some(own);
            }
            if let Some(&(depth, true)) = known.get(&record)
                && entry.state == RecordState::Live
            {
                found.push((depth, record));
            }
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.into_iter().map(|(_, record)| record).collect()
    }
}
