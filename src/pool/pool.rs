//! The pool: its memory, and which frame is whose. Every change of ownership goes through here, so that
//! owner words, allocator and books move together.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use super::accounting::{Accounting, Class};
use super::alloc::FrameAllocator;
use super::backing::{Backing, MemoryConfig, PoolMemory};
use super::directory::{Directory, DirectoryTotals, MAX_GRANT_COUNTER, NO_SLAB, Owner};
use super::epochs::Epochs;
use super::memory::{SYSTEM_ROOT, available_memory};
use super::prefault::{Pages, prefault_threads};
use super::{PoolError, Prefault, PrefaultEvent};
use crate::object::{Extent, FRAME_BYTES};
use crate::shm::numa::Placement;
use crate::shm::{Mapping, ReadWrite, ShmError};
use crate::sync::shared::{Ordering, fence};

/// Frames that a record can number, less one so that no end overflows.
const MAX_FRAMES: u64 = u32::MAX as u64 - 1;
/// Boot sequences have 20 bits of an incarnation.
pub const MAX_BOOT_SEQ: u64 = (1 << 20) - 1;

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Bytes, rounded down to whole frames.
    pub bytes: u64,
    /// Random identity.
    pub pool_id: [u8; 16],
    /// Which life of the pool this is, from 1.
    pub boot_seq: u64,
    /// What it is made of.
    pub memory: MemoryConfig,
}

/// The pool with its epochs and directory.
#[derive(Debug)]
pub struct Pool {
    memory: PoolMemory,
    /// Epoch words.
    pub epochs: Epochs,
    /// Owner words and records.
    pub directory: Directory,
    allocator: FrameAllocator,
    books: Accounting,
    frames: u32,
    grants: u64,
}

impl Pool {
    /// Makes an empty pool. Time and memory do not depend on its size: no page of it is touched.
    ///
    /// # Errors
    /// [`PoolError::TooSmall`], [`PoolError::TooLarge`], [`PoolError::BootSeq`], [`PoolError::Shm`].
    pub fn create(config: PoolConfig) -> Result<Self, PoolError> {
        let frames = match config.bytes / FRAME_BYTES {
            0 => return Err(PoolError::TooSmall { bytes: config.bytes }),
            frames if frames > MAX_FRAMES => {
                return Err(PoolError::TooLarge {
                    bytes: config.bytes,
                    max: MAX_FRAMES,
                });
            }
            frames => frames as u32,
        };
        if config.boot_seq == 0 || config.boot_seq > MAX_BOOT_SEQ {
            return Err(PoolError::BootSeq {
                boot_seq: config.boot_seq,
                max: MAX_BOOT_SEQ,
            });
        }
        let memory = PoolMemory::create(frames, &config.memory)?;
        let frames = (memory.memfd.len() / FRAME_BYTES) as u32;
        // The directory first: the boot sequence is raised there before the boot word shows it.
        let directory = Directory::create(frames, config.pool_id, config.boot_seq)?;
        let epochs = Epochs::create(frames, config.pool_id, config.boot_seq)?;
        Ok(Self {
            memory,
            epochs,
            directory,
            allocator: FrameAllocator::new(frames),
            books: Accounting::new(frames.into()),
            frames,
            grants: 0,
        })
    }

    /// Frames of the pool.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Bytes of the pool.
    pub fn bytes(&self) -> u64 {
        self.memory.memfd.len()
    }

    /// A descriptor for a client.
    pub fn descriptor(&self) -> Result<OwnedFd, PoolError> {
        let fd = self.memory.memfd.as_fd().try_clone_to_owned();
        Ok(fd.map_err(|e| ShmError::os("dup", self.memory.memfd.name(), e))?)
    }

    /// The mapped bytes, for copies on behalf of clients that map none of them.
    pub fn memory(&self) -> Arc<Mapping<ReadWrite>> {
        Arc::clone(&self.memory.mapping)
    }

    /// Starts to make the pool's pages present. See [`Pool::prefaulted`].
    pub fn start_prefault(
        &self,
        on_event: impl Fn(PrefaultEvent) + Send + 'static,
    ) -> Result<Prefault, PoolError> {
        let memory = &self.memory;
        // Reserved pages are nobody else's memory, and a node that the pool is bound to has its own end.
        let node = match memory.placement {
            Placement::Bind(node) => Some(node),
            _ => None,
        };
        let reserved = matches!(memory.backing, Backing::Reserved { .. });
        let available = move || {
            (!reserved)
                .then(|| available_memory(Path::new(SYSTEM_ROOT), node))
                .flatten()
        };
        let pages = Pages {
            mapping: Arc::clone(&memory.mapping),
            backing: memory.backing,
            node: match memory.placement {
                Placement::Kernel(_) => None,
                _ => memory.placement.node(),
            },
            threads: prefault_threads(),
        };
        Prefault::start(pages, available, on_event)
    }

    /// What pages it is made of.
    pub fn backing(&self) -> Backing {
        self.memory.backing
    }

