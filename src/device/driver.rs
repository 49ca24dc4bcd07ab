//! The driver: loaded at run time, once, and asked for what it has.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys::{self, CUresult};

use super::error::DeviceError;

/// The oldest version that is taken: virtual memory with descriptors and words in streams.
const NEEDED_VERSION: i32 = 12_000;

/// The version that has batched copies.
const BATCHED_VERSION: i32 = 12_080;

/// Calls that are made. A call that a driver lacks would end the process when it is made.
const NEEDED: [&str; 41] = [
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuGetErrorName",
    "cuIpcCloseMemHandle",
    "cuIpcGetEventHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenEventHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemExportToShareableHandle",
    "cuMemFree_v2",
    "cuMemGetAddressRange_v2",
    "cuMemGetAllocationGranularity",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemRelease",
    "cuMemRetainAllocationHandle",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyAsync",
    "cuPointerGetAttribute",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamGetCtx",
];

/// Further calls, of streams that wait for each other.
const NEEDED_TOO: [&str; 5] = [
    "cuInit",
    "cuMemHostGetDevicePointer_v2",
    "cuStreamWaitEvent",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
];

/// A driver that has been loaded and initialised. It has no context yet.
#[derive(Debug)]
pub struct Driver {
    version: i32,
    batched: bool,
}

impl Driver {
    /// Loads the driver, once for the process. A failure stays: what loads a driver later starts anew.
    ///
    /// # Errors
    /// [`DeviceError::NoDriver`], [`DeviceError::DriverTooOld`], [`DeviceError::Forked`], or what `cuInit` says, for example that there is no
    /// device.
    pub fn load() -> Result<&'static Self, DeviceError> {
        static DRIVER: OnceLock<Result<Driver, DeviceError>> = OnceLock::new();
        // A child neither has what its parent has loaded nor may wait for it: who was loading is not in it.
        static LOADER: AtomicU32 = AtomicU32::new(0);
        let this = std::process::id();
        match LOADER.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed) {
            Err(loader) if loader != this => match DRIVER.get() {
                Some(Err(error)) => Err(error.clone()),
                _ => Err(DeviceError::Forked { loader }),
            },
            _ => DRIVER.get_or_init(Self::open).as_ref().map_err(Clone::clone),
        }
    }

    fn open() -> Result<Self, DeviceError> {
        // SAFETY: loads the library of that name, which runs its initialisers, as every program on CUDA does.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoDriver);
        }
        if !has("cuDriverGetVersion") {
            return Err(DeviceError::NoDriver);
        }
        let mut version = 0;
        // SAFETY: as the module says; this one needs no initialisation.
        if unsafe { sys::cuDriverGetVersion(&mut version) } != CUresult::CUDA_SUCCESS {
            return Err(DeviceError::NoDriver);
        }
        let too_old = |missing| DeviceError::DriverTooOld {
            version,
            needed: NEEDED_VERSION,
            missing,
        };
        if version < NEEDED_VERSION {
            return Err(too_old("calls of that version"));
        }
        if let Some(missing) = NEEDED.into_iter().chain(NEEDED_TOO).find(|name| !has(name)) {
            return Err(too_old(missing));
        }
        // SAFETY: no pointer is passed.
        check("cuInit", unsafe { sys::cuInit(0) }, || "this process".into())?;
        Ok(Self {
            version,
            batched: version >= BATCHED_VERSION && has("cuMemcpyBatchAsync"),
        })
    }

    /// The API version that it speaks, such as 12080 for 12.8.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Whether it takes many copies with one call.
    pub fn has_batched_copies(&self) -> bool {
        self.batched
    }
}

/// Whether the loaded driver exports a call.
fn has(name: &str) -> bool {
    // SAFETY: the symbol is looked for and not used.
    unsafe {
        sys::culib()
            .get::<unsafe extern "C" fn()>(name.as_bytes())
            .is_ok()
    }
}

/// Turns a result of the driver into an error that names the call and what it was for.
pub(super) fn check(
    call: &'static str,
    result: CUresult,
    about: impl FnOnce() -> String,
) -> Result<(), DeviceError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(DeviceError::Driver {
        call,
        code: result as u32,
        name: name(result),
        about: about(),
    })
}

/// The driver's name of a result.
pub(super) fn name(result: CUresult) -> String {
    let mut text = ptr::null();
    // SAFETY: as the module says; the driver fills in a pointer to a string that it keeps, or says that it knows none.
    let named = unsafe { sys::cuGetErrorName(result, &mut text) };
    if named != CUresult::CUDA_SUCCESS || text.is_null() {
        return format!("{result:?}");
    }
    // SAFETY: the driver's string ends with a zero and is never freed.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
