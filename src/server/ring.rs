//! One client's ring as the server keeps it: its ends of the lanes, what was written, what may be read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::export::NamedFile;
use super::turns::spend;
use crate::cache::Turn;
use crate::object::{Extent, PartLocation, RetrieveAnswer};
use crate::shm::ring::{Consumer, Lane, Producer, RingLayout, RingMemory, RingWord};
use crate::wire::MAX_ITEMS;

/// Locations, and extents of them, that a client's pins keep for reads through its ring.
pub(super) const PLACES_MAX: usize = MAX_ITEMS;
pub(super) const EXTENTS_MAX: usize = 2 * MAX_ITEMS;
/// Locations and extents that are copied in one step, and how many at once.
const KEPT_PER_STEP: usize = 32;
const KEPT_AT_ONCE: usize = 1024;
/// Steps of forgetting a pin.
const FORGET_STEPS: u32 = 2;

/// What a ring takes of the memory that all rings may have. It comes back when this is dropped.
#[derive(Debug)]
pub(super) struct RingShare {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl RingShare {
    /// Takes so many bytes; how many others hold when that is more than the limit.
    pub(super) fn take(all: &Arc<AtomicU64>, bytes: u64, limit: u64) -> Result<Self, u64> {
        let held = all.fetch_add(bytes, Ordering::Relaxed);
        let share = Self {
            bytes,
            all: Arc::clone(all),
        };
        match held.saturating_add(bytes) <= limit {
            true => Ok(share),
            false => Err(held),
        }
    }
}

impl Drop for RingShare {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What has gone through a ring, for status.
#[derive(Debug)]
pub(super) struct RingCounters {
    pub(super) lane_bytes: u64,
    pub(super) named: bool,
    /// Bytes that the client has put into the pool.
    pub(super) stored_bytes: AtomicU64,
    /// Bytes that it was given.
    pub(super) loaded_bytes: AtomicU64,
    /// Messages that moved some.
    pub(super) moves: AtomicU64,
}

/// Parts that a pin of the client holds.
#[derive(Debug)]
pub(super) struct Pinned {
    label: u64,
    pub(super) locations: Vec<PartLocation>,
    pub(super) extents: Vec<Extent>,
}

/// One client's ring.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) layout: RingLayout,
    pub(super) memory: RingMemory,
    pub(super) store: Consumer<RingWord>,
    pub(super) load: Producer<RingWord>,
    /// Of each granted frame how many bytes have come through the ring. No others may be committed: what else is in a frame
    /// is somebody's old bytes.
    /// In their order, so that what a client names costs as much as is there of it.
    pub(super) filled: BTreeMap<u32, u32>,
    pub(super) pinned: HashMap<u64, Pinned>,
    /// The same pins by label.
    labels: BTreeSet<(u64, u64)>,
    places: usize,
    extents: usize,
    pub(super) counters: Arc<RingCounters>,
    /// The name of the region until the client has attached.
    name: Option<NamedFile>,
    /// The last field, so that it comes back after the memory.
    _share: RingShare,
}

impl Ring {
    pub(super) fn new(
        layout: RingLayout,
        memory: RingMemory,
        name: Option<NamedFile>,
        share: RingShare,
    ) -> Self {
        Self {
            store: layout.consumer(Lane::Store, &memory),
            load: layout.producer(Lane::Load, &memory),
            counters: Arc::new(RingCounters {
                lane_bytes: layout.lane_bytes(),
                named: name.is_some(),
                stored_bytes: AtomicU64::new(0),
                loaded_bytes: AtomicU64::new(0),
                moves: AtomicU64::new(0),
            }),
            layout,
            memory,
            filled: BTreeMap::new(),
            pinned: HashMap::new(),
            labels: BTreeSet::new(),
            places: 0,
            extents: 0,
            name,
            _share: share,
        }
    }

    /// The client has mapped the region, so nobody needs its name any more.
    pub(super) fn attached(&mut self) {
        self.name = None;
    }

    /// Remembers what a retrieve was answered with. False: that is more than a client may have at a time.
    pub(super) async fn keep(&mut self, label: u64, found: &RetrieveAnswer, turn: &mut Turn) -> bool {
        if found.pin == 0 {
            return true;
        }
        let (places, extents) = (found.locations.len(), found.extents.len());
        if self.places + places > PLACES_MAX || self.extents + extents > EXTENTS_MAX {
            return false;
        }
        let mut pinned = Pinned {
            label,
            locations: Vec::with_capacity(places),
            extents: Vec::with_capacity(extents),
        };
        for some in found.locations.chunks(KEPT_AT_ONCE) {
            pinned.locations.extend_from_slice(some);
            spend(turn, (some.len() / KEPT_PER_STEP) as u32).await;
        }
        for some in found.extents.chunks(KEPT_AT_ONCE) {
            pinned.extents.extend_from_slice(some);
            spend(turn, (some.len() / KEPT_PER_STEP) as u32).await;
        }
        self.places += places;
        self.extents += extents;
        self.pinned.insert(found.pin, pinned);
        self.labels.insert((label, found.pin));
        true
    }

    /// Forgets pins that are to be dropped, whether or not the server then knows them all.
    pub(super) async fn forget_pins(&mut self, pins: &[u64], turn: &mut Turn) {
        for pin in pins {
            self.forget_pin(*pin);
            spend(turn, FORGET_STEPS).await;
        }
    }

    /// The same for one.
    pub(super) fn forget_pin(&mut self, pin: u64) {
        if let Some(pinned) = self.pinned.remove(&pin) {
            self.labels.remove(&(pinned.label, pin));
            self.places -= pinned.locations.len();
            self.extents -= pinned.extents.len();
        }
    }

    /// The same for all pins of a label.
    pub(super) async fn forget_label(&mut self, label: u64, turn: &mut Turn) {
        while let Some(&(_, pin)) = self.labels.range((label, 0)..=(label, u64::MAX)).next() {
            self.forget_pin(pin);
            spend(turn, FORGET_STEPS).await;
        }
    }
}
