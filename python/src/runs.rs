//! Runs: objects of one object group in consecutive chunks, which Python names together and the client one by one.

use kvasir::client::{LoadRequest, StoreRequest};
use kvasir::keys::ChunkKey;
use kvasir::object::{LoadItem, ObjectId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::args::Key;
use crate::blocks::Blocks;
use crate::keys::joined;

/// (keys, object group, first chunk, tokens of each).
pub(crate) type NamedRun<'py> = (Bound<'py, PyBytes>, u16, u32, u32);

/// The runs in which a hit names its objects.
pub(crate) fn named_runs<'py>(py: Python<'py>, loads: &[LoadItem]) -> Vec<NamedRun<'py>> {
    let runs = loads.chunk_by(|one, next| {
        (next.id.group, next.tokens) == (one.id.group, one.tokens)
            && one.chunk.checked_add(1) == Some(next.chunk)
    });
    let run = |run: &[LoadItem]| {
        let keys = joined(py, run.iter().map(|load| &load.id.key));
        (keys, run[0].id.group, run[0].chunk, run[0].tokens)
    };
    runs.map(run).collect()
}

/// Keys one behind the other: those of a run.
pub(crate) struct Keys(Vec<ChunkKey>);

impl<'a, 'py> FromPyObject<'a, 'py> for Keys {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let bytes: &[u8] = object.extract()?;
        match bytes.as_chunks::<32>() {
            (keys @ [_, ..], []) => Ok(Self(keys.iter().map(|key| ChunkKey::from_bytes(*key)).collect())),
            _ => Err(PyValueError::new_err(format!(
                "the keys of a run have 32 bytes each, these are {} bytes together",
                bytes.len()
            ))),
        }
    }
}

/// (keys, parent of the first, object group, tokens of each, block ids per KV cache group).
pub(crate) type StoreArg = (Keys, Option<Key>, u16, u32, Vec<Blocks>);

/// The requests for the objects of a run.
pub(crate) fn store_requests(part: u16, run: StoreArg) -> PyResult<Vec<StoreRequest>> {
    let (Keys(keys), parent, group, tokens, lists) = run;
    let skipped = lists.is_empty();
    let lists = per_object(keys.len(), &lists)?;
    let parents = std::iter::once(parent.map(|key| key.0)).chain(keys.iter().copied().map(Some));
    let objects = keys.iter().zip(parents).zip(lists);
    let requests = objects.map(|((key, parent), blocks)| StoreRequest {
        id: ObjectId { key: *key, group },
        parent,
        part,
        tokens,
        blocks: (!skipped).then_some(blocks),
    });
    Ok(requests.collect())
}

/// (keys, object group, tokens of each, block ids per KV cache group).
pub(crate) type LoadArg = (Keys, u16, u32, Vec<Blocks>);

/// The requests for the objects of a run.
pub(crate) fn load_requests(run: LoadArg) -> PyResult<Vec<LoadRequest>> {
    let (Keys(keys), group, tokens, lists) = run;
    let objects = keys.iter().zip(per_object(keys.len(), &lists)?);
    let requests = objects.map(|(key, blocks)| LoadRequest {
        id: ObjectId { key: *key, group },
        tokens,
        blocks,
    });
    Ok(requests.collect())
}

/// Takes the lists of a run apart: all of its objects have as many ids of a list.
fn per_object(objects: usize, lists: &[Blocks]) -> PyResult<Vec<Vec<Vec<i64>>>> {
    if let Some(Blocks(odd)) = lists.iter().find(|list| !list.0.len().is_multiple_of(objects)) {
        return Err(PyValueError::new_err(format!(
            "{} block ids are not the same number for each of {objects} objects",
            odd.len()
        )));
    }
    let one = |object: usize| {
        let ids = lists.iter().map(|Blocks(ids)| {
            let each = ids.len() / objects;
            ids[object * each..(object + 1) * each].to_vec()
        });
        ids.collect()
    };
    Ok((0..objects).map(one).collect())
}

/// What became of the objects, run by run.
pub(crate) fn per_run<T>(lengths: &[usize], mut results: impl Iterator<Item = T>) -> Vec<Vec<T>> {
    let run = |&length: &usize| results.by_ref().take(length).collect();
    lengths.iter().map(run).collect()
}
