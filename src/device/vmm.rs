//! Virtual memory of another process, by descriptors: the allocations behind a range, one after the other.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
    CUresult,
};

use super::allocated::{DeviceMemory, allocation};
use super::context::Context;
use super::driver::{check, name};
use super::error::DeviceError;
use super::memory::PlanMemory;

/// Most allocations of one range. An extensible cache of 1 TiB in pieces of 256 MiB has as many.
pub const MAX_CHUNKS: usize = 4096;

const POSIX: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// One allocation.
#[derive(Debug)]
pub struct VmmChunk {
    /// Bytes that are mapped of it, from its first on.
    pub bytes: u64,
    /// The driver's descriptor of it. It is given to the driver alone: it is neither mapped nor read.
    pub fd: OwnedFd,
}

/// A range of virtual memory as another process imports it. All of it may be a lie: it is checked when it is mapped.
#[derive(Debug)]
pub struct VmmMemory {
    /// The range's first byte, counted from the first chunk's first.
    pub lead: u64,
    /// Bytes of the range.
    pub bytes: u64,
    /// What it lies in. Each chunk follows the one before it.
    pub chunks: Vec<VmmChunk>,
}

impl VmmMemory {
    /// Describes memory for another process, with a descriptor for each allocation behind it.
    ///
    /// # Errors
    /// [`DeviceError::NotExportable`] for memory that is no virtual memory or was made without this way of export.
    pub fn export(memory: &DeviceMemory) -> Result<Self, DeviceError> {
        let _entered = memory.context().enter()?;
        let (address, bytes) = (memory.address(), memory.bytes());
        let (first, _) = allocation(address)?;
        let mut chunks = Vec::new();
        let mut at = first;
        while at < address + bytes {
            let refused = |reason: String| DeviceError::NotExportable {
                address: at,
                way: "descriptors",
                reason,
            };
            if chunks.len() == MAX_CHUNKS {
                return Err(refused(format!("it is in more than {MAX_CHUNKS} allocations")));
            }
            let handle = Handle::behind(at).map_err(|result| {
                refused(format!(
                    "{}; memory of cudaMalloc needs a legacy handle",
                    name(result)
                ))
            })?;
            let (base, length) = allocation(at)?;
            let fd = handle.export().map_err(|result| {
                refused(format!(
                    "{}; its allocator did not ask for descriptors",
                    name(result)
                ))
            })?;
            chunks.push(VmmChunk {
                bytes: length - (at - base),
                fd,
            });
            at = base + length;
        }
        Ok(Self {
            lead: address - first,
            bytes,
            chunks,
        })
    }

    /// Maps exactly what another process exported, for reads and writes of the device of `context`. The descriptors are
    /// closed. The mapping goes with the last clone of the memory.
    ///
    /// # Errors
    /// [`DeviceError::BadImport`] for sizes that cannot be true, [`DeviceError::OtherDevice`], or what the driver says of
    /// a descriptor that is no memory of a device.
    pub fn map(self, context: &Context) -> Result<DeviceMemory, DeviceError> {
        let _entered = context.enter()?;
        let unit = granularity(context)?;
        let total = self.checked(context, unit)?;
        let Self { lead, bytes, chunks } = self;
        let mut mapping = Mapping::reserve(context, total)?;
        for VmmChunk { bytes, fd } in chunks {
            let handle = Handle::import(&fd)?;
            drop(fd);
            if handle.ordinal()? != context.device().ordinal {
                let what = "an imported allocation".to_owned();
                return Err(DeviceError::OtherDevice {
                    what,
                    wanted: context.device().uuid,
                });
            }
            mapping.map(&handle, bytes)?;
        }
        mapping.allow()?;
        let address = mapping.base + lead;
        Ok(DeviceMemory::owned(context, address, bytes, Arc::new(mapping)))
    }

    /// The bytes of all chunks, if the numbers fit each other and the device.
    fn checked(&self, context: &Context, unit: u64) -> Result<u64, DeviceError> {
        let bad = |reason: String| Err(DeviceError::BadImport { reason });
        let (count, room) = (self.chunks.len(), context.device().memory_bytes);
        if count == 0 || count > MAX_CHUNKS {
            return bad(format!("{count} allocations; 1 to {MAX_CHUNKS} are possible"));
        }
        let mut total = 0u64;
        for chunk in &self.chunks {
            if chunk.bytes == 0 || !chunk.bytes.is_multiple_of(unit) {
                return bad(format!(
                    "an allocation of {} bytes is no multiple of {unit}",
                    chunk.bytes
                ));
            }
            total = total.saturating_add(chunk.bytes);
        }
        if total > room {
            return bad(format!("{total} bytes of allocations on a device of {room}"));
        }
        let (lead, bytes) = (self.lead, self.bytes);
        if bytes == 0 || lead.checked_add(bytes).is_none_or(|end| end > total) {
            return Err(DeviceError::OutsideAllocation {
                offset: lead,
                bytes,
                allocation: total,
            });
        }
        Ok(total)
    }
}

/// The handle of an allocation, held once.
struct Handle(CUmemGenericAllocationHandle);

impl Handle {
    /// The allocation that is mapped at an address.
    fn behind(address: u64) -> Result<Self, CUresult> {
        let mut handle = 0;
        let pointer: *mut c_void = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: as the module `device` says; the address is looked up and not touched.
        match unsafe { sys::cuMemRetainAllocationHandle(&mut handle, pointer) } {
            CUresult::CUDA_SUCCESS => Ok(Self(handle)),
            other => Err(other),
        }
    }

