//! What the index has of a prompt: the first half of every lookup, whoever makes it.

use super::budget::Budget;
use super::presence::{Limits, Load, Presence, Source, TailPresence};
use super::reader::IndexReader;
use super::record::RecordView;
use super::sweep::{Sweep, TailOrder, View};
use crate::geometry::ObjectKind;
use crate::geometry::window::needs_nothing_in;
use crate::keys::ChunkKey;
use crate::object::{DomainShape, GroupShape, LoadItem, LookupRequest, ObjectId, Tail, tail_bit};
use crate::shm::mapping::Access;

/// A record that was found, and how many frames it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) record: u32,
    pub(crate) incarnation: u64,
    pub(crate) frames: u64,
}

impl From<RecordView> for Found {
    fn from(view: RecordView) -> Self {
        Self {
            record: view.record,
            incarnation: view.incarnation,
            frames: view.frames,
        }
    }
}

/// Parts of a step: an object of the anchor, whose lines were asked for in time, and any other.
const ANCHOR: u32 = 4;
const OTHER: u32 = 10;

/// What is looked for next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// The chunks, from the first on.
    #[default]
    Chunks,
    /// The tails of the chunks in which something begins to lack.
    Gaps,
    /// Boundaries, from the last on.
    Boundaries,
    Done,
}

/// What is there of a prompt.
#[derive(Default)]
pub(crate) struct Probed {
    pub(crate) presence: Presence,
    /// The tails of `presence`, in its order.
    pub(crate) tails: Vec<Tail>,
    /// The anchor group's records of the chunks, from the first on.
    pub(crate) anchors: Vec<Found>,
    /// Per group, tokens up to which everything is there.
    pub(crate) covers: Vec<u64>,
    /// Something that was named belongs to another domain.
    pub(crate) other_domain: bool,
    pub(crate) order: TailOrder,
    pub(crate) sweep: Sweep,
    /// What each of the anchors says of the tails of the chunk behind it.
    tails_behind: Vec<u32>,
    stage: Stage,
    /// Per group the first chunk that it lacks.
    gaps: Vec<u32>,
    /// Of the gaps those whose tails are looked for yet, the last first.
    gaps_left: Vec<u32>,
    /// Tails of one chunk that are being looked for, the longest first.
    wanted: Vec<Tail>,
    /// Where those of that chunk begin among `tails`.
    first: usize,
    /// The end of the chunk that comes next has been looked at.
    past_end: bool,
}

impl Probed {
    /// Nothing of a domain is known yet.
    pub(crate) fn new(shape: &DomainShape, request: &LookupRequest<'_>) -> Self {
        let mut probed = Self {
            gaps: vec![u32::MAX; shape.groups.len()],
            covers: vec![0; shape.groups.len()],
            ..Self::default()
        };
        probed.presence.chunks.reserve(request.keys.len());
        probed
    }

    /// The object of a load.
    pub(crate) fn item(&self, load: &Load, shape: &DomainShape, request: &LookupRequest<'_>) -> LoadItem {
        let (key, chunk, tokens) = match load.source {
            Source::Chunk(at) => (request.keys[at as usize], at, shape.chunk_size),
            Source::Tail(at) => {
                let tail = &self.tails[at as usize];
                (tail.key, tail.chunk, tail.tokens)
            }
        };
        let group = shape.groups[load.group].group;
        LoadItem {
            id: ObjectId { key, group },
            chunk,
            tokens,
        }
    }
}

/// Tails that one lookup looks at. Boundaries that are further from the end of what full attention has are not found.
const TAILS_MAX: usize = 2048;

/// Lookups between asking for the record of a chunk and reading it; twice as many before, its buckets are asked for.
const AHEAD: usize = 8;

/// Looks for what a request names, as far as it can matter for the longest hit.
///
/// The anchor's record knows which other groups have an object of its key, so that a chunk costs one probe whatever
/// the number of groups. Behind the first chunk that the anchor lacks nothing can be hit. A model that can resume
/// inside any chunk names thousands of tails: only those of chunks are looked at whose record before knows of any or
/// which need none, from the end, chunk by chunk, until a boundary is found.
pub(crate) struct Prober<'a, A: Access> {
    pub(crate) reader: &'a IndexReader<'a, A>,
    pub(crate) shape: &'a DomainShape,
    pub(crate) request: &'a LookupRequest<'a>,
    pub(crate) limits: &'a Limits,
}

