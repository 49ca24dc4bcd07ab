//! One part of an incomplete object.

use crate::cache::ClientId;
use crate::pool::body::PartBody;

/// One part of an incomplete object.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Its number.
    pub(crate) number: u16,
    /// Its bytes.
    pub(crate) body: PartBody,
    /// Who brought it.
    pub(crate) by: ClientId,
    /// Its frames.
    pub(crate) frames: u64,
}
