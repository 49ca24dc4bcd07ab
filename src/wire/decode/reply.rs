//! The messages of the server.

use flatbuffers::{ForwardsUOffset, Vector};

use super::field::{
    extents, in_extents, key, known, limited, object_id, object_kind, require, short_id, text,
};
use super::{Decoded, fb};
use crate::object::{
    CommitAnswer, CommitOutcome, DomainShape, GroupShape, LoadItem, LookupAnswer, PartLocation,
    RetrieveAnswer,
};
use crate::wire::error::{DecodeError, ErrorCode, WireError};
use crate::wire::message::*;
use crate::wire::{MAX_FDS_PER_FRAME, MAX_FRAME_BYTES, MAX_ITEMS, MAX_MESSAGE_GROUPS, MAX_REGION_PATH_BYTES};

/// The longest text of an error, and of a warning.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// The most warnings of a negotiation.
const MAX_WARNINGS: usize = 64;
/// The most objects to load that a lookup reply can name.
const MAX_LOADS: usize = MAX_FRAME_BYTES / size_of::<fb::LoadItem>();

pub(super) fn body(root: &fb::Reply<'_>) -> Decoded<Reply> {
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
                domain: Some(body.domain()).filter(|domain| *domain != u32::MAX),
                kept_frames_max: body.kept_frames_max(),
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
        Body::KickReply => {
            let mut clients = Vec::new();
            let rows = require("body", root.body_as_kick_reply())?.clients();
            for row in limited("clients", rows, MAX_ITEMS)?.into_iter().flatten() {
                clients.push(Kicked {
                    client: row.client(),
                    pid: row.pid(),
                    outcome: known("clients.outcome", KickOutcome::from_number, row.outcome().0)?,
                });
            }
            Ok(Reply::Kick { clients })
        }
        Body::NONE => Err(DecodeError::Missing { field: "body" }),
        other => Err(DecodeError::UnknownMessage {
            message_type: other.0,
        }),
    }
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
    let mut named = Vec::new();
    let rows: Option<Vector<'_, ForwardsUOffset<fb::NamedRegion<'_>>>> =
        limited("named", body.named(), MAX_FDS_PER_FRAME)?;
    for region in rows.iter().flatten() {
        named.push(NamedRegion {
            kind: known("named.kind", RegionKind::from_number, region.kind().0)?,
            path: text("named.path", region.path(), MAX_REGION_PATH_BYTES)?,
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
        named,
    })
}

fn negotiate_reply(body: fb::NegotiateReply<'_>) -> Decoded<NegotiateReply> {
    let mut warnings = Vec::new();
    let rows: Option<Vector<'_, ForwardsUOffset<&str>>> = limited("warnings", body.warnings(), MAX_WARNINGS)?;
    for warning in rows.iter().flatten() {
        warnings.push(text("warnings", Some(warning), MAX_TEXT_BYTES)?);
    }
    Ok(NegotiateReply {
        chunk_size: body.chunk_size(),
        warnings,
    })
}

fn lookup_reply(body: fb::LookupReply<'_>) -> Decoded<LookupAnswer> {
    let loads = limited("loads", body.loads(), MAX_LOADS)?;
    let present = limited("present_tokens", body.present_tokens(), MAX_MESSAGE_GROUPS)?;
    let load = |row: &fb::LoadItem| LoadItem {
        id: object_id(row.id()),
        chunk: row.chunk(),
        tokens: row.tokens(),
    };
    Ok(LookupAnswer {
        hit_tokens: body.hit_tokens(),
        pin: body.pin(),
        loads: loads.map_or_else(Vec::new, |v| v.iter().map(load).collect()),
        present_tokens: present.map_or_else(Vec::new, |v| v.iter().collect()),
        shape: body.shape().map(domain_shape).transpose()?,
    })
}

fn domain_shape(body: fb::DomainShape<'_>) -> Decoded<DomainShape> {
    let mut groups = Vec::new();
    for row in limited("shape.groups", body.groups(), MAX_MESSAGE_GROUPS)?
        .into_iter()
        .flatten()
    {
        groups.push(GroupShape {
            group: row.group(),
            kind: object_kind("shape.groups.kind", row.kind(), row.window_tokens())?,
            bit: row.bit(),
        });
    }
    Ok(DomainShape {
        domain: body.domain(),
        chunk_size: body.chunk_size(),
        alignment: body.alignment(),
        anchor: body.has_anchor().then_some(body.anchor()),
        groups,
        kept_frames_max: body.kept_frames_max(),
    })
}

fn retrieve_reply(body: fb::RetrieveReply<'_>) -> Decoded<RetrieveAnswer> {
    let extents = extents(body.extents())?;
    let mut locations = Vec::new();
    if let Some(rows) = limited("places", body.places(), MAX_ITEMS)? {
        locations.reserve_exact(rows.len());
        for (index, row) in rows.iter().enumerate() {
            let (first_extent, extent_count) = (row.first_extent(), row.extent_count());
            in_extents(index, first_extent, extent_count, extents.len())?;
            locations.push(PartLocation {
                incarnation: row.incarnation(),
                bytes: row.bytes(),
                checksum: row.checksum(),
                first_extent,
                extent_count,
                tokens: row.tokens(),
                held_from: row.held_from(),
            });
        }
    }
    Ok(RetrieveAnswer {
        pin: body.pin(),
        locations,
        extents,
    })
}

fn commit_reply(body: fb::CommitReply<'_>) -> Decoded<CommitAnswer> {
    let mut outcomes = Vec::new();
    for outcome in limited("outcomes", body.outcomes(), MAX_ITEMS)?.iter().flatten() {
        outcomes.push(known("outcomes", CommitOutcome::from_number, outcome.0)?);
    }
    Ok(CommitAnswer {
        outcomes,
        granted: extents(body.granted())?,
    })
}