impl<A: Access> Prober<'_, A> {
    /// Goes on where it stopped, until all is known that is needed or the turn is over. Whether it is.
    pub(crate) fn step(&self, probed: &mut Probed, meter: &mut impl Budget) -> bool {
        while !meter.is_over() {
            match probed.stage {
                Stage::Chunks => self.chunks(probed, meter),
                Stage::Gaps => self.gaps(probed, meter),
                Stage::Boundaries => self.boundaries(probed, meter),
                Stage::Done => return true,
            }
        }
        probed.stage == Stage::Done
    }

    /// What a plan is made from.
    pub(crate) fn view<'v>(&'v self, probed: &'v Probed) -> View<'v> {
        View {
            groups: &self.shape.groups,
            presence: &probed.presence,
            limits: self.limits,
            order: &probed.order,
        }
    }

    fn has(&self, key: &ChunkKey, group: u16, tokens: u32, probed: &mut Probed) -> Option<RecordView> {
        let view = self.reader.lookup(&ObjectId { key: *key, group })?;
        if view.domain != self.shape.domain {
            probed.other_domain = true;
            return None;
        }
        (view.tokens == tokens).then_some(view)
    }

    fn chunks(&self, probed: &mut Probed, meter: &mut impl Budget) {
        let (shape, keys) = (self.shape, self.request.keys);
        let anchor = shape.anchor();
        // Groups that no anchor's record speaks for.
        let alone = |group: &&GroupShape| {
            anchor.is_none_or(|anchor| group.kind == ObjectKind::Full && group.group != anchor.group)
        };
        let alone: Vec<&GroupShape> = shape.groups.iter().filter(alone).collect();
        let first = probed.presence.chunks.len();
        for (at, key) in keys.iter().enumerate().skip(first) {
            if meter.is_over() {
                return;
            }
            let source = Source::Chunk(at as u32);
            let mut groups = 0;
            if let Some(anchor) = anchor {
                self.prefetch(&keys[at..], anchor.group);
                meter.spend(ANCHOR);
                let Some(view) = self.has(key, anchor.group, shape.chunk_size, probed) else {
                    break;
                };
                probed.anchors.push(Found::from(view));
                probed.tails_behind.push(view.tails);
                groups = anchor.bit | view.companions.groups;
                for group in shape.groups.iter().filter(|g| g.bit & view.companions.holed != 0) {
                    meter.spend(OTHER);
                    if let Some(view) = self.has(key, group.group, shape.chunk_size, probed) {
                        note_hole(&mut probed.presence, source, group.bit, &view);
                    }
                }
            }
            for group in &alone {
                meter.spend(OTHER);
                if let Some(view) = self.has(key, group.group, shape.chunk_size, probed) {
                    groups |= group.bit;
                    note_hole(&mut probed.presence, source, group.bit, &view);
                }
            }
            probed.presence.chunks.push(groups);
            self.note_gaps(probed, groups, at as u32);
        }
        self.chunks_end(probed);
    }

    /// Notes which groups lack a chunk as the first.
    fn note_gaps(&self, probed: &mut Probed, groups: u32, chunk: u32) {
        for (group, gap) in self.shape.groups.iter().zip(&mut probed.gaps) {
            if groups & group.bit == 0 && *gap == u32::MAX {
                *gap = chunk;
            }
        }
    }

    fn chunks_end(&self, probed: &mut Probed) {
        let chunks = probed.presence.chunks.len() as u32;
        self.note_gaps(probed, 0, chunks);
        // What counts as present ends in the chunk where a group's own begin to lack.
        probed.gaps_left = probed.gaps.clone();
        probed.gaps_left.sort_unstable();
        probed.gaps_left.dedup();
        let last = self.request.tails.last_chunk(chunks);
        probed
            .gaps_left
            .retain(|gap| last.is_some_and(|last| *gap <= last));
        probed.stage = Stage::Gaps;
    }

    fn gaps(&self, probed: &mut Probed, meter: &mut impl Budget) {
        loop {
            self.look_for_tails(probed, meter);
            if !probed.wanted.is_empty() {
                return;
            }
            let Some(gap) = probed.gaps_left.pop() else { break };
            self.want_tails(probed, gap, u32::MAX);
        }
        let view = self.view(probed);
        let covers = self.shape.groups.iter().zip(&probed.gaps);
        let covers: Vec<u64> = covers
            .map(|(group, gap)| view.cover(group, (*gap).into()))
            .collect();
        let mut sweep = Sweep::new(&view, &covers);
        // Behind the last chunk that is named or that the anchor has there is none that matters.
        let chunks = probed.presence.chunks.len() as u32;
        if let Some(last) = self.request.tails.last_chunk(chunks) {
            sweep.reach(last.into(), self.limits);
        }
        (probed.covers, probed.sweep) = (covers, sweep);
        probed.stage = Stage::Boundaries;
    }

    fn boundaries(&self, probed: &mut Probed, meter: &mut impl Budget) {
        let mut sweep = std::mem::take(&mut probed.sweep);
        let groups = self.shape.groups.len() as u32;
        while let Some(chunk) = sweep.chunk()
            && !meter.is_over()
        {
            if !probed.past_end {
                meter.spend(1 + groups / 2);
                probed.past_end = true;
                if sweep.at_end(&self.view(probed)).is_some() {
                    break;
                }
                self.want_ends(probed, chunk as u32);
            }
            let wanted = probed.wanted.len();
            self.look_for_tails(probed, meter);
            if !probed.wanted.is_empty() {
                break;
            }
            meter.spend((wanted as u32 + 1) * (1 + groups / 8));
            if sweep.at_tails(&self.view(probed)).is_some() {
                break;
            }
            sweep.leave(chunk);
            probed.past_end = false;
        }
        if sweep.chunk().is_none() {
            probed.stage = Stage::Done;
        }
        probed.sweep = sweep;
    }

    /// Wants the tails of a chunk in which a hit may end, if they have not been looked for.
    fn want_ends(&self, probed: &mut Probed, chunk: u32) {
        let known = probed.gaps.contains(&chunk);
        let bits = if known { 0 } else { self.ends_in(chunk, probed) };
        if bits != 0 {
            self.want_tails(probed, chunk, bits);
        }
    }

    /// Wants those of a chunk's tails that have one of these bits, the longest of them if there are too many.
    fn want_tails(&self, probed: &mut Probed, chunk: u32, bits: u32) {
        let left = TAILS_MAX.saturating_sub(probed.tails.len());
        let tails = self.request.tails.of(chunk);
        // Of a client's own question nobody has looked at the numbers.
        let is_end = |tail: &&Tail| {
            is_tail(tail, self.shape) && bits & tail_bit(tail.tokens, self.shape.alignment) != 0
        };
        probed.wanted = tails.iter().rev().filter(is_end).take(left).copied().collect();
        probed.first = probed.tails.len();
    }

    fn look_for_tails(&self, probed: &mut Probed, meter: &mut impl Budget) {
        if probed.wanted.is_empty() {
            return;
        }
        while !meter.is_over()
            && let Some(tail) = probed.wanted.pop()
        {
            self.tail(&tail, probed, meter);
        }
        if probed.wanted.is_empty() {
            probed.order.add(&probed.presence, probed.first);
        }
    }

    /// Bits of the tails that a hit may end with in a chunk of which full attention has everything. A state serves its
    /// own end only. Attention and windows serve any end before theirs, so they need the whole chunk or some tail of
    /// it, unless there is an end at which they need nothing.
    fn ends_in(&self, chunk: u32, probed: &Probed) -> u32 {
        let before = chunk.checked_sub(1).map(|before| before as usize);
        let Some(tails) = before.and_then(|before| probed.tails_behind.get(before)) else {
            return u32::MAX; // no record before it tells
        };
        if self
            .shape
            .groups
            .iter()
            .any(|group| group.kind == ObjectKind::Recurrent)
        {
            return *tails;
        }
        let whole = probed.presence.chunks.get(chunk as usize).copied().unwrap_or(0);
        let size = u64::from(self.shape.chunk_size);
        let inside = u64::from(chunk) * size + 1..(u64::from(chunk) + 1) * size;
        let served =
            |group: &GroupShape| whole & group.bit != 0 || needs_nothing_in(group.kind, inside.clone());
        match *tails != 0 || self.shape.groups.iter().all(served) {
            true => u32::MAX,
            false => 0,
        }
    }

    /// The first of these keys is looked up now, the others later: their lines come meanwhile, instead of one after
    /// another.
    fn prefetch(&self, keys: &[ChunkKey], group: u16) {
        let id = |at: usize| keys.get(at).map(|key| ObjectId { key: *key, group });
        if let Some(id) = id(2 * AHEAD) {
            self.reader.prefetch_buckets(&id);
        }
        if let Some(id) = id(AHEAD) {
            self.reader.prefetch_record(&id);
        }
    }

    /// One tail. Attention and windows are not looked for where the whole chunk is there, whose front will do.
    fn tail(&self, tail: &Tail, probed: &mut Probed, meter: &mut impl Budget) {
        let at = probed.tails.len() as u32;
        let chunk = probed.presence.chunks.get(tail.chunk as usize).copied();
        let mut groups = 0;
        for group in &self.shape.groups {
            let whole = (Source::Chunk(tail.chunk), group.bit);
            let spared = group.kind != ObjectKind::Recurrent
                && chunk.is_some_and(|groups| groups & group.bit != 0)
                && !probed.presence.holes.contains_key(&whole);
            if spared {
                continue;
            }
            meter.spend(OTHER);
            if let Some(view) = self.has(&tail.key, group.group, tail.tokens, probed) {
                groups |= group.bit;
                note_hole(&mut probed.presence, Source::Tail(at), group.bit, &view);
            }
        }
        probed.tails.push(*tail);
        probed.presence.tails.push(TailPresence {
            chunk: tail.chunk,
            tokens: tail.tokens,
            groups,
        });
    }
}

/// Whether a tail is a proper part of a chunk, in whole alignments.
pub(crate) fn is_tail(tail: &Tail, shape: &DomainShape) -> bool {
    let aligned = u64::from(tail.tokens).is_multiple_of(shape.alignment);
    aligned && tail.tokens > 0 && tail.tokens < shape.chunk_size
}

fn note_hole(presence: &mut Presence, source: Source, bit: u32, view: &RecordView) {
    if view.held_from > 0 {
        presence.holes.insert((source, bit), view.held_from);
    }
}
