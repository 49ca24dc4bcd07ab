//! A device's primary context: the one that engines use too, so that no second one takes memory.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUcontext};

use super::devices::Device;
use super::driver::check;
use super::error::DeviceError;

/// A part in a device's primary context; the last clone gives it back.
#[derive(Debug, Clone)]
pub struct Context(Arc<Primary>);

#[derive(Debug)]
struct Primary {
    device: Device,
    raw: CUcontext,
}

// SAFETY: a context's handle may be used by every thread; what is per thread is which one is current.
unsafe impl Send for Primary {}
// SAFETY: as above.
unsafe impl Sync for Primary {}

impl Context {
    /// Takes part in the primary context of `device`; the driver makes it if the process has none. That costs some
    /// hundred MiB of device memory, so it is done for a GPU client and not before.
    ///
    /// # Errors
    /// What the driver says.
    pub fn retain(device: &Device) -> Result<Self, DeviceError> {
        let mut raw = ptr::null_mut();
        // SAFETY: as the module `device` says.
        let result = unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device.ordinal) };
        check("cuDevicePrimaryCtxRetain", result, || device.uuid.to_string())?;
        Ok(Self(Arc::new(Primary {
            device: device.clone(),
            raw,
        })))
    }

    /// The device that it is of.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Whether both are of the same context.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.raw == other.0.raw
    }

    pub(super) fn raw(&self) -> CUcontext {
        self.0.raw
    }

    /// Makes it this thread's current context, until the guard is dropped.
    pub(super) fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        // SAFETY: the context is retained as long as `self` lives.
        let result = unsafe { sys::cuCtxPushCurrent_v2(self.0.raw) };
        check("cuCtxPushCurrent_v2", result, || self.0.device.uuid.to_string())?;
        Ok(Entered(PhantomData))
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: this part was retained and is given back once. A driver that is lost has nothing to give back.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device.ordinal) };
    }
}

/// While it lives, the context is current in the thread that made it.
pub(super) struct Entered<'a>(PhantomData<(&'a Context, *mut ())>);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: as the module `device` says. It takes away what `enter` pushed in this thread: guards are not sent.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}
