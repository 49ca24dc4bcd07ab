//! Payload rings: two lanes of bytes between a server and one client that must not map the pool.
//!
//! A lane has one producer and one consumer. Each has a word that only it writes: how many bytes it has written, or read,
//! in all. A side keeps its own count to itself and never reads it back; the other side's word is copied once and then
//! checked against what is possible. So whatever a peer writes, a side never touches a byte outside of the lane, and never
//! takes bytes for written that its own count does not allow.
//!
//! Nobody waits here. Whoever finds a lane full or empty is told so, and the messages of the connection say when to look
//! again. Layout: docs/shm-layout.md, "Payload ring". The lanes are whole frames and begin on one, so that a device can
//! register them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::{Mapping, ReadWrite, ShmError};
#[cfg(loom)]
use crate::sync::AtomicU64 as ModelU64;
use crate::sync::shared::Ordering;

/// Bytes before the first lane: as many as the largest page, so that lanes begin on one.
pub const RING_HEADER_BYTES: u64 = 64 << 10;
/// Lanes are whole multiples of this.
pub const LANE_UNIT_BYTES: u64 = 64 << 10;
/// The longest lane.
pub const MAX_LANE_BYTES: u64 = 64 << 20;
/// What is put into a lane begins on a multiple of this.
pub const LANE_ALIGN: u64 = 64;

/// How both sides load and store a count: with this order, also in the model.
const LOADED: Ordering = Ordering::Acquire;
const STORED: Ordering = Ordering::Release;

const MAGIC: u64 = u64::from_le_bytes(*b"KVASIRR1");
/// The version of this layout.
const VERSION: u32 = 1;
/// Bytes of the header that say what the region is.
const HEAD_BYTES: usize = 32;
/// The four words, each on a line of its own.
const STORE_WRITTEN: u64 = 128;
const STORE_READ: u64 = 256;
const LOAD_WRITTEN: u64 = 384;
const LOAD_READ: u64 = 512;

/// A ring that its other side has broken, or that cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The peer's word holds what it cannot.
    #[error(
        "the {word} word of the ring is {value}, which has to be a multiple of {LANE_ALIGN} from {least} to {most}; open \
         another connection for a new ring"
    )]
    Garbage {
        /// Which word.
        word: &'static str,
        /// What it holds.
        value: u64,
        /// The least that it could.
        least: u64,
        /// The most that it could.
        most: u64,
    },
    /// More than there is: the peer has to wait for it, or never has it.
    #[error("{asked} bytes of the ring were named where {there} are {what}; never name more")]
    NotThere {
        /// How much.
        asked: u64,
        /// What there is.
        there: u64,
        /// Written or free.
        what: &'static str,
    },
    /// The region is not a ring of this version.
    #[error("the ring's header is not one that this version reads: {what}")]
    Header {
        /// What is wrong.
        what: String,
    },
    /// A copy failed whose places had been checked.
    #[error("a copy between ring and pool failed, which is a defect of the server: {what}")]
    Copy {
        /// What the copy says, with its numbers.
        what: String,
    },
    /// The memory could not be reached.
    #[error(transparent)]
    Shm(#[from] ShmError),
}

/// Bytes as a lane counts them: up to the next multiple of [`LANE_ALIGN`]. Absurd numbers stay absurd.
pub fn lane_bytes(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(LANE_ALIGN).unwrap_or(u64::MAX)
}

/// A count that one side of a lane writes and the other reads.
pub trait Count {
    /// What it is now; what the writer did before it is visible.
    ///
    /// # Errors
    /// [`ShmError`] where the memory behind it is gone.
    fn load(&self) -> Result<u64, ShmError>;
    /// Sets it; what was done before is visible to whoever reads it.
    ///
    /// # Errors
    /// [`ShmError`] where the memory behind it is gone.
    fn store(&self, count: u64) -> Result<(), ShmError>;
}

/// A count in a mapped ring, or in a file that is not mapped: its owner could cut it short, and a mapping of it would then
/// raise SIGBUS.
#[derive(Clone, Debug)]
pub struct RingWord {
    memory: RingMemory,
    offset: u64,
}

/// How the bytes of a ring are reached.
#[derive(Clone, Debug)]
pub enum RingMemory {
    /// A mapping of a file whose size is sealed.
    Mapped(Arc<Mapping<ReadWrite>>),
    /// A file that may be cut short at any time.
    File(Arc<File>),
}