    fn import(fd: &OwnedFd) -> Result<Self, DeviceError> {
        let mut handle = 0;
        // The API takes the number itself where other systems have a pointer.
        let number: *mut c_void = ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        // SAFETY: the descriptor is open during the call; the driver says what is no memory.
        let result = unsafe { sys::cuMemImportFromShareableHandle(&mut handle, number, POSIX) };
        check("cuMemImportFromShareableHandle", result, || {
            "a descriptor of another process".into()
        })?;
        Ok(Self(handle))
    }

    fn export(&self) -> Result<OwnedFd, CUresult> {
        let mut fd: c_int = -1;
        // SAFETY: for this type of handle the driver writes an `int`.
        match unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast(), self.0, POSIX, 0) } {
            // SAFETY: the descriptor is new and the caller's.
            CUresult::CUDA_SUCCESS if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            CUresult::CUDA_SUCCESS => Err(CUresult::CUDA_ERROR_UNKNOWN),
            other => Err(other),
        }
    }

    /// The ordinal of the device that the allocation is on.
    fn ordinal(&self) -> Result<c_int, DeviceError> {
        let mut prop = properties(-1);
        // SAFETY: the handle is held.
        let result = unsafe { sys::cuMemGetAllocationPropertiesFromHandle(&mut prop, self.0) };
        check("cuMemGetAllocationPropertiesFromHandle", result, || {
            "an imported allocation".into()
        })?;
        // A number, for a newer driver may know places that the type does not.
        // SAFETY: the field is of this size, and was written with zeroes at least.
        let place = unsafe { (&raw const prop.location.type_).cast::<u32>().read() };
        if place != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32 {
            let id = prop.location.id;
            return Err(DeviceError::BadImport {
                reason: format!(
                    "an allocation lies at a place of type {place} (number {id}), which is no device"
                ),
            });
        }
        Ok(prop.location.id)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: held once, and given back once. What is mapped stays.
        let _ = unsafe { sys::cuMemRelease(self.0) };
    }
}

/// Addresses, and the allocations that are mapped there one after the other.
struct Mapping {
    context: Context,
    base: u64,
    reserved: u64,
    /// Bytes of each mapping.
    mapped: Vec<u64>,
}

impl Mapping {
    fn reserve(context: &Context, bytes: u64) -> Result<Self, DeviceError> {
        let mut base = 0;
        // SAFETY: as the module `device` says.
        let result = unsafe { sys::cuMemAddressReserve(&mut base, bytes as usize, 0, 0, 0) };
        check("cuMemAddressReserve", result, || {
            format!("{bytes} bytes of addresses")
        })?;
        Ok(Self {
            context: context.clone(),
            base,
            reserved: bytes,
            mapped: Vec::new(),
        })
    }

    fn end(&self) -> u64 {
        self.base + self.mapped.iter().sum::<u64>()
    }

    fn map(&mut self, handle: &Handle, bytes: u64) -> Result<(), DeviceError> {
        let index = self.mapped.len();
        // SAFETY: the range is the next one of the reservation: `checked` has added up all of them.
        let result = unsafe { sys::cuMemMap(self.end(), bytes as usize, 0, handle.0, 0) };
        check("cuMemMap", result, || {
            format!("allocation {index} of {bytes} bytes")
        })?;
        self.mapped.push(bytes);
        Ok(())
    }

    /// Lets the device read and write all of it.
    fn allow(&self) -> Result<(), DeviceError> {
        let desc = CUmemAccessDesc {
            location: location(self.context.device().ordinal),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: exactly what `map` has mapped.
        let result = unsafe { sys::cuMemSetAccess(self.base, (self.end() - self.base) as usize, &desc, 1) };
        check("cuMemSetAccess", result, || {
            format!("{} bytes", self.end() - self.base)
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else {
            return;
        };
        while let Some(bytes) = self.mapped.pop() {
            // SAFETY: the last mapping of `map`; copies keep their memory until they have ended.
            let _ = unsafe { sys::cuMemUnmap(self.end(), bytes as usize) };
        }
        // SAFETY: reserved with this size, and nothing is mapped there any more.
        let _ = unsafe { sys::cuMemAddressFree(self.base, self.reserved as usize) };
    }
}

fn location(ordinal: c_int) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: ordinal,
    }
}

fn properties(ordinal: c_int) -> CUmemAllocationProp {
    // SAFETY: all zeroes is valid for each field: numbers, a pointer, and enums that have a value for 0.
    let mut prop: CUmemAllocationProp = unsafe { MaybeUninit::zeroed().assume_init() };
    prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = POSIX;
    prop.location = location(ordinal);
    prop
}

/// What sizes and addresses on a device are multiples of.
fn granularity(context: &Context) -> Result<u64, DeviceError> {
    let prop = properties(context.device().ordinal);
    let mut unit = 0usize;
    let which = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: as the module `device` says.
    let result = unsafe { sys::cuMemGetAllocationGranularity(&mut unit, &prop, which) };
    check("cuMemGetAllocationGranularity", result, || {
        context.device().uuid.to_string()
    })?;
    Ok((unit as u64).max(1))
}
