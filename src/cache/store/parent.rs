//! Where objects hang in the trees of records (see `books::tree`).

use super::context::Context;
use crate::cache::books::registry::{Domain, DomainGroup};
use crate::cache::{Core, CoreError};
use crate::geometry::ObjectKind;
use crate::object::{ObjectId, StoreItem};

/// Where an object hangs.
pub(crate) enum Parent {
    Root,
    Under { record: u32, is_companion: bool },
    Missing,
}

impl Core {
    /// Where an object hangs: full attention under the chunk before, all others under the full-attention
    /// object of their key. A state or window of a tail whose attention bytes were not stored (the full
    /// chunk has them) hangs under the chunk before; without a full-attention group all are roots.
    pub(crate) fn parent_of(
        &self,
        context: &Context,
        domain: &Domain,
        group: &DomainGroup,
        item: &StoreItem,
    ) -> Parent {
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
