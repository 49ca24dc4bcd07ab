//! What the index has of a prompt: the first half of every lookup, whoever makes it.
//!
//! May import `geometry`, `keys`, `shm` and this module's `api`, `index`, `lookup`, `record` and `shape`.

use super::api::{LookupRequest, ObjectId, Tail};
use super::index::IndexReader;
use super::lookup::{self, Limits, Load, Presence, Source, TailPresence};
use super::record::RecordView;
use super::shape::{DomainShape, GroupShape, tail_bit};
use crate::geometry::ObjectKind;
use crate::geometry::window::needs_nothing_in;
use crate::keys::ChunkKey;
use crate::shm::mapping::Access;

/// A record that was found, and how many frames it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) record: u32,
    pub(super) incarnation: u64,
    pub(super) frames: u64,
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

/// What is there of a prompt.
#[derive(Default)]
pub(super) struct Probed {
    pub(super) presence: Presence,
    /// The tails of `presence`, in its order.
    pub(super) tails: Vec<Tail>,
    /// The anchor group's records of the chunks, from the first on.
    pub(super) anchors: Vec<Found>,
    /// What each of them says of the tails of the chunk behind it.
    tails_behind: Vec<u32>,
    /// Something that was named belongs to another domain.
    pub(super) other_domain: bool,
}

impl Probed {
    /// The object that a load names.
    pub(super) fn id_of(&self, load: &Load, shape: &DomainShape, request: &LookupRequest<'_>) -> ObjectId {
        let key = match load.source {
            Source::Chunk(at) => request.keys[at as usize],
            Source::Tail(at) => self.tails[at as usize].key,
        };
        ObjectId {
            key,
            group: shape.groups[load.group].group,
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
/// the number of groups. Behind the first chunk that the anchor lacks nothing can be hit. A model that can resume inside any
/// chunk names thousands of tails: only those of chunks are looked at whose record before knows of any or which need none,
/// from the end, chunk by chunk, until nothing before can be longer.
pub(super) fn probe<A: Access>(
    reader: &IndexReader<'_, A>,
    shape: &DomainShape,
    request: &LookupRequest<'_>,
    limits: &Limits,
) -> Probed {
    let prober = Prober { reader, shape };
    let mut probed = prober.chunks(request);
    // Behind the last chunk that is named or that the anchor has there is none that matters.
    let mut left = request.tails.chunks(probed.presence.chunks.len() as u32);
    // What counts as present ends in the chunk where a group's own begin to lack.
    let first_gap = |group: &GroupShape| {
        let chunks = probed.presence.chunks.iter();
        chunks.take_while(|groups| *groups & group.bit != 0).count() as u32
    };
    let gaps: Vec<u32> = shape.groups.iter().map(first_gap).collect();
    left.retain(|chunk| {
        let gap = gaps.contains(chunk);
        if gap {
            prober.tails(request.tails.of(*chunk).iter(), &mut probed);
        }
        !gap && prober.ends_in(*chunk, &probed) != 0
    });
    let mut batch = 1;
    while let Some(&longest) = left.last() {
        // A hit that ends behind all that is left is the longest.
        let found = lookup::plan(&shape.groups, &probed.presence, limits).hit_tokens;
        if found >= (u64::from(longest) + 1) * u64::from(shape.chunk) || probed.tails.len() >= TAILS_MAX {
            break;
        }
        for chunk in left.split_off(left.len().saturating_sub(batch)) {
            let bits = prober.ends_in(chunk, &probed);
            let is_end = |tail: &&Tail| bits & tail_bit(tail.tokens, shape.alignment) != 0;
            prober.tails(request.tails.of(chunk).iter().filter(is_end), &mut probed);
        }
        batch *= 2;
    }
    probed
}

/// Looks objects of one domain up.
struct Prober<'a, A: Access> {
    reader: &'a IndexReader<'a, A>,
    shape: &'a DomainShape,
}

impl<A: Access> Prober<'_, A> {
    fn has(&self, key: &ChunkKey, group: u16, tokens: u32, probed: &mut Probed) -> Option<RecordView> {
        let view = self.reader.lookup(&ObjectId { key: *key, group })?;
        if view.domain != self.shape.domain {
            probed.other_domain = true;
            return None;
        }
        (view.tokens == tokens).then_some(view)
    }

    /// Bits of the tails that a hit may end with in a chunk of which full attention has everything. A state serves its own
    /// end only. Attention and windows serve any end before theirs, so they need the whole chunk or some tail of it, unless
    /// there is an end at which they need nothing.
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
        let size = u64::from(self.shape.chunk);
        let inside = u64::from(chunk) * size + 1..(u64::from(chunk) + 1) * size;
        let served =
            |group: &GroupShape| whole & group.bit != 0 || needs_nothing_in(group.kind, inside.clone());
        match *tails != 0 || self.shape.groups.iter().all(served) {
            true => u32::MAX,
            false => 0,
        }
    }

