//! The epochs region: for every frame, the incarnation of the object that holds it.
//!
//! Layout: docs/shm-layout.md, "Epochs region".

use std::os::fd::OwnedFd;

use crate::object::Extent;
use crate::shm::mapping::{Access, Mapping, ReadWrite};
use crate::shm::{Memfd, OwnerAccess, ShmError};
use crate::sync::shared::{AtomicU64, Ordering, fence};

/// First word of the region.
pub(crate) const EPOCHS_MAGIC: u64 = u64::from_le_bytes(*b"KVASIRE1");
/// Version of the layout of the pool's regions.
pub const ABI_VERSION: u32 = 4;
/// Bytes before the first frame's word.
pub(crate) const EPOCHS_HEADER: usize = 4096;
const AT_FRAMES: usize = 16;
const AT_POOL_ID: usize = 32;
const AT_BOOT: usize = 64;

/// The server's side of the region.
#[derive(Debug)]
pub struct Epochs {
    memfd: Memfd,
    mapping: Mapping<ReadWrite>,
}

impl Epochs {
    /// A region for `frames` frames, all of epoch 0, with its boot word set.
    pub fn create(frames: u32, pool_id: [u8; 16], boot_seq: u64) -> Result<Self, ShmError> {
        let bytes = EPOCHS_HEADER as u64 + u64::from(frames) * 8;
        let memfd = Memfd::create("epochs", bytes, OwnerAccess::Read)?;
        let mapping = memfd.map()?;
        memfd.seal_seals()?;
        mapping.store_words(0, &[EPOCHS_MAGIC, version_word(EPOCHS_HEADER), frames.into()])?;
        mapping.write_bytes(AT_POOL_ID, &pool_id)?;
        let epochs = Self { memfd, mapping };
        epochs.word(AT_BOOT).store(boot_seq, Ordering::Release);
        // Only after this may slabs be scanned and frames evicted, freed or granted.
        fence(Ordering::SeqCst);
        Ok(epochs)
    }

    /// Stores the epoch of every frame of some runs, with relaxed stores.
    pub fn set(&self, extents: &[Extent], incarnation: u64) {
        for frame in extents.iter().flat_map(|e| e.frames()) {
            self.word(frame_at(frame)).store(incarnation, Ordering::Relaxed);
        }
    }

    /// The epoch of a frame.
    pub fn of(&self, frame: u32) -> u64 {
        self.word(frame_at(frame)).load(Ordering::Relaxed)
    }

    /// A read-only descriptor for a client.
    pub fn read_only(&self) -> Result<OwnedFd, ShmError> {
        self.memfd.reopen_read_only()
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> u64 {
        self.memfd.len()
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.mapping
            .atomic_u64(offset)
            .expect("frames are checked against the pool before they get here")
    }
}

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

fn frame_at(frame: u32) -> usize {
    EPOCHS_HEADER + frame as usize * 8
}

/// The word of version and header bytes that follows every magic.
pub(crate) fn version_word(header_bytes: usize) -> u64 {
    (header_bytes as u64) << 32 | u64::from(ABI_VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_epochs_and_boot() {
        let epochs = Epochs::create(10, [3; 16], 7).unwrap();
        epochs.set(&[Extent::new(2, 3), Extent::new(9, 1)], 55);
        let fd = epochs.read_only().unwrap();
        use std::os::fd::AsFd;
        let mapping =
            Mapping::<crate::shm::ReadOnly>::map_foreign(fd.as_fd(), epochs.bytes() as usize).unwrap();
        let reader = EpochReader::new(mapping).unwrap();
        assert_eq!((reader.boot(), reader.frames()), (7, 10));
        let seen: Vec<u64> = (0..12).map(|f| reader.epoch(f)).collect();
        assert_eq!(seen, [0, 0, 55, 55, 55, 0, 0, 0, 0, 55, 0, 0]);
        assert_eq!(epochs.of(3), 55);
    }
}
