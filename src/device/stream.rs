//! Streams, and events that say how far a stream has come.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstream, CUstream_flags};

use crate::copy::{Side, Span};

use super::context::Context;
use super::driver::check;
use super::error::DeviceError;
use super::memory::PlanMemory;

/// A stream to submit copies to.
#[derive(Debug, Clone)]
pub struct Stream(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    context: Context,
    raw: CUstream,
    own: bool,
}

// SAFETY: streams may be used by every thread; the driver orders the submissions.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Stream {
    /// A stream of its own, which the legacy default stream does not wait for.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(context: &Context) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: as the module `device` says.
        let result = unsafe { sys::cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING as u32) };
        check("cuStreamCreate", result, || context.device().uuid.to_string())?;
        Ok(Self(Arc::new(Inner {
            context: context.clone(),
            raw,
            own: true,
        })))
    }

    /// A stream that the engine has made.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`] if it is not of `context`, and what the driver says.
    ///
    /// # Safety
    /// `raw` is a stream's handle (0 is the legacy default stream), and stays one while this one or a clone of it lives.
    pub unsafe fn of_engine(context: &Context, raw: u64) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let raw: CUstream = ptr::with_exposed_provenance_mut(raw as usize);
        let mut found = ptr::null_mut();
        // SAFETY: the handle is a stream's by this function's contract.
        let result = unsafe { sys::cuStreamGetCtx(raw, &mut found) };
        check("cuStreamGetCtx", result, || format!("stream {raw:?}"))?;
        if found != context.raw() {
            let what = format!("stream {raw:?}");
            return Err(DeviceError::OtherDevice {
                what,
                wanted: context.device().uuid,
            });
        }
        Ok(Self(Arc::new(Inner {
            context: context.clone(),
            raw,
            own: false,
        })))
    }

    /// The context that it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Whether it is the legacy default stream, which takes no batches.
    pub(super) fn is_default(&self) -> bool {
        self.0.raw.addr() <= 1
    }

    pub(super) fn raw(&self) -> CUstream {
        self.0.raw
    }

    /// Lets what is submitted from now on wait for what `event` has recorded by now.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_for(&self, event: &Event) -> Result<(), DeviceError> {
        let _entered = self.0.context.enter()?;
        // SAFETY: both handles are of live objects, kept by `self` and `event`.
        let result = unsafe { sys::cuStreamWaitEvent(self.0.raw, event.raw, 0) };
        check("cuStreamWaitEvent", result, || {
            self.0.context.device().uuid.to_string()
        })
    }

    /// Lets what is submitted from now on wait until the word at `offset` of `memory` is at least `value`, counted as
    /// numbers that wrap around. The word is of 4 bytes, of device memory or of registered host memory: processes that
    /// cannot share events share it.
    ///
    /// # Errors
    /// [`DeviceError::Plan`] for a place outside of the memory, [`DeviceError::NotAligned`],
    /// [`DeviceError::NotDeviceMemory`] for host memory that is not registered, or what the driver says.
    ///
    /// # Safety
    /// The memory stays valid until the stream has come to this.
    pub unsafe fn wait_for_flag(
        &self,
        memory: &dyn PlanMemory,
        offset: u64,
        value: u32,
    ) -> Result<(), DeviceError> {
        let _entered = self.0.context.enter()?;
        let at = flag(memory, Side::Source, offset)?;
        // SAFETY: the word was checked to be in memory that the caller keeps.
        let result = unsafe { sys::cuStreamWaitValue32_v2(self.0.raw, at, value, AT_LEAST) };
        check("cuStreamWaitValue32_v2", result, || {
            format!("the word at {at:#x}")
        })
    }

    /// Writes the word at `offset` of `memory` when the stream has come to this, after all that was submitted before.
    ///
    /// # Errors
    /// As [`Self::wait_for_flag`].
    ///
    /// # Safety
    /// The memory stays valid until the stream has come to this.
    pub unsafe fn set_flag(
        &self,
        memory: &dyn PlanMemory,
        offset: u64,
        value: u32,
    ) -> Result<(), DeviceError> {
        let _entered = self.0.context.enter()?;
        let at = flag(memory, Side::Destination, offset)?;
        // SAFETY: the word was checked to be in writable memory that the caller keeps.
        let result = unsafe { sys::cuStreamWriteValue32_v2(self.0.raw, at, value, 0) };
        check("cuStreamWriteValue32_v2", result, || {
            format!("the word at {at:#x}")
        })
    }
}

