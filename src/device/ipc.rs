//! Memory of `cudaMalloc` in another process, by legacy handles: one for an allocation, and the place in it.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::{self, CUipcMem_flags, CUresult};

use super::allocated::{DeviceMemory, allocation};
use super::context::Context;
use super::driver::{check, name};
use super::error::DeviceError;
use super::memory::PlanMemory;

/// What another process imports memory by. All of it may be a lie: it is checked when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpcMemory {
    /// The driver's handle of the allocation.
    pub handle: [u8; 64],
    /// The memory's first byte, counted from the allocation's first: a handle says nothing of it.
    pub offset: u64,
    /// Bytes of the memory.
    pub bytes: u64,
}

impl IpcMemory {
    /// Describes memory for another process. It has to lie in one allocation, and to be freed only after the other
    /// process has closed it.
    ///
    /// # Errors
    /// [`DeviceError::NotExportable`] for virtual memory and stream-ordered pools, [`DeviceError::OutsideAllocation`],
    /// or what the driver says.
    pub fn export(memory: &DeviceMemory) -> Result<Self, DeviceError> {
        let _entered = memory.context().enter()?;
        let (address, bytes) = (memory.address(), memory.bytes());
        let (base, length) = allocation(address)?;
        let offset = address - base;
        if offset.checked_add(bytes).is_none_or(|end| end > length) {
            return Err(DeviceError::OutsideAllocation {
                offset,
                bytes,
                allocation: length,
            });
        }
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: as the module `device` says; the base is a live allocation's, found just now.
        let result = unsafe { sys::cuIpcGetMemHandle(&mut handle, base) };
        if result != CUresult::CUDA_SUCCESS {
            let reason = format!("{}; virtual memory needs descriptors", name(result));
            return Err(DeviceError::NotExportable {
                address,
                way: "a legacy handle",
                reason,
            });
        }
        Ok(Self {
            handle: handle.reserved.map(|byte| byte as u8),
            offset,
            bytes,
        })
    }
}

/// The allocations of other processes that are open in one context: each of them once.
#[derive(Debug)]
pub struct IpcImports {
    context: Context,
    open: Mutex<HashMap<[u8; 64], Weak<Opened>>>,
}

/// An allocation that is open.
#[derive(Debug)]
struct Opened {
    context: Context,
    base: u64,
    bytes: u64,
}

impl IpcImports {
    /// None yet.
    pub fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            open: Mutex::default(),
        }
    }

    /// Opens what another process exported, or names it again if its allocation is open. It is closed when the last
    /// memory of the allocation goes.
    ///
    /// # Errors
    /// [`DeviceError::OutsideAllocation`] if the place is not in the allocation, or what the driver says, for a process
    /// that has died as well.
    pub fn open(&self, memory: &IpcMemory) -> Result<DeviceMemory, DeviceError> {
        let _entered = self.context.enter()?;
        let opened = self.opened(&memory.handle)?;
        let IpcMemory { offset, bytes, .. } = *memory;
        if bytes == 0 || offset.checked_add(bytes).is_none_or(|end| end > opened.bytes) {
            return Err(DeviceError::OutsideAllocation {
                offset,
                bytes,
                allocation: opened.bytes,
            });
        }
        let address = opened.base + offset;
        Ok(DeviceMemory::owned(&self.context, address, bytes, opened))
    }

    /// Allocations that are open.
    pub fn allocations(&self) -> usize {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, opened| opened.strong_count() > 0);
        open.len()
    }

    fn opened(&self, handle: &[u8; 64]) -> Result<Arc<Opened>, DeviceError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, opened| opened.strong_count() > 0);
        if let Some(opened) = open.get(handle).and_then(Weak::upgrade) {
            return Ok(opened);
        }
        let reserved = handle.map(|byte| byte as c_char);
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut base = 0;
        // SAFETY: as the module `device` says. Any bytes may come as a handle: the driver refuses what is none.
        let result =
            unsafe { sys::cuIpcOpenMemHandle_v2(&mut base, sys::CUipcMemHandle { reserved }, flags) };
        check("cuIpcOpenMemHandle_v2", result, || {
            format!("memory of another process on {}", self.context.device().uuid)
        })?;
        let mut opened = Opened {
            context: self.context.clone(),
            base,
            bytes: 0,
        };
        opened.bytes = allocation(base)?.1;
        let opened = Arc::new(opened);
        open.insert(*handle, Arc::downgrade(&opened));
        Ok(opened)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: opened once by `IpcImports::opened`; copies keep their memory until they have ended.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.base) };
        }
    }
}
