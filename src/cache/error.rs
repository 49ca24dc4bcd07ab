//! Why the core refuses a request. Each variant has the number of its code in `schema/admin.fbs`.

use crate::geometry::Bytes;
use crate::object::Extent;
use crate::pool::PoolError;
use crate::shm::ShmError;

/// A refused request. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// A region could not be made, mapped or asked about.
    #[error("shared memory: {0}")]
    Shm(#[from] ShmError),
    /// The pool could not be made, or its books do not agree.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A client that is not open, or no longer.
    #[error("client of slab {slab} is not open; open it again")]
    UnknownClient {
        /// Its slab.
        slab: u16,
    },
    /// Something that must hold does not.
    #[error("internal error: {what} ({a}, {b}); please report it")]
    Broken {
        /// What does not hold.
        what: &'static str,
        /// First number that says where.
        a: u64,
        /// Second number.
        b: u64,
    },
    /// A count is beyond its limit.
    #[error("{what}: {asked} asked for, the limit is {limit}; ask for less or release some first")]
    LimitExceeded {
        /// What is limited.
        what: &'static str,
        /// How much was asked for.
        asked: u64,
        /// The most there can be.
        limit: u64,
    },
    /// No chunk size is bound yet.
    #[error("no chunk size is bound; negotiate first")]
    NotNegotiated,
    /// The domain, or this client's part in it, is not known.
    #[error("{what} is not registered; send RegisterKvCache first")]
    NotRegistered {
        /// What is not known.
        what: &'static str,
    },
    /// Another rank or an earlier registration says otherwise.
    #[error(
        "group {group}: {field} is {registered} in this domain, this rank registers {offered}; \
         the ranks of one domain must agree, and another layout needs another fingerprint"
    )]
    RegistrationConflict {
        /// The object group; 0 for fields of the whole domain.
        group: u16,
        /// The field.
        field: &'static str,
        /// Its value in the domain.
        registered: u64,
        /// The value of this registration.
        offered: u64,
    },
    /// A group that the domain does not have, or whose numbers make no sense.
    #[error("group {group}: {field} is {value}, {expected}")]
    InvalidGroup {
        /// The object group.
        group: u16,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What it should be.
        expected: &'static str,
    },
    /// Bytes that do not follow from the registration.
    #[error(
        "group {group}, part {part}: {tokens} tokens take {expected} bytes in {expected_frames} frames, the item names \
         {bytes} bytes in {frames} frames; store what was registered"
    )]
    SizeMismatch {
        /// The object group.
        group: u16,
        /// The part.
        part: u16,
        /// Tokens of the item.
        tokens: u64,
        /// Bytes of the item.
        bytes: u64,
        /// Frames of the item.
        frames: u64,
        /// Bytes by the registration.
        expected: u64,
        /// Frames they take.
        expected_frames: u64,
    },
    /// A frame that is not this client's to write.
    #[error(
        "frame {frame} of extent {}+{} is not in this client's grant; nothing was changed, use granted extents only",
        extent.frame, extent.count
    )]
    ExtentNotGranted {
        /// The first such frame.
        frame: u32,
        /// The extent that names it.
        extent: Extent,
    },
    /// A run that does not lie in the pool, or frames named twice.
    #[error("extent {}+{} {why} (the pool has {frames} frames); nothing was changed", extent.frame, extent.count)]
    InvalidExtent {
        /// The extent.
        extent: Extent,
        /// Frames of the pool.
        frames: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Not a pin of this client, or not any more.
    #[error("pin {pin} is not held by this connection; release each pin once, where it was made")]
    UnknownPin {
        /// The pin.
        pin: u64,
    },
    /// One object would not fit in an empty pool.
    #[error("one chunk of group {group} takes {}, the pool has {}; enlarge --pool-size", Bytes(*.bytes), Bytes(*.pool))]
    ObjectTooLarge {
        /// The object group.
        group: u16,
        /// Bytes of one object in whole frames.
        bytes: u64,
        /// Bytes of the pool.
        pool: u64,
    },
    /// The lock byte is free.
    #[error("byte {slab} of the liveness file is not locked; lock it, then send Attach")]
    NotAttached {
        /// The byte.
        slab: u16,
    },
    /// A tail that cannot be one.
    #[error(
        "tail of {tokens} tokens in chunk {chunk}: a tail has a multiple of {alignment} tokens, less than {chunk_size}, \
         in a chunk not beyond number {keys}"
    )]
    InvalidKey {
        /// The chunk.
        chunk: u64,
        /// The tokens.
        tokens: u64,
        /// The domain's alignment.
        alignment: u64,
        /// The bound chunk size.
        chunk_size: u64,
        /// Number of full chunks that the request names.
        keys: u64,
    },
    /// A number that makes no sense.
    #[error("{field} is {value}, {expected}")]
    InvalidArgument {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What it should be.
        expected: &'static str,
    },
}

impl CoreError {
    /// The number of the error's code on the wire.
    pub fn code(&self) -> u16 {
        match self {
            Self::Shm(_) | Self::Pool(_) | Self::UnknownClient { .. } | Self::Broken { .. } => 0,
            Self::LimitExceeded { .. } => 8,
            Self::NotNegotiated => 9,
            Self::NotRegistered { .. } => 14,
            Self::RegistrationConflict { .. } => 15,
            Self::InvalidGroup { .. } => 16,
            Self::SizeMismatch { .. } => 17,
            Self::ExtentNotGranted { .. } => 18,
            Self::InvalidExtent { .. } => 19,
            Self::UnknownPin { .. } => 20,
            Self::ObjectTooLarge { .. } => 21,
            Self::NotAttached { .. } => 22,
            Self::InvalidKey { .. } => 24,
            Self::InvalidArgument { .. } => 25,
        }
    }

    /// The numbers of the message in the order in which it names them.
    pub fn numbers(&self) -> Vec<u64> {
        match *self {
            Self::Shm(_) | Self::Pool(_) | Self::NotNegotiated | Self::NotRegistered { .. } => Vec::new(),
            Self::UnknownClient { slab } | Self::NotAttached { slab } => vec![slab.into()],
            Self::Broken { a, b, .. } => vec![a, b],
            Self::LimitExceeded { asked, limit, .. } => vec![asked, limit],
            Self::RegistrationConflict {
                group,
                registered,
                offered,
                ..
            } => vec![group.into(), registered, offered],
            Self::InvalidGroup { group, value, .. } => vec![group.into(), value],
            Self::SizeMismatch {
                group,
                part,
                tokens,
                bytes,
                frames,
                expected,
                expected_frames,
            } => vec![
                group.into(),
                part.into(),
                tokens,
                expected,
                expected_frames,
                bytes,
                frames,
            ],
            Self::ExtentNotGranted { frame, extent } => {
                vec![frame.into(), extent.frame.into(), extent.count.into()]
            }
            Self::InvalidExtent { extent, frames, .. } => {
                vec![extent.frame.into(), extent.count.into(), frames]
            }
            Self::UnknownPin { pin } => vec![pin],
            Self::ObjectTooLarge { group, bytes, pool } => vec![group.into(), bytes, pool],
            Self::InvalidKey {
                chunk,
                tokens,
                alignment,
                chunk_size,
                keys,
            } => vec![tokens, chunk, alignment, chunk_size, keys],
            Self::InvalidArgument { value, .. } => vec![value],
        }
    }
}
