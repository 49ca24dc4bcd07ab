//! The server: one process that owns the pool, and the sockets that engines reach it by.
//!
//! ```text
//! config, size, limits           settings, and what this process may have
//! run, state                     the life of a server; what all connections share
//! listen, name_watch             the socket's name
//! accept, connection, peer       one connection: who, frames in, replies out (outbox, offload)
//! opening                        the first frame: what a client gets
//! dispatch, work, turns, answer  a request becomes a call, in turns, and its result a reply
//! rings                          clients that map no pool: ring, ring_desk (who gets one), ring_copy, export (their names)
//! session                        what a connection said of itself
//! bindings                       the chunk sizes; fleet, fleet_desk: the record that servers share
//! ends, liveness, leaving        clients that have gone, and those that may have; kick: those that an operator ends
//! status, journal                the document, the log
//! ```
//!
//! One thread runs the whole control plane, in turns: whatever takes long goes on after others were served.
//! Other threads make the pool's pages present, copy between it and rings, read and write frames that are long, write the log, and wait for file
//! systems. Without clients nothing wakes up. Every refusal is an answer with a code and numbers, and no peer can make
//! the server wait: reads are bounded by the frame limits, replies by a queue.

mod accept;
mod answer;
mod bindings;
pub(crate) mod config;
mod connection;
mod dispatch;
mod dying;
mod ends;
mod export;
mod fleet;
mod fleet_desk;
mod journal;
mod kick;
mod leaving;
mod limits;
pub(crate) mod listen;
mod liveness;
mod name_watch;
mod offload;
mod opening;
mod outbox;
mod peer;
mod placement;
mod ring;
mod ring_copy;
mod ring_desk;
mod rings;
mod run;
mod session;
mod size;
mod state;
mod status;
mod turns;
mod work;

pub use config::{ChunkScope, ChunkSize, ChunkSizePolicy, Config, LogLevel, Settings, SettingsError};
pub use export::ExportError;
pub use fleet::FleetError;
pub use limits::LimitError;
pub use listen::ListenError;
pub use run::run;

pub use crate::geometry::ByteSize;
pub use crate::pool::HugePages;
pub use crate::shm::numa::Numa;

use crate::cache::CoreError;
use crate::control::{BindError, ControlError};
use crate::shm::ShmError;
use crate::shm::numa::NoSuchNode;

/// Why a server did not start, or did not stop as it should.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A setting that cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The socket path cannot be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// This process can never have what the settings ask for.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A NUMA node that this machine does not have.
    #[error(transparent)]
    Numa(#[from] NoSuchNode),
    /// The fleet's record cannot be used.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// The exported name cannot be had.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The cache could not be made.
    #[error("{0}")]
    Core(#[from] CoreError),
    /// The control region could not be made.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The chunk size could not be set up.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A call about memory or this process failed.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// The event loop could not be set up.
    #[error("{what}: {source}")]
    Runtime {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}
