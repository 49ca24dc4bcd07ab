//! The control region and the chunk-size word: binding a chunk size once, late.
//!
//! One chunk size holds for one life of the server, for all its clients or for all those of one binding domain
//! (`domains`). It is not known at start: the first client that negotiates decides it together with the
//! configured minimum. The decision is one word (`word`) in the control region, moved by the state machine in
//! `binding`. The server writes the region (`region`), and clients read it (`view`).

// Any process reads.
mod fields;
pub(crate) mod view;
pub(crate) mod word;

// The server decides and writes.
#[cfg(feature = "server")]
pub(crate) mod binding;
#[cfg(feature = "server")]
pub(crate) mod config;
#[cfg(feature = "server")]
pub(crate) mod domains;
#[cfg(feature = "server")]
mod error;
#[cfg(all(test, loom))]
#[path = "tests/loom.rs"]
mod loom;
#[cfg(feature = "server")]
pub(crate) mod region;
#[cfg(feature = "server")]
mod request;

pub use fields::{Counter, Health};
pub use view::{ABI_VERSION, BootInfo, ControlError, ControlView, DomainId, MAX_BINDING_DOMAINS};
pub use word::{BindState, ChunkWord, WordError};

#[cfg(feature = "server")]
pub use {
    binding::{AgreedSize, Binding, BindingListener, WordCell},
    config::{ChunkSizeConfig, ConfigError, DEFAULT_CHUNK_TOKENS, Minimum, Policy},
    domains::DomainBindings,
    error::BindError,
    region::{ChunkSizeCell, ControlRegion},
    request::{MAX_KV_CACHE_GROUPS, NegotiateRequest, Negotiated},
};
