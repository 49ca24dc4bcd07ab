//! What the pins of one client keep from eviction, each object once.
//!
//! A pin keeps what it names and all that this hangs under, which may be a hundred thousand chunks. Of each chain (see
//! `trunks`) a client keeps a front, up to the furthest spot that a pin of it holds. So only spots are remembered: one
//! for each chain of a pin and one for each chain that those hang under, with how many hold it. Objects that stand
//! as companions are counted one by one.

use std::collections::BTreeMap;

use super::trunks::{Spot, Trunks};

/// Chains between an object and the root of its tree that are followed. In a tree that branches more often on one
/// path, what is above counts for each of the lowest of these chains anew: a client's share then seems larger than it
/// is, never smaller.
const CHAINS_MAX: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Chain {
    /// Frames before its first object that count elsewhere.
    base: u32,
    /// The spot that it holds of the chain above.
    above: Option<Spot>,
}

#[derive(Clone, Copy, Debug)]
struct Companion {
    pins: u32,
    /// As they were when it was first kept: what is added is what is taken off again.
    frames: u32,
}

/// What one client keeps.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Trees and not hash tables: a client may keep a million objects, and a table of these that grows keeps everybody
    /// waiting.
    chains: BTreeMap<u32, Chain>,
    /// How often each spot is held.
    held: BTreeMap<Spot, u32>,
    companions: BTreeMap<u32, Companion>,
    frames: u64,
}

impl Kept {
    /// Frames of it all.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Chains of which something is kept.
    #[cfg(test)]
    pub(crate) fn chains(&self) -> usize {
        self.chains.len()
    }

    /// Holds a spot once more, and with it all before and above it.
    pub(crate) fn hold(&mut self, spot: Spot, trunks: &Trunks) {
        let mut at = spot;
        for chains in 1.. {
            let end = self.end(at.chain);
            *self.held.entry(at).or_default() += 1;
            if let Some(end) = end {
                self.frames += u64::from(at.frames.saturating_sub(end));
                return;
            }
            let above = trunks.above(at.chain).filter(|_| chains < CHAINS_MAX);
            let base = above.map_or(0, |above| above.frames);
            self.frames += u64::from(at.frames.saturating_sub(base));
            self.chains.insert(at.chain, Chain { base, above });
            match above {
                Some(above) => at = above,
                None => return,
            }
        }
    }

    /// Holds a spot once less.
    pub(crate) fn let_go(&mut self, spot: Spot) {
        let mut at = spot;
        loop {
            match self.held.get_mut(&at) {
                Some(held) if *held > 1 => {
                    *held -= 1;
                    return;
                }
                Some(_) => {
                    self.held.remove(&at);
                }
                None => {
                    debug_assert!(false, "{at:?} is not held");
                    return;
                }
            }
            if let Some(end) = self.end(at.chain) {
                self.frames -= u64::from(at.frames.saturating_sub(end));
                return;
            }
            let Some(chain) = self.chains.remove(&at.chain) else {
                return;
            };
            self.frames -= u64::from(at.frames.saturating_sub(chain.base));
            match chain.above {
                Some(above) => at = above,
                None => return,
            }
        }
    }

    /// Holds a companion once more.
    pub(crate) fn hold_companion(&mut self, record: u32, frames: u32) {
        let entry = self.companions.entry(record).or_insert_with(|| {
            self.frames += u64::from(frames);
            Companion { pins: 0, frames }
        });
        entry.pins += 1;
    }

    /// Holds it once less.
    pub(crate) fn let_go_companion(&mut self, record: u32) {
        let Some(entry) = self.companions.get_mut(&record) else {
            debug_assert!(false, "record {record} is not held");
            return;
        };
        entry.pins -= 1;
        if entry.pins == 0 {
            self.frames -= u64::from(entry.frames);
            self.companions.remove(&record);
        }
    }

    /// Whether a record is among what is kept, as far as this knows.
    pub(crate) fn has(&self, record: u32, trunks: &Trunks) -> bool {
        match trunks.spot(record) {
            Some(spot) => self.end(spot.chain).is_some_and(|end| spot.frames <= end),
            None => self.companions.contains_key(&record),
        }
    }

