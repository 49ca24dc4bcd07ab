//! Sums of what clients count in their slabs. Any number may be a lie, and one client's lie is not to become a panic
//! here: sums end at the largest number.

use crate::index::counters::{ClientCounters, DeviceCounters, ReuseCounters};

impl DeviceCounters {
    /// Adds another's.
    fn add(&mut self, other: &Self) {
        let (mut sum, more) = (self.to_words(), other.to_words());
        for (to, from) in sum.iter_mut().zip(more) {
            *to = to.saturating_add(from);
        }
        *self = Self::from_words(sum);
    }
}

impl ReuseCounters {
    /// Adds another's.
    pub(crate) fn add(&mut self, other: &Self) {
        let (mut sum, more) = (self.to_words(), other.to_words());
        for (to, from) in sum.iter_mut().zip(more) {
            *to = to.saturating_add(from);
        }
        *self = Self::from_words(sum);
    }
}

impl ClientCounters {
    /// Adds another client's.
    pub(crate) fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.loads, other.loads),
            (&mut self.loaded_bytes, other.loaded_bytes),
            (&mut self.failed_loads, other.failed_loads),
            (&mut self.stale_loads, other.stale_loads),
            (&mut self.stores, other.stores),
            (&mut self.stored_bytes, other.stored_bytes),
            (&mut self.dropped_stores, other.dropped_stores),
            (&mut self.degraded_seconds, other.degraded_seconds),
            (&mut self.corrupt_loads, other.corrupt_loads),
            (&mut self.lookups, other.lookups),
            (&mut self.requested, other.requested),
            (&mut self.hit, other.hit),
            (&mut self.shortened, other.shortened),
            (&mut self.new_bytes, other.new_bytes),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(more);
        }
        self.tokens.add(&other.tokens);
        self.device.add(&other.device);
    }
}
