//! Single fields: present, within their limits, of a known value.

use flatbuffers::Vector;

use super::{Decoded, fb};
use crate::geometry::ObjectKind;
use crate::keys::ChunkKey;
use crate::object::{Extent, GroupSpan, ObjectId, Tail};
use crate::wire::error::DecodeError;
use crate::wire::{MAX_DOMAIN_FIELD_BYTES, MAX_EXTENTS, MAX_ITEMS, MAX_MESSAGE_GROUPS};

pub(super) fn require<T>(field: &'static str, value: Option<T>) -> Decoded<T> {
    value.ok_or(DecodeError::Missing { field })
}

pub(super) fn limited<'a, T>(
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

pub(super) fn known<N: Copy + Into<u64>, T>(
    field: &'static str,
    from: impl Fn(N) -> Option<T>,
    number: N,
) -> Decoded<T> {
    from(number).ok_or(DecodeError::UnknownValue {
        field,
        value: number.into(),
    })
}

pub(super) fn flag(field: &'static str, value: u8) -> Decoded<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(DecodeError::UnknownValue {
            field,
            value: u64::from(other),
        }),
    }
}

pub(super) fn text(field: &'static str, value: Option<&str>, max: usize) -> Decoded<String> {
    let value = value.unwrap_or_default();
    within(field, value.len(), max)?;
    Ok(value.to_owned())
}

pub(super) fn bytes(field: &'static str, value: Option<Vector<'_, u8>>) -> Decoded<Vec<u8>> {
    let value = value.map_or(&[][..], |v| v.bytes());
    within(field, value.len(), MAX_DOMAIN_FIELD_BYTES)?;
    Ok(value.to_vec())
}

/// Thirty-two bytes, or nothing.
pub(super) fn optional_id(field: &'static str, value: Option<Vector<'_, u8>>) -> Decoded<Option<[u8; 32]>> {
    let value = value.map_or(&[][..], |v| v.bytes());
    if value.is_empty() {
        return Ok(None);
    }
    let wrong = DecodeError::WrongLength {
        field,
        found: value.len(),
        expected: 32,
    };
    value.try_into().map(Some).map_err(|_| wrong)
}

fn within(field: &'static str, found: usize, max: usize) -> Decoded<()> {
    if found > max {
        return Err(DecodeError::TooLong { field, found, max });
    }
    Ok(())
}

pub(super) fn in_extents(item: usize, first: u32, count: u32, extents: usize) -> Decoded<()> {
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

pub(super) fn spans(rows: Option<Vector<'_, fb::GroupSpan>>) -> Decoded<Vec<GroupSpan>> {
    let span = |row: &fb::GroupSpan| GroupSpan {
        group: row.group(),
        tokens: row.tokens(),
    };
    Ok(limited("spans", rows, MAX_MESSAGE_GROUPS)?.map_or_else(Vec::new, |v| v.iter().map(span).collect()))
}

pub(super) fn extents(rows: Option<Vector<'_, fb::Extent>>) -> Decoded<Vec<Extent>> {
    let extent = |row: &fb::Extent| Extent {
        frame: row.frame(),
        count: row.count(),
    };
    Ok(limited("extents", rows, MAX_EXTENTS)?.map_or_else(Vec::new, |v| v.iter().map(extent).collect()))
}

pub(super) fn object_ids(
    field: &'static str,
    rows: Option<Vector<'_, fb::ObjectId>>,
) -> Decoded<Vec<ObjectId>> {
    Ok(limited(field, rows, MAX_ITEMS)?.map_or_else(Vec::new, |v| v.iter().map(object_id).collect()))
}

pub(super) fn object_id(id: &fb::ObjectId) -> ObjectId {
    ObjectId {
        key: chunk_key(id.key()),
        group: id.group(),
    }
}

pub(super) fn tail(row: &fb::TailKey) -> Tail {
    Tail {
        key: chunk_key(row.key()),
        chunk: row.chunk(),
        tokens: row.tokens(),
    }
}

/// A kind and the tokens of its window or attention chunk; other kinds have none, whatever is said.
pub(super) fn object_kind(field: &'static str, kind: fb::GroupKind, tokens: u64) -> Decoded<ObjectKind> {
    match kind {
        fb::GroupKind::Full => Ok(ObjectKind::Full),
        fb::GroupKind::SlidingWindow => Ok(ObjectKind::Window { tokens }),
        fb::GroupKind::ChunkedLocal => Ok(ObjectKind::ChunkedLocal { tokens }),
        fb::GroupKind::Recurrent => Ok(ObjectKind::Recurrent),
        fb::GroupKind(other) => Err(DecodeError::UnknownValue {
            field,
            value: other.into(),
        }),
    }
}

pub(super) fn chunk_key(hash: &fb::Hash32) -> ChunkKey {
    ChunkKey::from_bytes(hash.0)
}

pub(super) fn key(field: &'static str, hash: Option<&fb::Hash32>) -> Decoded<ChunkKey> {
    require(field, hash).map(chunk_key)
}

/// Sixteen bytes in a field of 32: the rest has to be zero.
pub(super) fn short_id(field: &'static str, hash: Option<&fb::Hash32>) -> Decoded<[u8; 16]> {
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
