//! The control region as clients read it: one page that the server writes.
//!
//! All fields are little-endian `u64` words at fixed offsets; words that change have a 64-byte line of
//! their own, counters share lines. The server is the only writer: clients get read-only descriptors, and
//! the seal against future writes holds even for a process that could open the file anew.
//!
//! | offset | field |
//! |---|---|
//! | 0 | magic, `KVASIRC1` |
//! | 8 | ABI version (low half), header bytes (high half) |
//! | 16 | boot id, 16 random bytes |
//! | 32, 40, 48 | boot sequence, server process id, start in Unix milliseconds |
//! | 64 | heartbeat: monotonic milliseconds |
//! | 128 | chunk-size word, see [`super::word`] |
//! | 192 | health, see [`Health`] |
//! | 256.. | counters, see [`Counter`] |
//! | 1024.. | per binding domain 32 bytes: first half of its id, its chunk-size word, 8 reserved |

use std::os::fd::BorrowedFd;

use super::fields::{Counter, Health};
use super::word::{ChunkWord, WordError};
use crate::shm::{Mapping, ReadOnly, ShmError};

/// The size of the region in bytes, also where pages are larger.
pub(crate) const CONTROL_BYTES: usize = 4096;
/// The version of this layout. Any change to it that an older client could misread raises it.
pub const ABI_VERSION: u32 = 5;
/// The first word of the region.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"KVASIRC1");

pub(super) const AT_MAGIC: usize = 0;
pub(super) const AT_VERSION: usize = 8;
pub(super) const AT_BOOT_ID: usize = 16;
pub(super) const AT_BOOT_SEQ: usize = 32;
pub(super) const AT_SERVER_PID: usize = 40;
pub(super) const AT_STARTED: usize = 48;
pub(super) const AT_HEARTBEAT: usize = 64;
pub(super) const AT_CHUNK_SIZE: usize = 128;
pub(super) const AT_HEALTH: usize = 192;
pub(super) const AT_COUNTERS: usize = 256;
pub(super) const AT_DOMAINS: usize = 1024;
/// First half of the domain's id, word, reserved.
pub(super) const DOMAIN_BYTES: usize = 32;

// `word_at` relies on these for every offset above.
const _: () = assert!(AT_COUNTERS + 8 * Counter::ALL.len() <= AT_DOMAINS);
const _: () = assert!(AT_DOMAINS + DOMAIN_BYTES * MAX_BINDING_DOMAINS <= CONTROL_BYTES);
const _: () = assert!(AT_COUNTERS.is_multiple_of(8) && AT_DOMAINS.is_multiple_of(8));

/// Where a counter is.
pub(super) const fn counter_offset(counter: Counter) -> usize {
    AT_COUNTERS + 8 * counter as usize
}

/// Where an entry of the domain table is.
pub(super) const fn domain_offset(entry: usize) -> usize {
    assert!(entry < MAX_BINDING_DOMAINS);
    AT_DOMAINS + DOMAIN_BYTES * entry
}

/// Where its chunk-size word is.
pub(super) const fn domain_word_offset(entry: usize) -> usize {
    domain_offset(entry) + 16
}

/// Names what shares a chunk size when each model has its own.
pub type DomainId = [u8; 32];

/// The binding domains that one server can have in its life.
pub const MAX_BINDING_DOMAINS: usize = 64;

/// A control region that cannot be made or trusted.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The memory could not be made or mapped.
    #[error("control region: {0}")]
    Shm(#[from] ShmError),
    /// Not a control region, or one whose server has not finished making it.
    #[error("control region starts with {found:#018x} instead of {MAGIC:#018x}; it is not one of Kvasir's")]
    Magic {
        /// The first word.
        found: u64,
    },
    /// Made by a server of another version.
    #[error(
        "control region has ABI version {found}, this client reads version {ABI_VERSION}; upgrade the older of \
         server and client"
    )]
    AbiVersion {
        /// The version found.
        found: u32,
    },
    /// The version is right but the size is not.
    #[error("control region says it has {found} header bytes instead of {CONTROL_BYTES}; it is damaged")]
    HeaderBytes {
        /// The size found.
        found: u32,
    },
    /// A health value that no server writes.
    #[error("control region has the health value {0}, which does not exist; it is damaged")]
    Health(u64),
}

