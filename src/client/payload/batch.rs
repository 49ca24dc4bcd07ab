//! What one commit of a store brings.

use super::request::Checked;
use crate::object::{Extent, StoreItem};

/// Items of a commit, where others can follow it: as many as the server takes a fraction of a millisecond for.
const COMMIT_ITEMS: usize = 128;
/// And runs of frames, so that a message of a pool in pieces stays short too.
const COMMIT_EXTENTS: usize = 2048;

/// One commit's worth of items, with the space that was found for each.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) items: Vec<StoreItem>,
    pub(crate) extents: Vec<Extent>,
    /// Position in the call, for each item.
    pub(crate) positions: Vec<usize>,
}

impl Batch {
    /// Whether it is enough for a message.
    pub(crate) fn is_full(&self) -> bool {
        self.items.len() >= COMMIT_ITEMS || self.extents.len() >= COMMIT_EXTENTS
    }

    /// Takes a part in, with the space that was found for it; one that is skipped has none.
    pub(crate) fn push(&mut self, position: usize, item: &Checked<'_>, skipped: bool, extents: &[Extent]) {
        let request = item.request;
        self.items.push(StoreItem {
            id: request.id,
            parent: request.parent,
            skipped,
            part: request.part,
            tokens: request.tokens,
            held_from: if skipped { 0 } else { item.held_from },
            bytes: if skipped { 0 } else { item.bytes },
            checksum: 0,
            first_extent: self.extents.len() as u32,
            extent_count: extents.len() as u32,
        });
        self.extents.extend_from_slice(extents);
        self.positions.push(position);
    }
}
