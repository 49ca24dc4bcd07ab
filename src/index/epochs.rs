//! The epochs region as clients read it: for every frame, the incarnation of the object that holds it.
//!
//! Layout: docs/shm-layout.md, "Epochs region".

use super::layout::version_word;
use crate::shm::mapping::{Access, Mapping};
use crate::sync::shared::{Ordering, fence};

/// First word of the region.
pub(crate) const EPOCHS_MAGIC: u64 = u64::from_le_bytes(*b"KVASIRE1");
/// Bytes before the first frame's word.
pub(crate) const EPOCHS_HEADER: usize = 4096;
const AT_FRAMES: usize = 16;
pub(crate) const AT_BOOT: usize = 64;

/// A reader's side of the region: what the last check after a copy looks at.
#[derive(Debug)]
pub struct EpochReader<A: Access> {
    mapping: Mapping<A>,
    frames: u32,
}

impl<A: Access> EpochReader<A> {
    /// Reads a mapping of the region. `None` when it is not one, or is shorter than it says.
    pub fn new(mapping: Mapping<A>) -> Option<Self> {
        let word = |at| mapping.load_only_u64(at).ok().map(|w| w.load_relaxed());
        let frames = u32::try_from(word(AT_FRAMES)?).ok()?;
        let fits = EPOCHS_HEADER + frames as usize * 8 <= mapping.len();
        let known = word(0)? == EPOCHS_MAGIC && word(8)? == version_word(EPOCHS_HEADER);
        (fits && known).then_some(Self { mapping, frames })
    }

    /// Frames of the pool.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// The boot word now (relaxed: the reader's fences order it).
    pub fn boot(&self) -> u64 {
        self.mapping
            .load_only_u64(AT_BOOT)
            .map_or(0, |w| w.load_relaxed())
    }

    /// The last step of the read protocol, after the copy and the fence: whether all of it was the incarnation's bytes, under the
    /// boot that it was found under.
    pub(crate) fn copy_was_whole(&self, boot: u64, first_frame: u32, incarnation: u64) -> bool {
        self.boot() == boot && self.epoch(first_frame) == incarnation
    }

    /// The epoch of a frame now (relaxed); 0 for a frame that the pool does not have.
    pub fn epoch(&self, frame: u32) -> u64 {
        if frame >= self.frames {
            return 0;
        }
        self.mapping
            .load_only_u64(frame_at(frame))
            .map_or(0, |w| w.load_relaxed())
    }
}

/// Orders the reads of a copy before the loads of [`EpochReader::copy_was_whole`].
pub(crate) fn fence_after_copy() {
    fence(Ordering::Acquire);
}

/// Offset of a frame's word.
pub(crate) fn frame_at(frame: u32) -> usize {
    EPOCHS_HEADER + frame as usize * 8
}
