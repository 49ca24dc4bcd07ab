//! The control protocol: generated flatbuffers, framing, descriptor passing, error codes.
//!
//! May import `geometry`, `keys`, `shm`.
