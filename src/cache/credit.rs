//! The frames that one client may write, as runs.
//!
//! May import `pool`. The truth is the directory's owner words; this says where to look for them when the
//! client is gone.

use std::collections::BTreeMap;

use crate::pool::Extent;

/// A set of frames.
#[derive(Debug, Default)]
pub(super) struct Credit {
    runs: BTreeMap<u32, u32>,
    frames: u64,
}

impl Credit {
    /// Number of frames.
    pub(super) fn frames(&self) -> u64 {
        self.frames
    }

    /// Adds a run of frames that are not in the set.
    pub(super) fn add(&mut self, extent: Extent) {
        self.runs.insert(extent.frame, extent.count);
        self.frames += u64::from(extent.count);
    }

    /// Takes a run of frames out. False when one of them is not in the set; then nothing changes.
    pub(super) fn remove(&mut self, extent: Extent) -> bool {
        if !self.contains(extent) {
            return false;
        }
        let end = extent.frame + extent.count;
        let mut at = extent.frame;
        while at < end {
            let Some((&start, &count)) = self.runs.range(..=at).next_back() else {
                return false; // `contains` has seen it
            };
            let run_end = start + count;
            let cut = run_end.min(end);
            self.runs.remove(&start);
            if start < at {
                self.runs.insert(start, at - start);
            }
            if cut < run_end {
                self.runs.insert(cut, run_end - cut);
            }
            self.frames -= u64::from(cut - at);
            at = cut;
        }
        true
    }

    /// Whether all frames of a run are in the set.
    pub(super) fn contains(&self, extent: Extent) -> bool {
        let Some(end) = extent.end() else { return false };
        let mut at = extent.frame;
        while at < end {
            match self.runs.range(..=at).next_back() {
                Some((&start, &count)) if start + count > at => at = start + count,
                _ => return false,
            }
        }
        true
    }

    /// The first run.
    pub(super) fn first(&self) -> Option<Extent> {
        let (&frame, &count) = self.runs.first_key_value()?;
        Some(Extent::new(frame, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_and_joined_runs_span() {
        let mut credit = Credit::default();
        credit.add(Extent::new(0, 10));
        credit.add(Extent::new(10, 5));
        credit.add(Extent::new(20, 5));
        assert!(credit.contains(Extent::new(8, 7)));
        assert!(!credit.remove(Extent::new(8, 8)));
        assert_eq!(credit.frames(), 20);
        assert!(credit.remove(Extent::new(8, 4)));
        assert!(!credit.remove(Extent::new(8, 1)));
        assert!(!credit.contains(Extent::new(3, 0)));
        assert!(credit.remove(Extent::new(22, 1)));
        let mut left = Vec::new();
        while let Some(run) = credit.first() {
            assert!(credit.remove(run));
            left.push(run);
        }
        assert_eq!(
            left,
            [
                Extent::new(0, 8),
                Extent::new(12, 3),
                Extent::new(20, 2),
                Extent::new(23, 2)
            ]
        );
        assert_eq!(credit.frames(), 0);
    }
}
