//! Owned messages into frames.

use flatbuffers::{FlatBufferBuilder, UnionWIPOffset, WIPOffset};

use super::generated::kvasir::wire as fb;
use super::message::*;
use super::{MAX_FRAME_BYTES, PREFIX_BYTES, WireError};
use crate::geometry::ObjectKind;
use crate::keys::ChunkKey;
use crate::object::{
    CommitRequest, DomainShape, Extent, GrantRequest, GroupSpan, Lookup, LookupAnswer, ObjectId,
    PartLocation, RetrieveAnswer, RetrieveRequest, RingPart, RingRun, StoreItem,
};

type Builder = FlatBufferBuilder<'static>;
type Vector<T> = WIPOffset<flatbuffers::Vector<'static, T>>;

/// A message that the peer would refuse for its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message has {bytes} bytes, a frame at most {limit}; split it")]
pub struct EncodeError {
    /// The length of the frame.
    pub bytes: usize,
    /// The limit.
    pub limit: usize,
}

/// Makes frames, reusing its memory from one to the next.
#[derive(Default)]
pub struct Encoder {
    builder: Builder,
}

impl Encoder {
    /// An encoder that has taken no memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A request as a frame with its length prefix.
    ///
    /// # Errors
    /// [`EncodeError`] when the frame would be beyond [`MAX_FRAME_BYTES`].
    pub fn request(&mut self, id: u64, request: &Request) -> Result<&[u8], EncodeError> {
        self.builder.reset();
        let (body_type, body) = request_body(&mut self.builder, request);
        let args = fb::RequestArgs {
            id,
            body_type,
            body: Some(body),
        };
        let root = fb::Request::create(&mut self.builder, &args);
        self.builder.finish_size_prefixed(root, None);
        self.finished()
    }

    /// A reply as a frame with its length prefix.
    ///
    /// # Errors
    /// [`EncodeError`] when the frame would be beyond [`MAX_FRAME_BYTES`].
    pub fn reply(&mut self, id: u64, reply: &Reply) -> Result<&[u8], EncodeError> {
        self.builder.reset();
        let (body_type, body) = reply_body(&mut self.builder, reply);
        let args = fb::ReplyArgs {
            id,
            body_type,
            body: Some(body),
        };
        let root = fb::Reply::create(&mut self.builder, &args);
        self.builder.finish_size_prefixed(root, None);
        self.finished()
    }

    /// Gives memory back that was needed for a frame of more than `max_bytes`.
    pub fn trim(&mut self, max_bytes: usize) {
        if self.builder.unfinished_data().len() > max_bytes {
            self.builder = Builder::new();
        }
    }

    fn finished(&self) -> Result<&[u8], EncodeError> {
        let frame = self.builder.finished_data();
        let bytes = frame.len() - PREFIX_BYTES;
        if bytes > MAX_FRAME_BYTES {
            return Err(EncodeError {
                bytes,
                limit: MAX_FRAME_BYTES,
            });
        }
        Ok(frame)
    }
}

