//! What the core keeps: the books of records, pins and clients, and the memory that clients map. Nothing here knows the
//! core, and nothing is decided here.
//!
//! ```text
//! index, slabs            the memory that clients map
//! sums                    what clients count there, added up
//! tree, trunks, policy    records, what they hang under, and in which order they go
//! incomplete, part        objects some of whose parts are missing
//! prepared                how far one of them is that becomes visible
//! wasted                  what is no object any more and is yet to become free
//! registry                domains, their groups and ranks
//! share, guarded          what a client was granted and may be, and what its stores hang under
//! pins, kept              the pins that are counted, and what they keep
//! scan                    how far the look at all pin words is
//! reuse                   tokens that engines reused, by domain
//! numbers                 which records and chain blocks are free
//! chunked                 tables and lists that grow without moving
//! ```

pub(crate) mod chunked;
pub(crate) mod guarded;
pub(crate) mod incomplete;
pub(crate) mod index;
pub(crate) mod kept;
pub(crate) mod numbers;
pub(crate) mod part;
pub(crate) mod pins;
pub(crate) mod policy;
pub(crate) mod prepared;
pub(crate) mod registry;
pub(crate) mod reuse;
pub(crate) mod scan;
pub(crate) mod share;
pub(crate) mod slabs;
pub(crate) mod sums;
pub(crate) mod tree;
pub(crate) mod trunks;
pub(crate) mod wasted;
