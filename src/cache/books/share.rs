//! The frames that one client may write, as runs, and how many those may be.
//!
//! The truth is the directory's owner words; this says where to look for them when the client is gone.

use std::collections::BTreeMap;

use crate::object::Extent;

/// Space that is held between stores takes at most this part of the pool, all clients together: nothing can be cached
/// in it.
const AHEAD_PART: u64 = 8;
/// What one client holds while it stores takes at most this part of the pool, parts of incomplete objects included.
const CLIENT_PART: u64 = 2;
/// All that clients hold takes at most three such parts of the pool.
const ALL_PART: u64 = 4;

/// What space is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Something that is to be stored.
    Now,
    /// Stores to come. They take nothing that may be what comes next hangs under: no object that was published after so
    /// many publications, and no incomplete object that may yet be completed.
    Ahead {
        /// Publications before the commit that asks.
        published: u64,
    },
}

/// What one client holds, and what that is measured by. All but the two counts are frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) pool: u64,
    /// Clients that have registered to store.
    pub(crate) storing: u64,
    /// Parts of the objects that it stores: as many ranks hold as much while a step is stored.
    pub(crate) parts: u64,
    /// One full chunk of everything that it stores.
    pub(crate) chunk: u64,
    /// Its granted space.
    pub(crate) granted: u64,
    /// Its parts of objects that are not complete.
    pub(crate) in_incomplete: u64,
    /// The granted space of all clients.
    pub(crate) all_granted: u64,
    /// Granted space and parts of all clients.
    pub(crate) all: u64,
}

impl Share {
    /// How much more it may be granted. For a store that waits always one chunk, however many clients there are.
    pub(crate) fn room(&self, need: Need) -> u64 {
        match need {
            Need::Ahead { .. } => {
                let all = self.pool / AHEAD_PART;
                let own = (all / self.storing.max(1)).saturating_sub(self.granted);
                own.min(all.saturating_sub(self.all_granted))
            }
            Need::Now => {
                let own = self.own().saturating_sub(self.granted + self.in_incomplete);
                let usual = own.min((self.pool * 3 / ALL_PART).saturating_sub(self.all));
                usual.max(self.chunk.saturating_sub(self.granted + self.in_incomplete))
            }
        }
    }

    fn own(&self) -> u64 {
        self.pool / CLIENT_PART / self.parts.max(1)
    }
}

/// A set of frames.
///
/// Runs are kept by the frame behind their last: what is stored takes a run from its first frame on, which then changes a number in
/// its place.
#[derive(Debug, Default)]
pub(crate) struct Granted {
    /// First frames, by ends.
    runs: BTreeMap<u32, u32>,
    frames: u64,
}

impl Granted {
    /// Number of frames.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Adds a run of frames that are not in the set.
    pub(crate) fn add(&mut self, extent: Extent) {
        self.runs.insert(extent.frame + extent.count, extent.frame);
        self.frames += u64::from(extent.count);
    }

    /// Takes a run of frames out. False when one of them is not in the set; then nothing changes.
    pub(crate) fn remove(&mut self, extent: Extent) -> bool {
        let Some(end) = extent.end() else { return false };
        // Mostly all of it is the beginning of one run.
        if let Some((&run_end, start)) = self.runs.range_mut(end.saturating_add(1)..).next()
            && *start == extent.frame
            && extent.count > 0
            && run_end > end
        {
            *start = end;
            self.frames -= u64::from(extent.count);
            return true;
        }
        if !self.contains(extent) {
            return false;
        }
        let mut at = extent.frame;
        while at < end {
            let Some((&run_end, &start)) = self.runs.range(at + 1..).next() else {
                return false; // `contains` has seen it
            };
            let cut = run_end.min(end);
            match cut < run_end {
                true => drop(self.runs.insert(run_end, cut)),
                false => drop(self.runs.remove(&run_end)),
            }
            if start < at {
                self.runs.insert(at, start);
            }
            self.frames -= u64::from(cut - at);
            at = cut;
        }
        true
    }

    /// Whether all frames of a run are in the set.
    pub(crate) fn contains(&self, extent: Extent) -> bool {
        let Some(end) = extent.end() else { return false };
        let mut at = extent.frame;
        while at < end {
            match self.runs.range(at + 1..).next() {
                Some((&run_end, &start)) if start <= at => at = run_end,
                _ => return false,
            }
        }
        true
    }

    /// The first run.
    pub(crate) fn first(&self) -> Option<Extent> {
        let (&end, &frame) = self.runs.first_key_value()?;
        Some(Extent::new(frame, end - frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Share = Share {
        pool: 8192,
        storing: 1,
        parts: 1,
        chunk: 32,
        granted: 0,
        in_incomplete: 0,
        all_granted: 0,
        all: 0,
    };
    const AHEAD: Need = Need::Ahead { published: 0 };

    #[test]
    fn what_is_held_ahead_is_a_fair_share_of_an_eighth_of_the_pool() {
        assert_eq!(NOTHING.room(AHEAD), 1024);
        let eight = Share {
            storing: 8,
            ..NOTHING
        };
        assert_eq!(eight.room(AHEAD), 128);
        assert_eq!(
            Share {
                granted: 100,
                ..eight
            }
            .room(AHEAD),
            28
        );
        assert_eq!(
            Share {
                granted: 200,
                ..eight
            }
            .room(AHEAD),
            0
        );
        // Some still have what was fair when they were fewer.
        let late = Share {
            all_granted: 1000,
            ..eight
        };
        assert_eq!(late.room(AHEAD), 24);
        let crowd = Share {
            storing: 256,
            ..NOTHING
        };
        assert_eq!(
            crowd.room(AHEAD),
            4,
            "less than a chunk, for stores that are yet to come"
        );
    }

    #[test]
    fn a_store_that_waits_gets_half_of_the_pool_among_its_ranks_and_always_a_chunk() {
        assert_eq!(NOTHING.room(Need::Now), 4096);
        let ranks = Share { parts: 4, ..NOTHING };
        assert_eq!(ranks.room(Need::Now), 1024);
        let waiting = Share {
            in_incomplete: 1000,
            granted: 10,
            all: 1010,
            ..ranks
        };
        assert_eq!(waiting.room(Need::Now), 14);
        let first = Share {
            granted: 10,
            all: 8000,
            ..ranks
        };
        assert_eq!(first.room(Need::Now), 22, "one chunk, with what it has");
        let full = Share { all: 6144, ..NOTHING };
        assert_eq!(full.room(Need::Now), 32);
        assert_eq!(Share { granted: 40, ..full }.room(Need::Now), 0);
    }

    #[test]
    fn runs_are_cut_and_joined_runs_span() {
        let mut granted = Granted::default();
        granted.add(Extent::new(0, 10));
        granted.add(Extent::new(10, 5));
        granted.add(Extent::new(20, 5));
        assert!(granted.contains(Extent::new(8, 7)));
        assert!(!granted.remove(Extent::new(8, 8)));
        assert_eq!(granted.frames(), 20);
        assert!(granted.remove(Extent::new(8, 4)));
        assert!(!granted.remove(Extent::new(8, 1)));
        assert!(!granted.contains(Extent::new(3, 0)));
        assert!(granted.remove(Extent::new(22, 1)));
        let mut left = Vec::new();
        while let Some(run) = granted.first() {
            assert!(granted.remove(run));
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
        assert_eq!(granted.frames(), 0);
    }
}
