//! What goes through a payload ring, as messages name it.

/// Bytes of the pool that the next bytes of the store lane are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingRun {
    /// The frame that the first of them lies in.
    pub frame: u32,
    /// Where in that frame.
    pub offset: u32,
    /// How many.
    pub bytes: u64,
}

/// Bytes of a pinned part that are to come through the load lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPart {
    /// Which of the locations that the pin's retrieve was answered with.
    pub place: u32,
    /// The first byte of the part.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}
