//! Storing: from a grant of space to a visible object.
//!
//! ```text
//! grants      space that a client may write into
//! guards      what its stores hang under is not taken for it
//! runs        are the runs that it names its own?
//! committing  a commit, in turns
//! commit      one item of it
//! context     who commits, and where
//! parent      what an object hangs under
//! whole       an object of one part, which is visible at once
//! filling     the runs of a large part become its own
//! publish     an object that is complete becomes visible
//! ```

pub(crate) mod commit;
pub(crate) mod committing;
pub(crate) mod context;
pub(crate) mod filling;
pub(crate) mod grants;
pub(crate) mod guards;
pub(crate) mod parent;
pub(crate) mod publish;
pub(crate) mod runs;
pub(crate) mod whole;
