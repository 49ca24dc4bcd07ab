//! Plans of copies whose bytes are summed on their way.
//!
//! Every byte is read once, and what was read is both summed and written. So a sum is of exactly the bytes that arrived, whoever else
//! writes the source meanwhile. Where there are vectors for it, registers are summed and written (`fused`); elsewhere the bytes go through
//! a stage (`staged`).

use super::error::{CopyError, Side};
use super::memory::{HostMemory, Span};
use super::plan::{self, CopyPlan};

/// A run of bytes of a part: read from `src` for the sum and, unless nobody wants it, written to `dst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SummedPiece {
    pub(super) src: Span,
    pub(super) dst: Option<Span>,
    pub(super) len: u64,
}

impl SummedPiece {
    /// Whether a piece goes on where this one ends, on both sides.
    fn continues(&self, src: Span, dst: Option<Span>) -> bool {
        let same_dst = match (self.dst, dst) {
            (Some(here), Some(next)) => here.continues(self.len, next),
            (here, next) => here.is_none() && next.is_none(),
        };
        same_dst && self.src.continues(self.len, src)
    }
}

/// The bytes of some parts in their order, and where they go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SummedPlan {
    pub(super) pieces: Vec<SummedPiece>,
    /// Number of pieces up to the end of each part.
    pub(super) ends: Vec<usize>,
}

impl SummedPlan {
    /// An empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the next bytes of the part; without a `dst` they are only summed. Bytes that continue the last ones on both sides
    /// are one piece with them.
    pub fn push(&mut self, src: Span, dst: Option<Span>, len: u64) {
        if len > 0 {
            let first = self.ends.last().copied().unwrap_or(0);
            if let Some(last) = self.pieces[first..].last_mut()
                && last.continues(src, dst)
                && let Some(joined) = last.len.checked_add(len)
            {
                last.len = joined;
                return;
            }
            self.pieces.push(SummedPiece { src, dst, len });
        }
    }

    /// The part has no more bytes; what is pushed from here on belongs to the next one.
    pub fn end_part(&mut self) {
        self.ends.push(self.pieces.len());
    }

    /// The bytes of each part.
    pub(super) fn part_bytes(&self) -> impl Iterator<Item = u64> + Clone {
        let firsts = std::iter::once(0).chain(self.ends.iter().copied());
        firsts.zip(&self.ends).map(|(first, &end)| {
            let pieces = &self.pieces[first..end];
            pieces.iter().map(|piece| piece.len).sum()
        })
    }

    /// The same copy without sums.
    pub fn unsummed(&self) -> CopyPlan {
        let mut plan = CopyPlan::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            if let Some(dst) = piece.dst {
                plan.push(piece.src, dst, piece.len);
            }
        }
        plan
    }

    /// A plan that sums what this one reads, and copies nothing.
    pub fn summing_source(&self) -> Self {
        self.summing(|piece| piece.src)
    }

    /// A plan that sums what this one has written, and copies nothing. Every byte of this one has a destination.
    pub fn summing_destination(&self) -> Self {
        self.summing(|piece| piece.dst.unwrap_or(piece.src))
    }

    fn summing(&self, place: impl Fn(&SummedPiece) -> Span) -> Self {
        let pieces = self.pieces.iter().map(|piece| SummedPiece {
            src: place(piece),
            dst: None,
            len: piece.len,
        });
        Self {
            pieces: pieces.collect(),
            ends: self.ends.clone(),
        }
    }

    pub(super) fn check(&self, src: &[HostMemory], dst: &[HostMemory]) -> Result<(), CopyError> {
        debug_assert_eq!(self.ends.last().copied().unwrap_or(0), self.pieces.len());
        for (index, piece) in self.pieces.iter().enumerate() {
            let from = plan::region(src, Side::Source, index, piece.src)?;
            from.check(Side::Source, index, piece.src, piece.len)?;
        }
        // What is refused without sums is refused with them.
        self.unsummed().check(src, dst)
    }
}
