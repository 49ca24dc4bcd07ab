//! The bytes that work moves, and whether the addresses still name memory when it comes to them.
//!
//! Unsafe is opened here. The invariant: the stand-in's own addresses come from live regions, which own their backing
//! while they are used. The program's addresses are given to the kernel alone, which says when there is no memory.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::abi::Code;
use crate::backing::Backing;
use crate::state::{Tables, tables};

/// Memory behind an address, for a run of bytes.
enum Place {
    Device(Arc<Backing>, u64),
    Host(u64),
}

/// Finds what lies at `at`: the place, and how many bytes of `bytes` it has.
fn place(tables: &Tables, at: u64, bytes: u64, write: bool) -> Result<(Place, u64), Code> {
    if tables.arena.contains(at) {
        let Some(region) = tables.arena.find(at) else {
            if let Some(by) = tables.arena.retired_by(at) {
                fatal!("device memory at {at:#x} is used after {by}");
            }
            return Err(Code::INVALID_VALUE);
        };
        if !(if write {
            region.rights.write
        } else {
            region.rights.read
        }) {
            return Err(Code::ILLEGAL_ADDRESS);
        }
        let offset = at - region.base;
        return Ok((
            Place::Device(Arc::clone(&region.backing), offset),
            bytes.min(region.bytes - offset),
        ));
    }
    match registration(tables, at, bytes)? {
        Some(true) if write => Err(Code::ILLEGAL_ADDRESS),
        _ => Ok((Place::Host(at), bytes)),
    }
}

/// The registration that holds the whole range: `None` for pageable memory, else whether it is read-only.
///
/// # Errors
/// `INVALID_VALUE` if the range is neither in one registration nor outside of all.
pub(crate) fn registration(tables: &Tables, at: u64, bytes: u64) -> Result<Option<bool>, Code> {
    let end = at.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
    match tables.registered.range(..end.max(at + 1)).next_back() {
        Some((&start, found)) if start + found.bytes > at => {
            let whole = start <= at && end <= start + found.bytes;
            if whole {
                Ok(Some(found.read_only))
            } else {
                Err(Code::INVALID_VALUE)
            }
        }
        _ => Ok(None),
    }
}

/// One copy, as addresses.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
    /// Sides that were registered host memory when it was submitted: they have to be so still when it runs.
    pub(crate) pinned: Vec<u64>,
    /// The source's bytes, where they were read already.
    pub(crate) early: Option<Vec<u8>>,
}

impl Transfer {
    /// Checks both ranges as they are now.
    pub(crate) fn new(tables: &Tables, to: u64, from: u64, bytes: u64) -> Result<Self, Code> {
        let mut pinned = Vec::new();
        for (start, write) in [(from, false), (to, true)] {
            let mut at = start;
            let end = start.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
            while at < end {
                // Rights are looked at when it runs: a card faults then.
                match place(tables, at, end - at, write) {
                    Ok((_, length)) => at += length,
                    Err(Code::ILLEGAL_ADDRESS) => break,
                    Err(code) => return Err(code),
                }
            }
            if !tables.arena.contains(start) && registration(tables, start, bytes)?.is_some() {
                pinned.push(start);
            }
        }
        Ok(Self {
            to,
            from,
            bytes,
            pinned,
            early: None,
        })
    }

    /// Whether a side is host memory that is not registered.
    pub(crate) fn is_pageable(&self, tables: &Tables) -> bool {
        [self.to, self.from]
            .into_iter()
            .any(|at| !tables.arena.contains(at) && matches!(registration(tables, at, self.bytes), Ok(None)))
    }

    /// Reads the source now.
    pub(crate) fn read_early(&mut self) -> Result<(), Code> {
        let mut early = vec![0; self.bytes as usize];
        let address = early.as_mut_ptr() as u64;
        walk(address, self.from, self.bytes, false)?;
        self.early = Some(early);
        Ok(())
    }

    /// Moves the bytes.
    pub(crate) fn execute(&self) -> Result<(), Code> {
        if !self.pinned.is_empty() {
            let tables = tables();
            for &at in &self.pinned {
                if registration(&tables, at, self.bytes) == Ok(None) {
                    fatal!(
                        "host memory at {at:#x} was unregistered while a copy of {} bytes was under way",
                        self.bytes
                    );
                }
            }
        }
        let from = self
            .early
            .as_ref()
            .map_or(self.from, |early| early.as_ptr() as u64);
        walk(self.to, from, self.bytes, true)
    }
}

/// Copies run by run. `checked` says whether the destination is the program's or the stand-in's own buffer.
fn walk(to: u64, from: u64, bytes: u64, checked: bool) -> Result<(), Code> {
    let mut done = 0;
    while done < bytes {
        let (source, target, length) = {
            let tables = tables();
            let (source, length) = place(&tables, from + done, bytes - done, false)?;
            let (target, length) = if checked {
                place(&tables, to + done, length, true)?
            } else {
                (Place::Host(to + done), length)
            };
            (source, target, length)
        };
        run(&target, &source, length);
        done += length;
    }
    Ok(())
}

