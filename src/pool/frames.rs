//! Frames and extents: the units in which the pool is handed out.

/// Bytes of one frame: the pool's allocation unit, a multiple of every page size in use.
pub const FRAME_BYTES: u64 = 65536;

/// A run of frames of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// First frame.
    pub frame: u32,
    /// Number of frames.
    pub count: u32,
}

impl Extent {
    /// A run of `count` frames from `frame`.
    pub const fn new(frame: u32, count: u32) -> Self {
        Self { frame, count }
    }

    /// The frame after the last one; `None` for an empty run and for one that no pool can hold.
    pub fn end(self) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        self.frame.checked_add(self.count)
    }

    /// Whether the run is not empty and lies in a pool of `frames` frames.
    pub fn is_within(self, frames: u32) -> bool {
        self.end().is_some_and(|end| end <= frames)
    }

    /// Size in bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.count) * FRAME_BYTES
    }

    /// The frames of the run. Empty when the run is not one that a pool can hold.
    pub fn frames(self) -> std::ops::Range<u32> {
        self.frame..self.end().unwrap_or(self.frame)
    }

    /// The word that stands for the run in records: `first frame << 32 | frames`.
    pub const fn to_word(self) -> u64 {
        (self.frame as u64) << 32 | self.count as u64
    }

    /// The run that a record's word stands for. Not checked: see [`Extent::is_within`].
    pub const fn from_word(word: u64) -> Self {
        Self {
            frame: (word >> 32) as u32,
            count: word as u32,
        }
    }
}

/// Frames that `bytes` bytes take.
pub const fn frames_for(bytes: u64) -> u64 {
    bytes.div_ceil(FRAME_BYTES)
}

/// Frames of all runs together.
pub fn count_frames(extents: &[Extent]) -> u64 {
    extents.iter().map(|e| u64::from(e.count)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_and_overflowing_runs_are_nowhere() {
        assert!(!Extent::new(0, 0).is_within(10));
        assert!(!Extent::new(u32::MAX, 2).is_within(u32::MAX));
        assert!(!Extent::new(8, 3).is_within(10));
        assert!(Extent::new(8, 2).is_within(10));
        assert!(Extent::new(u32::MAX, 2).frames().is_empty());
    }

    #[test]
    fn words_keep_both_halves() {
        let extent = Extent::new(0xdead_beef, 0x1234_5678);
        assert_eq!(extent.to_word(), 0xdead_beef_1234_5678);
        assert_eq!(Extent::from_word(extent.to_word()), extent);
    }

    #[test]
    fn rounds_up_to_whole_frames() {
        assert_eq!(frames_for(0), 0);
        assert_eq!(frames_for(1), 1);
        assert_eq!(frames_for(FRAME_BYTES), 1);
        assert_eq!(frames_for(FRAME_BYTES + 1), 2);
    }
}