fn request_body(b: &mut Builder, request: &Request) -> (fb::RequestBody, WIPOffset<UnionWIPOffset>) {
    use fb::RequestBody as Body;
    match request {
        Request::Hello(hello) => (Body::Hello, hello_body(b, hello)),
        Request::Negotiate(negotiate) => (Body::Negotiate, negotiate_body(b, negotiate)),
        Request::GetChunkSize => (
            Body::GetChunkSize,
            fb::GetChunkSize::create(b, &fb::GetChunkSizeArgs {}).as_union_value(),
        ),
        Request::Attach => (
            Body::Attach,
            fb::Attach::create(b, &fb::AttachArgs {}).as_union_value(),
        ),
        Request::RegisterKvCache(register) => (Body::RegisterKvCache, register_body(b, register)),
        Request::UnregisterKvCache => (
            Body::UnregisterKvCache,
            fb::UnregisterKvCache::create(b, &fb::UnregisterKvCacheArgs {}).as_union_value(),
        ),
        Request::Lookup(lookup) => (Body::Lookup, lookup_body(b, lookup)),
        Request::Retrieve(retrieve) => (Body::Retrieve, retrieve_body(b, retrieve)),
        Request::Release { pins } => {
            let pins = Some(b.create_vector(pins));
            (
                Body::Release,
                fb::Release::create(b, &fb::ReleaseArgs { pins }).as_union_value(),
            )
        }
        Request::ReleaseLabel { label } => {
            let args = fb::EndSessionArgs { session: *label };
            (
                Body::EndSession,
                fb::EndSession::create(b, &args).as_union_value(),
            )
        }
        Request::Grant(grant) => (Body::Grant, grant_body(b, grant)),
        Request::Commit(commit) => (Body::Commit, commit_body(b, commit)),
        Request::Abort { extents } => {
            let extents = Some(extent_vector(b, extents));
            (
                Body::Abort,
                fb::Abort::create(b, &fb::AbortArgs { extents }).as_union_value(),
            )
        }
        Request::Clear => (
            Body::Clear,
            fb::Clear::create(b, &fb::ClearArgs {}).as_union_value(),
        ),
        Request::Discard { domain_seed, objects } => {
            let objects = objects.iter();
            let objects = objects.map(|(id, incarnation)| fb::ObjectRead::new(&object_id(id), *incarnation));
            let objects = b.create_vector_from_iter(objects);
            let args = fb::DiscardArgs {
                domain_seed: Some(&hash(domain_seed)),
                objects: Some(objects),
            };
            (Body::Discard, fb::Discard::create(b, &args).as_union_value())
        }
        Request::Status => (
            Body::Status,
            fb::Status::create(b, &fb::StatusArgs {}).as_union_value(),
        ),
        Request::RingWrite { runs } => (Body::RingWrite, ring_write_body(b, runs)),
        Request::RingRead { pin, parts } => (Body::RingRead, ring_read_body(b, *pin, parts)),
        Request::Kick(kick) => {
            let args = fb::KickArgs {
                client: kick.client,
                pid: kick.pid,
                grace_ms: kick.grace_ms,
                spare: kick.spare,
            };
            (Body::Kick, fb::Kick::create(b, &args).as_union_value())
        }
    }
}

fn hello_body(b: &mut Builder, hello: &Hello) -> WIPOffset<UnionWIPOffset> {
    let args = fb::HelloArgs {
        protocol_version: hello.protocol_version,
        features: hello.features,
        kind: fb::PeerKind(hello.kind.number()),
        name: Some(b.create_string(&hello.name)),
        engine_instance: Some(b.create_vector(&hello.engine_instance)),
        wants_pool: hello.wants_pool,
        ring_bytes: hello.ring_bytes,
        named: hello.named,
    };
    fb::Hello::create(b, &args).as_union_value()
}

fn ring_write_body(b: &mut Builder, runs: &[RingRun]) -> WIPOffset<UnionWIPOffset> {
    let rows = runs
        .iter()
        .map(|run| fb::RingRun::new(run.bytes, run.frame, run.offset));
    let runs = Some(b.create_vector_from_iter(rows));
    fb::RingWrite::create(b, &fb::RingWriteArgs { runs }).as_union_value()
}

fn ring_read_body(b: &mut Builder, pin: u64, parts: &[RingPart]) -> WIPOffset<UnionWIPOffset> {
    let rows = parts
        .iter()
        .map(|part| fb::RingPart::new(part.offset, part.bytes, part.place));
    let parts = Some(b.create_vector_from_iter(rows));
    fb::RingRead::create(b, &fb::RingReadArgs { pin, parts }).as_union_value()
}

fn negotiate_body(b: &mut Builder, negotiate: &Negotiate) -> WIPOffset<UnionWIPOffset> {
    let binding_domain = negotiate.binding_domain.map(|domain| b.create_vector(&domain));
    let args = fb::NegotiateArgs {
        required_alignment: negotiate.required_alignment,
        spans: Some(span_vector(b, &negotiate.spans)),
        preferred_base: negotiate.preferred_base,
        previous_size: negotiate.previous_size,
        binding_domain,
    };
    fb::Negotiate::create(b, &args).as_union_value()
}

