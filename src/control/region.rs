//! The server's side of the control region, the only one that writes it. Layout: [`super::view`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::binding::WordCell;
use super::fields::{Counter, Health};
use super::view::{
    ABI_VERSION, AT_BOOT_ID, AT_BOOT_SEQ, AT_CHUNK_SIZE, AT_HEALTH, AT_HEARTBEAT, AT_MAGIC, AT_SERVER_PID,
    AT_STARTED, AT_VERSION, BootInfo, CONTROL_BYTES, ControlError, DomainId, MAGIC, counter_offset,
    domain_offset, domain_word_offset,
};
use super::word::ChunkWord;
use crate::shm::process::{monotonic_ms, random_id};
use crate::shm::{Mapping, Memfd, OwnerAccess, ReadWrite, ShmError};
use crate::sync::shared::{AtomicU64, Ordering};

/// The half of a domain's id that the table holds.
fn id_words(id: &DomainId) -> [u64; 2] {
    [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| id[at + i])))
}

impl BootInfo {
    /// A new life of this process, from now.
    ///
    /// # Errors
    /// [`ShmError::Os`] when there are no random bytes.
    pub fn fresh(boot_seq: u64) -> Result<Self, ShmError> {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Self {
            boot_id: random_id()?,
            boot_seq,
            server_pid: u64::from(std::process::id()),
            started_unix_ms: now.as_millis() as u64,
        })
    }
}

/// The server's side: owns the memory and is the only one that can write it.
#[derive(Debug)]
pub struct ControlRegion {
    memfd: Memfd,
    map: Mapping<ReadWrite>,
    boot: BootInfo,
}

impl ControlRegion {
    /// Makes the region for one life of the server: unbound, [`Health::Starting`], all counters zero.
    ///
    /// # Errors
    /// [`ControlError::Shm`] when the memory cannot be made, mapped or sealed.
    pub fn create(boot: BootInfo) -> Result<Self, ControlError> {
        let memfd = Memfd::create("control", CONTROL_BYTES as u64, OwnerAccess::Read)?;
        let map = memfd.map()?;
        // This mapping is the last writable one there will ever be.
        memfd.seal_future_writes()?;
        let region = Self { memfd, map, boot };
        let put = |offset, value| region.word_at(offset).store(value, Ordering::Relaxed);
        let (id_low, id_high) = boot.boot_id.split_at(8);
        put(AT_VERSION, u64::from(ABI_VERSION) | (CONTROL_BYTES as u64) << 32);
        put(
            AT_BOOT_ID,
            u64::from_le_bytes(id_low.try_into().unwrap_or_default()),
        );
        put(
            AT_BOOT_ID + 8,
            u64::from_le_bytes(id_high.try_into().unwrap_or_default()),
        );
        put(AT_BOOT_SEQ, boot.boot_seq);
        put(AT_SERVER_PID, boot.server_pid);
        put(AT_STARTED, boot.started_unix_ms);
        put(AT_CHUNK_SIZE, ChunkWord::Unbound.encode());
        put(AT_HEARTBEAT, monotonic_ms());
        // Last: a region without its magic is not finished.
        region.word_at(AT_MAGIC).store(MAGIC, Ordering::Release);
        Ok(region)
    }

    /// What this life is known by.
    pub fn boot(&self) -> &BootInfo {
        &self.boot
    }

    /// A read-only descriptor to send to a client.
    ///
    /// # Errors
    /// [`ControlError::Shm`] when descriptors have run out or `/proc` is not mounted.
    pub fn client_fd(&self) -> Result<OwnedFd, ControlError> {
        Ok(self.memfd.reopen_read_only()?)
    }

    /// The chunk-size word, for the one [`super::Binding`] that may write it.
    pub fn chunk_size_cell(self: &Arc<Self>) -> ChunkSizeCell {
        ChunkSizeCell {
            region: Arc::clone(self),
            offset: AT_CHUNK_SIZE,
        }
    }

    /// The word of an entry of the domain table, for the one [`super::Binding`] that may write it.
    ///
    /// # Panics
    /// For an entry from [`MAX_BINDING_DOMAINS`] on.
    pub fn domain_cell(self: &Arc<Self>, entry: usize) -> ChunkSizeCell {
        ChunkSizeCell {
            region: Arc::clone(self),
            offset: domain_word_offset(entry),
        }
    }

    /// Says whose word an entry of the domain table holds; only while that is unbound.
    pub(super) fn name_domain(&self, entry: usize, id: Option<&DomainId>) {
        let words = id.map_or([0; 2], id_words);
        for (i, word) in words.into_iter().enumerate() {
            self.word_at(domain_offset(entry) + 8 * i)
                .store(word, Ordering::Relaxed);
        }
    }

    /// Says that the server is alive: stores the monotonic clock.
    pub fn beat(&self) {
        self.word_at(AT_HEARTBEAT)
            .store(monotonic_ms(), Ordering::Release);
    }

    /// Publishes what clients can expect.
    pub fn set_health(&self, health: Health) {
        self.word_at(AT_HEALTH).store(health as u64, Ordering::Release);
    }

    /// A counter, to add to or to set.
    pub fn counter(&self, counter: Counter) -> &AtomicU64 {
        self.word_at(counter_offset(counter))
    }

    fn word_at(&self, offset: usize) -> &AtomicU64 {
        self.map
            .atomic_u64(offset)
            .expect("field offsets are constants, aligned and inside the region")
    }
}

/// The server's own descriptor, writable. Clients get [`ControlRegion::client_fd`] instead.
impl AsFd for ControlRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }
}

/// A chunk-size word inside a [`ControlRegion`], which it keeps alive.
#[derive(Debug)]
pub struct ChunkSizeCell {
    region: Arc<ControlRegion>,
    offset: usize,
}

impl ChunkSizeCell {
    fn word(&self) -> &AtomicU64 {
        self.region.word_at(self.offset)
    }
}

impl WordCell for ChunkSizeCell {
    fn load(&self) -> u64 {
        self.word().load(Ordering::Acquire)
    }

    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.word()
            .compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }

    fn store(&self, word: u64) {
        self.word().store(word, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/region.rs"]
mod tests;
