//! Shared memory: memfds, seals, mappings, lock bytes, descriptor passing.
//!
//! May import `sync`.
