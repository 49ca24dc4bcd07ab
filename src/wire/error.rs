//! Error codes of the protocol and what can be wrong with a frame.

use std::fmt;

use super::{MAX_FRAME_BYTES, PROTOCOL_VERSION};
use crate::object::numbered;

numbered! {
    /// The stable code of an error. docs/operations.md lists the numbers that go with each, and what to do.
    ErrorCode: u16 {
        /// The server failed, not the request.
        Internal = 0,
        /// Client and server speak different versions.
        ProtocolVersion = 1,
        /// The frame is not a valid message.
        Malformed = 2,
        /// The frame is longer than allowed.
        FrameTooLarge = 3,
        /// The server does not know this kind of request.
        UnknownMessage = 4,
        /// The first frame is not a hello, or a second hello arrived.
        HelloExpected = 5,
        /// Descriptors arrived where none may.
        Descriptors = 6,
        /// The peer's user may not connect.
        PermissionDenied = 7,
        /// More of something than allowed.
        LimitExceeded = 8,
        /// No chunk size is in force yet.
        NotNegotiated = 9,
        /// An alignment that no chunk size follows from.
        InvalidAlignment = 10,
        /// The chunk size does not suit the model.
        IncompatibleChunkSize = 11,
        /// A part of the server could not take up the chunk size.
        BindingListenerFailed = 12,
        /// Spans that cannot be cached with the chunk size.
        InvalidSpans = 13,
        /// The request needs a registration first.
        NotRegistered = 14,
        /// The registration contradicts another rank's or an earlier one.
        RegistrationConflict = 15,
        /// An object group that does not exist or makes no sense.
        InvalidGroup = 16,
        /// A part has another length than its registration gives.
        SizeMismatch = 17,
        /// An extent is not in this client's grant.
        ExtentNotGranted = 18,
        /// An extent is empty, outside the pool or named twice.
        InvalidExtent = 19,
        /// Not a pin of this connection.
        UnknownPin = 20,
        /// An object that can never fit the pool.
        ObjectTooLarge = 21,
        /// The client has not attached its slab.
        NotAttached = 22,
        /// The server is shutting down.
        Draining = 23,
        /// A key that contradicts the request.
        InvalidKey = 24,
        /// Any other field with a value that makes no sense.
        InvalidArgument = 25,
        /// The server has no descriptors or memory left for now; try again.
        Exhausted = 26,
        /// The client has broken its payload ring.
        RingBroken = 27,
        /// No client of that number or process.
        UnknownClient = 28,
        /// An operator has ended this client.
        Kicked = 29,
    }
}

impl ErrorCode {
    /// Whether the server closes the connection after an error of this code.
    pub fn closes_connection(self) -> bool {
        use ErrorCode::{
            Descriptors, FrameTooLarge, HelloExpected, Kicked, Malformed, PermissionDenied, ProtocolVersion,
            RingBroken,
        };
        matches!(
            self,
            ProtocolVersion
                | Malformed
                | FrameTooLarge
                | HelloExpected
                | Descriptors
                | PermissionDenied
                | RingBroken
                | Kicked
        )
    }

    /// Whether the server may answer the same request otherwise a while later, with nothing changed in it: it is full,
    /// stopping or has failed. A code that this version does not know counts, since it reads as [`ErrorCode::Internal`].
    pub fn is_passing(self) -> bool {
        use ErrorCode::{Draining, Exhausted, Internal, LimitExceeded};
        matches!(self, Internal | LimitExceeded | Exhausted | Draining)
    }

    /// Whether a commit that is answered with an error of this code was refused as a whole, so that its frames are still
    /// the client's. After any other some of its items may be objects: the client must not write their frames again.
    pub fn refuses_whole_commit(self) -> bool {
        use ErrorCode::{
            InvalidArgument, InvalidExtent, InvalidGroup, NotAttached, NotNegotiated, NotRegistered,
            SizeMismatch,
        };
        // What is found before the first item is stored.
        matches!(
            self,
            InvalidArgument
                | InvalidExtent
                | InvalidGroup
                | NotAttached
                | NotNegotiated
                | NotRegistered
                | SizeMismatch
        )
    }
}

