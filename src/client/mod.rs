//! The blocking client library that engines link. No tokio, no server.
//!
//! ```text
//! client    Client: the public calls, from any thread
//!   payload   stores, loads: pages of KV memory to and from the pool
//!   lookup    local lookups from the mapped index, remote ones by message, tickets
//!   link      Core: the one link to a server, what is remembered, recovery
//!               Session: one connection's mappings, lock byte, pins, granted space
//!               Connection: frames over the socket, with a deadline
//! join      what most engines say once they are connected, in one call
//! memory    KvMemory: the engine's pages, and in which order an object holds them
//! device    the same where they lie in memory of a GPU (feature `cuda`)
//! ```
//!
//! Rules that hold everywhere:
//!
//! - Each answer of the server is waited for until a deadline. A store of many objects has several.
//! - Copies through unregistered buffers of a device wait for the driver without one.
//! - A connection that timed out, hung up or answered nonsense is never used again.
//! - Without a server stores are dropped and counted.
//! - What needs no message, lookups and loads, goes on from what the last server shared, whether it is late or dead: until
//!   there is another session, or the boot word says that another boot has begun. Without any, lookups miss and loads fail.
//! - A background thread brings the connection back to where it was: the same alignment, the same chunk size, the same
//!   registration.
//! - Copies hold their session, so its lock byte stays held until the last of them has ended.

#[allow(clippy::module_inception)]
mod client;
mod config;
#[cfg(feature = "cuda")]
mod device;
mod error;
mod extents;
mod join;
mod link;
mod lookup;
mod memory;
mod payload;

pub use self::client::Client;
pub use self::config::{ClientConfig, MAX_WAIT, Maps};
#[cfg(feature = "cuda")]
pub use self::device::pinning::PoolPinning;
#[cfg(feature = "cuda")]
pub use self::device::report::{ChecksumsAt, DeviceStats};
pub use self::error::ClientError;
pub use self::join::{Joined, Rank};
pub use self::link::stats::ClientStats;
pub use self::lookup::lookup::{LookupAnswer, Pin};
pub use self::lookup::prompt::{Prompt, PromptTails};
pub use self::lookup::tickets::Ticket;
pub use self::memory::{KvGroupPages, KvMemory, LayerPages, ObjectGroupPages};
pub use self::payload::corrupt::{Damage, corrupt_pool};
pub use self::payload::request::{LoadRequest, StoreOutcome, StoreRequest};

// What calls take and answers hold, from where it is defined.
pub use crate::control::{ControlView, Counter, Health};
pub use crate::copy::HostMemory;
#[cfg(feature = "cuda")]
pub use crate::device::{CopyCounts, DeviceError, DeviceUuid, EngineMemory, EngineSegment};
pub use crate::geometry::ObjectKind;
pub use crate::index::counters::ReuseCounters;
pub use crate::object::{
    ClientKind, GroupRegistration, GroupSpan, LoadItem, Lookup, LookupRequest, ObjectId, PayloadPath, Tail,
    TailList, Tails,
};
pub use crate::wire::{Domain, ErrorCode, Negotiate, NegotiateReply, RegisterKvCache, WireError};
