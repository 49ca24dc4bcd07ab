//! Memory and events of other processes, by handles of 64 bytes.

use std::ffi::c_uint;
use std::sync::Arc;

use crate::abi::{Code, EVENT_DISABLE_TIMING, EVENT_INTERPROCESS, IpcHandle, Out};
use crate::arena::{Origin, Region, Rights};
use crate::backing::{Backing, Kind};
use crate::config::Fault;
use crate::event::Event;
use crate::state::{live_current, state, tables};

calls! {
    /// The handle of the allocation that an address lies in: it says nothing of where in it.
    fn cuIpcGetMemHandle(handle: Out<IpcHandle>, address: u64) {
        live_current()?;
        if state().faults.strikes(Fault::ExportNotOffered) {
            return Err(Code::NOT_SUPPORTED);
        }
        let tables = tables();
        match tables.arena.find(address) {
            Some(Region { origin: Origin::Allocated, backing, .. }) => {
                handle.put(IpcHandle(backing.name().map_err(|_| Code::UNKNOWN)?))
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Maps another process's allocation. Opened again, it is the same address, and has to be closed as often.
    fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: IpcHandle, flags: c_uint) {
        let current = live_current()?;
        if flags != 1 {
            return Err(Code::INVALID_VALUE);
        }
        if state().faults.strikes(Fault::ImportRefused) {
            return Err(Code::NOT_PERMITTED);
        }
        let (backing, pid) = Backing::by_name(&handle.0, Kind::Plain).ok_or(Code::INVALID_VALUE)?;
        if pid == std::process::id() {
            return Err(Code::INVALID_CONTEXT);
        }
        let mut tables = tables();
        let device = tables.context(current)?.device;
        if state().config.uuids[device] != backing.uuid {
            return Err(Code::INVALID_VALUE);
        }
        let name = |backing: &Backing| backing.name().ok().map(|name| name[16..24].to_vec());
        let found = tables.arena.regions().find(|region| {
            region.context == current
                && matches!(region.origin, Origin::Opened(_))
                && name(&region.backing) == name(&backing)
        });
        if let Some(base) = found.map(|region| region.base) {
            if let Some(Region { origin: Origin::Opened(times), .. }) = tables.arena.at(base) {
                *times += 1;
            }
            return address.put(base);
        }
        if !backing.hold() {
            return Err(Code::UNKNOWN);
        }
        let base = tables.arena.addresses(backing.bytes)?;
        tables.arena.insert(Region {
            base,
            bytes: backing.bytes,
            context: current,
            device,
            origin: Origin::Opened(1),
            rights: Rights { read: true, write: true },
            backing: Arc::new(backing),
        });
        address.put(base)
    }

    /// Takes one opening back.
    fn cuIpcCloseMemHandle(address: u64) {
        live_current()?;
        let mut tables = tables();
        let left = match tables.arena.at(address) {
            Some(Region { origin: Origin::Opened(times), .. }) => {
                *times -= 1;
                *times
            }
            Some(_) => return Err(Code::INVALID_VALUE),
            None => match tables.arena.retired_by(address) {
                Some(by) => fatal!("device memory at {address:#x} is closed after {by}"),
                None => return Err(Code::INVALID_VALUE),
            },
        };
        if left == 0 {
            tables.arena.retire(address, "cuIpcCloseMemHandle");
        }
        Ok(())
    }

    /// The handle of an event that was made for it.
    fn cuIpcGetEventHandle(handle: Out<IpcHandle>, event: u64) {
        live_current()?;
        if state().faults.strikes(Fault::ExportNotOffered) {
            return Err(Code::NOT_SUPPORTED);
        }
        let event = tables().event(event)?;
        if event.flags & EVENT_INTERPROCESS == 0 {
            return Err(Code::INVALID_HANDLE);
        }
        handle.put(IpcHandle(event.backing.name().map_err(|_| Code::UNKNOWN)?))
    }

    /// Another process's event.
    fn cuIpcOpenEventHandle(event: Out<u64>, handle: IpcHandle) {
        let current = live_current()?;
        if state().faults.strikes(Fault::ImportRefused) {
            return Err(Code::NOT_PERMITTED);
        }
        let (backing, pid) = Backing::by_name(&handle.0, Kind::Event).ok_or(Code::INVALID_VALUE)?;
        if pid == std::process::id() {
            return Err(Code::INVALID_CONTEXT);
        }
        let mut tables = tables();
        let number = tables.handle();
        let opened = Event::new(backing, current, EVENT_DISABLE_TIMING | EVENT_INTERPROCESS);
        tables.events.insert(number, Arc::new(opened));
        event.put(number)
    }
}
