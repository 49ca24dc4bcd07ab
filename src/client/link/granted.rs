//! Granted space: which extents a client may write into, and whether it makes use of them.

use crate::object::Extent;
use crate::sync::shared::{AtomicU64, Ordering};

/// Frames that this client holds and has not yet used.
#[derive(Debug, Default)]
pub(crate) struct Granted {
    /// In the order in which they were granted.
    free: Vec<Extent>,
}

impl Granted {
    /// Frames in all.
    pub(crate) fn frames(&self) -> u64 {
        self.free.iter().map(|extent| u64::from(extent.count)).sum()
    }

    /// Adds extents.
    pub(crate) fn add(&mut self, extents: impl IntoIterator<Item = Extent>) {
        self.free
            .extend(extents.into_iter().filter(|extent| extent.count > 0));
    }

    /// Takes exactly `frames` frames, in as few extents as a simple search finds; nothing if there are not as many.
    pub(crate) fn take(&mut self, frames: u64) -> Option<Vec<Extent>> {
        if frames == 0 || frames > self.frames() {
            return None;
        }
        let mut left = frames;
        let mut taken = Vec::new();
        while left > 0 {
            // The oldest extent that holds the rest, since its pages are the likeliest to be mapped; else the largest.
            let fits = |extent: &Extent| u64::from(extent.count) >= left;
            let oldest = self.free.iter().position(fits);
            let at = oldest.or_else(|| (0..self.free.len()).max_by_key(|&at| self.free[at].count))?;
            let extent = &mut self.free[at];
            let count = u64::from(extent.count).min(left) as u32;
            taken.push(Extent {
                frame: extent.frame,
                count,
            });
            extent.frame += count;
            extent.count -= count;
            left -= u64::from(count);
            if extent.count == 0 {
                self.free.remove(at);
            }
        }
        Some(taken)
    }

    /// Takes everything.
    pub(crate) fn take_all(&mut self) -> Vec<Extent> {
        std::mem::take(&mut self.free)
    }
}

/// Counts stores, so that space which nobody uses can be told from space that is used.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    so_far: AtomicU64,
    /// How many there had been when it was last asked.
    seen: AtomicU64,
}

impl Uses {
    /// One more.
    pub(crate) fn note(&self) {
        self.so_far.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there were none since the last time this was asked.
    pub(crate) fn none_since_last(&self) -> bool {
        let so_far = self.so_far.load(Ordering::Relaxed);
        self.seen.swap(so_far, Ordering::Relaxed) == so_far
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(frame: u32, count: u32) -> Extent {
        Extent { frame, count }
    }

    #[test]
    fn what_is_granted_is_taken_exactly_and_prefers_one_extent() {
        let mut granted = Granted::default();
        granted.add([extent(0, 4), extent(10, 2), extent(20, 9), extent(40, 0)]);
        assert_eq!(granted.frames(), 15);
        assert_eq!(granted.take(2), Some(vec![extent(0, 2)]), "the oldest");
        assert_eq!(granted.take(3), Some(vec![extent(20, 3)]), "one rather than two");
        assert_eq!(granted.take(7), Some(vec![extent(23, 6), extent(2, 1)]));
        assert_eq!(granted.take(3), Some(vec![extent(10, 2), extent(3, 1)]));
        assert_eq!(granted.take(1), None);
        assert_eq!(granted.frames(), 0);
        assert_eq!(granted.take(0), None);
    }
}
