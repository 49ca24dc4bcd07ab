//! Frames into owned messages, with every field checked.
//!
//! Imports this module's `generated` and `message`. No unsafe code.

use flatbuffers::{ForwardsUOffset, Vector, VerifierOptions};

use super::error::{BadFrame, DecodeError, ErrorCode, WireError};
use super::generated::kvasir::wire as fb;
use super::message::*;
use super::{
    MAX_DOMAIN_FIELD_BYTES, MAX_EXTENTS, MAX_FDS_PER_FRAME, MAX_FRAME_BYTES, MAX_GROUPS, MAX_ITEMS, MAX_KEYS,
    MAX_NAME_BYTES,
};
use crate::keys::ChunkKey;

/// The longest text of an error, and of a warning.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// The most objects to load that a lookup reply can name.
const MAX_LOADS: usize = MAX_FRAME_BYTES / size_of::<fb::LoadItem>();

/// Limits of the verifier. A frame that is no larger than allowed can only be beyond these when its tables share
/// parts, which no encoder of ours makes.
const LIMITS: VerifierOptions = VerifierOptions {
    max_depth: 16,
    max_tables: 65536,
    max_apparent_size: 2 * MAX_FRAME_BYTES,
    ignore_missing_null_terminator: false,
};

type Decoded<T> = Result<T, DecodeError>;

/// Reads a request and its id from a frame with its length prefix.
///
/// # Errors
/// [`BadFrame`], with the id to answer under.
pub fn decode_request(frame: &[u8]) -> Result<(u64, Request), BadFrame> {
    let root = flatbuffers::size_prefixed_root_with_opts::<fb::Request>(&LIMITS, frame)
        .map_err(|error| malformed(&error))?;
    let id = root.id();
    request_body(&root)
        .map(|request| (id, request))
        .map_err(|error| BadFrame { id, error })
}

/// Reads a reply and its id from a frame with its length prefix.
///
/// # Errors
/// [`BadFrame`], with the id of the request that was answered.
pub fn decode_reply(frame: &[u8]) -> Result<(u64, Reply), BadFrame> {
    let root = flatbuffers::size_prefixed_root_with_opts::<fb::Reply>(&LIMITS, frame)
        .map_err(|error| malformed(&error))?;
    let id = root.id();
    reply_body(&root)
        .map(|reply| (id, reply))
        .map_err(|error| BadFrame { id, error })
}

fn malformed(error: &flatbuffers::InvalidFlatbuffer) -> BadFrame {
    // The first line says what; the rest is a trace of fields.
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    BadFrame {
        id: 0,
        error: DecodeError::Malformed(line.trim_end_matches('.').to_owned()),
    }
}

fn request_body(root: &fb::Request<'_>) -> Decoded<Request> {
    use fb::RequestBody as Body;
    let body_type = root.body_type();
    match body_type {
        Body::Hello => hello(require("body", root.body_as_hello())?).map(Request::Hello),
        Body::Negotiate => negotiate(require("body", root.body_as_negotiate())?).map(Request::Negotiate),
        Body::GetChunkSize => Ok(Request::GetChunkSize),
        Body::Attach => Ok(Request::Attach),
        Body::RegisterKvCache => {
            register(require("body", root.body_as_register_kv_cache())?).map(Request::RegisterKvCache)
        }
        Body::UnregisterKvCache => Ok(Request::UnregisterKvCache),
        Body::Lookup => lookup(require("body", root.body_as_lookup())?).map(Request::Lookup),
        Body::Retrieve => retrieve(require("body", root.body_as_retrieve())?).map(Request::Retrieve),
        Body::Release => {
            let pins = require("body", root.body_as_release())?.pins();
            let pins = limited("pins", pins, MAX_ITEMS)?.map_or_else(Vec::new, |v| v.iter().collect());
            Ok(Request::Release { pins })
        }
        Body::EndSession => Ok(Request::EndSession {
            session: require("body", root.body_as_end_session())?.session(),
        }),
        Body::Grant => Ok(Request::Grant {
            bytes: require("body", root.body_as_grant())?.bytes(),
        }),
        Body::Commit => commit(require("body", root.body_as_commit())?).map(Request::Commit),
        Body::Abort => {
            let body = require("body", root.body_as_abort())?;
            Ok(Request::Abort {
                extents: extents(body.extents())?,
            })
        }
        Body::Clear => Ok(Request::Clear),
        Body::Status => Ok(Request::Status),
        Body::NONE => Err(DecodeError::Missing { field: "body" }),
        other => Err(DecodeError::UnknownMessage {
            message_type: other.0,
        }),
    }
}

