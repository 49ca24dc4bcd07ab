//! Copy plans, and every check that they have to pass before a byte moves.

use super::error::{CopyError, Side};
use super::memory::{HostMemory, Span};
use super::overlap::{self, Placed};

/// One run of bytes to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where the bytes come from.
    pub src: Span,
    /// Where they go.
    pub dst: Span,
    /// How many.
    pub len: u64,
}

/// A list of pieces, built once for a block list and executed as one copy.
///
/// A plan is only numbers: it names regions by index and is checked against real ones at execution.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyPlan {
    pieces: Vec<Piece>,
}

impl CopyPlan {
    /// An empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty plan with room for `pieces` pieces.
    pub fn with_capacity(pieces: usize) -> Self {
        Self {
            pieces: Vec::with_capacity(pieces),
        }
    }

    /// Appends a piece. It grows the last one instead if it continues that on both sides; a piece of no
    /// bytes is dropped.
    pub fn push(&mut self, src: Span, dst: Span, len: u64) {
        if len == 0 {
            return;
        }
        if let Some(last) = self.pieces.last_mut()
            && last.src.continues(last.len, src)
            && last.dst.continues(last.len, dst)
            && let Some(joined) = last.len.checked_add(len)
        {
            last.len = joined;
            return;
        }
        self.pieces.push(Piece { src, dst, len });
    }

    /// The pieces, coalesced.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Whether there is nothing to copy.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Forgets the pieces and keeps the memory.
    pub fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Bytes of all pieces; `u64::MAX` if that is more than 64 bits hold (such a plan never passes its
    /// checks, so an executed one is always counted exactly).
    pub fn bytes(&self) -> u64 {
        self.pieces
            .iter()
            .fold(0, |sum, piece| sum.saturating_add(piece.len))
    }

    /// Checks every piece against the regions, and that no byte is both read and written.
    ///
    /// Regions of the two sides may overlap (a copy inside the pool has the same region on both), the
    /// bytes of the pieces may not. Two pieces that write the same byte are not looked for: which of them
    /// stays is then unspecified.
    pub fn check(&self, src: &[HostMemory], dst: &[HostMemory]) -> Result<(), CopyError> {
        let mut total = 0u64;
        for (index, piece) in self.pieces.iter().enumerate() {
            region(src, Side::Source, index, piece.src)?.check(Side::Source, index, piece.src, piece.len)?;
            let to = region(dst, Side::Destination, index, piece.dst)?;
            to.check(Side::Destination, index, piece.dst, piece.len)?;
            total = total
                .checked_add(piece.len)
                .ok_or(CopyError::TooManyBytes { piece: index })?;
        }
        let range = |memory: &HostMemory| {
            let start = memory.address() as u64;
            start..start + memory.len() as u64
        };
        let start = |regions: &[HostMemory], span: Span| {
            regions[usize::from(span.region)].address() as u64 + span.offset
        };
        let placed = self.pieces.iter().map(|piece| Placed {
            from: start(src, piece.src),
            to: start(dst, piece.dst),
            bytes: piece.len,
        });
        overlap::check(src.iter().map(range), dst.iter().map(range), placed)
    }
}

pub(super) fn region(
    regions: &[HostMemory],
    side: Side,
    piece: usize,
    span: Span,
) -> Result<&HostMemory, CopyError> {
    regions
        .get(usize::from(span.region))
        .ok_or(CopyError::UnknownRegion {
            piece,
            side,
            region: span.region,
            regions: regions.len(),
        })
}