    /// Why it is not made of reserved pages although those were to be tried.
    pub fn not_reserved(&self) -> Option<&str> {
        self.memory.not_reserved.as_deref()
    }

    /// From where its pages come, and why they do not although they should.
    pub fn placement(&self) -> (&Placement, Option<&str>) {
        (&self.memory.placement, self.memory.not_placed.as_deref())
    }

    /// The first `bytes` bytes are present: their frames may be granted.
    pub fn prefaulted(&mut self, bytes: u64) -> Result<(), PoolError> {
        let frames = (bytes / FRAME_BYTES).min(self.frames.into());
        self.allocator.raise_watermark(frames as u32)
    }

    /// Frames that are present.
    pub fn prefaulted_frames(&self) -> u32 {
        self.allocator.watermark()
    }

    /// Frames that can be granted now.
    pub fn grantable(&self) -> u64 {
        self.allocator.free_frames()
    }

    /// The books.
    pub fn books(&self) -> &Accounting {
        &self.books
    }

    /// Grants frames to the client of a slab. `None` when there are not as many.
    pub fn grant(&mut self, slab: u16, frames: u64) -> Result<Option<Vec<Extent>>, PoolError> {
        if frames > self.grantable() {
            return Ok(None);
        }
        let mut extents = Vec::new();
        let mut missing = frames;
        while missing > 0
            && let Some(extent) = self.grant_run(slab, missing, u32::MAX, None)?
        {
            missing -= u64::from(extent.count);
            extents.push(extent);
        }
        Ok(Some(extents))
    }

    /// Grants one run of at most `most` frames to a client that needs `missing`: from where its run before ended, if it goes on
    /// there. `None` when nothing is free.
    pub fn grant_run(
        &mut self,
        slab: u16,
        missing: u64,
        most: u32,
        goes_on_at: Option<u32>,
    ) -> Result<Option<Extent>, PoolError> {
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let Some(extent) = self.allocator.take(missing, most, goes_on_at) else {
            return Ok(None);
        };
        self.grants = (self.grants + 1) & MAX_GRANT_COUNTER;
        let owner = Owner::Granted {
            slab,
            counter: self.grants,
        };
        self.directory.set_owner(&[extent], owner);
        self.books
            .move_frames(Class::Free, Class::Granted, extent.count.into())?;
        Ok(Some(extent))
    }

    /// Frames of an incomplete object, of what is none any more, or granted ones become free. Nobody may be writing them
    /// any more. What cannot become free is quarantined, so that no frame is lost from the books.
    ///
    /// # Errors
    /// [`PoolError::DoubleFree`] when some frames were free already. All others have been taken care of.
    pub fn free_granted(&mut self, extents: &[Extent]) -> Result<(), PoolError> {
        let mut all = Ok(());
        for extent in extents {
            let freed = self.free_run(*extent);
            all = all.and(freed);
        }
        all
    }

    /// Granted frames now hold bytes of a record that is still incomplete.
    pub fn hold_for_incomplete(&self, record: u32, extents: &[Extent]) {
        self.directory.set_owner(extents, Owner::Record(record));
    }

    /// So many frames of a record that was incomplete now hold an object. Their owner is the same.
    pub fn hold_for_object(&mut self, frames: u64) -> Result<(), PoolError> {
        self.books.move_frames(Class::Granted, Class::Used, frames)
    }

    /// So many frames of an object are those of an incomplete one again: they become free piece by piece.
    pub fn hold_for_waste(&mut self, frames: u64) -> Result<(), PoolError> {
        self.books.move_frames(Class::Used, Class::Granted, frames)
    }

    /// The directory says what there is to free: its word and the books change together, frame by frame if need be.
    fn free_run(&mut self, extent: Extent) -> Result<(), PoolError> {
        if !extent.is_within(self.frames) {
            return Err(PoolError::DoubleFree(extent));
        }
        let held = |frame: &u32| match self.directory.owner(*frame) {
            Ok(Owner::Granted { .. } | Owner::Record(_)) => true,
            // Free already, held back for somebody, or a word that cannot be read: not the caller's to free.
            Ok(Owner::Free | Owner::Quarantined { .. }) | Err(_) => false,
        };
        let held: Vec<Extent> = if extent.frames().all(|frame| held(&frame)) {
            vec![extent]
        } else {
            let frames = extent.frames().filter(held);
            frames.map(|frame| Extent::new(frame, 1)).collect()
        };
        for run in &held {
            self.directory.set_owner(&[*run], Owner::Free);
            // Between clearing words and handing the frames out again.
            fence(Ordering::Release);
            let to = match self.allocator.release(*run) {
                Ok(()) => Class::Free,
                Err(error) => {
                    tracing::error!(%error, "quarantined until the pool is made anew");
                    self.directory
                        .set_owner(&[*run], Owner::Quarantined { slab: NO_SLAB });
                    Class::Quarantined
                }
            };
            self.books.move_frames(Class::Granted, to, run.count.into())?;
        }
        if held == [extent] {
            Ok(())
        } else {
            Err(PoolError::DoubleFree(extent))
        }
    }

