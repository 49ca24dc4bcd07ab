//! KV group geometry: spans, alignment, chunk size, object bytes, page views, windows, segments, layout
//! fingerprint.
//!
//! Pure functions over the resolved groups of an engine; no I/O. Imports nothing of this crate.
//!
//! The way through it: describe the engine's groups as [`KvGroup`]s, [`resolve`] them once into a
//! [`ResolvedGeometry`] (spans and required alignment), negotiate a chunk size with [`chunk`], then
//! [`ResolvedGeometry::bind`] gives the sizes that registration and copy plans share. [`view`] restores the
//! rule "one block id is one page" on registered tensors, [`layout`] places pages in storages, [`segments`]
//! plans reserved address space, and [`fingerprint`] names the order of bytes inside a page.

mod bound;
mod bytes;
pub mod chunk;
mod dtype;
mod error;
pub mod fingerprint;
mod group;
pub mod layout;
pub mod object;
mod ratio;
mod resolve;
pub mod segments;
mod size;
pub mod view;
pub mod window;

pub use bound::{BoundGeometry, BoundGroup};
pub use bytes::Bytes;
pub use chunk::{ChunkError, MAX_CHUNK_TOKENS, Warning};
pub use dtype::Dtype;
pub use error::{BindError, GeometryError, GroupFault, GroupProblem};
pub use group::{GeometryInput, GroupKind, KvGroup, LayerSpec, RecurrentMode};
pub use object::{ObjectGroup, ObjectKind, object_groups};
pub use ratio::Ratio;
pub use resolve::{ResolvedGeometry, ResolvedGroup, ResolvedLayer, resolve, resolve_described};
pub use size::ByteSize;

#[cfg(test)]
mod tests;
