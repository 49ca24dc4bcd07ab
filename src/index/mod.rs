//! What any process may do that maps the index: the server, and clients that look up by themselves.
//!
//! ```text
//! layout, record, slab   where words are, in the index region and in a client's pin slab
//! counters               what a client counts in its slab
//! reader                 finds records
//! probe, presence        what is there of a prompt
//! sweep, plan            which prefix that serves, and from which objects
//! pins                   the pin words of one's own slab
//! read                   lookups and retrieves without a message
//! turn, meter            work that is cut to fit the server's turns
//! ```
//!
//! The order of words is the contract of docs/shm-layout.md.

pub mod counters;
pub mod layout;
pub(crate) mod meter;
pub mod pins;
pub(crate) mod plan;
pub(crate) mod presence;
pub(crate) mod probe;
pub mod read;
pub mod reader;
pub mod record;
pub mod slab;
pub(crate) mod sweep;
pub mod turn;
