//! Which prefix can be served, and from which objects: pure functions over what is present.
//!
//! May import `geometry` and this module's `api` and `shape`.
//!
//! A boundary is the end of a full chunk or of a named tail. A boundary can be served when every object
//! group has what a resume there needs. Attention and window groups may use the front of any object whose
//! tokens are all in the prompt; a state serves only its exact end.

use std::collections::HashMap;

use super::api::LookupRequest;
use super::shape::{DomainShape, GroupShape};
use crate::geometry::ObjectKind;
use crate::geometry::window::first_needed_token;

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
    pub(super) holes: HashMap<(Source, u32), u32>,
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
            chunk_size: shape.chunk.into(),
            max_tokens: request.max_tokens,
            local_tokens: request.local_tokens,
        }
    }
}

/// Where bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    let view = View::new(presence, limits);
    let cover: Vec<u64> = groups.iter().map(|g| view.cover(g)).collect();
    // Full attention bounds the prefix whatever else is there.
    let full = groups
        .iter()
        .zip(&cover)
        .filter(|(g, _)| g.kind == ObjectKind::Full);
    let longest = full
        .map(|(_, c)| *c)
        .min()
        .unwrap_or(u64::MAX)
        .min(limits.max_tokens);
    for boundary in view.boundaries(longest) {
        // Where no group needs anything there is nothing to resume from: a hit never names nothing.
        let mut all = groups.iter().zip(&cover);
        if groups.iter().any(|g| needs_something(g, boundary))
            && all.all(|(g, cover)| view.serves(g, *cover, boundary))
        {
            return Plan {
                hit_tokens: boundary,
                loads: view.loads(groups, boundary),
            };
        }
    }
    Plan::default()
}

/// Whether a resume at a boundary takes some object of a group.
fn needs_something(group: &GroupShape, boundary: u64) -> bool {
    group.kind == ObjectKind::Recurrent || first_needed_token(group.kind, boundary) < boundary
}

/// Per group, tokens up to which every object from token 0 on is there, a tail at the end included.
pub(super) fn present_tokens(groups: &[GroupShape], presence: &Presence, limits: &Limits) -> Vec<u64> {
    let view = View::new(presence, limits);
    groups.iter().map(|g| view.cover(g)).collect()
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
            let gone = !groups[load.group].bit;
            match load.source {
                Source::Chunk(chunk) => presence.chunks[chunk as usize] &= gone,
                Source::Tail(tail) => presence.tails[tail as usize].groups &= gone,
            }
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

/// Tokens `from..to` of a chunk, counted from its start.
struct Piece {
    chunk: u64,
    from: u64,
    to: u64,
}

struct View<'a> {
    presence: &'a Presence,
    limits: &'a Limits,
    /// Places of the tails by chunk, then by length.
    tails: Vec<u32>,
}

impl<'a> View<'a> {
    fn new(presence: &'a Presence, limits: &'a Limits) -> Self {
        let mut tails: Vec<u32> = (0..presence.tails.len() as u32).collect();
        tails.sort_by_key(|t| {
            let tail = presence.tails[*t as usize];
            (tail.chunk, tail.tokens)
        });
        Self {
            presence,
            limits,
            tails,
        }
    }

