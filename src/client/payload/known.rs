//! What the server has already of a store, for clients that cannot look into the index.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::by_ring::in_rounds;
use super::request::Checked;
use crate::client::ClientError;
use crate::client::link::core::Core;
use crate::client::link::session::PoolSide;
use crate::client::link::wanted::Registered;
use crate::object::ObjectId;

/// Asks which of the objects are there, and whether that holds by now for parents that could not be stored. What is there
/// is missing no longer.
pub(crate) fn ask(
    core: &Arc<Core>,
    registered: &Registered,
    pool: &PoolSide,
    checked: &[Checked<'_>],
) -> Result<HashSet<ObjectId>, ClientError> {
    let mut by_part: BTreeMap<u16, Vec<ObjectId>> = BTreeMap::new();
    for item in checked.iter().filter(|item| item.request.blocks.is_some()) {
        let request = item.request;
        by_part.entry(request.part).or_default().push(request.id);
        for group in registered.request.groups.iter().map(|group| group.group) {
            let keys = [Some(request.id.key), request.parent];
            for key in keys.into_iter().flatten() {
                let id = ObjectId { key, group };
                if pool.missing().contains(&id) {
                    by_part.entry(0).or_default().push(id);
                }
            }
        }
    }
    let mut there = HashSet::new();
    for (part, ids) in by_part {
        // What the server keeps no locations for now counts as not there, and is refused by the commit if it is.
        let (found, _) = in_rounds(ids.len(), |at| {
            let ids = &ids[at];
            let (found, session) = core.retrieve(registered, 0, part, ids.to_vec())?;
            core.let_go(&session, found.pin, None);
            let found = ids.iter().zip(&found.locations);
            let there = found.filter(|(_, at)| at.incarnation != 0).map(|(id, _)| *id);
            Ok(there.collect())
        })?;
        there.extend(found);
    }
    for id in &there {
        pool.missing().remove(id);
    }
    Ok(there)
}
