//! Error codes, and the last error of each thread.

#![allow(non_camel_case_types)] // the names are those of the header

use std::cell::RefCell;
use std::ffi::CString;
use std::fmt::Display;

use kvasir::client::ClientError;

/// What a call came to.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum kvasir_code {
    /// It did what it says.
    Ok = 0,
    /// An argument is NULL, misaligned, out of its range, or contradicts another.
    InvalidArgument = 1,
    /// A struct's size is of no version of this interface, or a field is set that this library does not know.
    InvalidStruct = 2,
    /// A handle that this library has never given out, or one of another kind.
    InvalidHandle = 3,
    /// A handle that was closed.
    Closed = 4,
    /// A handle that was made before a fork. In the child it is of no use: make a new one.
    Forked = 5,
    /// Another thread is using the chain, or the call came from a signal handler that interrupted another one.
    Busy = 6,
    /// An answer does not fit the room that was given for it. The numbers are what is needed and what was given.
    BufferTooSmall = 7,
    /// No server, one that is stopping, or none that answered in time. The client repairs itself: go on without the cache.
    Unavailable = 8,
    /// The server's own answer: see kvasir_error.server_code.
    Refused = 9,
    /// A server that restarted with another chunk size.
    ChunkSizeChanged = 10,
    /// Client and server derive different keys.
    SeedMismatch = 11,
    /// A block id that the memory does not have.
    BlockOutOfRange = 12,
    /// A block list of the wrong length.
    BlockCount = 13,
    /// Null blocks where an object cannot have them.
    NullBlocks = 14,
    /// An object group that was not registered or has no memory.
    UnknownGroup = 15,
    /// Pages that do not lie in their memory, or do not add up to what was registered.
    InvalidLayout = 16,
    /// A store or load before kvasir_set_memory.
    NoMemory = 17,
    /// A store or load before kvasir_register.
    NoRegistration = 18,
    /// More items than one call may have.
    TooManyItems = 19,
    /// A pin that is not held.
    UnknownPin = 20,
    /// A lookup ticket that was never given out or has ended.
    UnknownTicket = 21,
    /// A defect in the library. The message says where.
    Internal = 22,
    /// Weights that are not there, cannot be read, or change while they are read.
    WeightsUnreadable = 23,
}

/// The server's codes that calls of this interface get. Any other keeps the number that the protocol gives it.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvasir_server_code {
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
}

/// Why a call fails.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: kvasir_code,
    pub(crate) server_code: i32,
    pub(crate) numbers: Vec<i64>,
    pub(crate) kind: String,
    pub(crate) message: String,
}

/// As a function body ends.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: kvasir_code, numbers: &[u64], message: impl Display) -> Self {
        let signed = |number: &u64| i64::try_from(*number).unwrap_or(i64::MAX);
        Self {
            code,
            server_code: -1,
            numbers: numbers.iter().map(signed).collect(),
            kind: format!("{code:?}"),
            message: message.to_string(),
        }
    }

    pub(crate) fn argument(message: impl Display) -> Self {
        Self::new(kvasir_code::InvalidArgument, &[], message)
    }

    pub(crate) fn argument_of(numbers: &[u64], message: impl Display) -> Self {
        Self::new(kvasir_code::InvalidArgument, numbers, message)
    }

    /// For an answer that does not fit.
    pub(crate) fn too_small(what: &str, needed: usize, given: usize) -> Self {
        Self::new(
            kvasir_code::BufferTooSmall,
            &[needed as u64, given as u64],
            format!("{what}: {needed} are needed, there is room for {given}; give more room and call again"),
        )
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        use kvasir_code as Code;
        let mut server_code = -1;
        let code = match &error {
            ClientError::Unavailable { .. } => Code::Unavailable,
            ClientError::Refused(refused) => {
                server_code = i32::from(refused.code.number());
                Code::Refused
            }
            ClientError::ChunkSizeChanged { .. } => Code::ChunkSizeChanged,
            ClientError::SeedMismatch => Code::SeedMismatch,
            ClientError::BlockOutOfRange { .. } => Code::BlockOutOfRange,
            ClientError::BlockCount { .. } => Code::BlockCount,
            ClientError::NullBlocks { .. } => Code::NullBlocks,
            ClientError::UnknownGroup { .. } => Code::UnknownGroup,
            ClientError::InvalidLayout { .. } | ClientError::Copy(_) => Code::InvalidLayout,
            ClientError::NoMemory => Code::NoMemory,
            ClientError::NoRegistration => Code::NoRegistration,
            ClientError::TooManyItems { .. } => Code::TooManyItems,
            ClientError::UnknownPin { .. } => Code::UnknownPin,
            ClientError::UnknownTicket { .. } => Code::UnknownTicket,
            ClientError::Key(_) | ClientError::InvalidArgument { .. } => Code::InvalidArgument,
            _ => Code::Internal,
        };
        Self {
            code,
            server_code,
            numbers: error.numbers(),
            kind: error.kind(),
            message: error.to_string(),
        }
    }
}

/// The last error as C reads it: texts end in a zero byte.
#[derive(Debug)]
pub(crate) struct Last {
    pub(crate) code: kvasir_code,
    pub(crate) server_code: i32,
    pub(crate) numbers: Vec<i64>,
    pub(crate) kind: CString,
    pub(crate) message: CString,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Remembers a failure for the thread and gives its code back.
pub(crate) fn remember(failure: Failure) -> kvasir_code {
    let text = |text: String| CString::new(text.replace('\0', "?")).unwrap_or_default();
    let last = Last {
        code: failure.code,
        server_code: failure.server_code,
        numbers: failure.numbers,
        kind: text(failure.kind),
        message: text(failure.message),
    };
    // A thread that is ending has no last error any more; the code is all that it gets.
    let _ = LAST.try_with(|slot| {
        if let Ok(mut slot) = slot.try_borrow_mut() {
            *slot = Some(last);
        }
    });
    failure.code
}

/// Reads the thread's last error.
pub(crate) fn with_last<T>(read: impl FnOnce(Option<&Last>) -> T) -> Option<T> {
    LAST.try_with(|slot| slot.try_borrow().ok().map(|last| read(last.as_ref())))
        .ok()
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir::client::{ErrorCode, WireError};

    #[test]
    fn server_codes_are_the_protocols() {
        let mut known = 0;
        for number in 0..=u16::MAX {
            let Some(code) = ErrorCode::from_number(number) else {
                continue;
            };
            known += 1;
            let error = ClientError::Refused(WireError::new(code, "no", [7]));
            let failure = Failure::from(error);
            assert_eq!(
                (failure.server_code, failure.numbers.as_slice()),
                (i32::from(number), &[7][..])
            );
        }
        // Each has a name in the header, under the same number.
        let header = include_str!("failure.rs");
        let (_, list) = header.split_once("pub enum kvasir_server_code {").unwrap();
        let list = list.split('}').next().unwrap();
        // What only operators are answered, and how a connection ends: no call of this interface returns these.
        let others = [ErrorCode::UnknownClient, ErrorCode::Kicked];
        for number in 0..known {
            let code = ErrorCode::from_number(number).unwrap();
            if others.contains(&code) {
                continue;
            }
            assert!(list.contains(&format!("{code:?} = {number},")), "{code:?}");
        }
        assert_eq!(list.matches(" = ").count(), usize::from(known) - others.len());
    }

    #[test]
    fn texts_with_zero_bytes_are_kept() {
        remember(Failure::argument("a\0b"));
        let text = with_last(|last| last.unwrap().message.clone()).unwrap();
        assert_eq!(text.to_str().unwrap(), "a?b");
    }
}
