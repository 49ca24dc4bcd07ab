//! The directory: who owns each frame, and what each object is. Only the server maps it.
//!
//! Layout: docs/shm-layout.md, "Directory region". A restart recovers from it, so every change is ordered:
//! the state of a record is written last when it is published and first when it goes.

use super::PoolError;
use super::body::{self, PartBody};
use crate::index::body::{BodyCursor, BodyPiece};
use crate::index::body::{CHAIN_BYTES, CHAIN_WORDS, ChainArea, INLINE_WORDS, chain_blocks};
use crate::index::layout::version_word;
use crate::index::record::{SHARED_WORDS, WORD_INLINE};
use crate::object::{Extent, FRAME_BYTES};
use crate::shm::{Mapping, Memfd, OwnerAccess, ReadWrite, ShmError};
use crate::sync::shared::{AtomicU64, Ordering};

/// First word of the region.
pub(crate) const DIRECTORY_MAGIC: u64 = u64::from_le_bytes(*b"KVASIRD1");
const HEADER: usize = 4096;
const AT_BOOT: usize = 64;
const AT_CHUNK_SIZE: usize = 72;
const RECORD_BYTES: usize = 192;
const RECORD_WORDS: usize = RECORD_BYTES / 8;

/// Who may write a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// Nobody.
    Free,
    /// The client of a slab.
    Granted {
        /// The slab.
        slab: u16,
        /// Which grant it came with.
        counter: u64,
    },
    /// Nobody any more: it holds bytes of a record.
    Record(u32),
    /// A client of an earlier boot, or nobody: a frame that could not be freed.
    Quarantined {
        /// The client's slab; `NO_SLAB` where it is nobody's.
        slab: u16,
    },
}

/// Names no slab: what is quarantined under it stays so as long as the pool.
pub(crate) const NO_SLAB: u16 = u16::MAX;

/// Grant counters have 44 bits.
pub(crate) const MAX_GRANT_COUNTER: u64 = (1 << 44) - 1;

impl Owner {
    /// The owner word.
    pub fn to_word(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Granted { slab, counter } => {
                1 << 60 | u64::from(slab) << 44 | (counter & MAX_GRANT_COUNTER)
            }
            Self::Record(record) => 2 << 60 | u64::from(record),
            Self::Quarantined { slab } => 3 << 60 | u64::from(slab) << 44,
        }
    }

    /// The owner that a word names; `None` for a word that is never written.
    pub fn from_word(word: u64) -> Option<Self> {
        let slab = (word >> 44) as u16;
        match word >> 60 {
            0 if word == 0 => Some(Self::Free),
            1 => Some(Self::Granted {
                slab,
                counter: word & MAX_GRANT_COUNTER,
            }),
            2 => u32::try_from(word & !(2 << 60)).ok().map(Self::Record),
            3 => Some(Self::Quarantined { slab }),
            _ => None,
        }
    }
}

/// What a directory record stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum RecordState {
    /// Nothing.
    Free = 0,
    /// A visible object.
    Live = 1,
    /// An object that is out of the index and keeps its frames for a reader.
    Limbo = 2,
    /// An object some of whose parts are missing.
    Incomplete = 3,
}

/// Frames by owner, as the directory has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectoryTotals {
    /// Owned by nobody.
    pub free: u64,
    /// Granted to clients.
    pub granted: u64,
    /// Parts of incomplete objects.
    pub incomplete: u64,
    /// Live and limbo objects.
    pub used: u64,
    /// Quarantined.
    pub quarantined: u64,
    /// Live records.
    pub live_records: u64,
    /// Records in limbo.
    pub limbo_records: u64,
    /// Records of incomplete objects.
    pub incomplete_records: u64,
}

/// The region and its fixed offsets.
#[derive(Debug)]
pub struct Directory {
    mapping: Mapping<ReadWrite>,
    frames: u32,
    records_at: usize,
    chains: ChainArea,
    _memfd: Memfd,
}

