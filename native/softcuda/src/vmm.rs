//! Virtual memory: allocations, addresses, and descriptors of allocations.
//!
//! Unsafe is opened here for descriptors that cross the API as numbers.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::fs::File;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;

use crate::abi::{
    AccessDesc, AllocationProp, Code, HANDLE_POSIX, In, LOCATION_DEVICE, LOCATION_HOST_NUMA, Location, Out,
    out,
};
use crate::arena::{Origin, Region, Rights};
use crate::backing::{Backing, Kind};
use crate::config::{Fault, GRANULARITY};
use crate::device::ordinal;
use crate::memory;
use crate::state::{Created, Tables, live_current, state, tables};

fn device(location: Location) -> Result<usize, Code> {
    if location.kind != LOCATION_DEVICE {
        return Err(Code::INVALID_VALUE);
    }
    ordinal(location.id)
}

fn is_granular(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULARITY)
}

fn created(tables: &mut Tables, handle: u64) -> Result<&mut Created, Code> {
    tables
        .created
        .get_mut(&handle)
        .filter(|created| created.references > 0)
        .ok_or(Code::INVALID_VALUE)
}

/// Forgets an allocation that nobody holds and nothing maps.
fn sweep(tables: &mut Tables, handle: u64) {
    let mapped = tables
        .arena
        .regions()
        .any(|region| region.origin == Origin::Mapped(handle));
    if !mapped
        && tables
            .created
            .get(&handle)
            .is_some_and(|created| created.references == 0)
    {
        tables.created.remove(&handle);
    }
}

