//! What is known of one connection of the client.

use std::collections::{BTreeSet, HashMap};

use super::steps::{Sheet, Step};
use crate::index::slab::{PIN_WORDS, SLAB_BYTES, SLAB_PINS, SLAB_STATS};
use crate::shm::{Mapping, ReadOnly};
use crate::wire::{Hello, RegisterKvCache, Request};

/// Words of the client's statistics (docs/shm-layout.md, "Pin arena").
const LOCAL_LOOKUPS: usize = 9;
const LOCAL_HITS: usize = 11;

/// A connection, as the kit sees it.
#[derive(Default)]
pub(super) struct Connection {
    /// The server's life that it belongs to.
    pub(super) life: u32,
    pub(super) hello: Option<Hello>,
    pub(super) registered: Option<RegisterKvCache>,
    /// Requests whose replies the client has not got.
    pub(super) asked: HashMap<u64, Request>,
    /// Frames that the client may write.
    pub(super) granted: BTreeSet<u32>,
    /// Pins of messages, with their labels.
    pub(super) pins: HashMap<u64, u64>,
    /// The client's slab.
    pub(super) slab: Option<Mapping<ReadOnly>>,
    /// It has been told what ends a connection, and has not closed it.
    pub(super) must_close: bool,
    /// The reply that came in pieces, came late or had new fields: what the next request shows to be understood.
    pub(super) proves: Vec<Step>,
}

impl Connection {
    pub(super) fn new(life: u32) -> Self {
        Self {
            life,
            ..Self::default()
        }
    }

    fn word(&self, offset: usize) -> u64 {
        let word = self.slab.as_ref().filter(|slab| slab.len() >= SLAB_BYTES);
        let word = word.and_then(|slab| slab.load_only_u64(offset).ok());
        word.map_or(0, |word| word.load_relaxed())
    }

    /// Lookups that the client answered itself, and the units that they hit.
    pub(super) fn local_lookups(&self) -> (u64, u64) {
        (
            self.word(SLAB_STATS + 8 * LOCAL_LOOKUPS),
            self.word(SLAB_STATS + 8 * LOCAL_HITS),
        )
    }

    /// Says which pins are left.
    pub(super) fn look_at_pins(&self, sheet: &mut Sheet) {
        for pin in self.pins.keys() {
            sheet.find(
                Step::Release,
                "Release.pins",
                format_args!("pin {pin}, or an EndSession of its label, when the load is over"),
                "neither",
            );
        }
        let words = (0..PIN_WORDS)
            .filter(|word| self.word(SLAB_PINS + 8 * word) != 0)
            .count();
        if words > 0 {
            sheet.find(
                Step::Release,
                "the pin words of the slab",
                "0 in each when no load is under way",
                format_args!("{words} that pin an object"),
            );
        }
    }
}
