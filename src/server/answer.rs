//! Refusals of the lower modules as errors of the protocol.
//!
//! May import `control`, `wire`, `cache`.

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

impl Answer for CoreError {
    fn to_wire(&self) -> WireError {
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
        WireError::new(ErrorCode::Internal, self, [])
    }
}

impl Answer for ShmError {
    fn to_wire(&self) -> WireError {
        WireError::new(ErrorCode::Internal, self, [])
    }
}
