//! How objects hang in long chains, so that what a pin keeps is told without walking to the start of the prompt.
//!
//! Full chunks of full attention form trees; a prompt is a path from a root. The records of a path are cut into
//! chains: an object continues the chain of the one that it hangs under, or begins one if another does that already.
//! On its chain an object stands at a spot, the frames from the root of the tree up to its own: all that it hangs
//! under on the same chain stand before it. Tails, windows and states are companions of these, and nothing but each other
//! hangs under them.

use super::chunked::Chunked;

/// A place in the trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    /// The first record of the chain.
    pub(crate) chain: u32,
    /// Frames from the root up to here.
    pub(crate) frames: u32,
}

/// No record.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    chain: u32,
    frames: u32,
    above: u32,
    /// Continues its chain.
    next: u32,
}

const UNUSED: Entry = Entry {
    chain: NONE,
    frames: 0,
    above: NONE,
    next: NONE,
};

/// The spots of all records that have one, by record.
#[derive(Debug)]
pub(crate) struct Trunks {
    /// Takes memory as records come into use.
    all: Chunked<Entry>,
}

#[cfg(test)]
impl Default for Trunks {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Trunks {
    /// Of so many records, none of which stands anywhere.
    pub(crate) fn new(records: u32) -> Self {
        Self {
            all: Chunked::new(UNUSED, records),
        }
    }

    /// A full chunk of so many frames has become an object, under another one or as a root.
    pub(crate) fn grow(&mut self, record: u32, parent: Option<u32>, frames: u32) {
        let parent = parent.filter(|parent| self.spot(*parent).is_some());
        let mut entry = Entry {
            chain: record,
            frames,
            above: parent.unwrap_or(NONE),
            next: NONE,
        };
        if let Some(parent) = parent {
            let above = self.all.get_mut(parent);
            entry.frames = above.frames.saturating_add(frames);
            if above.next == NONE {
                above.next = record;
                entry.chain = above.chain;
            }
        }
        *self.all.get_mut(record) = entry;
    }

    /// A record is not in use any more. Nothing hangs under it.
    pub(crate) fn cut(&mut self, record: u32) {
        if !self.all.has(record) {
            return;
        }
        let above = std::mem::replace(self.all.get_mut(record), UNUSED).above;
        if self.all.get(above).next == record {
            self.all.get_mut(above).next = NONE;
        }
    }

    /// Where a record stands; nothing of a companion, or of one that is in no use.
    pub(crate) fn spot(&self, record: u32) -> Option<Spot> {
        let entry = self.all.get(record);
        (entry.chain != NONE).then_some(Spot {
            chain: entry.chain,
            frames: entry.frames,
        })
    }

    /// Where a chain hangs: the spot of the record that its first one hangs under.
    pub(crate) fn above(&self, chain: u32) -> Option<Spot> {
        let first = self.all.get(chain);
        self.spot(first.above)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_chain_and_a_second_child_begins_another() {
        let mut trunks = Trunks::default();
        trunks.grow(5, None, 3);
        trunks.grow(2, Some(5), 4);
        trunks.grow(9, Some(5), 10);
        trunks.grow(1, Some(2), 1);
        let spot = |chain, frames| Some(Spot { chain, frames });
        assert_eq!(
            [5, 2, 1, 9, 4].map(|record| trunks.spot(record)),
            [spot(5, 3), spot(5, 7), spot(5, 8), spot(9, 13), None]
        );
        assert_eq!((trunks.above(9), trunks.above(5)), (spot(5, 3), None));
        // Where the one that continued has gone, the next child does.
        trunks.cut(1);
        trunks.grow(7, Some(2), 2);
        trunks.grow(1, Some(2), 2);
        assert_eq!((trunks.spot(7), trunks.spot(1)), (spot(5, 9), spot(1, 9)));
        // What hangs under something that has no spot is a root.
        trunks.grow(30, Some(20), 2);
        assert_eq!(trunks.spot(30), spot(30, 2));
    }
}
