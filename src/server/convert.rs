//! Between the messages of the protocol and the plain values of the core. Field by field, no decisions.
//!
//! May import `wire`, `cache`.

use crate::cache::{self, ClientKind};
use crate::control;
use crate::geometry::ObjectKind;
use crate::keys::ChunkKey;
use crate::wire;

pub(super) fn client_kind(kind: wire::PeerKind) -> ClientKind {
    match kind {
        wire::PeerKind::Unspecified => ClientKind::Unspecified,
        wire::PeerKind::Scheduler => ClientKind::Scheduler,
        wire::PeerKind::Worker => ClientKind::Worker,
        wire::PeerKind::Tool => ClientKind::Tool,
    }
}

fn payload_path(path: wire::PayloadPath) -> cache::PayloadPath {
    match path {
        wire::PayloadPath::None => cache::PayloadPath::None,
        wire::PayloadPath::ShmDirect => cache::PayloadPath::ShmDirect,
        wire::PayloadPath::Pinned => cache::PayloadPath::Pinned,
        wire::PayloadPath::Cuda => cache::PayloadPath::Cuda,
        wire::PayloadPath::ShmRing => cache::PayloadPath::ShmRing,
    }
}

pub(super) fn spans(spans: &[wire::GroupSpan]) -> Vec<control::GroupSpan> {
    let span = |span: &wire::GroupSpan| control::GroupSpan {
        group: span.group,
        tokens: span.tokens,
    };
    spans.iter().map(span).collect()
}

pub(super) fn extents(extents: &[wire::Extent]) -> Vec<cache::Extent> {
    extents
        .iter()
        .map(|extent| cache::Extent::new(extent.frame, extent.count))
        .collect()
}

pub(super) fn extents_to_wire(extents: &[cache::Extent]) -> Vec<wire::Extent> {
    let extent = |extent: &cache::Extent| wire::Extent {
        frame: extent.frame,
        count: extent.count,
    };
    extents.iter().map(extent).collect()
}

fn object_id(id: &wire::ObjectId) -> cache::ObjectId {
    cache::ObjectId {
        key: id.key,
        group: id.group,
    }
}

pub(super) fn object_ids(ids: &[wire::ObjectId]) -> Vec<cache::ObjectId> {
    ids.iter().map(object_id).collect()
}

pub(super) fn objects_read(objects: &[(wire::ObjectId, u64)]) -> Vec<(cache::ObjectId, u64)> {
    objects
        .iter()
        .map(|(id, incarnation)| (object_id(id), *incarnation))
        .collect()
}

pub(super) fn tails(tails: &[wire::TailKey]) -> Vec<cache::Tail> {
    let tail = |tail: &wire::TailKey| cache::Tail {
        key: tail.key,
        chunk: tail.chunk,
        tokens: tail.tokens,
    };
    tails.iter().map(tail).collect()
}

pub(super) fn store_items(items: &[wire::StoreItem]) -> Vec<cache::StoreItem> {
    let item = |item: &wire::StoreItem| cache::StoreItem {
        id: object_id(&item.id),
        parent: item.parent,
        skipped: item.skipped,
        part: item.part,
        tokens: item.tokens,
        held_from: item.held_from,
        bytes: item.bytes,
        checksum: item.checksum,
        first_extent: item.first_extent,
        extent_count: item.extent_count,
    };
    items.iter().map(item).collect()
}

pub(super) fn registration(
    request: &wire::RegisterKvCache,
    domain_seed: ChunkKey,
    chunk_size: u32,
) -> cache::Registration {
    let group = |group: &wire::ObjectGroup| cache::GroupRegistration {
        group: group.group,
        kind: match group.kind {
            wire::GroupKind::Full => ObjectKind::Full,
            wire::GroupKind::SlidingWindow => ObjectKind::Window {
                tokens: group.window_tokens,
            },
            wire::GroupKind::ChunkedLocal => ObjectKind::ChunkedLocal {
                tokens: group.window_tokens,
            },
            wire::GroupKind::Recurrent => ObjectKind::Recurrent,
        },
        parts: group.parts,
        part: group.part,
        unit_bytes: group.unit_bytes,
    };
    cache::Registration {
        domain_seed,
        rank: request.rank,
        world_size: request.world_size,
        required_alignment: request.required_alignment,
        chunk_size,
        groups: request.groups.iter().map(group).collect(),
        payload_path: payload_path(request.payload_path),
        stores: request.stores,
    }
}

pub(super) fn lookup_reply(found: cache::LookupAnswer) -> wire::LookupReply {
    let load = |load: &cache::LoadItem| wire::LoadItem {
        id: wire::ObjectId {
            key: load.id.key,
            group: load.id.group,
        },
        chunk: load.chunk,
        tokens: load.tokens,
    };
    wire::LookupReply {
        hit_tokens: found.hit_tokens,
        pin: found.pin,
        loads: found.loads.iter().map(load).collect(),
        present_tokens: found.present_tokens,
        shape: found.shape.as_ref().map(domain_shape),
    }
}

fn domain_shape(shape: &cache::DomainShape) -> wire::DomainShape {
    let group = |group: &cache::GroupShape| {
        let (kind, window_tokens) = match group.kind {
            ObjectKind::Full => (wire::GroupKind::Full, 0),
            ObjectKind::Window { tokens } => (wire::GroupKind::SlidingWindow, tokens),
            ObjectKind::ChunkedLocal { tokens } => (wire::GroupKind::ChunkedLocal, tokens),
            ObjectKind::Recurrent => (wire::GroupKind::Recurrent, 0),
        };
        wire::GroupShape {
            group: group.group,
            kind,
            window_tokens,
            bit: group.bit,
        }
    };
    wire::DomainShape {
        domain: shape.domain,
        chunk_size: shape.chunk,
        alignment: shape.alignment,
        anchor: shape.anchor,
        groups: shape.groups.iter().map(group).collect(),
        kept_frames_max: shape.kept_frames_max,
    }
}

pub(super) fn retrieve_reply(answer: cache::RetrieveAnswer) -> wire::RetrieveReply {
    let place = |place: &cache::PartPlace| wire::PartPlace {
        incarnation: place.incarnation,
        bytes: place.bytes,
        checksum: place.checksum,
        first_extent: place.first_extent,
        extent_count: place.extent_count,
        tokens: place.tokens,
        held_from: place.held_from,
    };
    wire::RetrieveReply {
        pin: answer.pin,
        places: answer.places.iter().map(place).collect(),
        extents: extents_to_wire(&answer.extents),
    }
}

pub(super) fn commit_reply(answer: &cache::CommitAnswer) -> wire::CommitReply {
    let outcome = |outcome: &cache::CommitOutcome| match outcome {
        cache::CommitOutcome::Published => wire::CommitOutcome::Published,
        cache::CommitOutcome::PartAccepted => wire::CommitOutcome::PartAccepted,
        cache::CommitOutcome::Exists => wire::CommitOutcome::Exists,
        cache::CommitOutcome::NoParent => wire::CommitOutcome::NoParent,
        cache::CommitOutcome::Skipped => wire::CommitOutcome::Skipped,
        cache::CommitOutcome::Dropped => wire::CommitOutcome::Dropped,
    };
    wire::CommitReply {
        outcomes: answer.outcomes.iter().map(outcome).collect(),
        granted: extents_to_wire(&answer.granted),
    }
}
