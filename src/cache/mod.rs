//! The server's half of the cache: what is stored, what goes, and what is answered.
//!
//! [`Core`] is what the server drives, from one thread: every request is a method, or a [`Work`] in turns. What
//! clients may do by themselves is in [`crate::index`].
//!
//! ```text
//! core     the state, and who its clients are
//! books    what the state consists of
//! store    from a grant of space to a visible object
//! evict    what goes, and how its frames become free
//! answer   lookups, retrieves and their pins
//! clients  ranks register, leave and die
//! status   figures; audit recomputes them all
//! api      what is asked and told; error what can go wrong
//! turn     how long the thread stays with one request; meter spends it, steps is what movements cost
//! work     requests that are cut to fit turns
//! ```
//!
//! The order of words is the contract of docs/shm-layout.md; `loom` checks it on a miniature, and
//! `loom_product` on the code itself.

mod answer;
mod api;
mod audit;
mod books;
mod clients;
mod core;
mod error;
mod evict;
#[cfg(all(test, loom))]
#[path = "tests/loom.rs"]
mod loom;
#[cfg(all(test, loom))]
#[path = "tests/loom_product.rs"]
mod loom_product;
mod meter;
mod status;
mod steps;
mod store;
#[cfg(all(test, not(loom)))]
mod tests;
mod turn;
mod work;

pub use self::core::Core;
pub use answer::lookup::Looking;
pub use answer::release::{Releasing, ReleasingLabel};
pub use answer::retrieve::Retrieving;
pub use api::*;
pub use books::index::Index;
pub use books::policy::{EvictionPolicy, Lru, Position};
pub use books::registry::{MAX_DOMAIN_GROUPS, MAX_DOMAINS, MAX_PARTS, MAX_REGISTERED_PARTS};
pub use books::reuse::MAX_REUSE_DOMAINS;
pub use clients::{ClientGone, Disconnected, Register, Unregister};
pub use error::CoreError;
pub use evict::clear::Clear;
pub use evict::discard::Discard;
pub use evict::pin_scan::Tidy;
pub use status::Reporting;
pub use store::committing::Committing;
pub use store::grants::{Abort, Grant};
pub use turn::Turn;
pub use work::{Progress, Work, finish};

pub use crate::geometry::MAX_CHUNK_TOKENS;

/// Pin slabs of the arena, hence clients at a time.
pub const SLABS: usize = 256;
