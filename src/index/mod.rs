//! What any process may do that maps the index: the server, and clients that look up by themselves.
//!
//! ```text
//! layout, record, slab   where words are, in the index region and in a client's pin slab
//! counters, conditions   what a client counts, and says of itself, in its slab
//! reader                 finds records
//! probe, presence        what is there of a prompt
//! sweep                  which prefix that serves, and from which objects
//! lookup, retrieve       the two reads, whoever makes them
//! pins, touching         how they keep what they find, and note that it was used
//! local, pin_words       both reads by a client, without a message, with pins in its own slab
//! turn, meter            work that is cut to fit the server's turns
//! ```
//!
//! The order of words is the contract of docs/shm-layout.md.

pub mod conditions;
pub mod counters;
pub mod layout;
pub mod local;
pub(crate) mod lookup;
pub(crate) mod meter;
pub mod pin_words;
pub(crate) mod pins;
pub(crate) mod presence;
pub(crate) mod probe;
pub mod reader;
pub mod record;
pub(crate) mod retrieve;
pub mod slab;
pub(crate) mod sweep;
pub(crate) mod touching;
pub mod turn;
