//! KV memory of a GPU: the way `pinned`, on which this process copies between its pages and the pool itself.
//!
//! ```text
//! pinning   the pool's mapping as memory that devices reach, registered in the background
//! stage     what copies go through until it is, or when it cannot be
//! pages     the engine's segments, and a stream with stages for each direction
//! report    what a client shows of all that
//! ```
//!
//! What is copied when is in `payload::device_copies`; what becomes of a copy that is late, in `link::held`.

pub(crate) mod pages;
pub(crate) mod pinning;
pub(crate) mod report;
pub(crate) mod stage;
