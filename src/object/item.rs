//! Objects, and the items that name them in stores and loads.

use super::extent::Extent;
use super::numbered::numbered;
use crate::keys::ChunkKey;

numbered! {
    /// What a client is for, as it says in its Hello.
    #[derive(Default)]
    ClientKind: u8 {
        /// It did not say.
        #[default]
        Unspecified = 0,
        /// The process that decides what to load.
        Scheduler = 1,
        /// A rank that owns KV tensors.
        Worker = 2,
        /// Neither: status, benchmarks.
        Tool = 3,
    }
}

numbered! {
    /// How payload moves between a client and the pool.
    #[derive(Default)]
    PayloadPath: u8 {
        /// Not registered, or moves none.
        #[default]
        None = 0,
        /// Host tensors, one copy between them and the mapped pool.
        ShmDirect = 1,
        /// The engine's GPU copies to and from pool memory that it registered.
        Pinned = 2,
        /// The server moves the bytes of imported GPU memory.
        Cuda = 3,
        /// The server copies through a ring of the connection.
        ShmRing = 4,
    }
}

numbered! {
    /// What became of one item of a commit.
    CommitOutcome: u8 {
        /// The object is visible.
        Published = 0,
        /// This part is there, others are awaited.
        PartAccepted = 1,
        /// The object exists; the space went back.
        Exists = 2,
        /// The parent is not live; the space went back. Store again from the first missing chunk.
        NoParent = 3,
        /// A rank cannot store it; the space went back.
        Skipped = 4,
        /// No index slot could be made free; the space went back.
        Dropped = 5,
    }
}

/// Names one object. Both members are compared, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// Chunk or tail key.
    pub key: ChunkKey,
    /// Object group.
    pub group: u16,
}

/// An object to load. It covers tokens `chunk * chunk_size .. + tokens`; of a state, only its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoadItem {
    /// The object.
    pub id: ObjectId,
    /// The chunk.
    pub chunk: u32,
    /// Tokens of the whole object.
    pub tokens: u32,
}

/// One part of one object to publish. Its runs are `extents[first_extent..][..extent_count]` of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreItem {
    /// The object.
    pub id: ObjectId,
    /// Key of the chunk before; `None` for the first chunk of a prompt.
    pub parent: Option<ChunkKey>,
    /// This rank cannot store the object; there are no runs, and the incomplete object ends.
    pub skipped: bool,
    /// The part.
    pub part: u16,
    /// Tokens of the object.
    pub tokens: u32,
    /// The first of them that is held: a window's object may begin with holes.
    pub held_from: u32,
    /// Bytes of the part.
    pub bytes: u64,
    /// Checksum of the part's bytes; 0 when there is none.
    pub checksum: u64,
    /// First run.
    pub first_extent: u32,
    /// Number of runs.
    pub extent_count: u32,
}

/// Where one part of an object lies. Its runs are `extents[first_extent..][..extent_count]` of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartLocation {
    /// The object's incarnation; 0 when it is not there.
    pub incarnation: u64,
    /// Bytes of the part.
    pub bytes: u64,
    /// Checksum of the part as its writer gave it; 0 when it gave none.
    pub checksum: u64,
    /// First run.
    pub first_extent: u32,
    /// Number of runs.
    pub extent_count: u32,
    /// Tokens of the object.
    pub tokens: u32,
    /// The first of them that is held.
    pub held_from: u32,
}

impl StoreItem {
    /// Its runs among those of the request.
    pub fn extents<'a>(&self, all: &'a [Extent]) -> &'a [Extent] {
        extent_range(all, self.first_extent, self.extent_count)
    }
}

impl PartLocation {
    /// Its runs among those of the answer.
    pub fn extents<'a>(&self, all: &'a [Extent]) -> &'a [Extent] {
        extent_range(all, self.first_extent, self.extent_count)
    }
}

/// Empty for a range that is not inside `all`; decoding refuses those before anybody can ask.
fn extent_range(all: &[Extent], first: u32, count: u32) -> &[Extent] {
    let first = first as usize;
    all.get(first..first.saturating_add(count as usize))
        .unwrap_or_default()
}
