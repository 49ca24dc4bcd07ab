//! The one place atomics come from: `std`, or `loom` when built with `--cfg loom`.
//!
//! Imports nothing of this crate.
