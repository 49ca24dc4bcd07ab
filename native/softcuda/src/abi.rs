//! The numbers and structures of the driver API that the stand-in speaks, as its public documentation gives them.
//!
//! Unsafe is opened here for the pointers that callers give. What they have to be is their side of the API.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_ushort, c_void};

/// What a driver call returns when it did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

/// Names of the results that the stand-in gives.
macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal, $says:literal;)*) => {
        impl Code {
            $(#[doc = $says] pub const $name: Self = Self($number);)*
        }

        /// The name and the sentence of a result, with the C string's zero at the end.
        pub fn texts(code: u32) -> Option<(&'static str, &'static str)> {
            match code {
                $($number => Some((concat!($text, "\0"), concat!($says, "\0"))),)*
                _ => None,
            }
        }
    };
}

codes! {
    SUCCESS = 0, "CUDA_SUCCESS", "no error";
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error";
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE", "no device is visible";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
    ALREADY_MAPPED = 208, "CUDA_ERROR_ALREADY_MAPPED", "the range is mapped already";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY", "device not ready";
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered";
    CONTEXT_IS_DESTROYED = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed";
    ALREADY_REGISTERED = 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "the range is registered already";
    NOT_REGISTERED = 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the pointer is not of registered memory";
    NOT_PERMITTED = 800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported";
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN", "unknown error";
}

/// What the body of a call gives.
pub type Outcome = Result<(), Code>;

/// A pointer that the caller of the API gave for a result.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result; a null pointer is `INVALID_VALUE`.
    pub(crate) fn put(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null; that a pointer for results is valid and aligned for its type is the caller's side of the
        // driver API, and values of this type come from callers alone.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// For callers in Rust.
    pub fn to(place: &mut T) -> Self {
        Self(place)
    }

    /// Whether nothing is wanted.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

impl Out<u8> {
    /// Writes a run of bytes, as many as the caller said that there is room for.
    pub(crate) fn put_bytes(self, bytes: &[u8]) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null; the caller of the driver API gave room for `bytes.len()` bytes, as each call documents.
        unsafe { self.0.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}

/// A pointer to one or more values that the caller of the API gave to be read.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The value at `index`; a null pointer is `INVALID_VALUE`.
    pub(crate) fn get(self, index: usize) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null; that so many values lie there is the caller's side of the driver API. Alignment is not
        // relied on.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// For callers in Rust.
    pub fn from(values: &[T]) -> Self {
        Self(values.as_ptr())
    }
}

/// `CUuuid`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuid(pub [u8; 16]);

/// `CUipcMemHandle` and `CUipcEventHandle`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle(pub [u8; 64]);

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// 1 is a device.
    pub kind: c_uint,
    /// The device's ordinal.
    pub id: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const LOCATION_DEVICE: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA`.
pub const LOCATION_HOST_NUMA: c_uint = 3;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProp {
    /// 1 is pinned.
    pub kind: c_uint,
    /// Ways of export that are asked for, as bits.
    pub handle_types: c_uint,
    /// Where the memory is to lie.
    pub location: Location,
    /// Of another system.
    pub win32: *mut c_void,
    /// Compression and the like.
    pub compression: u8,
    /// Whether other devices may be asked to reach it.
    pub rdma: u8,
    /// Further use.
    pub usage: c_ushort,
    /// Zero.
    pub reserved: [u8; 4],
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const HANDLE_POSIX: c_uint = 1;

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDesc {
    /// Who is meant.
    pub location: Location,
    /// 0 nothing, 1 reads, 3 reads and writes.
    pub flags: c_uint,
}

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyAttributes {
    /// When the source may be read.
    pub order: c_uint,
    /// A hint.
    pub source: Location,
    /// A hint.
    pub destination: Location,
    /// A hint.
    pub flags: c_uint,
}

/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`: the source is read when the stream comes to the copy.
pub const ORDER_STREAM: c_uint = 1;
/// `CU_MEMCPY_SRC_ACCESS_ORDER_ANY`: at any time.
pub const ORDER_ANY: c_uint = 3;

/// `CU_STREAM_NON_BLOCKING`.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_INTERPROCESS`.
pub const EVENT_INTERPROCESS: c_uint = 4;
/// `CU_MEMHOSTREGISTER_READ_ONLY`.
pub const REGISTER_READ_ONLY: c_uint = 8;

const _: () = assert!(size_of::<AllocationProp>() == 32 && size_of::<AccessDesc>() == 12);
const _: () = assert!(size_of::<CopyAttributes>() == 24 && size_of::<IpcHandle>() == 64);

/// A pointer for a result whose type follows from another argument.
pub(crate) fn out<T>(data: *mut c_void) -> Out<T> {
    Out(data.cast())
}
