//! The cache core: index, records, pins, grants, eviction, lookup over object groups.
//!
//! May import everything up to `pool`.

mod api;
mod core;
mod error;

pub use self::core::Core;
pub use api::*;
pub use error::CoreError;

pub use crate::pool::Extent;

/// Pin slabs of the arena, hence clients at a time.
pub const SLABS: usize = 256;
