//! What readers ask the server: lookups, retrieves and their pins. How they are answered is in [`crate::index`].
//!
//! ```text
//! lookup, retrieve  a request, in turns
//! quota             what a pin keeps, and how much one client may
//! release           pins end
//! ```

pub(crate) mod lookup;
pub(crate) mod quota;
pub(crate) mod release;
pub(crate) mod retrieve;
