//! The messages of a client.

use super::field::{
    bytes, chunk_key, extents, flag, in_extents, key, known, limited, object_id, object_ids, object_kind,
    optional_id, require, spans, tail, text,
};
use super::{Decoded, fb};
use crate::keys::Domain;
use crate::object::{
    ClientKind, CommitRequest, GrantRequest, GroupRegistration, Lookup, PayloadPath, RetrieveRequest,
    RingPart, RingRun, StoreItem, TailList,
};
use crate::wire::error::DecodeError;
use crate::wire::message::*;
use crate::wire::{MAX_DOMAIN_FIELD_BYTES, MAX_ITEMS, MAX_KEYS, MAX_MESSAGE_GROUPS, MAX_NAME_BYTES};

pub(super) fn body(root: &fb::Request<'_>) -> Decoded<Request> {
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
        Body::EndSession => Ok(Request::ReleaseLabel {
            label: require("body", root.body_as_end_session())?.session(),
        }),
        Body::Grant => {
            let body = require("body", root.body_as_grant())?;
            let under = limited("under", body.under(), MAX_ITEMS)?;
            Ok(Request::Grant(GrantRequest {
                bytes: body.bytes(),
                under: under.map_or_else(Vec::new, |v| v.iter().map(chunk_key).collect()),
                ahead: body.ahead(),
            }))
        }
        Body::Commit => commit(require("body", root.body_as_commit())?).map(Request::Commit),
        Body::Abort => {
            let body = require("body", root.body_as_abort())?;
            Ok(Request::Abort {
                extents: extents(body.extents())?,
            })
        }
        Body::Clear => Ok(Request::Clear),
        Body::Discard => {
            let body = require("body", root.body_as_discard())?;
            let objects = limited("objects", body.objects(), MAX_ITEMS)?;
            let read = |row: &fb::ObjectRead| (object_id(row.id()), row.incarnation());
            Ok(Request::Discard {
                domain_seed: key("domain_seed", body.domain_seed())?,
                objects: objects.map_or_else(Vec::new, |v| v.iter().map(read).collect()),
            })
        }
        Body::Status => Ok(Request::Status),
        Body::RingWrite => {
            let runs = require("body", root.body_as_ring_write())?.runs();
            let run = |row: &fb::RingRun| RingRun {
                frame: row.frame(),
                offset: row.offset(),
                bytes: row.bytes(),
            };
            let runs = limited("runs", runs, MAX_ITEMS)?;
            Ok(Request::RingWrite {
                runs: runs.map_or_else(Vec::new, |v| v.iter().map(run).collect()),
            })
        }
        Body::RingRead => {
            let body = require("body", root.body_as_ring_read())?;
            let part = |row: &fb::RingPart| RingPart {
                place: row.place(),
                offset: row.offset(),
                bytes: row.bytes(),
            };
            let parts = limited("parts", body.parts(), MAX_ITEMS)?;
            Ok(Request::RingRead {
                pin: body.pin(),
                parts: parts.map_or_else(Vec::new, |v| v.iter().map(part).collect()),
            })
        }
        Body::Kick => {
            let body = require("body", root.body_as_kick())?;
            Ok(Request::Kick(Kick {
                client: body.client(),
                pid: body.pid(),
                grace_ms: body.grace_ms(),
                spare: body.spare(),
            }))
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
        kind: ClientKind::from_number(kind).unwrap_or(ClientKind::Unspecified),
        name: text("name", body.name(), MAX_NAME_BYTES)?,
        engine_instance,
        wants_pool: body.wants_pool(),
        ring_bytes: body.ring_bytes(),
        named: body.named(),
    })
}

fn negotiate(body: fb::Negotiate<'_>) -> Decoded<Negotiate> {
    Ok(Negotiate {
        required_alignment: body.required_alignment(),
        spans: spans(body.spans())?,
        preferred_base: body.preferred_base(),
        previous_size: body.previous_size(),
        binding_domain: optional_id("binding_domain", body.binding_domain())?,
    })
}

fn register(body: fb::RegisterKvCache<'_>) -> Decoded<RegisterKvCache> {
    let path = body.payload_path().0;
    let mut groups = Vec::new();
    for group in limited("groups", body.groups(), MAX_MESSAGE_GROUPS)?
        .iter()
        .flatten()
    {
        groups.push(GroupRegistration {
            group: group.group(),
            kind: object_kind("groups.kind", group.kind(), group.window_tokens())?,
            parts: group.parts(),
            part: group.part(),
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
        copy_path: text("copy_path", body.copy_path(), MAX_NAME_BYTES)?,
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
        label: body.session(),
        keys: keys.map_or_else(Vec::new, |v| v.iter().map(chunk_key).collect()),
        tails: TailList::new(tails.map_or_else(Vec::new, |v| v.iter().map(tail).collect())),
        max_tokens: body.max_tokens(),
        local_tokens: body.local_tokens(),
        pin: body.pin(),
        describe: body.describe(),
    })
}

fn retrieve(body: fb::Retrieve<'_>) -> Decoded<RetrieveRequest> {
    Ok(RetrieveRequest {
        domain_seed: key("domain_seed", body.domain_seed())?,
        label: body.session(),
        part: body.part(),
        ids: object_ids("ids", body.ids())?,
    })
}

fn commit(body: fb::Commit<'_>) -> Decoded<CommitRequest> {
    let extents = extents(body.extents())?;
    let mut items = Vec::new();
    if let Some(rows) = limited("items", body.items(), MAX_ITEMS)? {
        items.reserve_exact(rows.len());
        for (index, row) in rows.iter().enumerate() {
            items.push(store_item(index, row, extents.len())?);
        }
    }
    Ok(CommitRequest {
        domain_seed: key("domain_seed", body.domain_seed())?,
        items,
        extents,
        supersedes: object_ids("supersedes", body.supersedes())?,
        grant_bytes: body.credit_bytes(),
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
        held_from: row.held_from(),
        bytes: row.bytes(),
        checksum: row.checksum(),
        first_extent,
        extent_count,
    })
}
