//! Which prefix can be served, and from which objects: functions over what is present, and nothing else.
//!
//! A boundary is the end of a full chunk or of a named tail. A boundary can be served when every object
//! group has what a resume there needs. Attention and window groups may use the front of any object whose
//! tokens are all in the prompt; a state serves only its exact end.
//!
//! The search goes from the end of a prompt to its start, up to the first boundary that can be served. A window may
//! reach back to the start of the prompt, so a boundary is not looked at chunk by chunk: going down, each group
//! remembers where the run of whole objects begins that it is in. All boundaries together cost what the prompt has
//! chunks and tails, times the groups. [`Sweep`] and [`Naming`] keep their place, so that a long one can go on in
//! another turn.

use super::presence::{Limits, Load, Presence, Source, TailPresence};
use crate::geometry::ObjectKind;
use crate::geometry::window::first_needed_token;
use crate::object::GroupShape;

/// The places of the tails by chunk, then by length.
#[derive(Clone, Debug, Default)]
pub(crate) struct TailOrder(Vec<u32>);

impl TailOrder {
    /// That of all tails.
    #[cfg(test)]
    pub(crate) fn of(presence: &Presence) -> Self {
        let mut order = Self((0..presence.tails.len() as u32).collect());
        order.0.sort_by_key(|at| key(presence, *at));
        order
    }

    /// Tails of one more chunk, which are the last in `presence`, from `first` on.
    pub(crate) fn add(&mut self, presence: &Presence, first: usize) {
        let mut new: Vec<u32> = (first as u32..presence.tails.len() as u32).collect();
        new.sort_by_key(|at| key(presence, *at));
        let Some(least) = new.first().map(|at| key(presence, *at)) else {
            return;
        };
        let at = self.0.partition_point(|at| key(presence, *at) < least);
        self.0.splice(at..at, new);
    }

    /// Those of a chunk, the shortest first.
    fn of_chunk(&self, presence: &Presence, chunk: u64) -> &[u32] {
        let chunk_of = |at: &u32| u64::from(presence.tails[*at as usize].chunk);
        let first = self.0.partition_point(|at| chunk_of(at) < chunk);
        let count = self.0[first..].partition_point(|at| chunk_of(at) == chunk);
        &self.0[first..first + count]
    }

    /// The last chunk that has any.
    fn last_chunk(&self, presence: &Presence) -> Option<u32> {
        self.0.last().map(|at| presence.tails[*at as usize].chunk)
    }
}

fn key(presence: &Presence, at: u32) -> (u32, u32) {
    let tail = presence.tails[at as usize];
    (tail.chunk, tail.tokens)
}

/// Tokens `from..to` of a chunk, counted from its start.
struct Piece {
    chunk: u64,
    from: u64,
    to: u64,
}

/// What is asked about, and what is there.
pub(crate) struct View<'a> {
    /// The groups of the domain.
    pub(crate) groups: &'a [GroupShape],
    /// What is there.
    pub(crate) presence: &'a Presence,
    /// The numbers of the request.
    pub(crate) limits: &'a Limits,
    /// Its tails in order.
    pub(crate) order: &'a TailOrder,
}

