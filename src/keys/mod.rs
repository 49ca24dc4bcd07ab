//! Token hashing, extra keys, domains: the public contract that names an object.
//!
//! Pure functions. Imports nothing of this crate.
