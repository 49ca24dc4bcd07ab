//! The control region and the chunk-size word: binding a chunk size once, late.
//!
//! May import `geometry`, `sync`, `shm`.
