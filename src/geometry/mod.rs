//! KV group geometry: spans, alignment, chunk size, object bytes, page views, windows, segments, layout fingerprint.
//!
//! Pure functions over the resolved groups of an engine; no I/O. Imports nothing of this crate.