fn register_body(b: &mut Builder, register: &RegisterKvCache) -> WIPOffset<UnionWIPOffset> {
    let domain = &register.domain;
    let domain = fb::DomainArgs {
        model: Some(b.create_string(&domain.model)),
        weights_id: Some(b.create_vector(&domain.weights_id)),
        kv_dtype: Some(b.create_string(&domain.kv_dtype)),
        fingerprint: Some(b.create_vector(&domain.fingerprint)),
        parallel_shape: Some(b.create_string(&domain.parallel_shape)),
    };
    let domain = fb::Domain::create(b, &domain);
    let groups = register.groups.iter().map(|g| {
        let (kind, window_tokens) = (group_kind(g.kind), g.kind.window_tokens());
        fb::ObjectGroup::new(g.group, kind, g.parts, g.part, window_tokens, g.unit_bytes)
    });
    let groups = b.create_vector_from_iter(groups);
    let copy_path = (!register.copy_path.is_empty()).then(|| b.create_string(&register.copy_path));
    let args = fb::RegisterKvCacheArgs {
        domain: Some(domain),
        rank: register.rank,
        world_size: register.world_size,
        required_alignment: register.required_alignment,
        spans: Some(span_vector(b, &register.spans)),
        groups: Some(groups),
        layers: register.layers,
        blocks: register.blocks,
        payload_path: fb::PayloadPath(register.payload_path.number()),
        stores: register.stores,
        copy_path,
    };
    fb::RegisterKvCache::create(b, &args).as_union_value()
}

fn lookup_body(b: &mut Builder, lookup: &Lookup) -> WIPOffset<UnionWIPOffset> {
    let keys = b.create_vector_from_iter(lookup.keys.iter().map(hash));
    let tails = lookup
        .tails
        .iter()
        .map(|tail| fb::TailKey::new(&hash(&tail.key), tail.chunk, tail.tokens));
    let tails = b.create_vector_from_iter(tails);
    let seed = hash(&lookup.domain_seed);
    let args = fb::LookupArgs {
        domain_seed: Some(&seed),
        session: lookup.label,
        keys: Some(keys),
        tails: Some(tails),
        max_tokens: lookup.max_tokens,
        local_tokens: lookup.local_tokens,
        pin: lookup.pin,
        describe: lookup.describe,
    };
    fb::Lookup::create(b, &args).as_union_value()
}

fn retrieve_body(b: &mut Builder, retrieve: &RetrieveRequest) -> WIPOffset<UnionWIPOffset> {
    let seed = hash(&retrieve.domain_seed);
    let args = fb::RetrieveArgs {
        domain_seed: Some(&seed),
        session: retrieve.label,
        part: retrieve.part,
        ids: Some(b.create_vector_from_iter(retrieve.ids.iter().map(object_id))),
    };
    fb::Retrieve::create(b, &args).as_union_value()
}

fn grant_body(b: &mut Builder, grant: &GrantRequest) -> WIPOffset<UnionWIPOffset> {
    let under = &grant.under;
    let args = fb::GrantArgs {
        bytes: grant.bytes,
        under: (!under.is_empty()).then(|| b.create_vector_from_iter(under.iter().map(hash))),
        ahead: grant.ahead,
    };
    fb::Grant::create(b, &args).as_union_value()
}

fn commit_body(b: &mut Builder, commit: &CommitRequest) -> WIPOffset<UnionWIPOffset> {
    let items = b.create_vector_from_iter(commit.items.iter().map(store_item));
    let extents = extent_vector(b, &commit.extents);
    let seed = hash(&commit.domain_seed);
    let args = fb::CommitArgs {
        domain_seed: Some(&seed),
        items: Some(items),
        extents: Some(extents),
        supersedes: Some(b.create_vector_from_iter(commit.supersedes.iter().map(object_id))),
        credit_bytes: commit.grant_bytes,
    };
    fb::Commit::create(b, &args).as_union_value()
}