    fn chunks(&self, request: &LookupRequest<'_>) -> Probed {
        let shape = self.shape;
        let mut probed = Probed::default();
        let anchor = shape.anchor();
        // Groups that no anchor's record speaks for.
        let alone = |group: &&GroupShape| {
            anchor.is_none_or(|anchor| group.kind == ObjectKind::Full && group.group != anchor.group)
        };
        let alone: Vec<&GroupShape> = shape.groups.iter().filter(alone).collect();
        probed.presence.chunks.reserve(request.keys.len());
        for (at, key) in request.keys.iter().enumerate() {
            let source = Source::Chunk(at as u32);
            let mut groups = 0;
            if let Some(anchor) = anchor {
                self.prefetch(&request.keys[at..], anchor.group);
                let Some(view) = self.has(key, anchor.group, shape.chunk, &mut probed) else {
                    break;
                };
                probed.anchors.push(Found::from(view));
                probed.tails_behind.push(view.tails);
                groups = anchor.bit | view.beside.below;
                for group in shape.groups.iter().filter(|g| g.bit & view.beside.holed != 0) {
                    if let Some(view) = self.has(key, group.group, shape.chunk, &mut probed) {
                        note_hole(&mut probed.presence, source, group.bit, &view);
                    }
                }
            }
            for group in &alone {
                if let Some(view) = self.has(key, group.group, shape.chunk, &mut probed) {
                    groups |= group.bit;
                    note_hole(&mut probed.presence, source, group.bit, &view);
                }
            }
            probed.presence.chunks.push(groups);
        }
        probed
    }

    /// The first of these keys is looked up now, the others later: their lines come meanwhile, instead of one after another.
    fn prefetch(&self, keys: &[ChunkKey], group: u16) {
        let id = |at: usize| keys.get(at).map(|key| ObjectId { key: *key, group });
        if let Some(id) = id(2 * AHEAD) {
            self.reader.prefetch_buckets(&id);
        }
        if let Some(id) = id(AHEAD) {
            self.reader.prefetch_record(&id);
        }
    }

    /// Tails of one chunk. Attention and windows are not looked for where the whole chunk is there, whose front will do.
    fn tails<'t>(&self, tails: impl Iterator<Item = &'t Tail>, probed: &mut Probed) {
        for tail in tails {
            // Of a client's own question nobody has looked at the numbers.
            if !is_tail(tail, self.shape) {
                continue;
            }
            let at = probed.tails.len() as u32;
            let chunk = probed.presence.chunks.get(tail.chunk as usize).copied();
            let mut groups = 0;
            for group in &self.shape.groups {
                let whole = (Source::Chunk(tail.chunk), group.bit);
                let spared = group.kind != ObjectKind::Recurrent
                    && chunk.is_some_and(|groups| groups & group.bit != 0)
                    && !probed.presence.holes.contains_key(&whole);
                if !spared && let Some(view) = self.has(&tail.key, group.group, tail.tokens, probed) {
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
}

/// Whether a tail is a proper part of a chunk, in whole alignments.
pub(super) fn is_tail(tail: &Tail, shape: &DomainShape) -> bool {
    let aligned = u64::from(tail.tokens).is_multiple_of(shape.alignment);
    aligned && tail.tokens > 0 && tail.tokens < shape.chunk
}

fn note_hole(presence: &mut Presence, source: Source, bit: u32, view: &RecordView) {
    if view.held_from > 0 {
        presence.holes.insert((source, bit), view.held_from);
    }
}