calls! {
    /// The unit that sizes and addresses are multiples of.
    fn cuMemGetAllocationGranularity(bytes: Out<usize>, prop: In<AllocationProp>, _option: c_uint) {
        device(prop.get(0)?.location)?;
        bytes.put(GRANULARITY as usize)
    }

    /// An allocation without an address.
    fn cuMemCreate(handle: Out<u64>, bytes: usize, prop: In<AllocationProp>, flags: c_ulonglong) {
        let prop = prop.get(0)?;
        let (device, bytes, state) = (device(prop.location)?, bytes as u64, state());
        if flags != 0 || prop.kind != 1 || !is_granular(bytes) {
            return Err(Code::INVALID_VALUE);
        }
        if prop.handle_types & !HANDLE_POSIX != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let mut tables = tables();
        memory::room(state, &tables, device, bytes)?;
        let backing = Backing::new(Kind::Virtual, bytes, state.config.uuids[device]).map_err(|_| Code::OUT_OF_MEMORY)?;
        let number = tables.handle();
        tables.created.insert(number, Created {
            backing: Arc::new(backing),
            device,
            handle_types: prop.handle_types,
            references: 1,
            own: true,
        });
        handle.put(number)
    }

    /// Gives a handle back; the memory lives while it is mapped.
    fn cuMemRelease(handle: u64) {
        let mut tables = tables();
        created(&mut tables, handle)?.references -= 1;
        sweep(&mut tables, handle);
        Ok(())
    }

    /// Addresses without memory.
    fn cuMemAddressReserve(address: Out<u64>, bytes: usize, alignment: usize, _wish: u64, flags: c_ulonglong) {
        if flags != 0 || !is_granular(bytes as u64) || alignment as u64 > GRANULARITY {
            return Err(Code::INVALID_VALUE);
        }
        let mut tables = tables();
        let base = tables.arena.addresses(bytes as u64)?;
        tables.arena.note_reserved(base, bytes as u64);
        address.put(base)
    }

    /// Gives addresses back, exactly as they were reserved.
    fn cuMemAddressFree(address: u64, bytes: usize) {
        let mut tables = tables();
        if tables.arena.is_mapped(address, bytes as u64) {
            fatal!("addresses at {address:#x} are freed while memory is mapped there");
        }
        if tables.arena.unreserve(address, bytes as u64) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    /// Puts an allocation at reserved addresses. Nobody may touch it yet.
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) {
        let bytes = bytes as u64;
        let mut tables = tables();
        let (backing, device) = {
            let created = created(&mut tables, handle)?;
            (Arc::clone(&created.backing), created.device)
        };
        let fits = flags == 0 && offset == 0 && is_granular(bytes) && bytes <= backing.bytes;
        if !fits || !address.is_multiple_of(GRANULARITY) || !tables.arena.is_reserved(address, bytes) {
            return Err(Code::INVALID_VALUE);
        }
        if tables.arena.is_mapped(address, bytes) {
            return Err(Code::ALREADY_MAPPED);
        }
        tables.arena.insert(Region {
            base: address,
            bytes,
            context: 0,
            device,
            origin: Origin::Mapped(handle),
            rights: Rights { read: false, write: false },
            backing,
        });
        Ok(())
    }

    /// Takes whole mappings away.
    fn cuMemUnmap(address: u64, bytes: usize) {
        let mut tables = tables();
        let covered = tables.arena.covering(address, bytes as u64).ok_or(Code::INVALID_VALUE)?;
        for base in covered {
            if let Some(Region { origin: Origin::Mapped(handle), .. }) = tables.arena.retire(base, "cuMemUnmap") {
                sweep(&mut tables, handle);
            }
        }
        Ok(())
    }

    /// Says what devices may do with whole mappings.
    fn cuMemSetAccess(address: u64, bytes: usize, who: In<AccessDesc>, count: usize) {
        let mut tables = tables();
        let covered = tables.arena.covering(address, bytes as u64).ok_or(Code::INVALID_VALUE)?;
        for index in 0..count {
            let desc = who.get(index)?;
            let device = device(desc.location)?;
            let rights = match desc.flags {
                0 => Rights { read: false, write: false },
                1 => Rights { read: true, write: false },
                3 => Rights { read: true, write: true },
                _ => return Err(Code::INVALID_VALUE),
            };
            for &base in &covered {
                if let Some(region) = tables.arena.at(base).filter(|region| region.device == device) {
                    region.rights = rights;
                }
            }
        }
        Ok(())
    }

    /// A way for other processes to import an allocation: a descriptor, which the caller has to close.
    fn cuMemExportToShareableHandle(to: *mut c_void, handle: u64, kind: c_uint, flags: c_ulonglong) {
        if flags != 0 || kind != HANDLE_POSIX {
            return Err(Code::INVALID_VALUE);
        }
        if state().faults.strikes(Fault::ExportNotOffered) {
            return Err(Code::NOT_SUPPORTED);
        }
        let mut tables = tables();
        let created = created(&mut tables, handle)?;
        if created.handle_types & HANDLE_POSIX == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let copy = created.backing.duplicate().map_err(|_| Code::UNKNOWN)?;
        out::<c_int>(to).put(copy.into_raw_fd())
    }

    /// An allocation of another process. The descriptor, whose number is the pointer, stays the caller's.
    fn cuMemImportFromShareableHandle(handle: Out<u64>, from: *mut c_void, kind: c_uint) {
        if kind != HANDLE_POSIX {
            return Err(Code::NOT_SUPPORTED);
        }
        if state().faults.strikes(Fault::ImportRefused) {
            return Err(Code::NOT_PERMITTED);
        }
        let number = c_int::try_from(from.addr()).map_err(|_| Code::INVALID_VALUE)?;
        if number < 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: a number that is no descriptor only fails below. It is borrowed for one call.
        let file = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().map(File::from);
        let backing = file.ok().and_then(Backing::adopt).filter(|backing| backing.kind == Kind::Virtual);
        let backing = backing.ok_or(Code::INVALID_VALUE)?;
        let device = state().config.uuids.iter().position(|&uuid| uuid == backing.uuid).ok_or(Code::INVALID_DEVICE)?;
        let mut tables = tables();
        let number = tables.handle();
        tables.created.insert(number, Created {
            backing: Arc::new(backing),
            device,
            handle_types: HANDLE_POSIX,
            references: 1,
            own: false,
        });
        handle.put(number)
    }

    /// The allocation behind an address; one more holder of its handle.
    fn cuMemRetainAllocationHandle(handle: Out<u64>, address: *mut c_void) {
        let mut tables = tables();
        match tables.arena.find(address.addr() as u64).map(|region| region.origin) {
            Some(Origin::Mapped(number)) => {
                if let Some(created) = tables.created.get_mut(&number) {
                    created.references += 1;
                }
                handle.put(number)
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// What an allocation was made with.
    fn cuMemGetAllocationPropertiesFromHandle(prop: Out<AllocationProp>, handle: u64) {
        let kind = if state().faults.strikes(Fault::HostPlace) { LOCATION_HOST_NUMA } else { LOCATION_DEVICE };
        let mut tables = tables();
        let created = created(&mut tables, handle)?;
        prop.put(AllocationProp {
            kind: 1,
            handle_types: created.handle_types,
            location: Location { kind, id: created.device as c_int },
            win32: std::ptr::null_mut(),
            compression: 0,
            rdma: 0,
            usage: 0,
            reserved: [0; 4],
        })
    }

    /// What a device may do with the memory at an address.
    fn cuMemGetAccess(flags: Out<c_ulonglong>, location: In<Location>, address: u64) {
        live_current()?;
        let device = device(location.get(0)?)?;
        let tables = tables();
        let region = tables.arena.find(address).filter(|region| region.device == device).ok_or(Code::INVALID_VALUE)?;
        flags.put(u64::from(region.rights.read) | u64::from(region.rights.write) << 1)
    }
}
