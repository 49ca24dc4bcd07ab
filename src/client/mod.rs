//! The blocking client library that engines link. No tokio, no server, no tier.
//!
//! May import everything up to the read side of `cache`.
//!
//! ```text
//! Client   public calls; any thread            (handle, store, storing, load, tickets)
//!   Core   the link, what is remembered, state (state, link, wanted, recover, wake)
//!     Session   one connection's mappings, lock byte, pins, credit (session, attached, extents, missing, populate)
//!     Connection   frames over the socket, with a deadline   (connection)
//! KvMemory  the engine's pages                 (layout)
//! ```
//!
//! Rules that hold everywhere: every call ends at its deadline; a connection that timed out, hung up or answered
//! nonsense is never used again; without a server lookups miss, stores are dropped and counted, loads fail, and a
//! background thread brings the connection back to where it was: the same alignment, the same chunk size, the same
//! registration. A server that is only late is not gone: what needs no message, lookups and loads, goes on from memory
//! until it answers again, hangs up or another boot has begun. Copies hold their session, so its lock byte stays held until the last of them has ended.

mod attached;
mod calls;
mod config;
mod connection;
mod corrupt;
mod error;
mod extents;
mod handle;
mod layout;
mod link;
mod load;
mod missing;
mod populate;
mod present;
mod recover;
mod retrieve;
mod session;
mod state;
mod stats;
mod store;
mod storing;
mod tickets;
mod wake;
mod wanted;

pub use self::calls::{LookupAnswer, Pin};
pub use self::config::{ClientConfig, Maps};
pub use self::corrupt::{Damage, corrupt_pool};
pub use self::error::ClientError;
pub use self::handle::{Client, MAX_WAIT};
pub use self::layout::{KvGroupPages, KvMemory, LayerPages, ObjectGroupPages};
pub use self::load::LoadRequest;
pub use self::stats::ClientStats;
pub use self::store::{StoreOutcome, StoreRequest};
pub use self::tickets::Ticket;

// What calls take and answers hold, from where it is defined.
pub use crate::cache::{LookupRequest, ReuseCounters, Tail, TailList, Tails};
pub use crate::control::{ControlView, Counter, Health};
pub use crate::copy::HostMemory;
pub use crate::wire::{
    Domain, ErrorCode, GroupKind, GroupSpan, LoadItem, Negotiate, NegotiateReply, ObjectGroup, ObjectId,
    PayloadPath, PeerKind, RegisterKvCache, WireError,
};
