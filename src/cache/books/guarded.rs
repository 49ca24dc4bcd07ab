//! Records that are spared while space is made for one client.

use std::collections::HashSet;

use super::tree::Tree;

/// Records that are spared for one need. Of longer chains it is the ends: what they hang under has children, and goes
/// after them anyway.
pub(crate) const MAX_GUARDED: usize = 1024;
/// Records that are spared at once.
pub(crate) const CLIMBED: usize = 32;

/// Records that are spared, each with its companions.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    records: HashSet<u32>,
}

impl Guards {
    /// Adds some of these records as far as there is room, from this one on, and leaves what they hang under. When the
    /// last has had its turn the first is next.
    pub(crate) fn climb(&mut self, ends: &mut Vec<u32>, next: &mut usize, records: &Tree) {
        for _ in 0..CLIMBED {
            let Some(at) = ends.get_mut(*next) else {
                *next = 0;
                return;
            };
            let new = self.records.len() < MAX_GUARDED && self.records.insert(*at);
            match records.get(*at).parent.filter(|_| new) {
                Some(parent) => (*at, *next) = (parent, *next + 1),
                None => drop(ends.swap_remove(*next)),
            }
        }
    }

    /// These records and what they hang under, as far up as there is room, from all of them alike.
    #[cfg(test)]
    pub(crate) fn from_ends(ends: Vec<u32>, records: &Tree) -> Self {
        let mut guards = Self::default();
        let (mut ends, mut next) = (ends, 0);
        while !ends.is_empty() {
            guards.climb(&mut ends, &mut next, records);
        }
        guards
    }

    /// Whether a record is one of them, or the companion of one.
    pub(crate) fn spare(&self, record: u32, records: &Tree) -> bool {
        if self.records.is_empty() {
            return false;
        }
        let entry = records.get(record);
        let parent = entry.parent.filter(|_| entry.is_companion);
        self.records.contains(&record) || parent.is_some_and(|parent| self.records.contains(&parent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain of so many records, each under the one before.
    fn chain(records: &mut Tree, length: u32) -> Vec<u32> {
        let mut parent = None;
        let one = |_| {
            let record = records.open(0, 1, parent, false).unwrap();
            records.publish(record, 1, 0, 0);
            parent = Some(record);
            record
        };
        (0..length).map(one).collect()
    }

    #[test]
    fn ends_are_spared_with_what_they_hang_under_and_their_companions() {
        let mut records = Tree::new(64);
        let spared = chain(&mut records, 3);
        let other = chain(&mut records, 2);
        let state = |records: &mut Tree, parent| {
            let record = records.open(0, 2, Some(parent), true).unwrap();
            records.publish(record, 1, 0, 0);
            record
        };
        let companions = [spared[0], spared[2]].map(|parent| state(&mut records, parent));
        let others = state(&mut records, other[1]);
        let guards = Guards::from_ends(vec![spared[2]], &records);
        for record in spared.iter().chain(&companions) {
            assert!(guards.spare(*record, &records), "{record}");
        }
        for record in other.iter().chain([&others]) {
            assert!(!guards.spare(*record, &records), "{record}");
        }
        assert!(!Guards::default().spare(spared[2], &records));
    }

    #[test]
    fn of_long_chains_the_ends_are_spared_of_all_alike() {
        let mut records = Tree::new(4 * MAX_GUARDED as u32);
        let long = chain(&mut records, 2 * MAX_GUARDED as u32);
        let short = chain(&mut records, 10);
        let guards = Guards::from_ends(vec![long[long.len() - 1], short[9]], &records);
        assert_eq!(guards.records.len(), MAX_GUARDED);
        assert!(short.iter().all(|record| guards.spare(*record, &records)));
        assert!(guards.spare(long[long.len() - 1], &records));
        assert!(!guards.spare(long[0], &records));
    }
}
