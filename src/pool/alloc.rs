//! Which prefaulted frames are free, as runs.

use std::collections::{BTreeMap, BTreeSet};

use super::PoolError;
use crate::object::Extent;

/// The free frames below the prefault watermark. Frames above it are free too, but nobody gets them yet.
///
/// State grows with the number of free runs, not with the size of the pool.
#[derive(Debug)]
pub(crate) struct FrameAllocator {
    /// Length of each free run by its first frame. No two runs touch.
    by_start: BTreeMap<u32, u32>,
    /// The same runs as (length, first frame).
    by_length: BTreeSet<(u32, u32)>,
    free: u64,
    watermark: u32,
    total: u32,
    #[cfg(test)]
    refused: Option<u32>,
}

impl FrameAllocator {
    /// All of `total` frames are free and none is prefaulted.
    pub(crate) fn new(total: u32) -> Self {
        Self {
            by_start: BTreeMap::new(),
            by_length: BTreeSet::new(),
            free: 0,
            watermark: 0,
            total,
            #[cfg(test)]
            refused: None,
        }
    }

    /// An injected fault: runs with this frame cannot be released.
    #[cfg(test)]
    pub(crate) fn refuse_release(&mut self, frame: u32) {
        self.refused = Some(frame);
    }

    /// Free frames below the watermark.
    pub(crate) fn free_frames(&self) -> u64 {
        self.free
    }

    /// Frames that are prefaulted: those before this one.
    pub(crate) fn watermark(&self) -> u32 {
        self.watermark
    }

    /// All frames before `watermark` are prefaulted now. A lower value than before changes nothing.
    ///
    /// # Errors
    /// [`PoolError::DoubleFree`] when the allocator's books are wrong.
    pub(crate) fn raise_watermark(&mut self, watermark: u32) -> Result<(), PoolError> {
        let to = watermark.min(self.total);
        if to <= self.watermark {
            return Ok(());
        }
        let new = Extent::new(self.watermark, to - self.watermark);
        self.watermark = to;
        self.release(new)
    }

    /// Takes `frames` frames: the smallest run that holds all of them, else the largest runs there are, so
    /// that whatever fits in the free space can be had. `None` when it does not.
    #[cfg(test)]
    pub(crate) fn allocate(&mut self, frames: u64) -> Option<Vec<Extent>> {
        if frames > self.free {
            return None;
        }
        let mut taken = Vec::new();
        let mut missing = frames as u32; // at most `free`, which counts frames of a pool
        while missing > 0 {
            let run = self.take(missing, missing, None)?;
            missing -= run.count;
            taken.push(run);
        }
        Some(taken)
    }

    /// Takes one run for who needs `missing` frames, of at most `most`: from where the run before ended, if it goes on there, else
    /// from the smallest run that holds all of them, else from the largest. `None` when no frame is free.
    pub(crate) fn take(&mut self, missing: u32, most: u32, goes_on_at: Option<u32>) -> Option<Extent> {
        let same = goes_on_at.and_then(|start| Some((*self.by_start.get(&start)?, start)));
        let fit = || self.by_length.range((missing, 0)..).next().copied();
        let (length, start) = same.or_else(fit).or_else(|| self.by_length.last().copied())?;
        let count = length.min(missing).min(most);
        if count == 0 {
            return None;
        }
        self.remove(start, length);
        if count < length {
            self.insert(start + count, length - count);
        }
        Some(Extent::new(start, count))
    }

    /// Gives a run back and joins it with its neighbours.
    ///
    /// # Errors
    /// [`PoolError::DoubleFree`] when a frame of it is free already or not below the watermark. Nothing changes.
    pub(crate) fn release(&mut self, extent: Extent) -> Result<(), PoolError> {
        #[cfg(test)]
        if self.refused.is_some_and(|frame| extent.frames().contains(&frame)) {
            return Err(PoolError::DoubleFree(extent));
        }
        if !extent.is_within(self.watermark) {
            return Err(PoolError::DoubleFree(extent));
        }
        let end = extent.frame + extent.count;
        let before = self.by_start.range(..end).next_back().map(|(&s, &l)| (s, l));
        if before.is_some_and(|(start, length)| start + length > extent.frame) {
            return Err(PoolError::DoubleFree(extent));
        }
        let (mut start, mut length) = (extent.frame, extent.count);
        if let Some((s, l)) = before.filter(|&(s, l)| s + l == extent.frame) {
            self.remove(s, l);
            (start, length) = (s, l + length);
        }
        if let Some(&l) = self.by_start.get(&end) {
            self.remove(end, l);
            length += l;
        }
        self.insert(start, length);
        Ok(())
    }

