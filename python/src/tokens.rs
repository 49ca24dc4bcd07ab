//! Lists of tokens and block ids, quickly: a scheduler hands over tens of thousands of ints per prompt.
//!
//! Unsafe is opened here for two calls of the C API per int. The invariant: the thread is attached to the
//! interpreter for the whole loop, `PyList_GetItem` checks its index against the list's present length and lends an item
//! that the list keeps, and `PyLong_AsUnsignedLong` runs no Python code (it does not ask for `__index__`), so the list
//! cannot change between the two.

#![allow(unsafe_code)]

use std::ops::Range;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// The ints of a range of a list, where they are plain ones without a sign that fit; nothing if any does not, or is not
/// there, for the slow way to say which. `T` has to be one that the largest number, which stands for an exception, does not
/// fit.
pub(crate) fn from_list<T: TryFrom<u64>>(list: &Bound<'_, PyList>, range: Range<usize>) -> Option<Vec<T>> {
    let mut ints = Vec::with_capacity(range.len());
    for index in range {
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
        let int = value.and_then(|value| T::try_from(value).ok());
        let Some(int) = int else {
            // The two calls raise for what they refuse; the slow way raises again, in its own words.
            drop(PyErr::take(list.py()));
            return None;
        };
        ints.push(int);
    }
    Some(ints)
}
