//! One client's ring as the server keeps it: its ends of the lanes, what was written, what may be read.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::export::NamedFile;
use crate::cache::Turn;
use crate::object::{Extent, PartLocation, RetrieveAnswer};
use crate::shm::ring::{Consumer, Lane, Producer, RingLayout, RingMemory, RingWord};
use crate::wire::MAX_ITEMS;

/// Locations, and extents of them, that a client's pins keep for reads through its ring.
pub(super) const PLACES_MAX: usize = MAX_ITEMS;
pub(super) const EXTENTS_MAX: usize = 2 * MAX_ITEMS;
/// Locations and extents that are copied in one step.
const KEPT_PER_STEP: usize = 32;

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
    pub(super) filled: HashMap<u32, u32>,
    pub(super) pinned: HashMap<u64, Pinned>,
    places: usize,
    extents: usize,
    pub(super) counters: Arc<RingCounters>,
    /// The name of the region until the client has attached.
    name: Option<NamedFile>,
}

impl Ring {
    pub(super) fn new(layout: RingLayout, memory: RingMemory, name: Option<NamedFile>) -> Self {
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
            filled: HashMap::new(),
            pinned: HashMap::new(),
            places: 0,
            extents: 0,
            name,
        }
    }

    /// The client has mapped the region, so nobody needs its name any more.
    pub(super) fn attached(&mut self) {
        self.name = None;
    }

    /// Bytes of the region.
    pub(super) fn region_bytes(&self) -> u64 {
        self.layout.region_bytes()
    }

    /// Remembers what a retrieve was answered with. False: that is more than a client may have at a time.
    pub(super) fn keep(&mut self, label: u64, found: &RetrieveAnswer, turn: &mut Turn) -> bool {
        if found.pin == 0 {
            return true;
        }
        let (places, extents) = (found.locations.len(), found.extents.len());
        if self.places + places > PLACES_MAX || self.extents + extents > EXTENTS_MAX {
            return false;
        }
        turn.spend(((places + extents) / KEPT_PER_STEP) as u32);
        self.places += places;
        self.extents += extents;
        let pinned = Pinned {
            label,
            locations: found.locations.clone(),
            extents: found.extents.clone(),
        };
        self.pinned.insert(found.pin, pinned);
        true
    }

    /// Forgets pins that are to be dropped, whether or not the server then knows them all.
    pub(super) fn forget_pins(&mut self, pins: &[u64]) {
        for pin in pins {
            if let Some(pinned) = self.pinned.remove(pin) {
                self.places -= pinned.locations.len();
                self.extents -= pinned.extents.len();
            }
        }
    }

    /// The same for all pins of a label.
    pub(super) fn forget_label(&mut self, label: u64) {
        let with_label = self.pinned.iter().filter(|(_, pinned)| pinned.label == label);
        let pins: Vec<u64> = with_label.map(|(pin, _)| *pin).collect();
        self.forget_pins(&pins);
    }
}
