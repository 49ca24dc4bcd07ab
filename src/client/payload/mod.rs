//! Payload between the engine's KV memory and the pool: stores, loads, and what is there already.

pub(crate) mod by_ring;
pub(crate) mod corrupt;
pub(crate) mod known;
pub(crate) mod load;
pub(crate) mod present;
pub(crate) mod request;
pub(crate) mod retrieve;
pub(crate) mod store;
pub(crate) mod storing;
pub(crate) mod windows;