fn reply_body(b: &mut Builder, reply: &Reply) -> (fb::ReplyBody, WIPOffset<UnionWIPOffset>) {
    use fb::ReplyBody as Body;
    match reply {
        Reply::Error(error) => (Body::Error, error_body(b, error)),
        Reply::Ack => (Body::Ack, fb::Ack::create(b, &fb::AckArgs {}).as_union_value()),
        Reply::Hello(hello) => (Body::HelloReply, hello_reply_body(b, hello)),
        Reply::Negotiate(negotiated) => (Body::NegotiateReply, negotiate_reply_body(b, negotiated)),
        Reply::Register(registered) => {
            let seed = hash(&registered.domain_seed);
            let args = fb::RegisterReplyArgs {
                domain_seed: Some(&seed),
                chunk_size: registered.chunk_size,
                domain: registered.domain.unwrap_or(u32::MAX),
                kept_frames_max: registered.kept_frames_max,
            };
            (
                Body::RegisterReply,
                fb::RegisterReply::create(b, &args).as_union_value(),
            )
        }
        Reply::Lookup(found) => (Body::LookupReply, lookup_reply_body(b, found)),
        Reply::Retrieve(found) => (Body::RetrieveReply, retrieve_reply_body(b, found)),
        Reply::Grant { extents } => {
            let extents = Some(extent_vector(b, extents));
            (
                Body::GrantReply,
                fb::GrantReply::create(b, &fb::GrantReplyArgs { extents }).as_union_value(),
            )
        }
        Reply::Commit(committed) => {
            let outcomes = committed
                .outcomes
                .iter()
                .map(|outcome| fb::CommitOutcome(outcome.number()));
            let args = fb::CommitReplyArgs {
                outcomes: Some(b.create_vector_from_iter(outcomes)),
                granted: Some(extent_vector(b, &committed.granted)),
            };
            (
                Body::CommitReply,
                fb::CommitReply::create(b, &args).as_union_value(),
            )
        }
        Reply::Status { json } => {
            let json = Some(b.create_string(json));
            (
                Body::StatusReply,
                fb::StatusReply::create(b, &fb::StatusReplyArgs { json }).as_union_value(),
            )
        }
        Reply::Kick { clients } => {
            let row =
                |row: &Kicked| fb::Kicked::new(row.client, row.pid, fb::KickOutcome(row.outcome.number()));
            let clients = Some(b.create_vector_from_iter(clients.iter().map(row)));
            (
                Body::KickReply,
                fb::KickReply::create(b, &fb::KickReplyArgs { clients }).as_union_value(),
            )
        }
    }
}

fn error_body(b: &mut Builder, error: &WireError) -> WIPOffset<UnionWIPOffset> {
    let args = fb::ErrorArgs {
        code: fb::ErrorCode(error.code.number()),
        message: Some(b.create_string(&error.message)),
        numbers: Some(b.create_vector(&error.numbers)),
    };
    fb::Error::create(b, &args).as_union_value()
}

fn hello_reply_body(b: &mut Builder, hello: &HelloReply) -> WIPOffset<UnionWIPOffset> {
    let regions = hello
        .regions
        .iter()
        .map(|region| fb::Region::new(fb::RegionKind(region.kind.number()), region.offset, region.bytes));
    let regions = b.create_vector_from_iter(regions);
    let mut named = Vec::with_capacity(hello.named.len());
    for region in &hello.named {
        let args = fb::NamedRegionArgs {
            kind: fb::RegionKind(region.kind.number()),
            path: Some(b.create_string(&region.path)),
            bytes: region.bytes,
        };
        named.push(fb::NamedRegion::create(b, &args));
    }
    let named = (!named.is_empty()).then(|| b.create_vector(&named));
    let (boot_id, pool_id) = (id_hash(&hello.boot_id), id_hash(&hello.pool_id));
    let args = fb::HelloReplyArgs {
        protocol_version: hello.protocol_version,
        features: hello.features,
        boot_id: Some(&boot_id),
        boot_seq: hello.boot_seq,
        pool_id: Some(&pool_id),
        frame_bytes: hello.frame_bytes,
        slab: hello.slab,
        regions: Some(regions),
        named,
    };
    fb::HelloReply::create(b, &args).as_union_value()
}

fn negotiate_reply_body(b: &mut Builder, negotiated: &NegotiateReply) -> WIPOffset<UnionWIPOffset> {
    let mut warnings = Vec::with_capacity(negotiated.warnings.len());
    for warning in &negotiated.warnings {
        warnings.push(b.create_string(warning));
    }
    let args = fb::NegotiateReplyArgs {
        chunk_size: negotiated.chunk_size,
        warnings: Some(b.create_vector(&warnings)),
    };
    fb::NegotiateReply::create(b, &args).as_union_value()
}

