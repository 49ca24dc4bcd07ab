//! What goes through a ring at a time.

use crate::client::extents::ExtentCursor;
use crate::object::{Extent, RingRun};
use crate::shm::ring::lane_bytes;

/// Parts that go through at a time, so that what a message names has bounds.
const SLICES: usize = 4096;

/// Bytes of one part in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) part: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// What goes through a lane at a time: whole parts, or one piece of a long one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) slices: Vec<Slice>,
    /// As the lane counts them.
    pub(crate) bytes: u64,
}

/// The parts of so many bytes in windows of at most `most`, in order.
pub(crate) fn windows(parts: impl Iterator<Item = u64>, most: u64) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut window = Window::default();
    for (part, bytes) in parts.enumerate() {
        let full = window.bytes + lane_bytes(bytes) > most || window.slices.len() == SLICES;
        if full && window.bytes > 0 {
            windows.push(std::mem::take(&mut window));
        }
        let mut offset = 0;
        while bytes - offset > most {
            let slice = Slice {
                part,
                offset,
                bytes: most,
            };
            windows.push(Window {
                slices: vec![slice],
                bytes: most,
            });
            offset += most;
        }
        if bytes > offset {
            let bytes = bytes - offset;
            window.slices.push(Slice { part, offset, bytes });
            window.bytes += lane_bytes(bytes);
            if offset > 0 {
                windows.push(std::mem::take(&mut window)); // the end of a long part is alone as its pieces are
            }
        }
    }
    if window.bytes > 0 {
        windows.push(window);
    }
    windows
}

/// The pool's runs of some bytes of a part.
pub(crate) fn runs(extents: &[Extent], frame_bytes: u64, slice: Slice, into: &mut Vec<RingRun>) {
    let mut cursor = ExtentCursor::new(extents, frame_bytes);
    cursor.advance(slice.offset, |_, _, _| {});
    cursor.advance(slice.bytes, |_, span, bytes| {
        into.push(RingRun {
            frame: (span.offset / frame_bytes) as u32,
            offset: (span.offset % frame_bytes) as u32,
            bytes,
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_whole_parts_or_one_piece() {
        let cut = windows([100, 60, 1000, 64, 256, 1].into_iter(), 256);
        let shown = |window: &Window| {
            let slices = window.slices.iter().map(|s| (s.part, s.offset, s.bytes));
            (window.bytes, slices.collect::<Vec<_>>())
        };
        let shown: Vec<_> = cut.iter().map(shown).collect();
        assert_eq!(
            shown,
            [
                (192, vec![(0, 0, 100), (1, 0, 60)]),
                (256, vec![(2, 0, 256)]),
                (256, vec![(2, 256, 256)]),
                (256, vec![(2, 512, 256)]),
                (256, vec![(2, 768, 232)]),
                (64, vec![(3, 0, 64)]),
                (256, vec![(4, 0, 256)]),
                (64, vec![(5, 0, 1)]),
            ]
        );
        let many = windows([1; SLICES + 1].into_iter(), u64::MAX);
        let counts: Vec<_> = many.iter().map(|window| window.slices.len()).collect();
        assert_eq!(counts, [SLICES, 1]);
    }

    #[test]
    fn runs_follow_the_extents() {
        let extents = [Extent::new(5, 1), Extent::new(9, 2)];
        let mut found = Vec::new();
        let slice = |offset, bytes| Slice {
            part: 0,
            offset,
            bytes,
        };
        runs(&extents, 100, slice(50, 200), &mut found);
        let run = |frame, offset, bytes| RingRun { frame, offset, bytes };
        assert_eq!(found, [run(5, 50, 50), run(9, 0, 150)]);
        found.clear();
        runs(&extents, 100, slice(220, 80), &mut found);
        assert_eq!(found, [run(10, 20, 80)]);
    }
}