    /// The free runs in ascending order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Extent> + '_ {
        self.by_start
            .iter()
            .map(|(&frame, &count)| Extent::new(frame, count))
    }

    fn insert(&mut self, start: u32, length: u32) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
        self.free += u64::from(length);
    }

    fn remove(&mut self, start: u32, length: u32) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
        self.free -= u64::from(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::count_frames;
    use proptest::prelude::*;

    fn prefaulted(total: u32) -> FrameAllocator {
        let mut allocator = FrameAllocator::new(total);
        allocator.raise_watermark(total).unwrap();
        allocator
    }

    #[test]
    fn nothing_above_the_watermark() {
        let mut allocator = FrameAllocator::new(100);
        assert!(allocator.allocate(1).is_none());
        allocator.raise_watermark(10).unwrap();
        assert!(allocator.allocate(11).is_none());
        assert_eq!(allocator.allocate(10).unwrap(), [Extent::new(0, 10)]);
        allocator.raise_watermark(5).unwrap();
        assert_eq!(allocator.free_frames(), 0);
        allocator.raise_watermark(1000).unwrap();
        assert_eq!(allocator.watermark(), 100);
        assert_eq!(allocator.free_frames(), 90);
        assert!(allocator.allocate(0).unwrap().is_empty());
    }

    #[test]
    fn best_fit_first_then_largest_runs() {
        let mut allocator = prefaulted(40);
        let all = allocator.allocate(40).unwrap();
        assert_eq!(all, [Extent::new(0, 40)]);
        for run in [Extent::new(0, 3), Extent::new(10, 8), Extent::new(30, 5)] {
            allocator.release(run).unwrap();
        }
        assert_eq!(allocator.allocate(4).unwrap(), [Extent::new(30, 4)]);
        // 12 free frames in runs of 3, 8 and 1: everything can be had, the largest run first.
        assert_eq!(
            allocator.allocate(12).unwrap(),
            [Extent::new(10, 8), Extent::new(0, 3), Extent::new(34, 1)]
        );
    }

    #[test]
    fn a_run_that_is_taken_in_pieces_is_one_run() {
        let mut allocator = prefaulted(40);
        allocator.allocate(40).unwrap();
        for run in [Extent::new(0, 12), Extent::new(20, 9)] {
            allocator.release(run).unwrap();
        }
        // What is missing after the first piece would fit the other run better.
        let first = allocator.take(11, 4, None).unwrap();
        assert_eq!(first, Extent::new(0, 4));
        assert_eq!(allocator.take(7, 4, Some(4)).unwrap(), Extent::new(4, 4));
        assert_eq!(allocator.take(3, 4, Some(8)).unwrap(), Extent::new(8, 3));
        // Somebody else may have taken what it would go on with.
        assert_eq!(allocator.take(2, 2, Some(30)).unwrap(), Extent::new(20, 2));
        assert_eq!(allocator.free_frames(), 8);
        assert_eq!(allocator.take(0, 5, None), None);
    }

    #[test]
    fn double_frees_are_found_and_change_nothing() {
        let mut allocator = prefaulted(10);
        allocator.allocate(10).unwrap();
        allocator.release(Extent::new(2, 4)).unwrap();
        for bad in [
            Extent::new(2, 4),
            Extent::new(0, 3),
            Extent::new(5, 1),
            Extent::new(5, 5),
            Extent::new(8, 3),
            Extent::new(4, 0),
            Extent::new(u32::MAX, 2),
        ] {
            assert!(matches!(allocator.release(bad), Err(PoolError::DoubleFree(e)) if e == bad));
            assert_eq!(allocator.free_frames(), 4);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_bitmap(ops in prop::collection::vec((any::<bool>(), 0..40_u64, any::<prop::sample::Index>()), 1..120)) {
            const TOTAL: u32 = 64;
            let mut allocator = prefaulted(TOTAL);
            let mut free = [true; TOTAL as usize];
            let mut held: Vec<Extent> = Vec::new();
            for (take, frames, pick) in ops {
                if take {
                    let have = free.iter().filter(|f| **f).count() as u64;
                    let got = allocator.allocate(frames);
                    prop_assert_eq!(got.is_some(), frames <= have);
                    for extent in got.unwrap_or_default() {
                        for frame in extent.frames() {
                            prop_assert!(std::mem::replace(&mut free[frame as usize], false));
                        }
                        held.push(extent);
                    }
                } else if !held.is_empty() {
                    let extent = held.swap_remove(pick.index(held.len()));
                    allocator.release(extent).unwrap();
                    prop_assert!(allocator.release(extent).is_err());
                    extent.frames().for_each(|f| free[f as usize] = true);
                }
                // The runs are exactly the free frames, joined as far as they go.
                let runs: Vec<_> = allocator.runs().collect();
                prop_assert_eq!(count_frames(&runs), allocator.free_frames());
                prop_assert!(runs.windows(2).all(|w| w[0].frame + w[0].count < w[1].frame));
                prop_assert!(runs.iter().flat_map(|r| r.frames()).all(|f| free[f as usize]));
                prop_assert_eq!(allocator.free_frames(), free.iter().filter(|f| **f).count() as u64);
            }
        }
    }
}