/// `CU_STREAM_WAIT_VALUE_GEQ`.
const AT_LEAST: u32 = 0;

/// The address of a word that a stream may use, as the device has it. A context is current.
fn flag(memory: &dyn PlanMemory, side: Side, offset: u64) -> Result<u64, DeviceError> {
    memory.check(side, 0, Span::new(0, offset), 4)?;
    let at = memory.address() + offset;
    if !at.is_multiple_of(4) {
        return Err(DeviceError::NotAligned {
            what: "the address of a word",
            value: at,
            unit: 4,
        });
    }
    if !memory.is_direct() {
        return Err(DeviceError::NotDeviceMemory { address: at });
    }
    if memory.context().is_some() {
        return Ok(at);
    }
    let host = ptr::with_exposed_provenance_mut(at as usize);
    let mut device = 0;
    // SAFETY: as the module `device` says; the address is looked up and not touched.
    let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, host, 0) };
    check("cuMemHostGetDevicePointer_v2", result, || {
        format!("the word at {at:#x}")
    })?;
    Ok(device)
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.own
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: made by `new`, and the last handle is gone. What was submitted is still done.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// What another process opens an event by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventHandle(pub [u8; 64]);

/// A mark in a stream.
#[derive(Debug)]
pub struct Event {
    context: Context,
    raw: CUevent,
}

// SAFETY: events may be used by every thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event of this process.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(context: &Context) -> Result<Self, DeviceError> {
        Self::with(context, CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    /// An event that other processes can open.
    ///
    /// # Errors
    /// What the driver says.
    pub fn shareable(context: &Context) -> Result<Self, DeviceError> {
        let flags =
            CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | CUevent_flags::CU_EVENT_INTERPROCESS as u32;
        Self::with(context, flags)
    }

    fn with(context: &Context, flags: u32) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: as the module `device` says.
        let result = unsafe { sys::cuEventCreate(&mut raw, flags) };
        check("cuEventCreate", result, || context.device().uuid.to_string())?;
        Ok(Self {
            context: context.clone(),
            raw,
        })
    }

    /// The handle of a shareable event.
    ///
    /// # Errors
    /// What the driver says, for one that is not shareable too.
    pub fn export(&self) -> Result<EventHandle, DeviceError> {
        let _entered = self.context.enter()?;
        let mut handle = sys::CUipcEventHandle { reserved: [0; 64] };
        // SAFETY: the event is live.
        let result = unsafe { sys::cuIpcGetEventHandle(&mut handle, self.raw) };
        check("cuIpcGetEventHandle", result, || "an event".into())?;
        Ok(EventHandle(handle.reserved.map(|byte| byte as u8)))
    }

    /// Opens another process's event. Any bytes may come as a handle: the driver refuses what is none.
    ///
    /// # Errors
    /// What the driver says.
    pub fn open(context: &Context, handle: &EventHandle) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let reserved = handle.0.map(|byte| byte as std::ffi::c_char);
        let mut raw = ptr::null_mut();
        // SAFETY: as the module `device` says.
        let result = unsafe { sys::cuIpcOpenEventHandle(&mut raw, sys::CUipcEventHandle { reserved }) };
        check("cuIpcOpenEventHandle", result, || {
            "another process's event".into()
        })?;
        Ok(Self {
            context: context.clone(),
            raw,
        })
    }

    /// Marks where `stream` is now.
    ///
    /// # Errors
    /// What the driver says, also if the stream is of another context.
    pub fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        // SAFETY: both handles are of live objects.
        let result = unsafe { sys::cuEventRecord(self.raw, stream.raw()) };
        check("cuEventRecord", result, || self.context.device().uuid.to_string())
    }

    /// Whether the stream has come to the mark. It never waits.
    ///
    /// # Errors
    /// The error of the context: what was submitted before may not have been done.
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        let _entered = self.context.enter()?;
        // SAFETY: the event is live.
        let result = unsafe { sys::cuEventQuery(self.raw) };
        if result == CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        check("cuEventQuery", result, || self.context.device().uuid.to_string())?;
        Ok(true)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: made or opened by this type, and nothing else has the handle.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
