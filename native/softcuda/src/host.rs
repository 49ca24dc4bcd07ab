//! Registered host memory.
//!
//! Unsafe is opened here to ask the kernel whether memory is there.

#![allow(unsafe_code)]

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use crate::abi::{Code, Out, REGISTER_READ_ONLY};
use crate::config::Fault;
use crate::state::{Registered, live_current, state, tables};

/// Whether every page of a range is mapped.
fn is_mapped(start: u64, bytes: u64) -> bool {
    let page = 4096;
    let first = start / page * page;
    let pages = (start + bytes).div_ceil(page) - first / page;
    let mut residence = vec![0u8; pages as usize];
    // SAFETY: one byte of `residence` for each page; the call reads no memory of the range.
    unsafe {
        libc::mincore(
            ptr::with_exposed_provenance_mut(first as usize),
            (pages * page) as usize,
            residence.as_mut_ptr(),
        ) == 0
    }
}

calls! {
    /// Lets devices reach host memory.
    fn cuMemHostRegister_v2(start: *mut c_void, bytes: usize, flags: c_uint) {
        live_current()?;
        let (start, bytes, state) = (start.addr() as u64, bytes as u64, state());
        let end = start.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
        if bytes == 0 || !is_mapped(start, bytes) {
            return Err(Code::INVALID_VALUE);
        }
        let mut tables = tables();
        let before = tables.registered.range(..end).next_back();
        if before.is_some_and(|(&at, found)| at + found.bytes > start) {
            return Err(Code::ALREADY_REGISTERED);
        }
        let taken: u64 = tables.registered.values().map(|found| found.bytes).sum();
        if state.faults.strikes(Fault::RegisterFails) || taken.saturating_add(bytes) > state.config.register_limit {
            return Err(Code::OUT_OF_MEMORY);
        }
        let number = state.counts.registrations.fetch_add(1, Ordering::Relaxed);
        let read_only = flags & REGISTER_READ_ONLY != 0;
        tables.registered.insert(start, Registered { bytes, read_only, number });
        Ok(())
    }

    /// Takes that back. It needs the address that was registered.
    fn cuMemHostUnregister(start: *mut c_void) {
        live_current()?;
        let mut tables = tables();
        let ended = tables.registered.remove(&(start.addr() as u64)).ok_or(Code::NOT_REGISTERED)?;
        if tables.registered.values().any(|left| left.number > ended.number) {
            state().counts.out_of_order.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Where devices find registered memory: at the same address.
    fn cuMemHostGetDevicePointer_v2(address: Out<u64>, start: *mut c_void, flags: c_uint) {
        live_current()?;
        let start = start.addr() as u64;
        if flags != 0 || crate::access::registration(&tables(), start, 1)?.is_none() {
            return Err(Code::INVALID_VALUE);
        }
        address.put(start)
    }
}
