//! Where objects hang in the trees of records (see `books::tree`).

use super::context::Context;
use crate::cache::books::registry::{Domain, DomainGroup};
use crate::cache::{Core, CoreError};
use crate::geometry::ObjectKind;
use crate::object::{CommitOutcome, ObjectId, StoreItem};

/// Where an object hangs.
enum Parent {
    Root,
    Under { record: u32, is_companion: bool },
    Missing,
}

/// The place of an object that is yet to begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Bit of its group, and its parts.
    pub(crate) bit: u32,
    pub(crate) parts: u16,
    /// Of a tail its bit in the word of the chunk before; 0 of what is none.
    pub(crate) tail: u32,
    /// What it hangs under, and whether it is one of the companions of that.
    pub(crate) parent: Option<u32>,
    pub(crate) is_companion: bool,
}

impl Core {
    /// The place of an object that an item begins. The outcome when it has none.
    pub(crate) fn place_of(
        &self,
        context: &Context,
        item: &StoreItem,
    ) -> Result<Result<Place, CommitOutcome>, CoreError> {
        let domain = self.domain(context.domain)?;
        let Some(group) = domain.group(item.id.group) else {
            return Ok(Err(CommitOutcome::Dropped));
        };
        let found = match domain.may_precede_anchor(group) {
            true => Parent::Root,
            false => self.parent_of(context, domain, group, item),
        };
        let (parent, is_companion) = match found {
            Parent::Root => (None, false),
            Parent::Under { record, is_companion } => (Some(record), is_companion),
            Parent::Missing => return Ok(Err(CommitOutcome::NoParent)),
        };
        Ok(Ok(Place {
            bit: group.bit,
            parts: group.parts,
            tail: domain.tail_bit(item.tokens),
            parent,
            is_companion,
        }))
    }

    /// Where an object hangs: full attention under the chunk before, all others under the full-attention
    /// object of their key. A state or window of a tail whose attention bytes were not stored (the full
    /// chunk has them) hangs under the chunk before; without a full-attention group all are roots.
    fn parent_of(&self, context: &Context, domain: &Domain, group: &DomainGroup, item: &StoreItem) -> Parent {
        let under = |group: u16, is_companion: bool, tokens: u32, key| {
            let id = ObjectId { key, group };
            let live = self.live(context.domain, &id);
            let found = live.or_else(|| {
                let incomplete = self.incomplete.get(&context.key(&id))?;
                Some((incomplete.record, incomplete.tokens))
            });
            match found.filter(|(_, t)| *t == tokens) {
                Some((record, _)) => Parent::Under { record, is_companion },
                None => Parent::Missing,
            }
        };
        let before = |group: u16| match item.parent {
            Some(parent) => under(group, false, context.chunk, parent),
            None => Parent::Root,
        };
        if group.kind == ObjectKind::Full {
            return before(group.group);
        }
        let Some(anchor) = domain.anchor else {
            return Parent::Root;
        };
        match under(anchor, true, item.tokens, item.id.key) {
            Parent::Missing if item.tokens < context.chunk => before(anchor),
            place => place,
        }
    }

    /// Hangs a complete object that was begun without its place. Whether the object that it hangs under is there.
    pub(crate) fn hang_complete(
        &mut self,
        context: &Context,
        item: &StoreItem,
        record: u32,
    ) -> Result<bool, CoreError> {
        let domain = self.domain(context.domain)?;
        let Some(group) = domain
            .group(item.id.group)
            .filter(|group| domain.may_precede_anchor(group))
        else {
            return Ok(true);
        };
        match self.parent_of(context, domain, group, item) {
            Parent::Root => Ok(true),
            Parent::Missing => Ok(false),
            Parent::Under {
                record: parent,
                is_companion,
            } => {
                // Publishing writes its words.
                self.tree.hang(record, parent, is_companion);
                Ok(true)
            }
        }
    }
}

impl Domain {
    /// Whether parts of a group may come before the full-attention object that theirs hangs under: it has more parts,
    /// so some ranks store parts of the group's objects and none of that one's. Such an object is given its place when
    /// it is complete.
    pub(crate) fn may_precede_anchor(&self, group: &DomainGroup) -> bool {
        let anchor = self.anchor.and_then(|anchor| self.group(anchor));
        group.kind != ObjectKind::Full && anchor.is_some_and(|anchor| anchor.parts < group.parts)
    }
}
