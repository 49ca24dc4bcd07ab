//! Granted space: which extents a client may write, and walking through the extents of a part.

use crate::copy::Span;
use crate::object::Extent;
use crate::sync::shared::{AtomicU64, Ordering};

/// Frames that this client holds and has not yet used.
#[derive(Debug, Default)]
pub(super) struct Credit {
    /// In the order in which they were granted.
    free: Vec<Extent>,
}

impl Credit {
    /// Frames in all.
    pub(super) fn frames(&self) -> u64 {
        self.free.iter().map(|extent| u64::from(extent.count)).sum()
    }

    /// Adds extents.
    pub(super) fn add(&mut self, extents: impl IntoIterator<Item = Extent>) {
        self.free
            .extend(extents.into_iter().filter(|extent| extent.count > 0));
    }

    /// Takes exactly `frames` frames, in as few extents as a simple search finds; nothing if there are not as many.
    pub(super) fn take(&mut self, frames: u64) -> Option<Vec<Extent>> {
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
    pub(super) fn take_all(&mut self) -> Vec<Extent> {
        std::mem::take(&mut self.free)
    }
}

/// Counts stores, so that space which nobody uses can be told from space that is used.
#[derive(Debug, Default)]
pub(super) struct Uses {
    so_far: AtomicU64,
    /// How many there had been when it was last asked.
    seen: AtomicU64,
}

impl Uses {
    /// One more.
    pub(super) fn note(&self) {
        self.so_far.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there were none since the last time this was asked.
    pub(super) fn none_since_last(&self) -> bool {
        let so_far = self.so_far.load(Ordering::Relaxed);
        self.seen.swap(so_far, Ordering::Relaxed) == so_far
    }
}

/// Walks through the bytes of extents in order.
#[derive(Debug)]
pub(super) struct ExtentCursor<'a> {
    extents: &'a [Extent],
    frame_bytes: u64,
    /// Bytes of the first extent that are behind.
    used: u64,
}

impl<'a> ExtentCursor<'a> {
    /// A cursor at the first byte. The extents have been checked to lie in the pool.
    pub(super) fn new(extents: &'a [Extent], frame_bytes: u64) -> Self {
        Self {
            extents,
            frame_bytes,
            used: 0,
        }
    }

    /// Moves on by `bytes` and names the runs they lie in: how many bytes came before, where the run starts in the
    /// pool, its length. Stops early at the end of the extents.
    pub(super) fn advance(&mut self, bytes: u64, mut run: impl FnMut(u64, Span, u64)) {
        let mut done = 0;
        while done < bytes {
            let Some((first, rest)) = self.extents.split_first() else {
                return;
            };
            let size = u64::from(first.count) * self.frame_bytes;
            let len = (bytes - done).min(size - self.used);
            let offset = u64::from(first.frame) * self.frame_bytes + self.used;
            if len > 0 {
                run(done, Span::new(0, offset), len);
            }
            done += len;
            self.used += len;
            if self.used == size {
                self.extents = rest;
                self.used = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(frame: u32, count: u32) -> Extent {
        Extent { frame, count }
    }

    #[test]
    fn credit_takes_exactly_and_prefers_one_extent() {
        let mut credit = Credit::default();
        credit.add([extent(0, 4), extent(10, 2), extent(20, 9), extent(40, 0)]);
        assert_eq!(credit.frames(), 15);
        assert_eq!(credit.take(2), Some(vec![extent(0, 2)]), "the oldest");
        assert_eq!(credit.take(3), Some(vec![extent(20, 3)]), "one rather than two");
        assert_eq!(credit.take(7), Some(vec![extent(23, 6), extent(2, 1)]));
        assert_eq!(credit.take(3), Some(vec![extent(10, 2), extent(3, 1)]));
        assert_eq!(credit.take(1), None);
        assert_eq!(credit.frames(), 0);
        assert_eq!(credit.take(0), None);
    }

    #[test]
    fn cursor_splits_at_extents() {
        let extents = [extent(2, 1), extent(7, 2)];
        let mut cursor = ExtentCursor::new(&extents, 100);
        let mut runs = Vec::new();
        let mut note = |done, span: Span, len| runs.push((done, span.offset, len));
        cursor.advance(60, &mut note);
        cursor.advance(60, &mut note);
        cursor.advance(180, &mut note);
        cursor.advance(1, &mut note); // past the end
        assert_eq!(runs, [(0, 200, 60), (0, 260, 40), (40, 700, 20), (0, 720, 180)]);
    }
}