fn reply_body(root: &fb::Reply<'_>) -> Decoded<Reply> {
    use fb::ReplyBody as Body;
    match root.body_type() {
        Body::Error => error(require("body", root.body_as_error())?).map(Reply::Error),
        Body::Ack => Ok(Reply::Ack),
        Body::HelloReply => hello_reply(require("body", root.body_as_hello_reply())?).map(Reply::Hello),
        Body::NegotiateReply => {
            negotiate_reply(require("body", root.body_as_negotiate_reply())?).map(Reply::Negotiate)
        }
        Body::RegisterReply => {
            let body = require("body", root.body_as_register_reply())?;
            Ok(Reply::Register(RegisterReply {
                domain_seed: key("domain_seed", body.domain_seed())?,
                chunk_size: body.chunk_size(),
            }))
        }
        Body::LookupReply => lookup_reply(require("body", root.body_as_lookup_reply())?).map(Reply::Lookup),
        Body::RetrieveReply => {
            retrieve_reply(require("body", root.body_as_retrieve_reply())?).map(Reply::Retrieve)
        }
        Body::GrantReply => {
            let body = require("body", root.body_as_grant_reply())?;
            Ok(Reply::Grant {
                extents: extents(body.extents())?,
            })
        }
        Body::CommitReply => commit_reply(require("body", root.body_as_commit_reply())?).map(Reply::Commit),
        Body::StatusReply => {
            let body = require("body", root.body_as_status_reply())?;
            let json = text("json", body.json(), MAX_FRAME_BYTES)?;
            Ok(Reply::Status { json })
        }
        Body::NONE => Err(DecodeError::Missing { field: "body" }),
        other => Err(DecodeError::UnknownMessage {
            message_type: other.0,
        }),
    }
}

fn hello(body: fb::Hello<'_>) -> Decoded<Hello> {
    let mut engine_instance = [0; 16];
    if let Some(bytes) = body.engine_instance() {
        let bytes = bytes.bytes();
        if bytes.len() != engine_instance.len() {
            return Err(DecodeError::WrongLength {
                field: "engine_instance",
                found: bytes.len(),
                expected: engine_instance.len(),
            });
        }
        engine_instance.copy_from_slice(bytes);
    }
    let kind = body.kind().0;
    Ok(Hello {
        protocol_version: body.protocol_version(),
        features: body.features(),
        // The kind is only shown; a later one must not keep a client from connecting.
        kind: PeerKind::from_number(kind).unwrap_or(PeerKind::Unspecified),
        name: text("name", body.name(), MAX_NAME_BYTES)?,
        engine_instance,
        wants_pool: body.wants_pool(),
    })
}

fn negotiate(body: fb::Negotiate<'_>) -> Decoded<Negotiate> {
    Ok(Negotiate {
        required_alignment: body.required_alignment(),
        spans: spans(body.spans())?,
        preferred_base: body.preferred_base(),
        previous_size: body.previous_size(),
    })
}

