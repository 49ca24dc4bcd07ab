//! Why the pool cannot be made, or what its books got wrong.

use crate::geometry::Bytes;
use crate::object::{Extent, FRAME_BYTES};
use crate::shm::ShmError;

/// A failure of the pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Memory could not be made or mapped.
    #[error("pool memory: {0}")]
    Shm(#[from] ShmError),
    /// Not even one frame.
    #[error("a pool of {} is smaller than one frame of {}; enlarge --pool-size", Bytes(*.bytes), Bytes(FRAME_BYTES))]
    TooSmall {
        /// The size asked for.
        bytes: u64,
    },
    /// More frames than a record can number.
    #[error("a pool of {} has more than {max} frames; reduce --pool-size", Bytes(*.bytes))]
    TooLarge {
        /// The size asked for.
        bytes: u64,
        /// The most frames there can be.
        max: u64,
    },
    /// A boot sequence of 0 or of more than 20 bits.
    #[error("boot sequence {boot_seq} is not between 1 and {max}; discard the pool")]
    BootSeq {
        /// The number.
        boot_seq: u64,
        /// The largest one.
        max: u64,
    },
    /// Frames given back that were not held as the caller says, or that the pool does not have.
    #[error("internal error: extent {}+{} was not held by who frees it, or is outside the pool; please report it", .0.frame, .0.count)]
    DoubleFree(Extent),
    /// An invariant of the books does not hold.
    #[error("internal error: {what} ({a}, {b}); please report it")]
    Broken {
        /// What does not hold.
        what: &'static str,
        /// First number that says where.
        a: u64,
        /// Second number.
        b: u64,
    },
}
