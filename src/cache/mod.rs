//! The cache core: index, records, pins, grants, eviction, lookup over object groups.
//!
//! [`Core`] is what the server drives, from one thread: every request is a method. What clients may do by
//! themselves is in [`crate::index`].
//!
//! The order of words is the contract of docs/shm-layout.md; `loom` checks it on a miniature.

mod api;
mod audit;
mod chunked;
mod clients;
mod commit;
mod committing;
mod core;
mod credit;
mod discard;
mod ends;
mod error;
mod evict;
mod filling;
mod grants;
mod guards;
pub mod index;
mod keeping;
mod kept;
mod looking;
#[cfg(all(test, loom))]
mod loom;
mod partials;
mod pin_scan;
mod pins;
mod place;
mod policy;
mod prepared;
mod publish;
mod read;
mod records;
mod registry;
mod retrieving;
mod reuse;
mod runs;
pub mod slabs;
mod space;
mod status;
#[cfg(all(test, not(loom)))]
mod tests;
mod trunks;
mod waste;
mod work;

pub use self::core::Core;
pub use api::*;
pub use clients::{ClientGone, Disconnected, Register, Unregister};
pub use committing::Committing;
pub use discard::Discard;
pub use error::CoreError;
pub use evict::Clear;
pub use grants::{Abort, Grant};
pub use looking::Looking;
pub use pin_scan::Tidy;
pub use policy::{EvictionPolicy, Lru, Place};
pub use read::{EndingSession, Releasing};
pub use registry::{MAX_DOMAINS, MAX_GROUPS, MAX_PARTS, MAX_REGISTERED_PARTS};
pub use retrieving::Retrieving;
pub use reuse::{DomainReuse, MAX_REUSE_DOMAINS};
pub use status::Reporting;
pub use work::{Progress, Work, finish};

pub use crate::geometry::MAX_CHUNK_TOKENS;

/// Pin slabs of the arena, hence clients at a time.
pub const SLABS: usize = 256;