fn lookup_reply_body(b: &mut Builder, found: &LookupAnswer) -> WIPOffset<UnionWIPOffset> {
    let loads = found
        .loads
        .iter()
        .map(|load| fb::LoadItem::new(&object_id(&load.id), load.chunk, load.tokens));
    let loads = b.create_vector_from_iter(loads);
    let present_tokens = b.create_vector(&found.present_tokens);
    let shape = found.shape.as_ref().map(|shape| domain_shape(b, shape));
    let args = fb::LookupReplyArgs {
        hit_tokens: found.hit_tokens,
        pin: found.pin,
        loads: Some(loads),
        present_tokens: Some(present_tokens),
        shape,
    };
    fb::LookupReply::create(b, &args).as_union_value()
}

fn domain_shape(b: &mut Builder, shape: &DomainShape) -> WIPOffset<fb::DomainShape<'static>> {
    let groups = shape
        .groups
        .iter()
        .map(|g| fb::GroupShape::new(g.kind.window_tokens(), g.bit, g.group, group_kind(g.kind)));
    let groups = b.create_vector_from_iter(groups);
    let args = fb::DomainShapeArgs {
        domain: shape.domain,
        chunk_size: shape.chunk_size,
        alignment: shape.alignment,
        has_anchor: shape.anchor.is_some(),
        anchor: shape.anchor.unwrap_or(0),
        groups: Some(groups),
        kept_frames_max: shape.kept_frames_max,
    };
    fb::DomainShape::create(b, &args)
}

fn retrieve_reply_body(b: &mut Builder, found: &RetrieveAnswer) -> WIPOffset<UnionWIPOffset> {
    let rows = found.locations.iter().map(part_location);
    let args = fb::RetrieveReplyArgs {
        pin: found.pin,
        places: Some(b.create_vector_from_iter(rows)),
        extents: Some(extent_vector(b, &found.extents)),
    };
    fb::RetrieveReply::create(b, &args).as_union_value()
}

fn part_location(location: &PartLocation) -> fb::PartPlace {
    fb::PartPlace::new(
        location.incarnation,
        location.bytes,
        location.checksum,
        location.first_extent,
        location.extent_count,
        location.tokens,
        location.held_from,
    )
}

fn store_item(item: &StoreItem) -> fb::StoreItem {
    fb::StoreItem::new(
        &object_id(&item.id),
        &item.parent.as_ref().map_or_else(fb::Hash32::default, hash),
        u8::from(item.parent.is_some()),
        u8::from(item.skipped),
        item.part,
        item.tokens,
        item.held_from,
        item.bytes,
        item.checksum,
        item.first_extent,
        item.extent_count,
    )
}

fn span_vector(b: &mut Builder, spans: &[GroupSpan]) -> Vector<fb::GroupSpan> {
    b.create_vector_from_iter(
        spans
            .iter()
            .map(|span| fb::GroupSpan::new(span.group, span.tokens)),
    )
}

fn extent_vector(b: &mut Builder, extents: &[Extent]) -> Vector<fb::Extent> {
    b.create_vector_from_iter(extents.iter().map(|e| fb::Extent::new(e.frame, e.count)))
}

fn group_kind(kind: ObjectKind) -> fb::GroupKind {
    match kind {
        ObjectKind::Full => fb::GroupKind::Full,
        ObjectKind::Window { .. } => fb::GroupKind::SlidingWindow,
        ObjectKind::ChunkedLocal { .. } => fb::GroupKind::ChunkedLocal,
        ObjectKind::Recurrent => fb::GroupKind::Recurrent,
    }
}

fn object_id(id: &ObjectId) -> fb::ObjectId {
    fb::ObjectId::new(&hash(&id.key), id.group)
}

fn hash(key: &ChunkKey) -> fb::Hash32 {
    fb::Hash32(*key.as_bytes())
}

/// Sixteen bytes in a field of 32: the rest is zero.
fn id_hash(id: &[u8; 16]) -> fb::Hash32 {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(id);
    fb::Hash32(bytes)
}
