//! The nouns of the cache, once: objects and their ids, the runs of frames that hold them, and what is asked and
//! answered about them. Plain values without behaviour.
//!
//! `wire` encodes and decodes these types, the index is searched with them, and server and clients hand them on.
//!
//! ```text
//! prompt   chunk, chunk, .. and at its end tails       (Tail)
//! chunk    one object per object group                 (ObjectId = key, group)
//! object   one part per rank that holds other bytes    (StoreItem, PartLocation)
//! part     runs of frames of the pool                  (Extent)
//! ```

mod extent;
mod item;
mod numbered;
mod request;
mod ring;
mod shape;
mod span;
mod tails;

pub use extent::{Extent, FRAME_BYTES, count_frames, frames_for};
pub use item::{ClientKind, CommitOutcome, LoadItem, ObjectId, PartLocation, PayloadPath, StoreItem};
pub(crate) use numbered::numbered;
pub use request::{
    CommitAnswer, CommitRequest, GrantRequest, Lookup, LookupAnswer, LookupRequest, RetrieveAnswer,
    RetrieveRequest,
};
pub use ring::{RingPart, RingRun};
pub use shape::{DomainShape, GroupRegistration, GroupShape, tail_bit};
pub use span::{GroupSpan, GroupSpans};
pub use tails::{Tail, TailList, Tails};
