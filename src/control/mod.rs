//! The control region and the chunk-size word: binding a chunk size once, late.
//!
//! One chunk size holds for one life of the server, for all its clients or for all those of one binding domain
//! (`domains`). It is not known at start: the first client that negotiates decides it together with the
//! configured minimum. The decision is one word (`word`) in the control region (`region`), moved by the
//! state machine in `binding`.

pub(crate) mod binding;
pub(crate) mod config;
pub(crate) mod domains;
mod error;
mod fields;
#[cfg(all(test, loom))]
#[path = "tests/loom.rs"]
mod loom;
pub(crate) mod region;
mod request;
pub(crate) mod word;

pub use binding::{AgreedSize, Binding, BindingListener, WordCell};
pub use config::{ChunkSizeConfig, ConfigError, DEFAULT_CHUNK_TOKENS, Minimum, Policy};
pub use domains::DomainBindings;
pub use error::BindError;
pub use fields::{Counter, Health};
pub use region::{BootInfo, ChunkSizeCell, ControlError, ControlRegion, ControlView};
pub use request::{DomainId, MAX_BINDING_DOMAINS, MAX_KV_CACHE_GROUPS, NegotiateRequest, Negotiated};
pub use word::{BindState, ChunkWord, WordError};
