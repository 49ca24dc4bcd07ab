//! Refusals of the lower modules as errors of the protocol.

use std::error::Error;
use std::io;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};

use crate::cache::CoreError;
use crate::control::{BindError, ControlError};
use crate::geometry::chunk::{ChunkError, MAX_CHUNK_TOKENS};
use crate::shm::ShmError;
use crate::wire::{ErrorCode, WireError};

/// Something that can be answered with.
pub(super) trait Answer {
    /// The error that the peer is told.
    fn to_wire(&self) -> WireError;
}

/// The answer where a call failed because this process or the machine has run out of something that comes back.
pub(super) fn exhausted(error: &(dyn Error + 'static)) -> Option<WireError> {
    let mut cause = Some(error);
    let number = loop {
        let error = cause?;
        if let Some(number) = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
        {
            break number;
        }
        cause = error.source();
    };
    let (name, cure) = match Errno::from_raw(number) {
        Errno::EMFILE => (
            "EMFILE",
            "raise the server's limit of open files (ulimit -n, LimitNOFILE=)",
        ),
        Errno::ETOOMANYREFS => (
            "ETOOMANYREFS",
            "raise the server's limit of open files (ulimit -n, LimitNOFILE=)",
        ),
        Errno::ENFILE => ("ENFILE", "raise fs.file-max of the machine"),
        Errno::ENOMEM | Errno::ENOBUFS => (
            "ENOMEM",
            "the machine or the server's control group is out of memory",
        ),
        Errno::ENOSPC => (
            "ENOSPC",
            "give the file system more room, such as /dev/shm for named rings",
        ),
        _ => return None,
    };
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    Some(WireError::new(
        ErrorCode::Exhausted,
        format_args!(
            "the server has run out of something for now: {error} ({name}; it may have {limit} open files); try again, \
             and if it lasts, {cure}"
        ),
        [number as u64, limit],
    ))
}

impl Answer for CoreError {
    fn to_wire(&self) -> WireError {
        if let Some(answer) = exhausted(self) {
            return answer;
        }
        let code = ErrorCode::from_number(self.code()).unwrap_or(ErrorCode::Internal);
        WireError::new(code, self, self.numbers())
    }
}

impl Answer for BindError {
    fn to_wire(&self) -> WireError {
        let (code, numbers) = match self {
            Self::NotNegotiated(_) => (ErrorCode::NotNegotiated, vec![]),
            Self::Arithmetic { source, .. } => (ErrorCode::InvalidAlignment, resolve_numbers(source)),
            Self::NoCacheableGroup { groups } => (ErrorCode::InvalidSpans, vec![*groups as u64]),
            Self::TooManyGroups { given, limit } => {
                (ErrorCode::LimitExceeded, vec![*given as u64, *limit as u64])
            }
            Self::TooManyDomains { known, limit } => {
                (ErrorCode::LimitExceeded, vec![*known as u64 + 1, *limit as u64])
            }
            Self::AgreedUnreadable { .. } => (ErrorCode::BindingListenerFailed, vec![0]),
            Self::AgreedAlignment {
                agreed, alignment, ..
            }
            | Self::AgreedConfig {
                agreed, alignment, ..
            } => (
                ErrorCode::IncompatibleChunkSize,
                vec![u64::from(*agreed), *alignment],
            ),
            Self::AlignmentMismatch { sent, computed, .. } => {
                (ErrorCode::InvalidAlignment, vec![*sent, *computed])
            }
            Self::FixedIncompatible {
                chunk_size,
                alignment,
                ..
            }
            | Self::Incompatible {
                chunk_size,
                alignment,
                ..
            } => (
                ErrorCode::IncompatibleChunkSize,
                vec![u64::from(*chunk_size), *alignment],
            ),
            Self::SpanIncompatible { chunk_size, spans } => {
                let pairs = spans
                    .0
                    .iter()
                    .flat_map(|span| [u64::from(span.group), span.tokens]);
                let numbers = std::iter::once(u64::from(*chunk_size)).chain(pairs).collect();
                (ErrorCode::InvalidSpans, numbers)
            }
            Self::ListenerFailed {
                chunk_size, index, ..
            } => (
                ErrorCode::BindingListenerFailed,
                vec![u64::from(*chunk_size), *index as u64],
            ),
            Self::ListenerTooLate { .. }
            | Self::RecoveredConflict { .. }
            | Self::RecoveredTooLate { .. }
            | Self::Word(_) => (ErrorCode::Internal, vec![]),
        };
        WireError::new(code, self, numbers)
    }
}

fn resolve_numbers(error: &ChunkError) -> Vec<u64> {
    match error {
        ChunkError::NoCacheableGroup { spans } => vec![*spans as u64],
        ChunkError::ZeroAlignment | ChunkError::ZeroMinimum => vec![0],
        ChunkError::SpanTooLarge { span } => vec![*span, MAX_CHUNK_TOKENS],
        ChunkError::AlignmentTooLarge { spans } => spans.iter().copied().chain([MAX_CHUNK_TOKENS]).collect(),
        ChunkError::ChunkTooLarge { alignment, minimum } => vec![*alignment, *minimum, MAX_CHUNK_TOKENS],
    }
}

impl Answer for ControlError {
    fn to_wire(&self) -> WireError {
        exhausted(self).unwrap_or_else(|| WireError::new(ErrorCode::Internal, self, []))
    }
}

impl Answer for ShmError {
    fn to_wire(&self) -> WireError {
        exhausted(self).unwrap_or_else(|| WireError::new(ErrorCode::Internal, self, []))
    }
}