    /// The tails of a chunk, the shortest first.
    fn tails_of(&self, chunk: u64) -> impl DoubleEndedIterator<Item = (u32, TailPresence)> + '_ {
        let at = |t: u32| self.presence.tails[t as usize];
        let from = self.tails.partition_point(|t| u64::from(at(*t).chunk) < chunk);
        let count = self.tails[from..].partition_point(|t| u64::from(at(*t).chunk) == chunk);
        let here = &self.tails[from..from + count];
        here.iter().map(move |t| (*t, at(*t)))
    }

    fn has_chunk(&self, chunk: u64, bit: u32) -> bool {
        self.presence
            .chunks
            .get(chunk as usize)
            .is_some_and(|groups| groups & bit != 0)
    }

    /// Tokens up to which every object from 0 on is there.
    fn cover(&self, group: &GroupShape) -> u64 {
        let chunks = self.presence.chunks.iter();
        let full = chunks.take_while(|groups| *groups & group.bit != 0).count() as u64;
        let mut tails = self.tails_of(full).rev();
        let tail = tails.find(|(_, t)| t.groups & group.bit != 0);
        full * self.limits.chunk_size + tail.map_or(0, |(_, t)| t.tokens.into())
    }

    /// All boundaries up to `longest`, the longest first.
    fn boundaries(&self, longest: u64) -> Vec<u64> {
        let size = self.limits.chunk_size;
        let chunks = (1..=self.presence.chunks.len() as u64).map(|end| end * size);
        let tails = self.presence.tails.iter();
        let tails = tails.map(|t| u64::from(t.chunk) * size + u64::from(t.tokens));
        let mut all: Vec<u64> = chunks.chain(tails).filter(|b| *b <= longest).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.dedup();
        all
    }

    /// `cover` is the group's own.
    fn serves(&self, group: &GroupShape, cover: u64, boundary: u64) -> bool {
        match group.kind {
            ObjectKind::Full => boundary <= cover,
            ObjectKind::Recurrent => self.state(group.bit, boundary).is_some(),
            kind => {
                let needed = first_needed_token(kind, boundary);
                self.pieces(needed, boundary)
                    .all(|piece| self.source(group.bit, &piece).is_some())
            }
        }
    }

    /// The chunks that hold tokens `from..to`, and which tokens of each.
    fn pieces(&self, from: u64, to: u64) -> impl Iterator<Item = Piece> + use<> {
        let size = self.limits.chunk_size;
        let chunks = if from < to {
            from / size..to.div_ceil(size)
        } else {
            0..0
        };
        chunks.map(move |chunk| Piece {
            chunk,
            from: from.saturating_sub(chunk * size),
            to: size.min(to - chunk * size),
        })
    }

    /// An object that holds a piece: the full chunk, else the shortest tail.
    fn source(&self, bit: u32, piece: &Piece) -> Option<Source> {
        let holds = |source: Source| {
            let held_from = self.presence.holes.get(&(source, bit));
            held_from.is_none_or(|held_from| u64::from(*held_from) <= piece.from)
        };
        let chunk = Source::Chunk(piece.chunk as u32);
        if self.has_chunk(piece.chunk, bit) && holds(chunk) {
            return Some(chunk);
        }
        self.tails_of(piece.chunk)
            .filter(|(_, t)| u64::from(t.tokens) >= piece.to && t.groups & bit != 0)
            .map(|(at, _)| Source::Tail(at))
            .find(|tail| holds(*tail))
    }

    /// The state at exactly `boundary`.
    fn state(&self, bit: u32, boundary: u64) -> Option<Source> {
        let (chunk, tokens) = (
            boundary / self.limits.chunk_size,
            boundary % self.limits.chunk_size,
        );
        if tokens == 0 {
            let chunk = chunk.checked_sub(1)?;
            return self.has_chunk(chunk, bit).then_some(Source::Chunk(chunk as u32));
        }
        self.tails_of(chunk)
            .find(|(_, t)| u64::from(t.tokens) == tokens && t.groups & bit != 0)
            .map(|(at, _)| Source::Tail(at))
    }

    fn loads(&self, groups: &[GroupShape], boundary: u64) -> Vec<Load> {
        let mut loads = Vec::new();
        let local = self.limits.local_tokens;
        if boundary <= local {
            return loads; // the engine has all of it, its states too
        }
        for (at, group) in groups.iter().enumerate() {
            let mut add =
                |source: Option<Source>| loads.extend(source.map(|source| Load { group: at, source }));
            if group.kind == ObjectKind::Recurrent {
                add(self.state(group.bit, boundary));
                continue;
            }
            let from = first_needed_token(group.kind, boundary).max(local);
            for piece in self.pieces(from, boundary) {
                add(self.source(group.bit, &piece));
            }
        }
        loads
    }
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
