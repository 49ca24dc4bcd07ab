//! Which object goes first: a small trait, and least recently used as the baseline.
//!
//! Imports nothing of this crate.

use std::collections::BTreeSet;
use std::fmt::Debug;

/// Orders records for eviction. The caller says which records may go at all (unpinned leaves); the policy
/// says in which order.
pub trait EvictionPolicy: Debug + Send {
    /// A record has become an object.
    fn stored(&mut self, record: u32);
    /// A reader has used it.
    fn touched(&mut self, record: u32);
    /// Other objects have made it needless: it goes before all that are not.
    fn superseded(&mut self, record: u32);
    /// Whether it may go now.
    fn evictable(&mut self, record: u32, yes: bool);
    /// It is no object any more.
    fn removed(&mut self, record: u32);
    /// The next one to go, taken out of the order: it comes back only by another `evictable(record, true)`.
    fn next(&mut self) -> Option<u32>;
    /// Where it stands: of two records the one with the lower rank goes first. `None` when it may not go.
    fn rank(&self, record: u32) -> Option<u64>;
}

/// Set in the rank of every record that is not superseded.
const WANTED: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    rank: u64,
    evictable: bool,
}

/// Least recently used first, superseded ones before all others.
#[derive(Debug, Default)]
pub struct Lru {
    /// By record; grows as records come into use.
    entries: Vec<Entry>,
    order: BTreeSet<(u64, u32)>,
    tick: u64,
}

impl Lru {
    fn entry(&mut self, record: u32) -> &mut Entry {
        let at = record as usize;
        if at >= self.entries.len() {
            self.entries.resize(at + 1, Entry::default());
        }
        &mut self.entries[at]
    }

    fn set_rank(&mut self, record: u32, rank: u64) {
        let entry = self.entry(record);
        let old = std::mem::replace(&mut entry.rank, rank);
        if entry.evictable && self.order.remove(&(old, record)) {
            self.order.insert((rank, record));
        }
    }
}

impl EvictionPolicy for Lru {
    fn stored(&mut self, record: u32) {
        self.tick += 1;
        self.set_rank(record, self.tick | WANTED);
    }

    fn touched(&mut self, record: u32) {
        self.tick += 1;
        let wanted = self.entry(record).rank & WANTED;
        self.set_rank(record, self.tick | wanted);
    }

    fn superseded(&mut self, record: u32) {
        let rank = self.entry(record).rank & !WANTED;
        self.set_rank(record, rank);
    }

    fn evictable(&mut self, record: u32, yes: bool) {
        let entry = self.entry(record);
        entry.evictable = yes;
        let key = (entry.rank, record);
        if yes {
            self.order.insert(key);
        } else {
            self.order.remove(&key);
        }
    }

    fn removed(&mut self, record: u32) {
        self.evictable(record, false);
        *self.entry(record) = Entry::default();
    }

    fn next(&mut self) -> Option<u32> {
        let (_, record) = self.order.pop_first()?;
        self.entry(record).evictable = false;
        Some(record)
    }

    fn rank(&self, record: u32) -> Option<u64> {
        let entry = self.entries.get(record as usize)?;
        entry.evictable.then_some(entry.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lru: &mut Lru) -> Vec<u32> {
        std::iter::from_fn(|| lru.next()).collect()
    }

    #[test]
    fn oldest_first_superseded_before() {
        let mut lru = Lru::default();
        for record in 0..5 {
            lru.stored(record);
            lru.evictable(record, true);
        }
        lru.touched(1);
        lru.superseded(4);
        lru.superseded(3);
        lru.touched(3);
        lru.evictable(2, false);
        assert_eq!(lru.rank(2), None);
        assert!(lru.rank(4) < lru.rank(0));
        assert_eq!(all(&mut lru), [4, 3, 0, 1]);
        lru.evictable(2, true);
        lru.evictable(2, true);
        assert_eq!(all(&mut lru), [2]);
    }

    #[test]
    fn a_reused_record_starts_anew() {
        let mut lru = Lru::default();
        lru.stored(0);
        lru.superseded(0);
        lru.removed(0);
        lru.stored(1);
        lru.stored(0);
        lru.evictable(0, true);
        lru.evictable(1, true);
        assert_eq!(all(&mut lru), [1, 0]);
    }
}