fn register(body: fb::RegisterKvCache<'_>) -> Decoded<RegisterKvCache> {
    let path = body.payload_path().0;
    let mut groups = Vec::new();
    for group in limited("groups", body.groups(), MAX_GROUPS)?.iter().flatten() {
        groups.push(ObjectGroup {
            group: group.group(),
            kind: known("groups.kind", GroupKind::from_number, group.kind().0)?,
            parts: group.parts(),
            part: group.part(),
            window_tokens: group.window_tokens(),
            unit_bytes: group.unit_bytes(),
        });
    }
    Ok(RegisterKvCache {
        domain: domain(require("domain", body.domain())?)?,
        rank: body.rank(),
        world_size: body.world_size(),
        required_alignment: body.required_alignment(),
        spans: spans(body.spans())?,
        groups,
        layers: body.layers(),
        blocks: body.blocks(),
        payload_path: known("payload_path", PayloadPath::from_number, path)?,
        stores: body.stores(),
    })
}

fn domain(body: fb::Domain<'_>) -> Decoded<Domain> {
    Ok(Domain {
        model: text("domain.model", body.model(), MAX_DOMAIN_FIELD_BYTES)?,
        weights_id: bytes("domain.weights_id", body.weights_id())?,
        kv_dtype: text("domain.kv_dtype", body.kv_dtype(), MAX_DOMAIN_FIELD_BYTES)?,
        fingerprint: bytes("domain.fingerprint", body.fingerprint())?,
        parallel_shape: text(
            "domain.parallel_shape",
            body.parallel_shape(),
            MAX_DOMAIN_FIELD_BYTES,
        )?,
    })
}

fn lookup(body: fb::Lookup<'_>) -> Decoded<Lookup> {
    let keys = limited("keys", body.keys(), MAX_KEYS)?;
    let tails = limited("tails", body.tails(), MAX_KEYS)?;
    Ok(Lookup {
        domain_seed: key("domain_seed", body.domain_seed())?,
        session: body.session(),
        keys: keys.map_or_else(Vec::new, |v| v.iter().map(chunk_key).collect()),
        tails: tails.map_or_else(Vec::new, |v| v.iter().map(tail_key).collect()),
        max_tokens: body.max_tokens(),
        local_tokens: body.local_tokens(),
        pin: body.pin(),
    })
}

fn retrieve(body: fb::Retrieve<'_>) -> Decoded<Retrieve> {
    Ok(Retrieve {
        domain_seed: key("domain_seed", body.domain_seed())?,
        session: body.session(),
        part: body.part(),
        ids: object_ids("ids", body.ids())?,
    })
}

fn commit(body: fb::Commit<'_>) -> Decoded<Commit> {
    let extents = extents(body.extents())?;
    let mut items = Vec::new();
    if let Some(rows) = limited("items", body.items(), MAX_ITEMS)? {
        items.reserve_exact(rows.len());
        for (index, row) in rows.iter().enumerate() {
            items.push(store_item(index, row, extents.len())?);
        }
    }
    Ok(Commit {
        domain_seed: key("domain_seed", body.domain_seed())?,
        items,
        extents,
        supersedes: object_ids("supersedes", body.supersedes())?,
        credit_bytes: body.credit_bytes(),
    })
}

fn store_item(index: usize, row: &fb::StoreItem, extents: usize) -> Decoded<StoreItem> {
    let has_parent = flag("items.has_parent", row.has_parent())?;
    let (first_extent, extent_count) = (row.first_extent(), row.extent_count());
    in_extents(index, first_extent, extent_count, extents)?;
    Ok(StoreItem {
        id: object_id(row.id()),
        parent: has_parent.then(|| chunk_key(row.parent())),
        skipped: flag("items.skipped", row.skipped())?,
        part: row.part(),
        tokens: row.tokens(),
        bytes: row.bytes(),
        first_extent,
        extent_count,
    })
}