impl Directory {
    /// A region in which every frame and record is free. Touches the header only.
    pub fn create(frames: u32, pool_id: [u8; 16], boot_seq: u64) -> Result<Self, ShmError> {
        let owners_at = HEADER;
        let records_at = (owners_at + frames as usize * 8).next_multiple_of(64);
        let chains = ChainArea {
            base: records_at + frames as usize * RECORD_BYTES,
            blocks: chain_blocks(frames),
        };
        let bytes = chains.base + chains.blocks as usize * CHAIN_BYTES;
        let memfd = Memfd::create("directory", bytes as u64, OwnerAccess::Read)?;
        let mapping = memfd.map()?;
        memfd.seal_seals()?;
        let mut header = [0; 13];
        header[..4].copy_from_slice(&[DIRECTORY_MAGIC, version_word(HEADER), frames.into(), FRAME_BYTES]);
        header[8..].copy_from_slice(&[
            boot_seq,
            0,
            owners_at as u64,
            records_at as u64,
            chains.base as u64,
        ]);
        debug_assert!(header[AT_BOOT / 8] == boot_seq && header[AT_CHUNK_SIZE / 8] == 0);
        mapping.store_words(0, &header)?;
        mapping.write_bytes(32, &pool_id)?;
        Ok(Self {
            mapping,
            frames,
            records_at,
            chains,
            _memfd: memfd,
        })
    }

    /// The addresses of a record's state and of its meta word here, for models.
    #[cfg(all(test, loom))]
    pub(crate) fn addresses(&self, record: u32) -> [usize; 2] {
        let at = self.mapping.base().addr() + self.record_at(record);
        [at, at + 8]
    }

    /// Records the bound chunk size.
    pub fn set_chunk_size(&self, tokens: u32) {
        self.word(AT_CHUNK_SIZE).store(tokens.into(), Ordering::Release);
    }

    /// Who may write a frame.
    ///
    /// # Errors
    /// [`PoolError::Broken`] when the word is none that the server writes.
    pub fn owner(&self, frame: u32) -> Result<Owner, PoolError> {
        let word = self.word(owner_at(frame)).load(Ordering::Relaxed);
        Owner::from_word(word).ok_or(PoolError::Broken {
            what: "a frame has an owner word that does not exist",
            a: frame.into(),
            b: word,
        })
    }

    /// Makes somebody the owner of every frame of some runs.
    pub fn set_owner(&self, extents: &[Extent], owner: Owner) {
        for frame in extents.iter().flat_map(|e| e.frames()) {
            self.word(owner_at(frame))
                .store(owner.to_word(), Ordering::Relaxed);
        }
    }

    /// Writes everything of a record but its state: the words it shares with the index, and its parent.
    pub fn write_record(
        &self,
        record: u32,
        shared: &[u64; SHARED_WORDS],
        parent: Option<(u32, [u64; 4])>,
    ) -> Result<(), PoolError> {
        let mut words = [0; RECORD_WORDS];
        words[1..1 + SHARED_WORDS].copy_from_slice(shared);
        if let Some((parent, key)) = parent {
            words[17] = u64::from(parent) + 1;
            words[18..22].copy_from_slice(&key);
        }
        self.mapping
            .store_words(self.record_at(record) + 8, &words[1..])?;
        Ok(())
    }

    /// Names another parent, when the one it had goes before it.
    pub fn set_parent(&self, record: u32, parent: Option<(u32, [u64; 4])>) -> Result<(), PoolError> {
        let (parent, key) = parent.map_or((0, [0; 4]), |(r, key)| (u64::from(r) + 1, key));
        let words = [parent, key[0], key[1], key[2], key[3]];
        self.mapping
            .store_words(self.record_at(record) + 17 * 8, &words)?;
        Ok(())
    }

    /// Writes the words of a body that do not fit in the record.
    pub fn write_chain(&self, words: &[u64], blocks: &[u32]) -> Result<(), PoolError> {
        Ok(self.chains.write(&self.mapping, words, blocks)?)
    }

    /// Writes one chain block of a body: see [`ChainArea::write_block`].
    pub fn write_block(&self, block: u32, line: &[u64; CHAIN_WORDS + 1]) -> Result<(), PoolError> {
        Ok(self.chains.write_block(&self.mapping, block, line)?)
    }

