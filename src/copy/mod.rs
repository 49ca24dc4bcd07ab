//! Copy plans and the host copy engine that executes them.
//!
//! May import `sync`, `shm`.
