//! What a client counts and shows in the statistics words of its slab.

/// Tokens of the requests that an engine took up. `hit + preempted_hit = loaded + failed` when nothing is being loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReuseCounters {
    /// Requests taken up, those not counted that were preempted before.
    pub requests: u64,
    /// Their tokens that the engine did not hold itself.
    pub asked: u64,
    /// Their tokens that it did.
    pub held: u64,
    /// Of those asked for, what the engine was promised and counted on.
    pub hit: u64,
    /// As `asked`, of requests that were preempted before.
    pub preempted_asked: u64,
    /// As `hit`, of requests that were preempted before.
    pub preempted_hit: u64,
    /// Of all hits, tokens whose load has ended well.
    pub loaded: u64,
    /// Tokens whose load failed, or was given up.
    pub failed: u64,
}

/// Number of counters, and of their words in a slab.
pub const REUSE_WORDS: usize = 8;

impl ReuseCounters {
    /// From their words, in the order of the fields.
    pub fn from_words(words: [u64; REUSE_WORDS]) -> Self {
        let [
            requests,
            asked,
            held,
            hit,
            preempted_asked,
            preempted_hit,
            loaded,
            failed,
        ] = words;
        Self {
            requests,
            asked,
            held,
            hit,
            preempted_asked,
            preempted_hit,
            loaded,
            failed,
        }
    }

    /// Their words, in the order of the fields.
    pub fn to_words(self) -> [u64; REUSE_WORDS] {
        [
            self.requests,
            self.asked,
            self.held,
            self.hit,
            self.preempted_asked,
            self.preempted_hit,
            self.loaded,
            self.failed,
        ]
    }
}

/// Copies between device memory and the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Bytes that went straight between pages and the pool.
    pub direct_bytes: u64,
    /// Bytes that went through a staging buffer, since the pool was not registered.
    pub staged_bytes: u64,
    /// Copies that had not ended when their call had to.
    pub late_copies: u64,
    /// Copies that failed or were not begun.
    pub failed_copies: u64,
    /// Registrations of the pool's mapping with a driver.
    pub pool_pins: u64,
    /// Those that failed.
    pub pool_pin_failures: u64,
}

/// Number of counters, and of their words in a slab.
pub const DEVICE_WORDS: usize = 6;

impl DeviceCounters {
    /// From their words, in the order of the fields.
    pub fn from_words(words: [u64; DEVICE_WORDS]) -> Self {
        let [
            direct_bytes,
            staged_bytes,
            late_copies,
            failed_copies,
            pool_pins,
            pool_pin_failures,
        ] = words;
        Self {
            direct_bytes,
            staged_bytes,
            late_copies,
            failed_copies,
            pool_pins,
            pool_pin_failures,
        }
    }

    /// Their words, in the order of the fields.
    pub fn to_words(self) -> [u64; DEVICE_WORDS] {
        [
            self.direct_bytes,
            self.staged_bytes,
            self.late_copies,
            self.failed_copies,
            self.pool_pins,
            self.pool_pin_failures,
        ]
    }
}

/// What a client says of itself in its slab. Any number may be a lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Loads.
    pub loads: u64,
    /// Bytes loaded.
    pub loaded_bytes: u64,
    /// Loads that failed.
    pub failed_loads: u64,
    /// Loads whose bytes had been replaced meanwhile.
    pub stale_loads: u64,
    /// Objects stored.
    pub stores: u64,
    /// Bytes stored.
    pub stored_bytes: u64,
    /// Stores given up for want of space.
    pub dropped_stores: u64,
    /// Seconds without a server.
    pub degraded_seconds: u64,
    /// Loads whose bytes were not those of the checksum.
    pub corrupt_loads: u64,
    /// Lookups that needed no message.
    pub lookups: u64,
    /// Alignment units that they asked for.
    pub requested: u64,
    /// Of them, those that were hit.
    pub hit: u64,
    /// Of the lookups, those that promised less than was there.
    pub shortened: u64,
    /// Tokens that its requests reused.
    pub tokens: ReuseCounters,
    /// Bytes of KV that were computed for the first time by requests that store, whether they were stored or not.
    pub new_bytes: u64,
    /// Copies of device memory.
    pub device: DeviceCounters,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_fields_are_the_same_numbers() {
        let words = [1, 2, 3, 4, 5, 6, 7, 8];
        let counters = ReuseCounters::from_words(words);
        assert_eq!(counters.to_words(), words);
        let named = (
            counters.requests,
            counters.asked,
            counters.held,
            counters.hit,
            counters.loaded,
            counters.failed,
        );
        assert_eq!(named, (1, 2, 3, 4, 7, 8));
        let words = [1, 2, 3, 4, 5, 6];
        let counters = DeviceCounters::from_words(words);
        assert_eq!(counters.to_words(), words);
        assert_eq!((counters.staged_bytes, counters.pool_pin_failures), (2, 6));
    }
}