    /// Begins a walk through the body of a record.
    pub(crate) fn walk(&self, record: u32) -> Result<BodyCursor, PoolError> {
        let shared = self.shared_words(record)?;
        let (head, inline) = shared.split_at(WORD_INLINE);
        let inline: &[u64; INLINE_WORDS] = inline.try_into().expect("the rest of the shared words");
        Ok(BodyCursor::new(head[7], inline))
    }

    /// Goes on with a walk through the body of a record; `None` at its end.
    ///
    /// # Errors
    /// [`PoolError::Broken`] when the body does not decode.
    pub(crate) fn next_piece(
        &self,
        record: u32,
        cursor: &mut BodyCursor,
    ) -> Result<Option<BodyPiece>, PoolError> {
        let piece = self.chains.next_piece(&self.mapping, cursor);
        piece.ok_or(PoolError::Broken {
            what: "the body of a record does not decode",
            a: record.into(),
            b: cursor.blocks_ahead() as u64,
        })
    }

    /// Changes a record's state; what was written to it before is visible to whoever sees the new one.
    pub fn set_state(&self, record: u32, state: RecordState) {
        self.word(self.record_at(record))
            .store(state as u64, Ordering::Release);
    }

    /// A record's state.
    ///
    /// # Errors
    /// [`PoolError::Broken`] when the word is none that the server writes.
    pub fn state(&self, record: u32) -> Result<RecordState, PoolError> {
        match self.word(self.record_at(record)).load(Ordering::Relaxed) {
            0 => Ok(RecordState::Free),
            1 => Ok(RecordState::Live),
            2 => Ok(RecordState::Limbo),
            3 => Ok(RecordState::Incomplete),
            word => Err(PoolError::Broken {
                what: "a record has a state that does not exist",
                a: record.into(),
                b: word,
            }),
        }
    }

    /// The words that a record shares with the index.
    pub fn shared_words(&self, record: u32) -> Result<[u64; SHARED_WORDS], PoolError> {
        let mut words = [0; SHARED_WORDS];
        self.mapping.load_words(self.record_at(record) + 8, &mut words)?;
        Ok(words)
    }

    /// The parts of a live or limbo record and the chain blocks that name them.
    ///
    /// # Errors
    /// [`PoolError::Broken`] when the body does not decode.
    pub fn body(&self, record: u32) -> Result<(Vec<PartBody>, Vec<u32>), PoolError> {
        let shared = self.shared_words(record)?;
        let parts = (shared[5] >> 16) as u16;
        let (head, inline) = shared.split_at(WORD_INLINE);
        let inline: &[u64; INLINE_WORDS] = inline.try_into().expect("the rest of the shared words");
        let mut words = Vec::new();
        let read = self.chains.read(&self.mapping, head[7], inline, &mut words);
        let blocks = self.chains.blocks_of(&self.mapping, head[7]);
        read.and_then(|()| Some((body::decode(&words, parts)?, blocks?)))
            .ok_or(PoolError::Broken {
                what: "the body of a record does not decode",
                a: record.into(),
                b: head[7],
            })
    }

    /// Recomputes the totals and checks that owner words and records name each other.
    ///
    /// # Errors
    /// [`PoolError::Broken`] with the first thing that does not hold.
    pub fn audit(&self) -> Result<DirectoryTotals, PoolError> {
        let mut totals = DirectoryTotals::default();
        let mut held_by_objects = 0;
        for record in 0..self.frames {
            match self.state(record)? {
                RecordState::Free => {}
                RecordState::Incomplete => totals.incomplete_records += 1,
                state => {
                    held_by_objects += self.audit_object(record)?;
                    match state {
                        RecordState::Live => totals.live_records += 1,
                        _ => totals.limbo_records += 1,
                    }
                }
            }
        }
        for frame in 0..self.frames {
            match self.owner(frame)? {
                Owner::Free => totals.free += 1,
                Owner::Granted { .. } => totals.granted += 1,
                Owner::Quarantined { .. } => totals.quarantined += 1,
                Owner::Record(record) if record < self.frames => match self.state(record)? {
                    RecordState::Incomplete => totals.incomplete += 1,
                    RecordState::Live | RecordState::Limbo => totals.used += 1,
                    RecordState::Free => {
                        return Err(broken("a frame is held by a free record", frame, record));
                    }
                },
                Owner::Record(record) => {
                    return Err(broken("a frame is held by no record", frame, record));
                }
            }
        }
        // Each object's frames name it, so a surplus is a frame that names an object which does not name it.
        if held_by_objects != totals.used {
            return Err(PoolError::Broken {
                what: "frames name objects that do not name them",
                a: totals.used,
                b: held_by_objects,
            });
        }
        Ok(totals)
    }