    /// From now on the allocator refuses to take this frame back.
    #[cfg(test)]
    pub fn refuse_release(&mut self, frame: u32) {
        self.allocator.refuse_release(frame);
    }

    /// Recomputes every total from the directory and compares it with books and allocator.
    ///
    /// # Errors
    /// [`PoolError::Broken`] with the first thing that does not hold.
    pub fn audit(&self) -> Result<DirectoryTotals, PoolError> {
        let totals = self.directory.audit()?;
        let pairs = [
            ("free frames", Class::Free, totals.free),
            ("used frames", Class::Used, totals.used),
            (
                "granted frames",
                Class::Granted,
                totals.granted + totals.incomplete,
            ),
            ("quarantined frames", Class::Quarantined, totals.quarantined),
        ];
        for (what, class, found) in pairs {
            if self.books.frames(class) != found {
                let a = self.books.frames(class);
                return Err(PoolError::Broken { what, a, b: found });
            }
        }
        for frame in self.allocator.runs().flat_map(|run| run.frames()) {
            if self.directory.owner(frame)? != Owner::Free || self.epochs.of(frame) != 0 {
                return Err(PoolError::Broken {
                    what: "a free frame has an owner or an epoch",
                    a: frame.into(),
                    b: self.epochs.of(frame),
                });
            }
        }
        let unfaulted = u64::from(self.frames - self.allocator.watermark());
        if self.allocator.free_frames() + unfaulted != totals.free {
            return Err(PoolError::Broken {
                what: "the allocator has lost free frames",
                a: self.allocator.free_frames(),
                b: totals.free,
            });
        }
        Ok(totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(bytes: u64) -> PoolConfig {
        PoolConfig {
            bytes,
            pool_id: [7; 16],
            boot_seq: 1,
            memory: MemoryConfig::default(),
        }
    }

    #[test]
    fn sizes_are_checked_and_rounded_down() {
        assert!(
            matches!(Pool::create(config(FRAME_BYTES - 1)), Err(PoolError::TooSmall { bytes }) if bytes == 65535)
        );
        assert!(matches!(
            Pool::create(config(u64::MAX)),
            Err(PoolError::TooLarge { .. })
        ));
        assert_eq!(
            Pool::create(config(3 * FRAME_BYTES + 5)).unwrap().bytes(),
            3 * FRAME_BYTES
        );
        for boot_seq in [0, MAX_BOOT_SEQ + 1] {
            let config = PoolConfig {
                boot_seq,
                ..config(FRAME_BYTES)
            };
            assert!(matches!(Pool::create(config), Err(PoolError::BootSeq { .. })));
        }
    }

    #[test]
    fn grants_come_out_of_what_is_prefaulted() {
        let mut pool = Pool::create(config(16 * FRAME_BYTES)).unwrap();
        assert!(pool.grant(1, 1).unwrap().is_none());
        pool.prefaulted(4 * FRAME_BYTES + 1).unwrap();
        assert_eq!(pool.grantable(), 4);
        let extents = pool.grant(1, 3).unwrap().unwrap();
        pool.audit().unwrap();
        assert_eq!(pool.books().frames(Class::Granted), 3);
        pool.free_granted(&extents).unwrap();
        pool.audit().unwrap();
        assert!(pool.free_granted(&extents).is_err());
        pool.audit().unwrap();
    }

    #[test]
    fn what_cannot_become_free_is_quarantined_and_the_rest_is_freed() {
        let mut pool = Pool::create(config(16 * FRAME_BYTES)).unwrap();
        pool.prefaulted(16 * FRAME_BYTES).unwrap();
        let extents = pool.grant(1, 16).unwrap().unwrap();
        assert_eq!(extents, [Extent::new(0, 16)]);
        pool.refuse_release(6);
        let runs = [Extent::new(0, 4), Extent::new(5, 3), Extent::new(10, 6)];
        pool.free_granted(&runs).unwrap();
        let books = |pool: &Pool| {
            [Class::Free, Class::Used, Class::Granted, Class::Quarantined].map(|c| pool.books().frames(c))
        };
        assert_eq!(books(&pool), [10, 0, 3, 3]);
        pool.audit().unwrap();
        // Once more with a run that is free in part: only what was held goes.
        let again = pool.free_granted(&[Extent::new(3, 2), Extent::new(8, 2)]);
        assert!(matches!(again, Err(PoolError::DoubleFree(e)) if e == Extent::new(3, 2)));
        assert_eq!(books(&pool), [13, 0, 0, 3]);
        pool.audit().unwrap();
        // The quarantined frames are never handed out.
        assert!(pool.grant(1, 14).unwrap().is_none());
        let all = pool.grant(1, 13).unwrap().unwrap();
        assert!(
            all.iter()
                .flat_map(|e| e.frames())
                .all(|frame| !(5..8).contains(&frame))
        );
        pool.audit().unwrap();
    }
}
