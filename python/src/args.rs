//! Arguments as Python gives them.

use kvasir::geometry::ObjectKind;
use kvasir::keys::{ChunkKey, Domain};
use kvasir::object::{ClientKind, GroupRegistration, GroupSpan, ObjectId};
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
    pub(crate) fn domain(self) -> Domain {
        Domain {
            model: self.model,
            weights_id: self.weights_id,
            kv_dtype: self.kv_dtype,
            fingerprint: self.fingerprint,
            parallel_shape: self.parallel_shape,
        }
    }
}

/// (object group, kind, parts, part, window tokens, unit bytes).
pub(crate) type GroupArg = (u16, String, u16, u16, u64, u64);

pub(crate) fn object_group(group: GroupArg) -> PyResult<GroupRegistration> {
    let (group, kind, parts, part, window_tokens, unit_bytes) = group;
    Ok(GroupRegistration {
        group,
        kind: group_kind(&kind, window_tokens)?,
        parts,
        part,
        unit_bytes,
    })
}

/// A group kind by its name, as `_native.pyi` lists them. `tokens` counts for those that have a window.
fn group_kind(name: &str, tokens: u64) -> PyResult<ObjectKind> {
    match name {
        "full" => Ok(ObjectKind::Full),
        "sliding_window" => Ok(ObjectKind::Window { tokens }),
        "chunked_local" => Ok(ObjectKind::ChunkedLocal { tokens }),
        "recurrent" => Ok(ObjectKind::Recurrent),
        _ => Err(PyValueError::new_err(format!(
            "group kind {name:?} is none of full, sliding_window, chunked_local, recurrent"
        ))),
    }
}

pub(crate) fn client_kind(name: &str) -> PyResult<ClientKind> {
    match name {
        "scheduler" => Ok(ClientKind::Scheduler),
        "worker" => Ok(ClientKind::Worker),
        "tool" => Ok(ClientKind::Tool),
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