impl View<'_> {
    /// The tails of a chunk, the shortest first.
    fn tails_of(&self, chunk: u64) -> impl DoubleEndedIterator<Item = (u32, TailPresence)> + '_ {
        let here = self.order.of_chunk(self.presence, chunk);
        here.iter().map(|at| (*at, self.presence.tails[*at as usize]))
    }

    fn has_chunk(&self, chunk: u64, bit: u32) -> bool {
        let groups = self.presence.chunks.get(chunk as usize);
        groups.is_some_and(|groups| groups & bit != 0)
    }

    /// The first token that an object holds, counted from the start of its chunk.
    fn held_from(&self, source: Source, bit: u32) -> u32 {
        if self.presence.holes.is_empty() {
            return 0;
        }
        self.presence.holes.get(&(source, bit)).copied().unwrap_or(0)
    }

    /// Whether the object of a chunk holds all from a token on.
    fn holds(&self, chunk: u64, bit: u32, from: u64) -> bool {
        self.has_chunk(chunk, bit) && u64::from(self.held_from(Source::Chunk(chunk as u32), bit)) <= from
    }

    /// Per group, tokens up to which every object from 0 on is there.
    pub(crate) fn covers(&self) -> Vec<u64> {
        let cover = |group: &GroupShape| {
            let chunks = self.presence.chunks.iter();
            self.cover(
                group,
                chunks.take_while(|groups| *groups & group.bit != 0).count() as u64,
            )
        };
        self.groups.iter().map(cover).collect()
    }

    /// The same of a group that has so many chunks without a gap.
    pub(crate) fn cover(&self, group: &GroupShape, chunks: u64) -> u64 {
        let mut tails = self.tails_of(chunks).rev();
        let tail = tails.find(|(_, t)| t.groups & group.bit != 0);
        chunks * self.limits.chunk_size + tail.map_or(0, |(_, t)| t.tokens.into())
    }

    /// An object that holds a piece: the full chunk, else the shortest tail.
    fn source(&self, bit: u32, piece: &Piece) -> Option<Source> {
        if self.holds(piece.chunk, bit, piece.from) {
            return Some(Source::Chunk(piece.chunk as u32));
        }
        let mut tails = self
            .tails_of(piece.chunk)
            .filter(|(_, t)| u64::from(t.tokens) >= piece.to && t.groups & bit != 0)
            .map(|(at, _)| Source::Tail(at));
        tails.find(|tail| u64::from(self.held_from(*tail, bit)) <= piece.from)
    }

    /// The state at exactly `boundary`.
    fn state(&self, bit: u32, boundary: u64) -> Option<Source> {
        let size = self.limits.chunk_size;
        let (chunk, tokens) = (boundary / size, boundary % size);
        if tokens == 0 {
            let chunk = chunk.checked_sub(1)?;
            return self.has_chunk(chunk, bit).then_some(Source::Chunk(chunk as u32));
        }
        self.tails_of(chunk)
            .find(|(_, t)| u64::from(t.tokens) == tokens && t.groups & bit != 0)
            .map(|(at, _)| Source::Tail(at))
    }
}

/// What a group has at the boundary that is looked at.
#[derive(Clone, Debug)]
struct Reach {
    /// Tokens up to which everything is there.
    cover: u64,
    /// First chunk of the run of whole objects without holes that was looked at last.
    run: u64,
    /// Of the tails of the chunk that reach the boundary, the first token that the best one holds.
    held: u32,
}

/// Looks for the longest boundary that all groups serve, from the end of the prompt to its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sweep {
    /// No boundary beyond is of use.
    longest: u64,
    /// Chunks that are left, or that were when the boundary was found.
    left: u64,
    found: u64,
    reaches: Vec<Reach>,
}

impl Sweep {
    /// Begins at the end. `covers` are those of the groups.
    pub(crate) fn new(view: &View<'_>, covers: &[u64]) -> Self {
        let full = view.groups.iter().zip(covers);
        let full = full.filter(|(g, _)| g.kind == ObjectKind::Full);
        // Full attention bounds the prefix whatever else is there.
        let longest = full.map(|(_, cover)| *cover).min().unwrap_or(u64::MAX);
        let longest = longest.min(view.limits.max_tokens);
        let tails = view.order.last_chunk(view.presence);
        let rows = (view.presence.chunks.len() as u64).max(tails.map_or(0, |chunk| u64::from(chunk) + 1));
        let reach = |cover: &u64| Reach {
            cover: *cover,
            run: u64::MAX,
            held: u32::MAX,
        };
        Self {
            longest,
            left: rows.min(longest.div_ceil(view.limits.chunk_size)),
            found: 0,
            reaches: covers.iter().map(reach).collect(),
        }
    }

    /// Also looks at boundaries in a chunk behind all that are known of, whose tails are looked up when they are
    /// needed.
    pub(crate) fn reach(&mut self, chunk: u64, limits: &Limits) {
        let rows = self.left.max(chunk + 1);
        self.left = rows.min(self.longest.div_ceil(limits.chunk_size));
    }

    /// The chunk whose boundaries come next; nothing once the boundary is found, or there is none.
    pub(crate) fn chunk(&self) -> Option<u64> {
        (self.found == 0).then(|| self.left.checked_sub(1)).flatten()
    }

    /// Goes on with the chunk before.
    pub(crate) fn leave(&mut self, chunk: u64) {
        self.left = chunk;
    }

    /// The boundary; 0 when there is none.
    pub(crate) fn found(&self) -> u64 {
        self.found
    }

    /// Looks at the boundary at the end of the chunk that comes next.
    pub(crate) fn at_end(&mut self, view: &View<'_>) -> Option<u64> {
        let chunk = self.chunk()?;
        for reach in &mut self.reaches {
            reach.held = u32::MAX;
        }
        if chunk >= view.presence.chunks.len() as u64 {
            return None;
        }
        let here = view.presence.chunks[chunk as usize];
        self.look(view, (chunk + 1).checked_mul(view.limits.chunk_size)?, here)
    }

