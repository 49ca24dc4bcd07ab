//! The epochs region as the server writes it: for every frame, the incarnation of the object that holds it.
//! How it is read: [`crate::index::epochs`].
//!
//! Layout: docs/shm-layout.md, "Epochs region".

use std::os::fd::OwnedFd;

use crate::index::epochs::{AT_BOOT, EPOCHS_HEADER, EPOCHS_MAGIC, frame_at};
use crate::index::layout::version_word;
use crate::object::Extent;
use crate::shm::mapping::{Mapping, ReadWrite};
use crate::shm::{Memfd, OwnerAccess, ShmError};
use crate::sync::shared::{AtomicU64, Ordering, fence};

const AT_POOL_ID: usize = 32;

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

    /// The address of its first byte here, for models.
    #[cfg(all(test, loom))]
    pub(crate) fn base(&self) -> usize {
        self.mapping.base().addr()
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.mapping
            .atomic_u64(offset)
            .expect("frames are checked against the pool before they get here")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::epochs::EpochReader;

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
        assert!(reader.copy_was_whole(7, 2, 55));
        assert!(!reader.copy_was_whole(7, 5, 55), "the frame has been reused");
        assert!(
            !reader.copy_was_whole(6, 2, 55),
            "it was found under another boot"
        );
    }
}
