//! The values that the words of the control region can have.

/// What the server can do for a client now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Health {
    /// Not ready yet.
    Starting = 0,
    /// Takes requests.
    Serving = 1,
    /// Answers what is under way and takes nothing new.
    Draining = 2,
    /// Gone for good; nothing in this region changes any more.
    Stopped = 3,
}

impl Health {
    /// The name used in status output and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        }
    }

    /// The value of a word, or nothing for a value that no server writes.
    pub(super) fn decode(word: u64) -> Option<Self> {
        match word {
            0 => Some(Self::Starting),
            1 => Some(Self::Serving),
            2 => Some(Self::Draining),
            3 => Some(Self::Stopped),
            _ => None,
        }
    }
}

/// A public counter or gauge. The value of a variant is its position, and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Counter {
    /// Units of the model's alignment that lookups asked for, as far as the server answered them; hits and misses add up
    /// to it. What engines reused is counted by them, in tokens.
    RequestedUnits = 0,
    /// Units that lookups found.
    HitUnits = 1,
    /// Units that lookups did not find.
    MissUnits = 2,
    /// Objects published.
    StoredObjects = 3,
    /// Objects evicted.
    EvictedObjects = 4,
    /// Stores that were given up because there was no room.
    DroppedStores = 5,
    /// Bytes of the pool, in whole frames like all that follow.
    PoolBytesTotal = 6,
    /// Bytes that have memory behind them.
    Prefaulted = 7,
    /// Bytes held by objects.
    Used = 8,
    /// Bytes granted to writers.
    Granted = 9,
    /// Bytes of objects that readers hold.
    Pinned = 10,
    /// Bytes held back until their writer is known to be gone.
    Quarantined = 11,
    /// Bytes that are yet to be made present; 0 once no more will be. Until then space that cannot be granted may be later.
    PrefaultLeft = 12,
}

impl Counter {
    /// All of them, in the order of the region.
    pub const ALL: [Self; 13] = [
        Self::RequestedUnits,
        Self::HitUnits,
        Self::MissUnits,
        Self::StoredObjects,
        Self::EvictedObjects,
        Self::DroppedStores,
        Self::PoolBytesTotal,
        Self::Prefaulted,
        Self::Used,
        Self::Granted,
        Self::Pinned,
        Self::Quarantined,
        Self::PrefaultLeft,
    ];

    /// The name used in status output and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestedUnits => "requested_units",
            Self::HitUnits => "hit_units",
            Self::MissUnits => "miss_units",
            Self::StoredObjects => "stored_objects",
            Self::EvictedObjects => "evicted_objects",
            Self::DroppedStores => "dropped_stores",
            Self::PoolBytesTotal => "pool_bytes_total",
            Self::Prefaulted => "prefaulted",
            Self::Used => "used",
            Self::Granted => "granted",
            Self::Pinned => "pinned",
            Self::Quarantined => "quarantined",
            Self::PrefaultLeft => "prefault_left",
        }
    }
}
