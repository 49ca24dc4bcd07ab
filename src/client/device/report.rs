//! What a client shows of its copies of device memory.

use super::pinning::PoolPinning;
use crate::device::{CopyCounts, DeviceError, DeviceUuid};

/// Where checksums are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumsAt {
    /// Nowhere: they are off.
    Off,
    /// By this process's processors, over the bytes in the pool: after they came, and before they go.
    Host,
}

/// What a client with device memory did so far, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStats {
    /// The device.
    pub device: DeviceUuid,
    /// How far the registration of the pool has come.
    pub pool: PoolPinning,
    /// Where checksums are computed.
    pub checksums: ChecksumsAt,
    /// What was submitted for the present memory.
    pub copies: CopyCounts,
    /// Bytes that went straight between pages and the pool.
    pub direct_bytes: u64,
    /// Bytes that went through a staging buffer.
    pub staged_bytes: u64,
    /// Of those, bytes of buffers that could not be registered either.
    pub pageable_bytes: u64,
    /// Copies that had not ended when their call had to.
    pub late_copies: u64,
    /// Copies that failed, or were not begun since an earlier one has not ended.
    pub failed_copies: u64,
    /// Late and failed copies that may still run now: their extents and pins are kept.
    pub running: usize,
    /// The driver's last failure.
    pub last_error: Option<DeviceError>,
}
