//! The blocking client library that engines link. No tokio, no server, no tier.
//!
//! May import everything up to the read side of `cache`.
