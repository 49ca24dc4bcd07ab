//! Kvasir: a co-located KV-cache server for LLM inference engines.
//!
//! The crate is both the server (`kvasir serve`) and the client library that engines link. The module
//! list below is also the layering: a module may import those above it, never those below it
//! (`cargo xtask layers` checks that). `unsafe` is denied here and opened only in the modules that
//! touch shared memory or copy payload.

pub mod geometry;

pub mod keys;

pub mod object;

pub mod sync;

pub mod shm;

pub mod control;

pub mod wire;

pub mod copy;

pub mod pool;

pub mod index;

pub mod cache;

#[cfg(not(loom))] // tokio has no sockets under loom
pub mod server;

pub mod client;

#[cfg(not(loom))]
pub mod cli;
