//! Device memory, and what lies behind a pointer.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use crate::abi::{Code, Out};
use crate::access;
use crate::arena::{Origin, Region, Rights};
use crate::backing::{Backing, Kind};
use crate::config::Fault;
use crate::state::{State, Tables, live_current, state, tables};

/// Bytes of a device that are taken by this process.
fn used(tables: &Tables, device: usize) -> u64 {
    let plain = tables
        .arena
        .regions()
        .filter(|region| region.device == device && region.origin == Origin::Allocated)
        .map(|region| region.bytes);
    let created = tables
        .created
        .values()
        .filter(|created| created.own && created.device == device);
    plain.chain(created.map(|created| created.backing.bytes)).sum()
}

/// Checks that a device has room.
pub(crate) fn room(state: &State, tables: &Tables, device: usize, bytes: u64) -> Result<(), Code> {
    if state.faults.strikes(Fault::OutOfMemory)
        || used(tables, device)
            .checked_add(bytes)
            .is_none_or(|all| all > state.config.memory)
    {
        return Err(Code::OUT_OF_MEMORY);
    }
    Ok(())
}

calls! {
    /// Memory of the current context's device.
    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let (current, state) = (live_current()?, state());
        let mut tables = tables();
        let device = tables.context(current)?.device;
        room(state, &tables, device, bytes as u64)?;
        let backing = Backing::new(Kind::Plain, bytes as u64, state.config.uuids[device])
            .map_err(|_| Code::OUT_OF_MEMORY)?;
        let base = tables.arena.addresses(bytes as u64)?;
        tables.arena.insert(Region {
            base,
            bytes: bytes as u64,
            context: current,
            device,
            origin: Origin::Allocated,
            rights: Rights { read: true, write: true },
            backing: Arc::new(backing),
        });
        address.put(base)
    }

    /// Gives memory back.
    fn cuMemFree_v2(address: u64) {
        live_current()?;
        let mut tables = tables();
        match tables.arena.at(address) {
            Some(Region { origin: Origin::Allocated, backing, .. }) => {
                if backing.is_held_elsewhere() {
                    fatal!("device memory at {address:#x} is freed while another process has it open");
                }
            }
            Some(_) => return Err(Code::INVALID_VALUE),
            None => match tables.arena.retired_by(address) {
                Some(by) => fatal!("device memory at {address:#x} is freed after {by}"),
                None => return Err(Code::INVALID_VALUE),
            },
        }
        tables.arena.retire(address, "cuMemFree");
        Ok(())
    }

    /// Free and total memory of the current context's device.
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let current = live_current()?;
        let tables = tables();
        let device = tables.context(current)?.device;
        let all = state().config.memory;
        free.put(all.saturating_sub(used(&tables, device)) as usize)?;
        total.put(all as usize)
    }

    /// The allocation that an address lies in.
    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) {
        live_current()?;
        let tables = tables();
        let region = tables.arena.find(address).ok_or(Code::INVALID_VALUE)?;
        if !base.is_null() {
            base.put(region.base)?;
        }
        if !bytes.is_null() {
            bytes.put(region.bytes as usize)?;
        }
        Ok(())
    }

    /// What lies behind a pointer: its context (1), kind of memory (2: 1 host, 2 device) or device (9).
    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, address: u64) {
        live_current()?;
        let tables = tables();
        let region = tables.arena.find(address);
        let is_host = region.is_none() && access::registration(&tables, address, 1)? == Some(true)
            || region.is_none() && access::registration(&tables, address, 1)? == Some(false);
        match (attribute, region) {
            (1, Some(region)) => crate::abi::out::<u64>(data).put(region.context),
            (2, Some(_)) => crate::abi::out::<c_uint>(data).put(2),
            (2, None) if is_host => crate::abi::out::<c_uint>(data).put(1),
            (9, Some(region)) => crate::abi::out::<i32>(data).put(region.device as i32),
            (1 | 2 | 9, _) => Err(Code::INVALID_VALUE),
            _ => Err(Code::NOT_SUPPORTED),
        }
    }
}