fn run(to: &Place, from: &Place, bytes: u64) {
    let length = bytes as usize;
    match (from, to) {
        (Place::Device(source, at), Place::Device(target, offset)) => {
            let (source, target) = (source.at(*at), target.at(*offset));
            // SAFETY: `place` found both ranges in live regions, whose backings are held here; they may overlap.
            unsafe { ptr::copy(source, target, length) };
        }
        (Place::Host(source), Place::Device(target, offset)) => {
            host(target.at(*offset) as u64, *source, length, false);
        }
        (Place::Device(source, at), Place::Host(target)) => {
            host(source.at(*at) as u64, *target, length, true)
        }
        (Place::Host(source), Place::Host(target)) => host(*target, *source, length, false),
    }
}

/// Moves bytes between `own` memory and the program's `other` through the kernel, which checks the addresses.
fn host(own: u64, other: u64, length: usize, write: bool) {
    let mut done = 0;
    while done < length {
        let vector = |at: u64| libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut((at as usize) + done),
            iov_len: length - done,
        };
        let (local, remote) = (vector(own), vector(other));
        // SAFETY: the calls only access this process's memory, and fail where an address names none.
        let moved = unsafe {
            let pid = libc::getpid();
            if write {
                libc::process_vm_writev(pid, &local, 1, &remote, 1, 0)
            } else {
                libc::process_vm_readv(pid, &local, 1, &remote, 1, 0)
            }
        };
        if moved <= 0 {
            fatal!(
                "host memory at {:#x} is gone when a copy comes to it: {}",
                other as usize + done,
                std::io::Error::last_os_error()
            );
        }
        done += moved as usize;
    }
}

/// Fills device memory.
pub(crate) fn fill(to: u64, value: u8, bytes: u64) -> Result<(), Code> {
    let block = vec![value; bytes.min(1 << 20) as usize];
    let mut done = 0;
    while done < bytes {
        let length = (bytes - done).min(block.len() as u64);
        let transfer = Transfer {
            to: to + done,
            from: block.as_ptr() as u64,
            bytes: length,
            pinned: Vec::new(),
            early: None,
        };
        transfer.execute()?;
        done += length;
    }
    Ok(())
}

/// A word that a stream writes when it comes to it.
pub(crate) struct Write {
    pub(crate) at: u64,
    pub(crate) value: u64,
    pub(crate) bytes: u64,
}

impl Write {
    pub(crate) fn execute(&self) -> Result<(), Code> {
        word(self.at, self.bytes, true, |small, large| match (small, large) {
            (Some(word), _) => word.store(self.value as u32, Ordering::Release),
            (_, Some(word)) => word.store(self.value, Ordering::Release),
            _ => {}
        })
    }
}

/// The word of 4 or 8 bytes at `at`.
pub(crate) fn load_word(at: u64, bytes: u64) -> Result<u64, Code> {
    let mut value = 0;
    word(at, bytes, false, |small, large| {
        value = match (small, large) {
            (Some(word), _) => u64::from(word.load(Ordering::Acquire)),
            (_, Some(word)) => word.load(Ordering::Acquire),
            _ => 0,
        };
    })?;
    Ok(value)
}

/// Uses a word of device memory or of registered host memory.
fn word(
    at: u64,
    bytes: u64,
    write: bool,
    used: impl FnOnce(Option<&AtomicU32>, Option<&AtomicU64>),
) -> Result<(), Code> {
    if !at.is_multiple_of(bytes) {
        return Err(Code::INVALID_VALUE);
    }
    // The tables stay locked: a registration or a region that holds the word cannot end meanwhile.
    let tables = tables();
    let (place, length) = place(&tables, at, bytes, write)?;
    if length < bytes {
        return Err(Code::INVALID_VALUE);
    }
    let address: *mut u8 = match &place {
        Place::Device(backing, offset) => backing.at(*offset),
        Place::Host(at) if registration(&tables, *at, bytes)?.is_some() => {
            ptr::with_exposed_provenance_mut(*at as usize)
        }
        Place::Host(at) => fatal!("a stream's word at {at:#x} is of host memory that is not registered"),
    };
    if bytes == 4 {
        // SAFETY: aligned, and inside of a live region or of memory that the program has registered, which is to stay
        // mapped until it is unregistered; accessed as an atomic by both sides.
        used(Some(unsafe { AtomicU32::from_ptr(address.cast()) }), None);
    } else {
        // SAFETY: as above.
        used(None, Some(unsafe { AtomicU64::from_ptr(address.cast()) }));
    }
    Ok(())
}
