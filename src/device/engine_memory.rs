//! What an engine registers: segments of device memory, and the stream that its compute is on.

#![allow(unsafe_code)]

use super::allocated::DeviceMemory;
use super::context::Context;
use super::devices::find;
use super::driver::Driver;
use super::error::DeviceError;
use super::stream::Stream;
use super::uuid::DeviceUuid;

/// A range of an engine's device memory, as the engine names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSegment {
    /// What errors call it, such as a tensor's name.
    pub name: String,
    /// The device that it is on.
    pub device: DeviceUuid,
    /// The device pointer to its first byte. It may point into the midst of an allocation.
    pub address: u64,
    /// Bytes, which may lie in several allocations that follow each other.
    pub bytes: u64,
}

/// Segments of one device, checked, and what orders copies of them.
#[derive(Debug, Clone)]
pub struct EngineMemory {
    driver: &'static Driver,
    context: Context,
    segments: Vec<DeviceMemory>,
    stream: Option<Stream>,
}

impl EngineMemory {
    /// Checks that each segment is memory of its device, that all are of the same device, and that no two share a byte.
    /// `stream` is the stream of the engine's compute, 0 for the legacy default one: stores wait for what was submitted to
    /// it before them, and what is submitted to it after a load waits for that load. Without one the engine sees to both.
    ///
    /// The first call in a process loads the driver.
    ///
    /// # Errors
    /// [`DeviceError::NoDriver`], [`DeviceError::DriverTooOld`], and [`DeviceError::Segment`] with the segment that is
    /// refused and why. Nothing is kept then.
    ///
    /// # Safety
    /// - The memory stays allocated and mapped while the result or a clone of it lives, and while a copy of it runs.
    /// - `stream` is a stream's handle, and stays one as long.
    pub unsafe fn open(segments: &[EngineSegment], stream: Option<u64>) -> Result<Self, DeviceError> {
        let driver = Driver::load()?;
        let Some(first) = segments.first() else {
            return Err(DeviceError::NoSegments);
        };
        let device = find(driver, first.device).map_err(|error| refused(0, first, error))?;
        let context = Context::retain(&device).map_err(|error| refused(0, first, error))?;
        let mut opened = Vec::with_capacity(segments.len());
        for (index, segment) in segments.iter().enumerate() {
            // SAFETY: the caller's promise.
            let memory = unsafe { open_one(driver, &context, segment) };
            opened.push(memory.map_err(|error| refused(index, segment, error))?);
        }
        apart(segments)?;
        let stream = match stream {
            // SAFETY: the caller's promise.
            Some(raw) => Some(unsafe { Stream::of_engine(&context, raw) }?),
            None => None,
        };
        Ok(Self {
            driver,
            context,
            segments: opened,
            stream,
        })
    }

    /// The driver.
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The context of its device.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The segments, in the order in which they were named.
    pub fn segments(&self) -> &[DeviceMemory] {
        &self.segments
    }

    /// The stream of the engine's compute, if it was named.
    pub fn stream(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }
}

/// # Safety
/// As for [`EngineMemory::open`].
unsafe fn open_one(
    driver: &Driver,
    context: &Context,
    segment: &EngineSegment,
) -> Result<DeviceMemory, DeviceError> {
    let EngineSegment { address, bytes, .. } = *segment;
    if segment.device != context.device().uuid {
        // One that is not there at all is told as that.
        find(driver, segment.device)?;
        return Err(DeviceError::OtherDevice {
            what: format!("memory of {}", segment.device),
            wanted: context.device().uuid,
        });
    }
    if bytes == 0 {
        return Err(DeviceError::NoBytes);
    }
    // SAFETY: the caller's promise.
    unsafe { DeviceMemory::of_engine(context, address, bytes) }
}

/// Refuses segments that share bytes: two pages could be one then.
fn apart(segments: &[EngineSegment]) -> Result<(), DeviceError> {
    let mut order: Vec<usize> = (0..segments.len()).collect();
    order.sort_unstable_by_key(|&index| segments[index].address);
    for pair in order.windows(2) {
        let (one, next) = (&segments[pair[0]], &segments[pair[1]]);
        // Each has passed: its end is an address.
        let shared = (one.address + one.bytes).saturating_sub(next.address);
        if shared > 0 {
            let error = DeviceError::SharedBytes {
                bytes: shared.min(next.bytes),
                other: pair[0],
                name: one.name.clone(),
            };
            return Err(refused(pair[1], next, error));
        }
    }
    Ok(())
}

fn refused(index: usize, segment: &EngineSegment, error: DeviceError) -> DeviceError {
    DeviceError::Segment {
        segment: index,
        name: segment.name.clone(),
        device: segment.device,
        address: segment.address,
        bytes: segment.bytes,
        reason: Box::new(error),
    }
}
