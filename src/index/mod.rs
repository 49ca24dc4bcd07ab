//! What any process may do that maps the index: the server, and clients that look up by themselves.
//!
//! ```text
//! layout, slab           where words are, in the index region and in a client's pin slab
//! record, body           what the index says of an object
//! epochs                 which object holds a frame now
//! counters, conditions   what a client counts, and says of itself, in its slab
//! reader                 finds records
//! probe, presence        what is there of a prompt
//! sweep                  which prefix that serves, and from which objects
//! lookup, retrieve       the two reads, whoever makes them
//! pins, touching         how they keep what they find, and note that it was used
//! local, pin_words       both reads by a client, without a message, with pins in its own slab
//! budget                 how long they may go on
//! ```
//!
//! The order of words is the contract of docs/shm-layout.md.

pub(crate) mod body;
pub(crate) mod budget;
pub mod conditions;
pub mod counters;
pub mod epochs;
pub mod layout;
pub mod local;
pub(crate) mod lookup;
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
