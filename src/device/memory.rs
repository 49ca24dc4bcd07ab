//! Memory that a copy plan may name, of the host or of a device.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::copy::{CopyError, HostMemory, Side, Span};

use super::context::Context;

/// Keeps memory valid while a device may still reach it.
pub type Kept = Arc<dyn Any + Send + Sync>;

/// A region that pieces of a plan lie in. Offsets count from its first byte.
///
/// `tests/device_memory.rs` has the suite that every implementation passes.
pub trait PlanMemory: fmt::Debug + Send + Sync {
    /// Bytes.
    fn bytes(&self) -> u64;

    /// Whether copies may write it.
    fn is_writable(&self) -> bool;

    /// The address of its first byte, as the driver knows it.
    fn address(&self) -> u64;

    /// Bytes from `offset` on that one copy may name: up to the end, or to where the driver sees another piece.
    fn run(&self, offset: u64) -> u64 {
        self.bytes().saturating_sub(offset)
    }

    /// The context of device memory; `None` for host memory.
    fn context(&self) -> Option<&Context>;

    /// Whether a device reads and writes it without a copy in between.
    fn is_direct(&self) -> bool;

    /// What keeps it valid after this reference has gone.
    fn keep(&self) -> Kept;

    /// Refuses a range that is not inside the region, or a write to a read-only one.
    ///
    /// # Errors
    /// [`CopyError::OutOfBounds`] and [`CopyError::ReadOnly`].
    fn check(&self, side: Side, piece: usize, span: Span, len: u64) -> Result<(), CopyError> {
        let Span { region, offset } = span;
        if offset.checked_add(len).is_none_or(|end| end > self.bytes()) {
            let region_len = self.bytes();
            return Err(CopyError::OutOfBounds {
                piece,
                side,
                region,
                offset,
                len,
                region_len,
            });
        }
        if side == Side::Destination && !self.is_writable() {
            return Err(CopyError::ReadOnly { piece, region });
        }
        Ok(())
    }
}

/// Host memory that is not registered: the driver copies through memory of its own, and the call may wait.
impl PlanMemory for HostMemory {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn is_writable(&self) -> bool {
        HostMemory::is_writable(self)
    }

    fn address(&self) -> u64 {
        HostMemory::address(self) as u64
    }

    fn context(&self) -> Option<&Context> {
        None
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn keep(&self) -> Kept {
        Arc::new(self.clone())
    }

    fn check(&self, side: Side, piece: usize, span: Span, len: u64) -> Result<(), CopyError> {
        HostMemory::check(self, side, piece, span, len)
    }
}
