//! The server: accept, sessions, dispatch, status.
//!
//! May import everything up to `cache`.
