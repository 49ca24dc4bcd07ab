//! Which object goes first: a small trait, and least recently used as the baseline.

use std::collections::BTreeSet;
use std::fmt::Debug;

use super::chunked::Chunked;

/// Where a record stands: its rank, and its number where ranks are equal.
pub type Position = (u64, u32);

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
    /// The first that may go and stands at this place or behind it. Nothing changes: who looks for victims keeps its
    /// place, and passes each that stays for its own reasons once.
    fn first_from(&self, place: Position) -> Option<Position>;
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
#[derive(Debug)]
pub struct Lru {
    /// By record; takes memory as records come into use.
    entries: Chunked<Entry>,
    order: BTreeSet<(u64, u32)>,
    tick: u64,
}

#[cfg(test)]
impl Default for Lru {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Lru {
    /// Of so many records, none of which is an object.
    pub fn new(records: u32) -> Self {
        Self {
            entries: Chunked::new(Entry::default(), records),
            order: BTreeSet::new(),
            tick: 0,
        }
    }

    fn entry(&mut self, record: u32) -> &mut Entry {
        self.entries.get_mut(record)
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
        // Whatever may go stands in the order, so nothing is to be looked for there when nothing changes.
        if std::mem::replace(&mut entry.evictable, yes) == yes {
            return;
        }
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

    fn first_from(&self, place: Position) -> Option<Position> {
        self.order.range(place..).next().copied()
    }

    fn rank(&self, record: u32) -> Option<u64> {
        let entry = self.entries.get(record);
        entry.evictable.then_some(entry.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lru: &mut Lru) -> Vec<u32> {
        let next = |lru: &mut Lru| {
            let (_, record) = lru.first_from((0, 0))?;
            lru.evictable(record, false);
            Some(record)
        };
        std::iter::from_fn(|| next(lru)).collect()
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
    fn a_place_is_kept_while_others_come_and_go() {
        let mut lru = Lru::default();
        for record in 0..4 {
            lru.stored(record);
            lru.evictable(record, true);
        }
        let (rank, record) = lru.first_from((0, 0)).unwrap();
        assert_eq!(record, 0, "it stays, and is passed");
        let second = lru.first_from((rank, record + 1)).unwrap();
        assert_eq!(second.1, 1);
        lru.touched(2);
        lru.removed(1);
        assert_eq!(lru.first_from(second).unwrap().1, 3);
        assert_eq!(lru.first_from((u64::MAX, 0)), None);
        assert_eq!(lru.first_from((0, 0)).unwrap().1, 0, "and nothing was taken out");
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
