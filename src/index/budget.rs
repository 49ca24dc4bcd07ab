//! How long work on the index may go on.
//! Nobody waits behind a client that works for itself. The server's thread works in turns.

/// How long work may go on.
pub(crate) trait Budget {
    /// Counts parts of steps that were made.
    fn spend(&mut self, parts: u32);

    /// Whether it is somebody else's turn.
    fn is_over(&self) -> bool;
}

/// To the end, at once.
pub(crate) struct Unlimited;

impl Budget for Unlimited {
    fn spend(&mut self, _: u32) {}

    fn is_over(&self) -> bool {
        false
    }
}
