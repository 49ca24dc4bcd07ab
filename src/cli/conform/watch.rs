//! Frames that the client has given away, and whether it leaves them alone.

use super::inner::Engine;
use super::steps::{Sheet, Step};
use crate::object::{Extent, FRAME_BYTES};

/// Bytes that nobody may change any more.
struct Kept {
    what: String,
    extents: Vec<Extent>,
    bytes: Vec<u8>,
}

/// What is looked at again later.
#[derive(Default)]
pub(super) struct Watch(Vec<Kept>);

impl Watch {
    /// Remembers what lies in some extents now.
    pub(super) fn keep(&mut self, engine: &Engine, what: String, extents: Vec<Extent>, bytes: u64) {
        if let Some(bytes) = engine.read(&extents, bytes) {
            self.0.push(Kept { what, extents, bytes });
        }
    }

    /// These frames are somebody's to write again.
    pub(super) fn forget(&mut self, granted: &[Extent]) {
        let overlaps = |kept: &Kept| {
            let frames = || kept.extents.iter().flat_map(|extent| extent.frames());
            granted
                .iter()
                .any(|extent| frames().any(|frame| extent.frames().contains(&frame)))
        };
        self.0.retain(|kept| !overlaps(kept));
    }

    /// Looks whether anything was changed.
    pub(super) fn look(&mut self, engine: &Engine, sheet: &mut Sheet) {
        for kept in &self.0 {
            let Some(now) = engine.read(&kept.extents, kept.bytes.len() as u64) else {
                continue;
            };
            let Some(at) = now.iter().zip(&kept.bytes).position(|(now, then)| now != then) else {
                continue;
            };
            let frame = frame_of(&kept.extents, at as u64);
            sheet.find(
                Step::Untouched,
                format_args!("byte {at} of {}, in frame {frame} of the pool", kept.what),
                format_args!("{:#04x}, as it was", kept.bytes[at]),
                format_args!("{:#04x}: it was written to afterwards", now[at]),
            );
        }
        if !self.0.is_empty() && !sheet.pipes {
            sheet.hold(Step::Untouched, "");
        }
    }

    /// The pool has gone.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The frame in which a byte of a part lies.
fn frame_of(extents: &[Extent], at: u64) -> u32 {
    let mut left = at / FRAME_BYTES;
    for extent in extents {
        if left < u64::from(extent.count) {
            return extent.frame + left as u32;
        }
        left -= u64::from(extent.count);
    }
    u32::MAX
}
