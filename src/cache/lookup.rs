//! Which prefix can be served, and from which objects: pure functions over what is present.
//!
//! May import `geometry` and this module's `api`, `shape` and `sweep`.
//!
//! A boundary is the end of a full chunk or of a named tail. A boundary can be served when every object
//! group has what a resume there needs. Attention and window groups may use the front of any object whose
//! tokens are all in the prompt; a state serves only its exact end.

use std::collections::BTreeMap;

use super::sweep::{Naming, Sweep, TailOrder, View};
use crate::object::{DomainShape, GroupShape, LookupRequest};

/// Rounds of planning before a lookup whose objects keep vanishing is a miss.
pub(super) const MAX_ROUNDS: u32 = 3;

/// A tail of the prompt and the groups that have an object of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TailPresence {
    /// Its chunk.
    pub(super) chunk: u32,
    /// Its tokens.
    pub(super) tokens: u32,
    /// Bits of the groups.
    pub(super) groups: u32,
}

/// What is there of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Presence {
    /// Bits of the groups that have an object of each full chunk. Chunks behind the end have none.
    pub(super) chunks: Vec<u32>,
    /// The tails, in the order in which the request names them.
    pub(super) tails: Vec<TailPresence>,
    /// Of objects that begin with holes the first token that is held, by source and bit of the group.
    pub(super) holes: BTreeMap<(Source, u32), u32>,
}

impl Presence {
    /// An object that was there is not any more.
    pub(super) fn lose(&mut self, load: &Load, groups: &[GroupShape]) {
        let gone = !groups[load.group].bit;
        match load.source {
            Source::Chunk(chunk) => self.chunks[chunk as usize] &= gone,
            Source::Tail(tail) => self.tails[tail as usize].groups &= gone,
        }
    }
}

/// The numbers of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The bound chunk size.
    pub(super) chunk_size: u64,
    /// The prefix is at most this long.
    pub(super) max_tokens: u64,
    /// Tokens that need not be loaded.
    pub(super) local_tokens: u64,
}

impl Limits {
    /// Those of a request.
    pub(super) fn of(request: &LookupRequest<'_>, shape: &DomainShape) -> Self {
        Self {
            chunk_size: shape.chunk_size.into(),
            max_tokens: request.max_tokens,
            local_tokens: request.local_tokens,
        }
    }
}

/// Where bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Source {
    /// The object of a full chunk.
    Chunk(u32),
    /// The object of the tail with this place in the request.
    Tail(u32),
}

/// One object to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Load {
    /// Place of the group in the domain's list.
    pub(super) group: usize,
    /// The object.
    pub(super) source: Source,
}

/// A prefix and what to load for it, group by group in order, each in token order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Length of the prefix.
    pub(super) hit_tokens: u64,
    /// What to load.
    pub(super) loads: Vec<Load>,
}

/// The longest prefix that all groups can serve.
pub(super) fn plan(groups: &[GroupShape], presence: &Presence, limits: &Limits) -> Plan {
    let order = TailOrder::of(presence);
    let view = View {
        groups,
        presence,
        limits,
        order: &order,
    };
    let mut sweep = Sweep::new(&view, &view.covers());
    while let Some(chunk) = sweep.chunk() {
        if sweep.at_end(&view).is_none() && sweep.at_tails(&view).is_none() {
            sweep.leave(chunk);
        }
    }
    let hit_tokens = sweep.found();
    let mut naming = Naming::new(hit_tokens);
    Plan {
        hit_tokens,
        loads: std::iter::from_fn(|| naming.next(&view)).collect(),
    }
}

#[cfg(test)]
/// Per group, tokens up to which every object from token 0 on is there, a tail at the end included.
pub(super) fn present_tokens(groups: &[GroupShape], presence: &Presence, limits: &Limits) -> Vec<u64> {
    let order = TailOrder::of(presence);
    let view = View {
        groups,
        presence,
        limits,
        order: &order,
    };
    view.covers()
}

/// Plans, and finds every object of the plan again. What is not found any more is taken out of `presence`
/// and the plan is made anew, as long as `rounds` are left; then it is a miss. The plan and the records of its loads.
pub(super) fn settle<R: Copy>(
    groups: &[GroupShape],
    presence: &mut Presence,
    limits: &Limits,
    rounds: &mut u32,
    mut find: impl FnMut(&Load) -> Option<R>,
) -> (Plan, Vec<R>) {
    while *rounds > 0 {
        *rounds -= 1;
        let plan = plan(groups, presence, limits);
        let found: Vec<Option<R>> = plan.loads.iter().map(&mut find).collect();
        if let Some(records) = found.iter().copied().collect::<Option<Vec<R>>>() {
            return (plan, records);
        }
        for (load, _) in plan.loads.iter().zip(&found).filter(|(_, f)| f.is_none()) {
            presence.lose(load, groups);
        }
    }
    (Plan::default(), Vec::new())
}

/// As [`settle`], and not longer than `fits` allows: it is given a plan and its records and says what pinning them
/// takes, or that it is too much. Then the longest prefix in whole chunks that fits is found by halving, since a
/// shorter one needs less; a step of that is no round unless something vanishes. The last value tells that this happened.
pub(super) fn settle_within<R: Copy, T: Default>(
    groups: &[GroupShape],
    presence: &mut Presence,
    limits: &Limits,
    rounds: &mut u32,
    mut find: impl FnMut(&Load) -> Option<R>,
    fits: impl Fn(&Plan, &[R]) -> Option<T>,
) -> (Plan, Vec<R>, T, bool) {
    let (whole, records) = settle(groups, presence, limits, rounds, &mut find);
    if let Some(taken) = fits(&whole, &records) {
        return (whole, records, taken, false);
    }
    let mut best = (Plan::default(), Vec::new(), T::default());
    let (mut fit, mut too_long) = (0, whole.hit_tokens.div_ceil(limits.chunk_size));
    while fit + 1 < too_long {
        let chunks = fit + (too_long - fit) / 2;
        let shorter = Limits {
            max_tokens: limits.max_tokens.min(chunks * limits.chunk_size),
            ..*limits
        };
        *rounds += 1;
        let (plan, records) = settle(groups, presence, &shorter, rounds, &mut find);
        match fits(&plan, &records) {
            Some(taken) => {
                best = (plan, records, taken);
                fit = chunks;
            }
            None => too_long = chunks,
        }
    }
    let (plan, records, taken) = best;
    (plan, records, taken, true)
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
