//! Block ids on their way from the scheduler role to the workers: 8 bytes each, as this machine has its numbers.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::tokens;

/// Bytes of one id.
const WIDTH: usize = size_of::<i64>();
/// Most ids in one call: far more than a prompt has blocks, and no more than a process has memory for.
const IDS_MAX: usize = 1 << 22;

/// `ids[first:end]`, null where the list is shorter, and the positions of the null ones in that.
#[pyfunction]
pub(crate) fn pack_blocks<'py>(
    ids: &Bound<'py, PyList>,
    first: usize,
    end: usize,
) -> PyResult<(Bound<'py, PyBytes>, Vec<usize>)> {
    let count = end.saturating_sub(first);
    if count > IDS_MAX {
        return Err(PyValueError::new_err(format!(
            "blocks {first} to {end} are {count} ids, at most {IDS_MAX} go into one call"
        )));
    }
    let present = first.min(ids.len())..end.max(first).min(ids.len());
    let mut blocks: Vec<i64> = match tokens::from_list(ids, present.clone()) {
        Some(blocks) => blocks,
        None => present
            .map(|index| ids.get_item(index)?.extract())
            .collect::<PyResult<_>>()?,
    };
    blocks.resize(count, 0);
    let nulls = (0..blocks.len()).filter(|&at| blocks[at] == 0).collect();
    let words: Vec<[u8; WIDTH]> = blocks.into_iter().map(i64::to_ne_bytes).collect();
    Ok((PyBytes::new(ids.py(), words.as_flattened()), nulls))
}

/// Ids as `pack_blocks` packs them.
pub(crate) struct Blocks(pub(crate) Vec<i64>);

impl<'a, 'py> FromPyObject<'a, 'py> for Blocks {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let bytes: &[u8] = object.extract()?;
        let (words, []) = bytes.as_chunks::<WIDTH>() else {
            return Err(PyValueError::new_err(format!(
                "block ids have {WIDTH} bytes each, these are {} bytes together",
                bytes.len()
            )));
        };
        Ok(Self(words.iter().map(|word| i64::from_ne_bytes(*word)).collect()))
    }
}