    /// Checks that every frame of an object names it. Frames of the object.
    fn audit_object(&self, record: u32) -> Result<u64, PoolError> {
        let (parts, _) = self.body(record)?;
        let mut frames = 0;
        for extent in parts.iter().flat_map(|p| &p.extents) {
            if !extent.is_within(self.frames) {
                return Err(broken(
                    "an extent is outside the pool",
                    extent.frame,
                    extent.count,
                ));
            }
            for frame in extent.frames() {
                if self.owner(frame)? != Owner::Record(record) {
                    return Err(broken("a frame of an object names another owner", frame, record));
                }
                frames += 1;
            }
        }
        Ok(frames)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.mapping
            .atomic_u64(offset)
            .expect("frames and records are checked against the pool before they get here")
    }

    fn record_at(&self, record: u32) -> usize {
        self.records_at + record as usize * RECORD_BYTES
    }
}

fn owner_at(frame: u32) -> usize {
    HEADER + frame as usize * 8
}

fn broken(what: &'static str, a: u32, b: u32) -> PoolError {
    PoolError::Broken {
        what,
        a: a.into(),
        b: b.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_words_come_back() {
        for owner in [
            Owner::Free,
            Owner::Granted {
                slab: 255,
                counter: MAX_GRANT_COUNTER,
            },
            Owner::Record(u32::MAX),
            Owner::Quarantined { slab: 9 },
        ] {
            assert_eq!(Owner::from_word(owner.to_word()), Some(owner));
        }
        for word in [7, 4 << 60, 2 << 60 | 1 << 40] {
            assert_eq!(Owner::from_word(word), None);
        }
    }

    fn one_object() -> Directory {
        let directory = Directory::create(32, [1; 16], 1).unwrap();
        let parts = [PartBody {
            bytes: 100_000,
            checksum: 7,
            extents: vec![Extent::new(4, 2)],
        }];
        let words = body::encode(&parts);
        let mut shared = [0; SHARED_WORDS];
        shared[0] = 77;
        shared[5] = 256 << 32 | 1 << 16;
        shared[6] = 2;
        shared[7] = words.len() as u64;
        shared[WORD_INLINE..WORD_INLINE + words.len()].copy_from_slice(&words);
        directory.write_record(3, &shared, None).unwrap();
        directory.set_state(3, RecordState::Live);
        directory.set_owner(&parts[0].extents, Owner::Record(3));
        directory
    }

    #[test]
    fn audit_counts_by_owner() {
        let directory = one_object();
        directory.set_owner(&[Extent::new(10, 5)], Owner::Granted { slab: 1, counter: 1 });
        let totals = directory.audit().unwrap();
        assert_eq!(
            (totals.free, totals.granted, totals.used, totals.live_records),
            (25, 5, 2, 1)
        );
    }

    #[test]
    fn audit_finds_a_frame_that_is_both_free_and_live() {
        let directory = one_object();
        directory.set_owner(&[Extent::new(5, 1)], Owner::Free);
        assert!(directory.audit().is_err());
    }

    #[test]
    fn audit_finds_a_frame_that_no_object_names() {
        let directory = one_object();
        directory.set_owner(&[Extent::new(20, 1)], Owner::Record(3));
        assert!(directory.audit().is_err());
        let directory = one_object();
        directory.set_owner(&[Extent::new(20, 1)], Owner::Record(4));
        assert!(directory.audit().is_err());
    }
}
