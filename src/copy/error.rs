//! Why a copy is refused.

use std::fmt;

/// One end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The end that is read.
    Source,
    /// The end that is written.
    Destination,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Source => "source",
            Side::Destination => "destination",
        })
    }
}

/// Why a plan was refused. Nothing has been copied then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// A piece names a region that was not given.
    #[error(
        "piece {piece} names {side} region {region}, but {regions} are registered: build the plan for these regions"
    )]
    UnknownRegion {
        /// Index of the piece in the plan.
        piece: usize,
        /// Which end.
        side: Side,
        /// The region it names.
        region: u16,
        /// How many there are.
        regions: usize,
    },
    /// A piece leaves its region.
    #[error(
        "piece {piece} needs {len} bytes at offset {offset} of {side} region {region}, which has {region_len}: \
         the plan was built for another geometry"
    )]
    OutOfBounds {
        /// Index of the piece in the plan.
        piece: usize,
        /// Which end.
        side: Side,
        /// The region.
        region: u16,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Length of the region.
        region_len: u64,
    },
    /// A piece writes to a region that may only be read.
    #[error("piece {piece} writes destination region {region}, which is registered read-only")]
    ReadOnly {
        /// Index of the piece in the plan.
        piece: usize,
        /// The region.
        region: u16,
    },
    /// A byte would be both read and written.
    #[error("piece {write} writes bytes that piece {read} reads: split the copy into two plans")]
    Overlap {
        /// Index of the piece that reads.
        read: usize,
        /// Index of a piece that writes there.
        write: usize,
    },
    /// The pieces together exceed 64 bits.
    #[error("the plan's bytes exceed 64 bits at piece {piece}: it repeats pieces beyond any real copy")]
    TooManyBytes {
        /// Index of the piece at which the sum overflows.
        piece: usize,
    },
}
