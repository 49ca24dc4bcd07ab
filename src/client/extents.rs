//! Walking through the extents of a part.

use crate::copy::Span;
use crate::object::Extent;

/// Walks through the bytes of extents in order.
#[derive(Debug)]
pub(crate) struct ExtentCursor<'a> {
    extents: &'a [Extent],
    frame_bytes: u64,
    /// Bytes of the first extent that are behind.
    used: u64,
}

impl<'a> ExtentCursor<'a> {
    /// A cursor at the first byte. The extents have been checked to lie in the pool.
    pub(crate) fn new(extents: &'a [Extent], frame_bytes: u64) -> Self {
        Self {
            extents,
            frame_bytes,
            used: 0,
        }
    }

    /// Moves on by `bytes` and names the runs they lie in: how many bytes came before, where the run starts in the
    /// pool, its length. Stops early at the end of the extents.
    pub(crate) fn advance(&mut self, bytes: u64, mut run: impl FnMut(u64, Span, u64)) {
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
