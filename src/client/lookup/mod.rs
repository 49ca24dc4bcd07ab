//! Lookups, answered from the mapped index (local) or by the server (remote), and the tickets of those that run while
//! the caller does something else.

#[allow(clippy::module_inception)]
pub(crate) mod lookup;
pub(crate) mod prompt;
pub(crate) mod tickets;
