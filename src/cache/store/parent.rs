//! Where objects hang in the trees of records (see `records`).

use super::context::Context;
use crate::cache::books::registry::{Domain, DomainGroup};
use crate::cache::core::Core;
use crate::cache::error::CoreError;
use crate::geometry::ObjectKind;
use crate::object::{ObjectId, StoreItem};

/// Where an object hangs.
pub(crate) enum Place {
    Root,
    Under { record: u32, beside: bool },
    Missing,
}

impl Core {
    /// Where an object hangs: full attention under the chunk before, all others under the full-attention
    /// object of their key. A state or window of a tail whose attention bytes were not stored (the full
    /// chunk has them) hangs under the chunk before; without a full-attention group all are roots.
    pub(crate) fn place(
        &self,
        context: &Context,
        domain: &Domain,
        group: &DomainGroup,
        item: &StoreItem,
    ) -> Place {
        let under = |group: u16, beside: bool, tokens: u32, key| {
            let id = ObjectId { key, group };
            let live = self.live(context.domain, &id);
            let found = live.or_else(|| {
                let partial = self.partials.get(&context.key(&id))?;
                Some((partial.record, partial.tokens))
            });
            match found.filter(|(_, t)| *t == tokens) {
                Some((record, _)) => Place::Under { record, beside },
                None => Place::Missing,
            }
        };
        let before = |group: u16| match item.parent {
            Some(parent) => under(group, false, context.chunk, parent),
            None => Place::Root,
        };
        if group.kind == ObjectKind::Full {
            return before(group.group);
        }
        let Some(anchor) = domain.anchor else {
            return Place::Root;
        };
        match under(anchor, true, item.tokens, item.id.key) {
            Place::Missing if item.tokens < context.chunk => before(anchor),
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
        match self.place(context, domain, group, item) {
            Place::Root => Ok(true),
            Place::Missing => Ok(false),
            Place::Under {
                record: parent,
                beside,
            } => {
                // Publishing writes its words.
                self.records.hang(record, parent, beside);
                Ok(true)
            }
        }
    }
}

impl Domain {
    /// Whether parts of a group may come before the full-attention object that theirs hangs under: it has more parts, so some
    /// ranks store parts of the group's objects and none of that one's. Such an object is given its place when it is complete.
    pub(crate) fn may_precede_anchor(&self, group: &DomainGroup) -> bool {
        let anchor = self.anchor.and_then(|anchor| self.group(anchor));
        group.kind != ObjectKind::Full && anchor.is_some_and(|anchor| anchor.parts < group.parts)
    }
}
