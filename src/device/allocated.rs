//! Device memory of this process, and what lies behind an engine's pointer.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUpointer_attribute, CUresult};

use super::context::Context;
use super::driver::check;
use super::error::DeviceError;
use super::memory::{Kept, PlanMemory};

/// A range of device memory. A clone is another handle to the same bytes.
#[derive(Clone)]
pub struct DeviceMemory {
    context: Context,
    address: u64,
    bytes: u64,
    writable: bool,
    /// What frees, closes or unmaps it; `None` when the maker of the handle answers for that.
    owner: Option<Kept>,
}

impl DeviceMemory {
    /// Fresh memory, freed with the last handle.
    ///
    /// # Errors
    /// What the driver says.
    pub fn allocate(context: &Context, bytes: u64) -> Result<Self, DeviceError> {
        let entered = context.enter()?;
        let mut address = 0;
        // SAFETY: as the module `device` says.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) };
        check("cuMemAlloc_v2", result, || {
            format!("{bytes} bytes on {}", context.device().uuid)
        })?;
        drop(entered);
        let owner = Allocation {
            context: context.clone(),
            address,
        };
        Ok(Self::owned(context, address, bytes, Arc::new(owner)))
    }

    /// An engine's memory: `bytes` at `address`, on the device of `context`. It may be one allocation or several that
    /// follow each other.
    ///
    /// # Errors
    /// [`DeviceError::NotDeviceMemory`], [`DeviceError::OtherDevice`] and [`DeviceError::OutsideAllocation`].
    ///
    /// # Safety
    /// The memory stays allocated and mapped while the handle or a clone of it lives, or a copy of it runs.
    pub unsafe fn of_engine(context: &Context, address: u64, bytes: u64) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let end = address
            .checked_add(bytes)
            .ok_or(DeviceError::NotDeviceMemory { address })?;
        let mut at = address;
        while at < end {
            let (base, length) = match allocation(at) {
                Ok(found) => found,
                Err(DeviceError::NotDeviceMemory { .. }) if at > address => {
                    let (offset, allocation) = (0, at - address);
                    return Err(DeviceError::OutsideAllocation {
                        offset,
                        bytes,
                        allocation,
                    });
                }
                Err(error) => return Err(error),
            };
            if ordinal(at)? != context.device().ordinal {
                let what = format!("memory at {at:#x}");
                return Err(DeviceError::OtherDevice {
                    what,
                    wanted: context.device().uuid,
                });
            }
            at = base + length;
        }
        Ok(Self {
            context: context.clone(),
            address,
            bytes,
            writable: true,
            owner: None,
        })
    }

    /// Memory that `owner` keeps.
    pub(super) fn owned(context: &Context, address: u64, bytes: u64, owner: Kept) -> Self {
        Self {
            context: context.clone(),
            address,
            bytes,
            writable: true,
            owner: Some(owner),
        }
    }

    /// Forbids it as a destination.
    pub fn read_only(mut self) -> Self {
        self.writable = false;
        self
    }

    /// Where it is.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl PlanMemory for DeviceMemory {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn context(&self) -> Option<&Context> {
        Some(&self.context)
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn keep(&self) -> Kept {
        Arc::new(self.clone())
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("device", &self.context.device().uuid)
            .field("address", &format_args!("{:#x}", self.address))
            .field("bytes", &self.bytes)
            .field("writable", &self.writable)
            .field("owned", &self.owner.is_some())
            .finish()
    }
}

/// Memory of `cuMemAlloc`.
struct Allocation {
    context: Context,
    address: u64,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else {
            return;
        };
        // SAFETY: allocated by `allocate`, and the last handle is gone; copies keep a handle until they have ended.
        let _ = unsafe { sys::cuMemFree_v2(self.address) };
    }
}

/// The base and the bytes of the allocation that holds `address`. A context is current.
pub(super) fn allocation(address: u64) -> Result<(u64, u64), DeviceError> {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: as the module `device` says; the driver looks the address up and does not touch it.
    let result = unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut bytes, address) };
    if matches!(
        result,
        CUresult::CUDA_ERROR_INVALID_VALUE | CUresult::CUDA_ERROR_NOT_FOUND
    ) {
        return Err(DeviceError::NotDeviceMemory { address });
    }
    check("cuMemGetAddressRange_v2", result, || {
        format!("address {address:#x}")
    })?;
    // A range that does not hold the address would have the caller walk for ever.
    if base > address || base.checked_add(bytes as u64).is_none_or(|end| end <= address) {
        return Err(DeviceError::NotDeviceMemory { address });
    }
    Ok((base, bytes as u64))
}

/// The ordinal of the device of an address. A context is current.
fn ordinal(address: u64) -> Result<i32, DeviceError> {
    let mut ordinal = -1i32;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: as the module `device` says; this attribute is an `int`.
    let result = unsafe { sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address) };
    check("cuPointerGetAttribute", result, || {
        format!("address {address:#x}")
    })?;
    Ok(ordinal)
}
