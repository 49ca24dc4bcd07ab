//! How a client behaves.

use super::ClientError;
use std::path::PathBuf;
use std::time::Duration;

use crate::object::ClientKind;

/// What a client maps of the server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Maps {
    /// Only the control region: every lookup is a message.
    Nothing,
    /// A payload ring of its own, and nothing that another client sees: stores and loads go through it, which the server
    /// copies, and every lookup is a message.
    Ring,
    /// The index and a pin slab: lookups need no message. What schedulers do.
    Index,
    /// The pool too: stores and loads. What workers do.
    Pool,
}

/// Configuration of a [`super::Client`], fixed when it is made.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The server's socket.
    pub socket: PathBuf,
    /// What this process is for. Workers map the pool; schedulers and tools do not.
    pub kind: ClientKind,
    /// Program and role, for the server's status; cut to the protocol's limit.
    pub name: String,
    /// The same 16 bytes in all processes of one serving engine.
    pub engine_instance: [u8; 16],
    /// The longest that one exchange with the server may take.
    pub deadline: Duration,
    /// How often a refused or failed recovery step is tried again, and a silent connection looked at.
    pub heartbeat: Duration,
    /// Pool space held ahead for stores.
    pub grant_bytes: u64,
    /// What is mapped of the server's memory.
    pub maps: Maps,
    /// Bytes of each of the two lanes of the ring, where there is one: one way for stores, one for loads.
    pub ring_bytes: u64,
    /// Sums the bytes of what is stored, and compares the bytes of what is loaded with the sum of their writer: an
    /// object that was damaged in the pool is a failed load. Costs a share of the copy's speed (docs/performance.md).
    pub checksums: bool,
    /// Threads of a large copy, the calling one among them; 0: as many as a measurement says is worth it, one on machines with two cores.
    pub copy_threads: usize,
    /// Most bytes of the pool that one call registers with the driver of a GPU: a multiple of a page, at most 64 GiB.
    #[cfg(feature = "cuda")]
    pub pin_piece_bytes: u64,
}

/// Of a ring's lanes: enough that copies of both sides overlap, and little enough to stay in a large cache.
const DEFAULT_LANE_BYTES: u64 = 8 << 20;

impl ClientConfig {
    /// The defaults: calls end after 1 s, heartbeat every 10 s, 64 MiB of granted space, checksums.
    pub fn new(socket: impl Into<PathBuf>, kind: ClientKind, name: &str, engine_instance: [u8; 16]) -> Self {
        Self {
            socket: socket.into(),
            kind,
            name: name.to_owned(),
            engine_instance,
            deadline: Duration::from_secs(1),
            heartbeat: Duration::from_secs(10),
            grant_bytes: 64 << 20,
            maps: match kind {
                ClientKind::Worker => Maps::Pool,
                ClientKind::Scheduler => Maps::Index,
                ClientKind::Tool | ClientKind::Unspecified => Maps::Nothing,
            },
            ring_bytes: DEFAULT_LANE_BYTES,
            checksums: true,
            copy_threads: 0,
            #[cfg(feature = "cuda")]
            pin_piece_bytes: crate::device::PINNED_PIECE_BYTES,
        }
    }
}

/// The longest that a call, a heartbeat or a wait may take: what is more is a slip, and does not fit the clock.
pub const MAX_WAIT: Duration = Duration::from_secs(366 * 86_400);

/// Refuses a time that no clock reaches.
pub(crate) fn check_wait(what: &str, time: Duration) -> Result<(), ClientError> {
    if time > MAX_WAIT {
        let (given, limit) = (time.as_secs(), MAX_WAIT.as_secs());
        return Err(ClientError::invalid(format!(
            "a {what} of {given} s, at most {limit} s are allowed"
        )));
    }
    Ok(())
}