/// What one life of the server is known by. Written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootInfo {
    /// Random; differs between any two lives of any servers.
    pub boot_id: [u8; 16],
    /// Counts the lives of one pool.
    pub boot_seq: u64,
    /// The server's process id, in its own namespace.
    pub server_pid: u64,
    /// Wall-clock time of the start.
    pub started_unix_ms: u64,
}

/// The client's side: a read-only mapping of a region that a server sent.
#[derive(Debug)]
pub struct ControlView {
    map: Mapping<ReadOnly>,
    boot: BootInfo,
}

impl ControlView {
    /// Maps the region behind a received descriptor, which may be closed afterwards.
    ///
    /// # Errors
    /// [`ControlError`] when it is too short, not sealed, not a control region, or of another version.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self, ControlError> {
        let map = Mapping::<ReadOnly>::map_foreign(fd, CONTROL_BYTES)?;
        let get = |offset| -> Result<u64, ShmError> { Ok(map.atomic_u64(offset)?.load_acquire()) };
        let found = get(AT_MAGIC)?;
        if found != MAGIC {
            return Err(ControlError::Magic { found });
        }
        let version = get(AT_VERSION)?;
        if version as u32 != ABI_VERSION {
            return Err(ControlError::AbiVersion {
                found: version as u32,
            });
        }
        if version >> 32 != CONTROL_BYTES as u64 {
            return Err(ControlError::HeaderBytes {
                found: (version >> 32) as u32,
            });
        }
        let mut boot_id = [0; 16];
        boot_id[..8].copy_from_slice(&get(AT_BOOT_ID)?.to_le_bytes());
        boot_id[8..].copy_from_slice(&get(AT_BOOT_ID + 8)?.to_le_bytes());
        let boot = BootInfo {
            boot_id,
            boot_seq: get(AT_BOOT_SEQ)?,
            server_pid: get(AT_SERVER_PID)?,
            started_unix_ms: get(AT_STARTED)?,
        };
        Ok(Self { map, boot })
    }

    /// What the server's life is known by; read once, when the region was opened.
    pub fn boot(&self) -> &BootInfo {
        &self.boot
    }

    /// The chunk-size word. Reading it binds nothing.
    ///
    /// # Errors
    /// [`WordError`] for a pattern that no server writes.
    pub fn chunk_word(&self) -> Result<ChunkWord, WordError> {
        ChunkWord::decode(self.word_at(AT_CHUNK_SIZE))
    }

    /// Every binding domain that has a size, by the first half of its id. Empty on a server with one size.
    ///
    /// # Errors
    /// [`WordError`] for a pattern that no server writes.
    pub fn domain_words(&self) -> Result<Vec<([u8; 16], ChunkWord)>, WordError> {
        let mut found = Vec::new();
        for entry in 0..MAX_BINDING_DOMAINS {
            // Before the id, which is written before it.
            let word = ChunkWord::decode(self.word_at(domain_word_offset(entry)))?;
            if word == ChunkWord::Unbound {
                continue;
            }
            let mut half = [0; 16];
            half[..8].copy_from_slice(&self.word_at(domain_offset(entry)).to_le_bytes());
            half[8..].copy_from_slice(&self.word_at(domain_offset(entry) + 8).to_le_bytes());
            found.push((half, word));
        }
        Ok(found)
    }

    /// The word of a binding domain: unbound when the server does not know it.
    ///
    /// # Errors
    /// [`WordError`] for a pattern that no server writes.
    pub fn domain_word(&self, id: &DomainId) -> Result<ChunkWord, WordError> {
        let words = self.domain_words()?;
        let found = words.into_iter().find(|(half, _)| id.starts_with(half));
        Ok(found.map_or(ChunkWord::Unbound, |(_, word)| word))
    }

    /// The monotonic clock in milliseconds at the server's last sign of life.
    pub fn heartbeat_ms(&self) -> u64 {
        self.word_at(AT_HEARTBEAT)
    }

    /// What the server says it can do.
    ///
    /// # Errors
    /// [`ControlError::Health`] for a value that no server writes.
    pub fn health(&self) -> Result<Health, ControlError> {
        let word = self.word_at(AT_HEALTH);
        Health::decode(word).ok_or(ControlError::Health(word))
    }

    /// The value of a counter. Several of them read one after the other may not add up.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.word_at(counter_offset(counter))
    }

    fn word_at(&self, offset: usize) -> u64 {
        let word = self.map.atomic_u64(offset);
        word.expect("field offsets are constants, aligned and inside the region")
            .load_acquire()
    }
}
