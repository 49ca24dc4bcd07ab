//! KV group geometry: spans, alignment, chunk size, object bytes, places of pages, windows, segments, layout
//! fingerprint.
//!
//! Pure functions over the resolved groups of an engine; no I/O.
//!
//! The way through it: describe the engine's groups as [`KvGroup`]s, [`resolve`] them once into a
//! [`ResolvedGeometry`] (spans and required alignment), negotiate a chunk size with [`chunk`], then
//! [`ResolvedGeometry::bind`] gives the sizes that registration and copy plans share. [`pages`] says where
//! pages lie in registered memory, [`segments`] plans reserved address space, and [`fingerprint`] names the
//! order of bytes inside a page.

mod bound;
mod bytes;
pub mod chunk;
mod dtype;
mod error;
pub mod fingerprint;
mod group;
pub mod object;
pub mod pages;
mod ratio;
mod resolve;
mod resolved;
pub mod segments;
mod size;
pub mod window;

pub use bound::{BoundGeometry, BoundGroup};
pub use bytes::Bytes;
pub use chunk::{ChunkError, MAX_CHUNK_TOKENS, Warning};
pub use dtype::Dtype;
pub use error::{BindError, GeometryError, GroupFault, GroupProblem};
pub use group::{GeometryInput, GroupKind, KvGroup, LayerSpec, RecurrentMode};
pub use object::{ObjectGroup, object_groups};
pub use ratio::Ratio;
pub use resolve::{resolve, resolve_described};
pub use resolved::{ResolvedGeometry, ResolvedGroup, ResolvedLayer};
pub use size::ByteSize;
pub use window::ObjectKind;

#[cfg(test)]
mod tests;
