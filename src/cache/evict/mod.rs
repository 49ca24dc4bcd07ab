//! Making space: what goes, in which order, and how its frames become free.
//!
//! ```text
//! space     what is evicted, until there is enough
//! condemn   takes one object out of the index
//! pin_scan  looks which of them a client pins
//! waste     makes frames free, piece by piece
//! ends      incomplete objects end
//! discard   objects that hold other bytes than were stored
//! clear     everything
//! ```

pub(crate) mod clear;
pub(crate) mod condemn;
pub(crate) mod discard;
pub(crate) mod ends;
pub(crate) mod pin_scan;
pub(crate) mod space;
pub(crate) mod waste;
