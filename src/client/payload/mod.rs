//! Payload between the engine's KV memory and the pool: stores, loads, and what is there already.

pub(crate) mod batch;
#[cfg(feature = "cuda")]
pub(crate) mod by_device;
pub(crate) mod by_ring;
pub(crate) mod commits;
pub(crate) mod corrupt;
#[cfg(feature = "cuda")]
pub(crate) mod device_copies;
pub(crate) mod known;
pub(crate) mod load;
pub(crate) mod present;
pub(crate) mod release;
pub(crate) mod request;
pub(crate) mod retrieve;
pub(crate) mod store;
pub(crate) mod storing;
pub(crate) mod windows;
