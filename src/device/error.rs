//! Why something with a device did not work.

use crate::copy::CopyError;

use super::uuid::{BadUuid, DeviceUuid};

/// What went wrong. Nothing is left mapped, registered or open by the call that gives it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no driver to load.
    #[error(
        "no CUDA driver: libcuda.so.1 cannot be loaded; install the NVIDIA driver, or pass it into the container"
    )]
    NoDriver,
    /// The driver was loaded before a fork, and serves only the process that loaded it.
    #[error(
        "process {loader} loaded the CUDA driver and was forked after that: in the child it is of no use; start processes \
         that need it by spawn or exec, or fork before the driver is loaded"
    )]
    Forked {
        /// Who loaded it.
        loader: u32,
    },
    /// The driver lacks what is needed.
    #[error(
        "the CUDA driver speaks version {version} and lacks {missing}; {needed} or newer is needed: update the driver"
    )]
    DriverTooOld {
        /// What it says of itself, 1000 times the major number and 10 times the minor one.
        version: i32,
        /// The oldest version that is taken.
        needed: i32,
        /// A call that it has not.
        missing: &'static str,
    },
    /// A name is no UUID.
    #[error(transparent)]
    BadUuid(#[from] BadUuid),
    /// No visible device has this UUID.
    #[error(
        "device {wanted} is not visible; visible: {}. CUDA_VISIBLE_DEVICES or the container hides the others",
        list(visible)
    )]
    UnknownDevice {
        /// What was asked for.
        wanted: DeviceUuid,
        /// What there is.
        visible: Vec<DeviceUuid>,
    },
    /// More than one visible device has this UUID.
    #[error("{count} visible devices have the UUID {uuid}: it names none of them")]
    AmbiguousDevice {
        /// The UUID.
        uuid: DeviceUuid,
        /// How many have it.
        count: usize,
    },
    /// A call of the driver failed.
    #[error("{call} failed with {name} ({code}) for {about}")]
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's number.
        code: u32,
        /// The driver's name of it.
        name: String,
        /// What it was called for.
        about: String,
    },
    /// A pointer is not device memory.
    #[error(
        "address {address:#x} is no memory that the device reaches: name a device pointer, or host memory that is registered"
    )]
    NotDeviceMemory {
        /// The address.
        address: u64,
    },
    /// Memory or a stream is of another device or context.
    #[error("{what} is of another device or context than {wanted}: use one device for a copy")]
    OtherDevice {
        /// What.
        what: String,
        /// The device that was asked for.
        wanted: DeviceUuid,
    },
    /// A range leaves its allocation.
    #[error("{bytes} bytes at offset {offset} leave the allocation, which has {allocation} bytes")]
    OutsideAllocation {
        /// First byte, counted from the allocation's first.
        offset: u64,
        /// Bytes of the range.
        bytes: u64,
        /// Bytes of the allocation.
        allocation: u64,
    },
    /// A segment of an engine's memory is refused.
    #[error("segment {segment} (`{name}`), {bytes} bytes at {address:#x} on {device}, is refused: {reason}")]
    Segment {
        /// Its place among those that were named, from 0.
        segment: usize,
        /// What the engine calls it.
        name: String,
        /// The device that the engine named.
        device: DeviceUuid,
        /// Its first byte.
        address: u64,
        /// Its bytes.
        bytes: u64,
        /// Why.
        reason: Box<DeviceError>,
    },
    /// No segment was named.
    #[error("no segment of device memory was named; name at least one")]
    NoSegments,
    /// A segment without bytes.
    #[error("it has no bytes")]
    NoBytes,
    /// Two segments have bytes in common.
    #[error("it shares {bytes} bytes with segment {other} (`{name}`); name every byte once")]
    SharedBytes {
        /// How many.
        bytes: u64,
        /// The other segment's place.
        other: usize,
        /// The other segment's name.
        name: String,
    },
    /// Memory of one kind where the other is needed.
    #[error("memory at {address:#x} cannot be exported as {way}: {reason}")]
    NotExportable {
        /// First byte.
        address: u64,
        /// The way of export.
        way: &'static str,
        /// Why.
        reason: String,
    },
    /// A description of another process's memory that cannot be true.
    #[error("the import is refused: {reason}")]
    BadImport {
        /// What is wrong with it, with its numbers.
        reason: String,
    },
    /// Host memory cannot be registered.
    #[error(
        "registering {bytes} bytes of host memory at offset {offset} (piece {piece} of {pieces}) failed with {name}; \
         {undone} earlier pieces are undone. The limit of locked memory (ulimit -l) is {limit}"
    )]
    Registration {
        /// The piece that failed, from 1.
        piece: usize,
        /// All pieces.
        pieces: usize,
        /// Where it begins.
        offset: u64,
        /// Its bytes.
        bytes: u64,
        /// The driver's name of the failure.
        name: String,
        /// How many pieces had been registered.
        undone: usize,
        /// `RLIMIT_MEMLOCK`, in words.
        limit: String,
    },
    /// A size or an address that does not fit the machine.
    #[error("{what} is {value}, which is no multiple of {unit}")]
    NotAligned {
        /// What.
        what: &'static str,
        /// The value.
        value: u64,
        /// What it has to be a multiple of.
        unit: u64,
    },
    /// A registration in the background was given up.
    #[error("the registration of host memory was given up after {pieces} pieces, which are undone")]
    GivenUp {
        /// Pieces that had been registered.
        pieces: usize,
    },
    /// A plan is refused; nothing is copied.
    #[error(transparent)]
    Plan(#[from] CopyError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {reason}")]
    NoThread {
        /// The system's words.
        reason: String,
    },
}

/// Results of the driver after which a context is of no use any more.
const FATAL: [u32; 12] = [46, 214, 220, 226, 700, 709, 714, 715, 716, 718, 719, 999];

impl DeviceError {
    /// Whether the device or its context is lost: every later call will fail too.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Driver { code, .. } => FATAL.contains(code),
            Self::Segment { reason, .. } => reason.is_lost(),
            _ => false,
        }
    }
}

fn list(uuids: &[DeviceUuid]) -> String {
    if uuids.is_empty() {
        return "none".to_owned();
    }
    uuids
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}