impl Count for RingWord {
    fn load(&self) -> Result<u64, ShmError> {
        match &self.memory {
            RingMemory::Mapped(mapping) => Ok(mapping.atomic_u64(self.offset as usize)?.load(LOADED)),
            RingMemory::File(file) => {
                let mut word = [0; 8];
                file.read_exact_at(&mut word, self.offset)
                    .map_err(|error| ShmError::os("pread", "a ring's word", error))?;
                Ok(u64::from_le_bytes(word))
            }
        }
    }

    fn store(&self, count: u64) -> Result<(), ShmError> {
        match &self.memory {
            RingMemory::Mapped(mapping) => {
                mapping.atomic_u64(self.offset as usize)?.store(count, STORED);
                Ok(())
            }
            RingMemory::File(file) => file
                .write_all_at(&count.to_le_bytes(), self.offset)
                .map_err(|error| ShmError::os("pwrite", "a ring's word", error)),
        }
    }
}

#[cfg(loom)]
impl Count for crate::sync::Arc<ModelU64> {
    fn load(&self) -> Result<u64, ShmError> {
        Ok(ModelU64::load(self, LOADED))
    }

    fn store(&self, count: u64) -> Result<(), ShmError> {
        ModelU64::store(self, count, STORED);
        Ok(())
    }
}

/// Where a ring's parts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    lane: u64,
}

/// A run of bytes of the ring's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSpan {
    /// From the start of the region.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// One of the two lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// From the client to the server.
    Store,
    /// From the server to the client.
    Load,
}

impl RingLayout {
    /// A ring whose lanes have room for so many bytes; nothing for more than a lane may have.
    pub fn with_lanes(bytes: u64) -> Option<Self> {
        let lane = bytes.max(1).checked_next_multiple_of(LANE_UNIT_BYTES)?;
        (lane <= MAX_LANE_BYTES).then_some(Self { lane })
    }

    /// Bytes of one lane.
    pub fn lane_bytes(self) -> u64 {
        self.lane
    }

    /// Bytes of the region.
    pub fn region_bytes(self) -> u64 {
        RING_HEADER_BYTES + 2 * self.lane
    }

    /// What the front of the region says.
    pub fn head(self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        let words = [
            MAGIC,
            RING_HEADER_BYTES << 32 | u64::from(VERSION),
            self.lane,
            self.region_bytes(),
        ];
        for (to, word) in head.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        head
    }

