//! What the index has of a prompt: the first half of every lookup, whoever makes it.
//!
//! May import `keys`, `shm` and this module's `api`, `index`, `lookup`, `record` and `shape`.

use std::collections::HashMap;

use super::api::{LookupRequest, ObjectId};
use super::index::IndexReader;
use super::lookup::{Load, Presence, Source, TailPresence};
use super::record::RecordView;
use super::shape::{DomainShape, GroupShape};
use crate::geometry::ObjectKind;
use crate::keys::ChunkKey;
use crate::shm::mapping::Access;

/// A record that was found, and how many frames it holds at most.
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
            frames: view.frames(),
        }
    }
}

/// What is there of a prompt.
pub(super) struct Probed {
    pub(super) presence: Presence,
    /// The anchor group's records of the chunks, from the first on.
    pub(super) anchors: Vec<Found>,
}

/// The object that a load names.
pub(super) fn id_of(load: &Load, shape: &DomainShape, request: &LookupRequest<'_>) -> ObjectId {
    let key = match load.source {
        Source::Chunk(at) => request.keys[at as usize],
        Source::Tail(at) => request.tails[at as usize].key,
    };
    ObjectId {
        key,
        group: shape.groups[load.group].group,
    }
}

/// Looks for everything that a request names.
///
/// The anchor's record knows which other groups have an object of its key, so that a chunk costs one probe whatever
/// the number of groups. Behind the first chunk that the anchor lacks nothing can be hit.
pub(super) fn probe<A: Access>(
    reader: &IndexReader<'_, A>,
    shape: &DomainShape,
    request: &LookupRequest<'_>,
) -> Probed {
    let has = |key: &ChunkKey, group: u16, tokens: u32| {
        let view = reader.lookup(&ObjectId { key: *key, group })?;
        (view.tokens == tokens && view.domain == shape.domain).then_some(view)
    };
    let mut presence = Presence::default();
    let mut anchors = Vec::new();
    let anchor = shape.anchor();
    // Groups that no anchor's record speaks for.
    let alone = |group: &&GroupShape| {
        anchor.is_none_or(|anchor| group.kind == ObjectKind::Full && group.group != anchor.group)
    };
    let alone: Vec<&GroupShape> = shape.groups.iter().filter(alone).collect();
    let mut holes = HashMap::new();
    let mut note = |source: Source, bit: u32, view: &RecordView| {
        if view.held_from > 0 {
            holes.insert((source, bit), view.held_from);
        }
    };
    presence.chunks.reserve(request.keys.len());
    for (at, key) in request.keys.iter().enumerate() {
        let source = Source::Chunk(at as u32);
        let mut groups = 0;
        if let Some(anchor) = anchor {
            let Some(view) = has(key, anchor.group, shape.chunk) else {
                break;
            };
            anchors.push(Found::from(view));
            groups = anchor.bit | view.beside.below;
            for group in shape.groups.iter().filter(|g| g.bit & view.beside.holed != 0) {
                if let Some(view) = has(key, group.group, shape.chunk) {
                    note(source, group.bit, &view);
                }
            }
        }
        for group in &alone {
            if let Some(view) = has(key, group.group, shape.chunk) {
                groups |= group.bit;
                note(source, group.bit, &view);
            }
        }
        presence.chunks.push(groups);
    }
    for (at, tail) in request.tails.iter().enumerate() {
        let mut groups = 0;
        if anchor.is_none() || tail.chunk as usize <= anchors.len() {
            for group in &shape.groups {
                if let Some(view) = has(&tail.key, group.group, tail.tokens) {
                    groups |= group.bit;
                    note(Source::Tail(at as u32), group.bit, &view);
                }
            }
        }
        presence.tails.push(TailPresence {
            chunk: tail.chunk,
            tokens: tail.tokens,
            groups,
        });
    }
    presence.holes = holes;
    Probed { presence, anchors }
}