/// An error as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireError {
    /// The stable code. A code that this version does not know reads as [`ErrorCode::Internal`].
    pub code: ErrorCode,
    /// One sentence with the numbers in it and what to do next.
    pub message: String,
    /// The numbers again, in the order of docs/operations.md.
    pub numbers: Vec<u64>,
}

impl WireError {
    /// An error with a message and its numbers.
    pub fn new(code: ErrorCode, message: impl fmt::Display, numbers: impl Into<Vec<u64>>) -> Self {
        Self {
            code,
            message: message.to_string(),
            numbers: numbers.into(),
        }
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.message, self.code)
    }
}

impl std::error::Error for WireError {}

/// What is wrong with a frame of the right length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not a flatbuffer of this protocol, or one beyond its limits of depth and tables.
    #[error("the frame is not a valid message: {0}")]
    Malformed(String),
    /// A request or reply of a kind that this version does not know.
    #[error(
        "message type {message_type} is unknown to protocol version {PROTOCOL_VERSION}; upgrade the older of \
         client and server"
    )]
    UnknownMessage {
        /// The number of the union's type.
        message_type: u8,
    },
    /// A field that every message of this kind has.
    #[error("{field} is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field of the wrong length.
    #[error("{field} has {found} bytes, at most {max} are allowed")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// A field of a fixed length that has another.
    #[error("{field} has {found} bytes instead of {expected}")]
    WrongLength {
        /// The field.
        field: &'static str,
        /// Its length.
        found: usize,
        /// The right length.
        expected: usize,
    },
    /// More elements than allowed.
    #[error("{field} has {found} elements, at most {max} are allowed; split the request")]
    TooMany {
        /// The field.
        field: &'static str,
        /// How many.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// A number that is none of an enum's.
    #[error("{field} is {value}, which this protocol version does not know")]
    UnknownValue {
        /// The field.
        field: &'static str,
        /// The number.
        value: u64,
    },
    /// An item that names extents which the message does not have.
    #[error("item {item} names extents {first}..{first}+{count}, but the message has {extents}")]
    ExtentRange {
        /// The item.
        item: usize,
        /// Its first extent.
        first: u32,
        /// How many it names.
        count: u32,
        /// How many there are.
        extents: usize,
    },
}

impl DecodeError {
    /// The error to answer with.
    pub fn to_wire(&self) -> WireError {
        let (code, numbers) = match self {
            Self::Malformed(_) | Self::Missing { .. } => (ErrorCode::Malformed, vec![]),
            Self::UnknownMessage { message_type } => {
                (ErrorCode::UnknownMessage, vec![u64::from(*message_type)])
            }
            Self::TooLong { found, max, .. } | Self::TooMany { found, max, .. } => {
                (ErrorCode::LimitExceeded, vec![*found as u64, *max as u64])
            }
            Self::WrongLength { found, expected, .. } => {
                (ErrorCode::InvalidArgument, vec![*found as u64, *expected as u64])
            }
            Self::UnknownValue { value, .. } => (ErrorCode::InvalidArgument, vec![*value]),
            Self::ExtentRange { first, count, .. } => (
                ErrorCode::InvalidExtent,
                vec![u64::from(*first), u64::from(*count)],
            ),
        };
        WireError::new(code, self, numbers)
    }
}

/// A frame that could not be decoded, and the id to answer it under (0 when not even that could be read).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct BadFrame {
    /// The id of the request or reply.
    pub id: u64,
    /// What is wrong.
    pub error: DecodeError,
}

// A frame at the limit is still counted in a u32 prefix.
const _: () = assert!(MAX_FRAME_BYTES <= u32::MAX as usize);