    /// Reads the front of a mapped region, once, and checks that all of the ring lies in it.
    ///
    /// # Errors
    /// [`RingError::Header`], [`RingError::Shm`].
    pub fn read(region: &Mapping<ReadWrite>) -> Result<Self, RingError> {
        let mut head = [0; HEAD_BYTES];
        region.read_bytes(0, &mut head)?;
        let mut words = [0; HEAD_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(head.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        let layout = Self::with_lanes(words[2]).filter(|layout| layout.head() == head);
        let layout = layout.ok_or_else(|| RingError::Header {
            what: format!("{words:x?}"),
        })?;
        if region.len() as u64 != layout.region_bytes() {
            return Err(RingError::Header {
                what: format!("{} bytes for lanes of {}", region.len(), layout.lane),
            });
        }
        Ok(layout)
    }

    /// The region's runs of `bytes` bytes of a lane from a position on: one, or two where the lane's end lies in between.
    pub fn spans(self, lane: Lane, position: u64, bytes: u64) -> [RingSpan; 2] {
        let start = match lane {
            Lane::Store => RING_HEADER_BYTES,
            Lane::Load => RING_HEADER_BYTES + self.lane,
        };
        let at = position % self.lane;
        let first = bytes.min(self.lane - at);
        [
            RingSpan {
                offset: start + at,
                bytes: first,
            },
            RingSpan {
                offset: start,
                bytes: bytes - first,
            },
        ]
    }

    /// Both ends of a lane as one process holds them: it takes the one that is its own.
    pub fn producer(self, lane: Lane, memory: &RingMemory) -> Producer<RingWord> {
        let (written, read) = Self::words(lane, memory);
        Producer::new(self.lane, written, read)
    }

    /// The reading end of a lane.
    pub fn consumer(self, lane: Lane, memory: &RingMemory) -> Consumer<RingWord> {
        let (written, read) = Self::words(lane, memory);
        Consumer::new(self.lane, written, read)
    }

    fn words(lane: Lane, memory: &RingMemory) -> (RingWord, RingWord) {
        let (written, read) = match lane {
            Lane::Store => (STORE_WRITTEN, STORE_READ),
            Lane::Load => (LOAD_WRITTEN, LOAD_READ),
        };
        let word = |offset| RingWord {
            memory: memory.clone(),
            offset,
        };
        (word(written), word(read))
    }
}

/// The writing end of a lane.
#[derive(Debug)]
pub struct Producer<C> {
    capacity: u64,
    /// Own: all bytes that were published.
    written: u64,
    /// The reader's count when it was last looked at.
    read: u64,
    own: C,
    peer: C,
}

impl<C: Count> Producer<C> {
    /// The end of a lane that nothing has gone through yet.
    pub fn new(capacity: u64, written: C, read: C) -> Self {
        Self {
            capacity,
            written: 0,
            read: 0,
            own: written,
            peer: read,
        }
    }

    /// Where the next bytes go, after checking that there is room for them.
    ///
    /// # Errors
    /// [`RingError::NotThere`] where there is not, and [`RingError::Garbage`] for a reader's count that cannot be.
    pub fn claim(&mut self, bytes: u64) -> Result<u64, RingError> {
        let free = self.free()?;
        if bytes > free {
            return Err(RingError::NotThere {
                asked: bytes,
                there: free,
                what: "free",
            });
        }
        Ok(self.written)
    }

    /// Bytes that can be written now.
    ///
    /// # Errors
    /// [`RingError::Garbage`], [`RingError::Shm`].
    pub fn free(&mut self) -> Result<u64, RingError> {
        self.read = check("read", self.peer.load()?, self.read, self.written)?;
        Ok(self.capacity - (self.written - self.read))
    }

    /// Hands bytes over that were claimed and written.
    ///
    /// # Errors
    /// [`RingError::Shm`].
    pub fn publish(&mut self, bytes: u64) -> Result<(), RingError> {
        self.written += bytes;
        Ok(self.own.store(self.written)?)
    }
}

/// The reading end of a lane.
#[derive(Debug)]
pub struct Consumer<C> {
    capacity: u64,
    /// Own: all bytes that were given back.
    read: u64,
    /// The writer's count when it was last looked at.
    written: u64,
    own: C,
    peer: C,
}

impl<C: Count> Consumer<C> {
    /// The end of a lane that nothing has gone through yet.
    pub fn new(capacity: u64, written: C, read: C) -> Self {
        Self {
            capacity,
            read: 0,
            written: 0,
            own: read,
            peer: written,
        }
    }

    /// Where the next bytes are, after checking that they were written.
    ///
    /// # Errors
    /// [`RingError::NotThere`] where they were not, and [`RingError::Garbage`] for a writer's count that cannot be.
    pub fn claim(&mut self, bytes: u64) -> Result<u64, RingError> {
        let (least, most) = (self.written, self.read + self.capacity);
        self.written = check("written", self.peer.load()?, least, most)?;
        let there = self.written - self.read;
        if bytes > there {
            return Err(RingError::NotThere {
                asked: bytes,
                there,
                what: "written",
            });
        }
        Ok(self.read)
    }

    /// Gives bytes back that were claimed and read.
    ///
    /// # Errors
    /// [`RingError::Shm`].
    pub fn release(&mut self, bytes: u64) -> Result<(), RingError> {
        self.read += bytes;
        Ok(self.own.store(self.read)?)
    }
}

/// The peer's count, if it can be: it never goes back, and never beyond what this side allows.
fn check(word: &'static str, value: u64, least: u64, most: u64) -> Result<u64, RingError> {
    if !(least..=most).contains(&value) || !value.is_multiple_of(LANE_ALIGN) {
        return Err(RingError::Garbage {
            word,
            value,
            least,
            most,
        });
    }
    Ok(value)
}

#[cfg(test)]
#[path = "tests/ring.rs"]
mod tests;

#[cfg(all(test, loom))]
#[path = "tests/ring_loom.rs"]
mod loom;
