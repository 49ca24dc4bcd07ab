//! Events: two words, in memory that other processes may have too.
//!
//! Unsafe is opened here for the words. The invariant: an event's backing holds at least 16 bytes, page aligned, which
//! all processes access as atomics alone.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::backing::Backing;

/// One event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) backing: Backing,
    /// The context that it is of.
    pub(crate) context: u64,
    pub(crate) flags: u32,
}

impl Event {
    /// Bytes of its words.
    pub(crate) const BYTES: u64 = 16;

    pub(crate) fn new(backing: Backing, context: u64, flags: u32) -> Self {
        if backing.bytes < Self::BYTES {
            fatal!("an event of {} bytes", backing.bytes);
        }
        Self {
            backing,
            context,
            flags,
        }
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        // SAFETY: by the module's invariant, which `new` checks, the word lies in the mapping, which lives as long as
        // `self`; nobody forms other references to it.
        unsafe { &*self.backing.at(8 * index).cast::<AtomicU64>() }
    }

    /// A new record of it: its number.
    pub(crate) fn record(&self) -> u64 {
        self.word(0).fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The number of the last record.
    pub(crate) fn recorded(&self) -> u64 {
        self.word(0).load(Ordering::Acquire)
    }

    /// A stream has come to record `number`.
    pub(crate) fn complete(&self, number: u64) {
        self.word(1).fetch_max(number, Ordering::AcqRel);
    }

    pub(crate) fn is_complete(&self, number: u64) -> bool {
        self.word(1).load(Ordering::Acquire) >= number
    }

    /// Waits until record `number` is complete.
    pub(crate) fn wait(&self, number: u64) {
        while !self.is_complete(number) {
            thread::sleep(Duration::from_micros(100));
        }
    }
}