    /// The furthest spot of a chain that is held.
    fn end(&self, chain: u32) -> Option<u32> {
        let spots = Spot { chain, frames: 0 }..=Spot {
            chain,
            frames: u32::MAX,
        };
        self.held.range(spots).next_back().map(|(spot, _)| spot.frames)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use proptest::prelude::*;

    /// A forest of records in which each hangs under one with a lower number.
    struct Forest {
        trunks: Trunks,
        parents: Vec<Option<u32>>,
        frames: Vec<u32>,
    }

    impl Forest {
        fn new(shape: &[(u8, u32)]) -> Self {
            let mut forest = Self {
                trunks: Trunks::default(),
                parents: Vec::new(),
                frames: Vec::new(),
            };
            for (at, (parent, frames)) in shape.iter().enumerate() {
                // Mostly the one before, so that there are paths.
                let parent = match parent {
                    0 => None,
                    1..=200 => (at as u32).checked_sub(1),
                    far => (at as u32).checked_sub(u32::from(far - 199)),
                };
                forest.trunks.grow(at as u32, parent, *frames);
                forest.parents.push(parent);
                forest.frames.push(*frames);
            }
            forest
        }

        /// The definition: each object that a held one is or hangs under, once.
        fn keeps(&self, held: &[u32]) -> (u64, HashSet<u32>) {
            let mut all = HashSet::new();
            for &record in held {
                let mut at = Some(record);
                while let Some(record) = at.filter(|record| all.insert(*record)) {
                    at = self.parents[record as usize];
                }
            }
            (
                all.iter()
                    .map(|record| u64::from(self.frames[*record as usize]))
                    .sum(),
                all,
            )
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            shape in prop::collection::vec((any::<u8>(), 1..9_u32), 1..80),
            ops in prop::collection::vec((any::<bool>(), any::<u32>()), 0..60),
        ) {
            let forest = Forest::new(&shape);
            let (mut kept, mut held) = (Kept::default(), Vec::new());
            for (more, pick) in ops {
                if more || held.is_empty() {
                    let record = pick % shape.len() as u32;
                    kept.hold(forest.trunks.spot(record).unwrap(), &forest.trunks);
                    held.push(record);
                } else {
                    let record = held.swap_remove(pick as usize % held.len());
                    kept.let_go(forest.trunks.spot(record).unwrap());
                }
                let (frames, all) = forest.keeps(&held);
                prop_assert_eq!(kept.frames(), frames);
                for record in 0..shape.len() as u32 {
                    prop_assert_eq!(kept.has(record, &forest.trunks), all.contains(&record));
                }
            }
            for record in held {
                kept.let_go(forest.trunks.spot(record).unwrap());
            }
            prop_assert_eq!(kept.frames(), 0);
            prop_assert!(kept.chains.is_empty() && kept.held.is_empty());
        }
    }

    #[test]
    fn a_deep_object_takes_as_much_memory_as_a_shallow_one() {
        let mut trunks = Trunks::default();
        for record in 0..100_000 {
            trunks.grow(record, record.checked_sub(1), 2);
        }
        let mut kept = Kept::default();
        for _ in 0..4000 {
            kept.hold(trunks.spot(99_999).unwrap(), &trunks);
        }
        assert_eq!(kept.frames(), 200_000);
        assert_eq!((kept.chains.len(), kept.held.len()), (1, 1));
    }

    #[test]
    fn a_path_of_very_many_branches_is_counted_from_above_and_comes_back_to_nothing() {
        let mut trunks = Trunks::default();
        // Each object of the path is the second child of the one before.
        for at in 0..300_u32 {
            let parent = (at > 0).then(|| (at - 1) * 2);
            if let Some(parent) = parent {
                trunks.grow(at * 2 - 1, Some(parent), 1);
            }
            trunks.grow(at * 2, parent, 1);
        }
        let mut kept = Kept::default();
        let deepest = trunks.spot(299 * 2).unwrap();
        kept.hold(deepest, &trunks);
        assert_eq!((kept.frames(), kept.chains.len()), (300, CHAINS_MAX));
        let other = trunks.spot(299 * 2 - 1).unwrap();
        kept.hold(other, &trunks);
        assert!(kept.frames() >= 301);
        kept.let_go(deepest);
        kept.let_go(other);
        assert_eq!((kept.frames(), kept.chains.len(), kept.held.len()), (0, 0, 0));
    }
}
