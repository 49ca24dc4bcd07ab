//! Token lists, quickly: a scheduler hands over tens of thousands of ints per prompt.
//!
//! Unsafe is opened here for two calls of the C API per token. The invariant: the thread is attached to the
//! interpreter for the whole loop, `PyList_GetItem` checks its index against the list's present length and lends an item
//! that the list keeps, and `PyLong_AsUnsignedLong` runs no Python code (it does not ask for `__index__`), so the list
//! cannot change between the two.

#![allow(unsafe_code)]

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// The tokens of a list of plain ints that fit; nothing if any does not, for the slow way to say which.
pub(crate) fn from_list(list: &Bound<'_, PyList>) -> Option<Vec<u32>> {
    let mut tokens = Vec::with_capacity(list.len());
    for index in 0..list.len() {
        // SAFETY: `list` is a live list and this thread is attached (`Bound` says both). The item is used before
        // anything else can run, and is no null: a bad index gives null, which is checked.
        let value = unsafe {
            let item = ffi::PyList_GetItem(list.as_ptr(), index as ffi::Py_ssize_t);
            if item.is_null() {
                None
            } else {
                Some(ffi::PyLong_AsUnsignedLong(item))
            }
        };
        let token = value.and_then(|value| u32::try_from(value).ok());
        let Some(token) = token else {
            // The two calls raise for what they refuse; the slow way raises again, in its own words.
            drop(PyErr::take(list.py()));
            return None;
        };
        tokens.push(token);
    }
    Some(tokens)
}