fn error(body: fb::Error<'_>) -> Decoded<WireError> {
    let numbers = limited("numbers", body.numbers(), MAX_ITEMS)?;
    Ok(WireError {
        // A newer server may have codes that this version does not know; the message still says it all.
        code: ErrorCode::from_number(body.code().0).unwrap_or(ErrorCode::Internal),
        message: text("message", body.message(), MAX_TEXT_BYTES)?,
        numbers: numbers.map_or_else(Vec::new, |v| v.iter().collect()),
    })
}

fn hello_reply(body: fb::HelloReply<'_>) -> Decoded<HelloReply> {
    let mut regions = Vec::new();
    for region in limited("regions", body.regions(), MAX_FDS_PER_FRAME)?
        .iter()
        .flatten()
    {
        regions.push(Region {
            kind: known("regions.kind", RegionKind::from_number, region.kind().0)?,
            offset: region.offset(),
            bytes: region.bytes(),
        });
    }
    Ok(HelloReply {
        protocol_version: body.protocol_version(),
        features: body.features(),
        boot_id: short_id("boot_id", body.boot_id())?,
        boot_seq: body.boot_seq(),
        pool_id: short_id("pool_id", body.pool_id())?,
        frame_bytes: body.frame_bytes(),
        slab: body.slab(),
        regions,
    })
}

fn negotiate_reply(body: fb::NegotiateReply<'_>) -> Decoded<NegotiateReply> {
    let mut warnings = Vec::new();
    let rows: Option<Vector<'_, ForwardsUOffset<&str>>> =
        limited("warnings", body.warnings(), MAX_FDS_PER_FRAME.max(64))?;
    for warning in rows.iter().flatten() {
        warnings.push(text("warnings", Some(warning), MAX_TEXT_BYTES)?);
    }
    Ok(NegotiateReply {
        chunk_size: body.chunk_size(),
        warnings,
    })
}

fn lookup_reply(body: fb::LookupReply<'_>) -> Decoded<LookupReply> {
    let loads = limited("loads", body.loads(), MAX_LOADS)?;
    let present = limited("present_tokens", body.present_tokens(), MAX_GROUPS)?;
    let load = |row: &fb::LoadItem| LoadItem {
        id: object_id(row.id()),
        chunk: row.chunk(),
        tokens: row.tokens(),
    };
    Ok(LookupReply {
        hit_tokens: body.hit_tokens(),
        pin: body.pin(),
        loads: loads.map_or_else(Vec::new, |v| v.iter().map(load).collect()),
        present_tokens: present.map_or_else(Vec::new, |v| v.iter().collect()),
    })
}

fn retrieve_reply(body: fb::RetrieveReply<'_>) -> Decoded<RetrieveReply> {
    let extents = extents(body.extents())?;
    let mut places = Vec::new();
    if let Some(rows) = limited("places", body.places(), MAX_ITEMS)? {
        places.reserve_exact(rows.len());
        for (index, row) in rows.iter().enumerate() {
            let (first_extent, extent_count) = (row.first_extent(), row.extent_count());
            in_extents(index, first_extent, extent_count, extents.len())?;
            places.push(PartPlace {
                incarnation: row.incarnation(),
                bytes: row.bytes(),
                first_extent,
                extent_count,
                tokens: row.tokens(),
            });
        }
    }
    Ok(RetrieveReply {
        pin: body.pin(),
        places,
        extents,
    })
}

fn commit_reply(body: fb::CommitReply<'_>) -> Decoded<CommitReply> {
    let mut outcomes = Vec::new();
    for outcome in limited("outcomes", body.outcomes(), MAX_ITEMS)?.iter().flatten() {
        outcomes.push(known("outcomes", CommitOutcome::from_number, outcome.0)?);
    }
    Ok(CommitReply {
        outcomes,
        granted: extents(body.granted())?,
    })
}

fn require<T>(field: &'static str, value: Option<T>) -> Decoded<T> {
    value.ok_or(DecodeError::Missing { field })
}

