//! Which prefix can be served, and from which objects: pure functions over what is present.
//!
//! A boundary is the end of a full chunk or of a named tail. A boundary can be served when every object
//! group has what a resume there needs. Attention and window groups may use the front of any object whose
//! tokens are all in the prompt; a state serves only its exact end.

use super::presence::{Limits, Load, Presence};
use super::sweep::{Naming, Sweep, TailOrder, View};
use crate::object::GroupShape;

/// Rounds of planning before a lookup whose objects keep vanishing is a miss.
pub(crate) const MAX_ROUNDS: u32 = 3;

/// A prefix and what to load for it, group by group in order, each in token order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Length of the prefix.
    pub(crate) hit_tokens: u64,
    /// What to load.
    pub(crate) loads: Vec<Load>,
}

/// The longest prefix that all groups can serve.
pub(crate) fn plan(groups: &[GroupShape], presence: &Presence, limits: &Limits) -> Plan {
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
pub(crate) fn present_tokens(groups: &[GroupShape], presence: &Presence, limits: &Limits) -> Vec<u64> {
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
pub(crate) fn settle<R: Copy>(
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
pub(crate) fn settle_within<R: Copy, T: Default>(
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
#[path = "plan_tests.rs"]
mod tests;
