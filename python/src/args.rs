//! Arguments as Python gives them.

use kvasir::keys::{ChunkKey, DomainFields};
use kvasir::wire::{Domain, GroupKind, GroupSpan, ObjectGroup, ObjectId, PeerKind};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A domain: a dict with these keys.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct DomainArg {
    model: String,
    weights_id: Vec<u8>,
    kv_dtype: String,
    fingerprint: Vec<u8>,
    parallel_shape: String,
}

impl DomainArg {
    pub(crate) fn wire(self) -> Domain {
        Domain {
            model: self.model,
            weights_id: self.weights_id,
            kv_dtype: self.kv_dtype,
            fingerprint: self.fingerprint,
            parallel_shape: self.parallel_shape,
        }
    }

    pub(crate) fn fields(self, chunk_size: u64) -> DomainFields {
        DomainFields {
            model: self.model,
            weights_id: self.weights_id,
            kv_dtype: self.kv_dtype,
            fingerprint: self.fingerprint,
            parallel_shape: self.parallel_shape,
            chunk_size,
        }
    }
}

/// (object group, kind, parts, part, window tokens, unit bytes).
pub(crate) type GroupArg = (u16, String, u16, u16, u64, u64);

pub(crate) fn object_group(group: GroupArg) -> PyResult<ObjectGroup> {
    let (group, kind, parts, part, window_tokens, unit_bytes) = group;
    Ok(ObjectGroup {
        group,
        kind: group_kind(&kind)?,
        parts,
        part,
        window_tokens,
        unit_bytes,
    })
}

/// Names of the group kinds, as `_native.pyi` lists them.
const GROUP_KINDS: [(&str, GroupKind); 4] = [
    ("full", GroupKind::Full),
    ("sliding_window", GroupKind::SlidingWindow),
    ("chunked_local", GroupKind::ChunkedLocal),
    ("recurrent", GroupKind::Recurrent),
];

fn group_kind(name: &str) -> PyResult<GroupKind> {
    let found = GROUP_KINDS.iter().find(|(known, _)| *known == name);
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        PyValueError::new_err(format!(
            "group kind {name:?} is none of full, sliding_window, chunked_local, recurrent"
        ))
    })
}

pub(crate) fn peer_kind(name: &str) -> PyResult<PeerKind> {
    match name {
        "scheduler" => Ok(PeerKind::Scheduler),
        "worker" => Ok(PeerKind::Worker),
        "tool" => Ok(PeerKind::Tool),
        _ => Err(PyValueError::new_err(format!(
            "kind {name:?} is none of scheduler, worker, tool"
        ))),
    }
}

pub(crate) fn spans(spans: Vec<(u32, u64)>) -> Vec<GroupSpan> {
    spans
        .into_iter()
        .map(|(group, tokens)| GroupSpan { group, tokens })
        .collect()
}

/// 32 bytes: a chunk key or a domain seed.
pub(crate) struct Key(pub(crate) ChunkKey);

impl<'a, 'py> FromPyObject<'a, 'py> for Key {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let bytes: &[u8] = object.extract()?;
        let key: [u8; 32] = bytes.try_into().map_err(|_| {
            PyValueError::new_err(format!("a key has 32 bytes, this one has {}", bytes.len()))
        })?;
        Ok(Self(ChunkKey::from_bytes(key)))
    }
}

/// (key, object group).
pub(crate) fn object_id((key, group): (Key, u16)) -> ObjectId {
    ObjectId { key: key.0, group }
}
