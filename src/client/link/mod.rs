//! The link to a server: one connection, what it gave, and how it is had again.
//!
//! ```text
//! core      the link's state: what ends and what goes on when it is lost
//! guard, exchange   one exchange on it
//! session   what one connection gave: mappings (attached), lock byte, granted space, what could not be stored
//! held      copies of device memory that are late, and what must not be used before they have ended
//! recover   the thread that connects, and asks again for everything in `wanted`      wake: what it sleeps on
//! ```

pub(crate) mod attached;
pub(crate) mod connection;
pub(crate) mod core;
pub(crate) mod exchange;
pub(crate) mod granted;
pub(crate) mod guard;
#[cfg(feature = "cuda")]
pub(crate) mod held;
pub(crate) mod missing;
pub(crate) mod populate;
pub(crate) mod recover;
pub(crate) mod regions;
pub(crate) mod ring;
pub(crate) mod session;
pub(crate) mod stats;
pub(crate) mod wake;
pub(crate) mod wanted;
