//! What a client counts, for its own process and for the statistics words of its slab.

use super::populate::Populated;
use crate::index::counters::{REUSE_WORDS, ReuseCounters};
use crate::index::slab::{SLAB_STATS, STAT_WORDS};
use crate::sync::shared::{AtomicU64, Ordering};

/// A counter and its place among the statistics words, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stat {
    Loads = 0,
    LoadedBytes = 1,
    FailedLoads = 2,
    StaleLoads = 3,
    Stores = 4,
    StoredBytes = 5,
    DroppedStores = 6,
    DegradedSeconds = 7,
    CorruptLoads = 8,
    DirectLookups = 9,
    Requested = 10,
    Hit = 11,
    Shortened = 12,
    ReuseRequests = 13,
    ReuseAsked = 14,
    ReuseHeld = 15,
    ReuseHit = 16,
    ReusePreemptedAsked = 17,
    ReusePreemptedHit = 18,
    ReuseLoaded = 19,
    ReuseFailed = 20,
    NewBytes = 21,
    DirectBytes = 22,
    StagedBytes = 23,
    LateCopies = 24,
    FailedCopies = 25,
    PoolPins = 26,
    PoolPinFailures = 27,
    Lookups = 28,
    DegradedLookups = 29,
    Reconnects = 30,
    DegradedMs = 31,
    EvictedPins = 32,
}

const STATS: usize = 33;

/// The counters of a [`ReuseCounters`], in its order.
pub(crate) const REUSE: [Stat; REUSE_WORDS] = [
    Stat::ReuseRequests,
    Stat::ReuseAsked,
    Stat::ReuseHeld,
    Stat::ReuseHit,
    Stat::ReusePreemptedAsked,
    Stat::ReusePreemptedHit,
    Stat::ReuseLoaded,
    Stat::ReuseFailed,
];

impl Stat {
    /// Where the counter is in the slab.
    pub(crate) fn slab_offset(self) -> Option<usize> {
        let index = self as usize;
        (index < REPORTED.len()).then(|| SLAB_STATS + 8 * index)
    }
}

/// Counters that have a place in the slab, in its order (docs/shm-layout.md, "Pin arena").
const REPORTED: [Stat; STAT_WORDS] = [
    Stat::Loads,
    Stat::LoadedBytes,
    Stat::FailedLoads,
    Stat::StaleLoads,
    Stat::Stores,
    Stat::StoredBytes,
    Stat::DroppedStores,
    Stat::DegradedSeconds,
    Stat::CorruptLoads,
    Stat::DirectLookups,
    Stat::Requested,
    Stat::Hit,
    Stat::Shortened,
    Stat::ReuseRequests,
    Stat::ReuseAsked,
    Stat::ReuseHeld,
    Stat::ReuseHit,
    Stat::ReusePreemptedAsked,
    Stat::ReusePreemptedHit,
    Stat::ReuseLoaded,
    Stat::ReuseFailed,
    Stat::NewBytes,
    Stat::DirectBytes,
    Stat::StagedBytes,
    Stat::LateCopies,
    Stat::FailedCopies,
    Stat::PoolPins,
    Stat::PoolPinFailures,
];

/// The counters of a client, over all its connections.
#[derive(Debug)]
pub(crate) struct Counters {
    totals: [AtomicU64; STATS],
    /// What was counted while there was no server to show it to.
    unreported: [AtomicU64; REPORTED.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            totals: [const { AtomicU64::new(0) }; STATS],
            unreported: [const { AtomicU64::new(0) }; REPORTED.len()],
        }
    }
}

impl Counters {
    pub(crate) fn add(&self, stat: Stat, count: u64) {
        self.totals[stat as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// Keeps a count for the next server.
    pub(crate) fn hold_back(&self, stat: Stat, count: u64) {
        if let Some(held) = self.unreported.get(stat as usize) {
            held.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// What was held back; each count once.
    pub(crate) fn take_held_back(&self) -> [(Stat, u64); REPORTED.len()] {
        REPORTED.map(|stat| (stat, self.unreported[stat as usize].swap(0, Ordering::Relaxed)))
    }

    fn value(&self, stat: Stat) -> u64 {
        self.totals[stat as usize].load(Ordering::Relaxed)
    }

    /// A counter as it is now.
    pub(crate) fn total(&self, stat: Stat) -> u64 {
        self.value(stat)
    }

    pub(crate) fn snapshot(
        &self,
        degraded_now_ms: u64,
        granted_bytes: u64,
        populated: &Populated,
    ) -> ClientStats {
        ClientStats {
            lookups: self.value(Stat::Lookups),
            direct_lookups: self.value(Stat::DirectLookups),
            degraded_lookups: self.value(Stat::DegradedLookups),
            loads: self.value(Stat::Loads),
            loaded_bytes: self.value(Stat::LoadedBytes),
            failed_loads: self.value(Stat::FailedLoads),
            stale_loads: self.value(Stat::StaleLoads),
            corrupt_loads: self.value(Stat::CorruptLoads),
            stores: self.value(Stat::Stores),
            stored_bytes: self.value(Stat::StoredBytes),
            dropped_stores: self.value(Stat::DroppedStores),
            tokens: ReuseCounters::from_words(REUSE.map(|stat| self.value(stat))),
            reconnects: self.value(Stat::Reconnects),
            degraded_ms: self.value(Stat::DegradedMs) + degraded_now_ms,
            evicted_pins: self.value(Stat::EvictedPins),
            granted_bytes,
            populated_bytes: populated.bytes.load(Ordering::Relaxed),
            unpopulated_bytes: populated.left_bytes.load(Ordering::Relaxed),
            new_bytes: self.value(Stat::NewBytes),
        }
    }
}

/// What a client did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Lookups, answered or not.
    pub lookups: u64,
    /// Lookups that were answered without a message.
    pub direct_lookups: u64,
    /// Lookups that missed because the server was away.
    pub degraded_lookups: u64,
    /// Objects read whole.
    pub loads: u64,
    /// Their bytes.
    pub loaded_bytes: u64,
    /// Objects that could not be read, stale and corrupt ones included.
    pub failed_loads: u64,
    /// Objects whose space was reused while they were read.
    pub stale_loads: u64,
    /// Objects whose bytes were not those that were stored.
    pub corrupt_loads: u64,
    /// Parts committed, whatever became of them.
    pub stores: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Parts dropped: no server, no space or no room in the index.
    pub dropped_stores: u64,
    /// Tokens that requests reused, as [`crate::client::Client::count_reuse`] was told.
    pub tokens: ReuseCounters,
    /// Connections made after the first.
    pub reconnects: u64,
    /// Time without a usable server.
    pub degraded_ms: u64,
    /// Pins that made room for others when the slab's pin words ran out.
    pub evicted_pins: u64,
    /// Pool space held for stores now.
    pub granted_bytes: u64,
    /// Granted pool space whose pages were entered into this process's page tables before a store.
    pub populated_bytes: u64,
    /// Granted pool space for which that was not done: stores take a fault for each of its pages.
    pub unpopulated_bytes: u64,
    /// Bytes of KV that the engine said it had computed for the first time: see [`crate::client::Client::count_new_kv`].
    pub new_bytes: u64,
}
