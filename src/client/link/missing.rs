//! Objects that this client was to store and could not.

use std::collections::HashSet;

use crate::keys::KeyHashing;
use crate::object::ObjectId;

/// Objects that are remembered. With more of them all are forgotten: what hangs under them is copied once more for nothing.
const MISSING_MAX: usize = 16384;

/// What hangs under one of these cannot be stored either, so its bytes need not be copied to be told so.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    ids: HashSet<ObjectId, KeyHashing>,
}

impl Missing {
    /// Whether it was not stored when it was last tried.
    pub(crate) fn contains(&self, id: &ObjectId) -> bool {
        self.ids.contains(id)
    }

    /// It was not stored.
    pub(crate) fn add(&mut self, id: ObjectId) {
        if self.ids.len() >= MISSING_MAX {
            self.ids.clear();
        }
        self.ids.insert(id);
    }

    /// It is there, or on its way.
    pub(crate) fn remove(&mut self, id: &ObjectId) {
        self.ids.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::ChunkKey;

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut missing = Missing::default();
        let id = |n: usize| ObjectId {
            key: ChunkKey::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes()),
            group: 0,
        };
        for n in 0..MISSING_MAX {
            missing.add(id(n));
        }
        missing.remove(&id(3));
        assert!(missing.contains(&id(2)) && !missing.contains(&id(3)));
        missing.add(id(3));
        missing.add(id(MISSING_MAX));
        assert_eq!(missing.ids.len(), 1);
        assert!(missing.contains(&id(MISSING_MAX)));
    }
}
