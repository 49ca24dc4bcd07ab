//! Kvasir: a co-located KV-cache server for LLM inference engines.
//!
//! The crate is both the server (`kvasir serve`) and the client library that engines link. The module
//! list below is also the layering: a module may import those above it, never those below it
//! (`cargo xtask layers` checks that). `unsafe` is denied here and opened only in the modules that
//! touch shared memory or copy payload.

// The words of shared memory are u64 and little-endian (docs/shm-layout.md).
#[cfg(not(all(target_pointer_width = "64", target_endian = "little", target_os = "linux")))]
compile_error!("Kvasir is for 64-bit little-endian Linux only");

pub mod geometry;

pub mod keys;

pub mod object;

pub mod sync;

pub mod shm;

pub mod control;

pub mod wire;

pub mod copy;

pub mod pool;

pub mod cache;

#[cfg(not(loom))] // tokio has no sockets under loom
pub mod server;

pub mod client;

#[cfg(not(loom))]
pub mod cli;
