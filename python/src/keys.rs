//! `KeyChain`, and tokens in all the forms in which engines hold them.

use kvasir::client::{Prompt, PromptTails};
use kvasir::keys::{ChunkKey, Extras, KeyChain as Chain, MmItem};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::args::Key;
use crate::errors::key_error;
use crate::tokens;

/// The keys of one prompt, hashed incrementally.
#[pyclass(module = "kvasir._native")]
pub(crate) struct KeyChain {
    prompt: Prompt,
}

#[pymethods]
impl KeyChain {
    #[new]
    #[pyo3(signature = (seed, chunk_size, mm_items = Vec::new(), lora = None, salt = None))]
    fn new(
        py: Python<'_>,
        seed: Key,
        chunk_size: u32,
        mm_items: Vec<(Vec<u8>, u64, u64)>,
        lora: Option<Vec<u8>>,
        salt: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        let mm_items = mm_items.into_iter().map(|(identifier, start, length)| MmItem {
            identifier,
            start,
            length,
        });
        let extras = Extras {
            mm_items: mm_items.collect(),
            lora,
            salt,
        };
        let chain = Chain::new(seed.0, chunk_size, extras).map_err(|error| key_error(py, error))?;
        Ok(Self {
            prompt: Prompt::new(chain),
        })
    }

    fn extend(&mut self, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        self.prompt.extend(&read_tokens(tokens)?);
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.prompt.chain().len_tokens()
    }

    #[getter]
    fn num_chunks(&self) -> usize {
        self.prompt.chain().keys().len()
    }

    #[getter]
    fn chunk_size(&self) -> u32 {
        self.prompt.chain().chunk_size()
    }

    fn chunk_key<'py>(&self, py: Python<'py>, chunk: usize) -> PyResult<Bound<'py, PyBytes>> {
        let key = self.prompt.chain().keys().get(chunk);
        key.map(|key| bytes(py, key)).ok_or_else(|| {
            let full = self.prompt.chain().keys().len();
            PyIndexError::new_err(format!("chunk {chunk} of {full} full chunks"))
        })
    }

    fn parent_key<'py>(&self, py: Python<'py>, chunk: usize) -> PyResult<Option<Bound<'py, PyBytes>>> {
        match chunk.checked_sub(1) {
            None => Ok(None),
            Some(previous) => self.chunk_key(py, previous).map(Some),
        }
    }

    fn tail_key<'py>(&self, py: Python<'py>, chunk: usize, tokens: u32) -> PyResult<Bound<'py, PyBytes>> {
        self.tail(chunk, tokens).map(|key| bytes(py, &key))
    }

    fn keys<'py>(&self, py: Python<'py>, first: usize, end: usize) -> PyResult<Bound<'py, PyBytes>> {
        let keys = self.prompt.chain().keys().get(first..end).ok_or_else(|| {
            let full = self.prompt.chain().keys().len();
            PyIndexError::new_err(format!("chunks {first} to {end} of {full} full chunks"))
        })?;
        Ok(joined(py, keys.iter()))
    }
}

impl KeyChain {
    /// The keys of the full chunks.
    pub(crate) fn full(&self) -> &[ChunkKey] {
        self.prompt.chain().keys()
    }

    /// The fronts of all chunks at every multiple of `step` tokens, hashed when a lookup gets to them, and once.
    pub(crate) fn tails(&self, step: u32) -> PyResult<PromptTails<'_>> {
        let tails = self.prompt.tails(step);
        tails.ok_or_else(|| PyValueError::new_err("tails in steps of 0 tokens"))
    }

    fn tail(&self, chunk: usize, tokens: u32) -> PyResult<ChunkKey> {
        let key = self.prompt.chain().tail_key_at(chunk, tokens);
        key.ok_or_else(|| self.no_tail(chunk, tokens))
    }

    fn no_tail(&self, chunk: usize, tokens: u32) -> PyErr {
        let held = self.prompt.chain().len_tokens();
        PyIndexError::new_err(format!(
            "{tokens} tokens of chunk {chunk} of a chain with {held} tokens"
        ))
    }
}

/// A key as Python bytes.
pub(crate) fn bytes<'py>(py: Python<'py>, key: &ChunkKey) -> Bound<'py, PyBytes> {
    PyBytes::new(py, key.as_bytes())
}

/// Keys as Python bytes, one behind the other.
pub(crate) fn joined<'py, 'key>(
    py: Python<'py>,
    keys: impl Iterator<Item = &'key ChunkKey>,
) -> Bound<'py, PyBytes> {
    let keys: Vec<[u8; 32]> = keys.map(|key| *key.as_bytes()).collect();
    PyBytes::new(py, keys.as_flattened())
}

/// Tokens from bytes, a list, a buffer or any other sequence.
fn read_tokens(given: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    if let Ok(list) = given.cast::<PyList>() {
        return match tokens::from_list(list, 0..list.len()) {
            Some(tokens) => Ok(tokens),
            None => list.iter().map(|token| one_token(&token)).collect(),
        };
    }
    if let Ok(bytes) = given.cast::<PyBytes>() {
        let bytes = bytes.as_bytes();
        if !bytes.len().is_multiple_of(4) {
            let reason = format!("{} bytes are no whole number of u32 tokens", bytes.len());
            return Err(PyValueError::new_err(reason));
        }
        let words = bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        return Ok(words.collect());
    }
    if let Some(read) = buffer::<u32>(given).or_else(|| buffer::<i32>(given)) {
        return read;
    }
    if let Some(read) = buffer::<i64>(given).or_else(|| buffer::<u64>(given)) {
        return read;
    }
    let each = given.try_iter().map_err(|_| {
        PyTypeError::new_err(
            "tokens are neither a sequence of int nor bytes nor a buffer of 4 or 8 byte integers",
        )
    })?;
    each.map(|token| one_token(&token?)).collect()
}

fn one_token(token: &Bound<'_, PyAny>) -> PyResult<u32> {
    token.extract::<u32>().map_err(|error| {
        if token.extract::<i128>().is_ok() {
            PyValueError::new_err(format!("token {token} does not fit 32 bits without a sign"))
        } else {
            error
        }
    })
}

/// The tokens of a buffer of `T`; nothing if it is a buffer of something else, or none.
fn buffer<T: Element + TryInto<u32> + std::fmt::Display + Copy>(
    tokens: &Bound<'_, PyAny>,
) -> Option<PyResult<Vec<u32>>> {
    let buffer = PyBuffer::<T>::get(tokens).ok()?;
    let values = match buffer.to_vec(tokens.py()) {
        Ok(values) => values,
        Err(error) => return Some(Err(error)),
    };
    let each = values.into_iter().map(|token| {
        token
            .try_into()
            .map_err(|_| PyValueError::new_err(format!("token {token} does not fit 32 bits without a sign")))
    });
    Some(each.collect())
}
