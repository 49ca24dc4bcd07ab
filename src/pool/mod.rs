//! The pool: frames, extents, epochs, the directory, prefault.
//!
//! May import `sync`, `shm`, `copy`.