    /// Looks at those at its tails, after the one at its end.
    pub(crate) fn at_tails(&mut self, view: &View<'_>) -> Option<u64> {
        let chunk = self.chunk()?;
        let mut tails = view.tails_of(chunk).rev().peekable();
        while let Some(tokens) = tails.peek().map(|(_, tail)| tail.tokens) {
            let mut here = 0;
            while let Some((at, tail)) = tails.next_if(|(_, tail)| tail.tokens == tokens) {
                here |= tail.groups;
                for (group, reach) in view.groups.iter().zip(&mut self.reaches) {
                    if tail.groups & group.bit != 0 {
                        reach.held = reach.held.min(view.held_from(Source::Tail(at), group.bit));
                    }
                }
            }
            let boundary = chunk * view.limits.chunk_size + u64::from(tokens);
            if let Some(found) = self.look(view, boundary, here) {
                return Some(found);
            }
        }
        None
    }

    /// `here` are the groups that have an object which ends at the boundary.
    fn look(&mut self, view: &View<'_>, boundary: u64, here: u32) -> Option<u64> {
        if boundary > self.longest {
            return None;
        }
        let (mut needed, chunks) = (false, view);
        for (group, reach) in view.groups.iter().zip(&mut self.reaches) {
            let first = first_needed_token(group.kind, boundary);
            needed |= group.kind == ObjectKind::Recurrent || first < boundary;
            let served = match group.kind {
                ObjectKind::Full => boundary <= reach.cover,
                ObjectKind::Recurrent => here & group.bit != 0,
                _ => reach.serves(chunks, group.bit, first, boundary),
            };
            if !served {
                return None;
            }
        }
        // Where no group needs anything there is nothing to resume from: a hit never names nothing.
        self.found = if needed { boundary } else { 0 };
        needed.then_some(boundary)
    }
}

impl Reach {
    /// Whether a window's tokens `first..boundary` are there.
    fn serves(&mut self, view: &View<'_>, bit: u32, first: u64, boundary: u64) -> bool {
        let size = view.limits.chunk_size;
        if first >= boundary {
            return true;
        }
        let (from, last) = (first / size, (boundary - 1) / size);
        let start = if from == last { first % size } else { 0 };
        // A tail reaches no chunk's end, so it is of use in the last one only.
        let ends = view.holds(last, bit, start)
            || (!boundary.is_multiple_of(size) && self.held != u32::MAX && u64::from(self.held) <= start);
        if !ends || from == last {
            return ends;
        }
        view.holds(from, bit, first % size) && self.run_before(view, bit, last) <= from + 1
    }

    /// The first chunk of the run of whole objects without holes that ends before a chunk. Asked for lower and lower
    /// chunks, so that each is looked at once.
    fn run_before(&mut self, view: &View<'_>, bit: u32, chunk: u64) -> u64 {
        if self.run > chunk {
            self.run = chunk;
            while self.run > 0 && view.holds(self.run - 1, bit, 0) {
                self.run -= 1;
            }
        }
        self.run
    }
}

/// Names the objects of a prefix, group by group in order, each in token order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Naming {
    boundary: u64,
    group: usize,
    /// The next chunk of the group.
    chunk: Option<u64>,
}

impl Naming {
    /// Those for a resume at a boundary.
    pub(crate) fn new(boundary: u64) -> Self {
        Self {
            boundary,
            group: 0,
            chunk: None,
        }
    }

    /// The next one.
    pub(crate) fn next(&mut self, view: &View<'_>) -> Option<Load> {
        let (size, local) = (view.limits.chunk_size, view.limits.local_tokens);
        if self.boundary <= local {
            return None; // the engine has all of it, its states too
        }
        loop {
            let at = self.group;
            let group = view.groups.get(at)?;
            let from = first_needed_token(group.kind, self.boundary).max(local);
            let chunk = self.chunk.unwrap_or(from / size);
            let source = match group.kind {
                ObjectKind::Recurrent => {
                    self.group += 1;
                    view.state(group.bit, self.boundary)
                }
                _ if from >= self.boundary || chunk >= self.boundary.div_ceil(size) => {
                    (self.group, self.chunk) = (at + 1, None);
                    None
                }
                _ => {
                    self.chunk = Some(chunk + 1);
                    let piece = Piece {
                        chunk,
                        from: from.saturating_sub(chunk * size),
                        to: size.min(self.boundary - chunk * size),
                    };
                    view.source(group.bit, &piece)
                }
            };
            if let Some(source) = source {
                return Some(Load { group: at, source });
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/sweep.rs"]
pub(crate) mod tests;