fn limited<'a, T>(
    field: &'static str,
    rows: Option<Vector<'a, T>>,
    max: usize,
) -> Decoded<Option<Vector<'a, T>>> {
    match &rows {
        Some(rows) if rows.len() > max => Err(DecodeError::TooMany {
            field,
            found: rows.len(),
            max,
        }),
        _ => Ok(rows),
    }
}

fn known<N: Copy + Into<u64>, T>(
    field: &'static str,
    from: impl Fn(N) -> Option<T>,
    number: N,
) -> Decoded<T> {
    from(number).ok_or(DecodeError::UnknownValue {
        field,
        value: number.into(),
    })
}

fn flag(field: &'static str, value: u8) -> Decoded<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(DecodeError::UnknownValue {
            field,
            value: u64::from(other),
        }),
    }
}

fn text(field: &'static str, value: Option<&str>, max: usize) -> Decoded<String> {
    let value = value.unwrap_or_default();
    within(field, value.len(), max)?;
    Ok(value.to_owned())
}

fn bytes(field: &'static str, value: Option<Vector<'_, u8>>) -> Decoded<Vec<u8>> {
    let value = value.map_or(&[][..], |v| v.bytes());
    within(field, value.len(), MAX_DOMAIN_FIELD_BYTES)?;
    Ok(value.to_vec())
}

fn within(field: &'static str, found: usize, max: usize) -> Decoded<()> {
    if found > max {
        return Err(DecodeError::TooLong { field, found, max });
    }
    Ok(())
}

fn in_extents(item: usize, first: u32, count: u32, extents: usize) -> Decoded<()> {
    if u64::from(first) + u64::from(count) > extents as u64 {
        return Err(DecodeError::ExtentRange {
            item,
            first,
            count,
            extents,
        });
    }
    Ok(())
}

fn spans(rows: Option<Vector<'_, fb::GroupSpan>>) -> Decoded<Vec<GroupSpan>> {
    let span = |row: &fb::GroupSpan| GroupSpan {
        group: row.group(),
        tokens: row.tokens(),
    };
    Ok(limited("spans", rows, MAX_GROUPS)?.map_or_else(Vec::new, |v| v.iter().map(span).collect()))
}

fn extents(rows: Option<Vector<'_, fb::Extent>>) -> Decoded<Vec<Extent>> {
    let extent = |row: &fb::Extent| Extent {
        frame: row.frame(),
        count: row.count(),
    };
    Ok(limited("extents", rows, MAX_EXTENTS)?.map_or_else(Vec::new, |v| v.iter().map(extent).collect()))
}

fn object_ids(field: &'static str, rows: Option<Vector<'_, fb::ObjectId>>) -> Decoded<Vec<ObjectId>> {
    Ok(limited(field, rows, MAX_ITEMS)?.map_or_else(Vec::new, |v| v.iter().map(object_id).collect()))
}

fn object_id(id: &fb::ObjectId) -> ObjectId {
    ObjectId {
        key: chunk_key(id.key()),
        group: id.group(),
    }
}

fn tail_key(row: &fb::TailKey) -> TailKey {
    TailKey {
        key: chunk_key(row.key()),
        chunk: row.chunk(),
        tokens: row.tokens(),
    }
}

fn chunk_key(hash: &fb::Hash32) -> ChunkKey {
    ChunkKey::from_bytes(hash.0)
}

fn key(field: &'static str, hash: Option<&fb::Hash32>) -> Decoded<ChunkKey> {
    require(field, hash).map(chunk_key)
}

/// Sixteen bytes in a field of 32: the rest has to be zero.
fn short_id(field: &'static str, hash: Option<&fb::Hash32>) -> Decoded<[u8; 16]> {
    let hash = require(field, hash)?;
    let (id, rest) = hash.0.split_at(16);
    if rest.iter().any(|&byte| byte != 0) {
        return Err(DecodeError::WrongLength {
            field,
            found: 32,
            expected: 16,
        });
    }
    Ok(std::array::from_fn(|i| id[i]))
}
