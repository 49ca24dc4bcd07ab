//! How a reader keeps what it has found. The server counts pins per connection; a client writes words of its own slab.
//!
//! The server's are in `cache::answer`, a client's in [`super::local`].

use super::budget::Budget;
use super::probe::Found;
use super::reader::IndexReader;
use crate::object::ObjectId;
use crate::shm::mapping::Access;

/// What an object is to the others that one pin holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// One of the anchor's chunks that [`Pins::begin`] was given, by its place. It hangs under the one before.
    Chunk(u32),
    /// Of full attention otherwise: it hangs under the one of its group that was added before it.
    Chained,
    /// A window, a state: nothing that is added hangs under it.
    Companion,
    /// Named by a client, maybe not for the first time.
    Named,
}

/// One pin in the making: objects are added to it, then it holds them all.
pub(crate) trait Pins {
    /// What ends a read.
    type Error;

    /// Begins anew, with nothing added. What is added will hang under these chunks of the anchor, or be one of them.
    /// Of a trial it is only asked how much may be kept.
    fn begin(&mut self, chunks: &[Found], is_trial: bool);

    /// Whether the chunks that were found at first need not be found again: either nothing has left the index since,
    /// or it comes out later, by [`Pins::is_intact`].
    fn is_unchanged(&self) -> bool;

    /// Adds an object with all that it hangs under. False, and then it is not added, when that is more than may be
    /// kept.
    fn add(
        &mut self,
        found: &Found,
        id: &ObjectId,
        role: Role,
        meter: &mut impl Budget,
    ) -> Result<bool, Self::Error>;

    /// The turn may end now.
    fn settle(&mut self) -> Result<(), Self::Error>;

    /// Holds what was added: the pin, 0 when nothing was. Nothing when there is no room for it.
    fn hold(&mut self) -> Option<u64>;

    /// Whether all that is held is there, or has been since this was asked before: then it stays.
    fn is_intact<A: Access>(&mut self, reader: &IndexReader<'_, A>) -> bool;

    /// Makes a record the most recent.
    fn touch(&mut self, record: u32);

    /// Takes everything back, or what the turn is long enough for. Whether it is all.
    fn give_back(&mut self, meter: &mut impl Budget) -> bool;
}
