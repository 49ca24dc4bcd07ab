//! Device addresses: a part of the address space that the host cannot touch, and what lies where in it.
//!
//! Unsafe is opened here for reserving it. Addresses are never given out twice, so that a stale one is always known.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

use crate::abi::Code;
use crate::backing::Backing;
use crate::config::GRANULARITY;

/// Addresses of all devices together.
const BYTES: u64 = 1 << 40;

/// What may be done with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// How a range came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `cuMemAlloc`.
    Allocated,
    /// `cuIpcOpenMemHandle`, so many times.
    Opened(u32),
    /// `cuMemMap` of this handle.
    Mapped(u64),
}

/// A live range of device addresses.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) context: u64,
    pub(crate) device: usize,
    pub(crate) origin: Origin,
    pub(crate) rights: Rights,
    pub(crate) backing: Arc<Backing>,
}

/// All device addresses of the process.
#[derive(Debug)]
pub(crate) struct Arena {
    start: u64,
    next: u64,
    regions: BTreeMap<u64, Region>,
    /// Ranges that were given back: length, and by which call.
    retired: BTreeMap<u64, (u64, &'static str)>,
    /// Ranges of `cuMemAddressReserve`.
    reserved: BTreeMap<u64, u64>,
}

impl Arena {
    pub(crate) fn reserve() -> Self {
        // SAFETY: a fresh mapping without access at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                BYTES as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            fatal!("cannot reserve {BYTES} bytes of addresses");
        }
        let start = start as u64;
        Self {
            start,
            next: start.next_multiple_of(GRANULARITY),
            regions: BTreeMap::new(),
            retired: BTreeMap::new(),
            reserved: BTreeMap::new(),
        }
    }

    /// Whether `address` is a device's.
    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.start..self.start + BYTES).contains(&address)
    }

    /// Fresh addresses, with a gap behind them.
    pub(crate) fn addresses(&mut self, bytes: u64) -> Result<u64, Code> {
        let base = self.next;
        let next = bytes
            .checked_add(GRANULARITY)
            .and_then(|bytes| base.checked_add(bytes))
            .and_then(|end| end.checked_next_multiple_of(GRANULARITY))
            .filter(|&end| end < self.start + BYTES)
            .ok_or(Code::OUT_OF_MEMORY)?;
        self.next = next;
        Ok(base)
    }

    pub(crate) fn insert(&mut self, region: Region) {
        self.retired.remove(&region.base);
        self.regions.insert(region.base, region);
    }

    /// The live range that holds `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&Region> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        (address < region.base + region.bytes).then_some(region)
    }

    /// The live range that begins at `base`.
    pub(crate) fn at(&mut self, base: u64) -> Option<&mut Region> {
        self.regions.get_mut(&base)
    }

    /// Ends the live range that begins at `base`.
    pub(crate) fn retire(&mut self, base: u64, by: &'static str) -> Option<Region> {
        let region = self.regions.remove(&base)?;
        self.retired.insert(base, (region.bytes, by));
        Some(region)
    }

    /// Which call gave back the range that holds `address`, if one did.
    pub(crate) fn retired_by(&self, address: u64) -> Option<&'static str> {
        let (base, (bytes, by)) = self.retired.range(..=address).next_back()?;
        (address < base + bytes).then_some(by)
    }

    /// The live ranges within `base..base + bytes`, if they cover it.
    pub(crate) fn covering(&self, base: u64, bytes: u64) -> Option<Vec<u64>> {
        let mut found = Vec::new();
        let mut at = base;
        while at < base + bytes {
            let region = self.regions.get(&at)?;
            found.push(at);
            at += region.bytes;
        }
        (at == base + bytes).then_some(found)
    }

    /// The live ranges of a context.
    pub(crate) fn of_context(&self, context: u64) -> Vec<u64> {
        let mut found: Vec<u64> = self
            .regions
            .values()
            .filter(|r| r.context == context)
            .map(|r| r.base)
            .collect();
        found.dedup();
        found
    }

    /// Live ranges.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.values()
    }

    pub(crate) fn note_reserved(&mut self, base: u64, bytes: u64) {
        self.reserved.insert(base, bytes);
    }

    /// Whether a reservation holds the whole range.
    pub(crate) fn is_reserved(&self, base: u64, bytes: u64) -> bool {
        let Some(end) = base.checked_add(bytes) else {
            return false;
        };
        self.reserved
            .range(..=base)
            .next_back()
            .is_some_and(|(&start, &length)| end <= start + length)
    }

    /// Whether a live range touches `base..base + bytes`.
    pub(crate) fn is_mapped(&self, base: u64, bytes: u64) -> bool {
        self.regions
            .range(..base + bytes)
            .next_back()
            .is_some_and(|(&start, r)| start + r.bytes > base)
    }

    /// Ends a reservation of exactly this range.
    pub(crate) fn unreserve(&mut self, base: u64, bytes: u64) -> bool {
        if self.reserved.get(&base) != Some(&bytes) {
            return false;
        }
        self.reserved.remove(&base);
        self.retired.insert(base, (bytes, "cuMemAddressFree"));
        true
    }

    /// Reservations.
    pub(crate) fn reservations(&self) -> usize {
        self.reserved.len()
    }
}
