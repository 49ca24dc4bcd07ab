//! Copies whose bytes are summed on their way. No unsafe here.
//!
//! Every byte is read once, and what was read is both summed and written. So a sum is of exactly the bytes that arrived, whoever else
//! writes the source meanwhile. Where there is AVX2, registers are summed and written (`fused`); elsewhere the bytes go through a stage
//! that stays in the core's own caches.

use std::hash::Hasher;

use twox_hash::XxHash3_64;

use super::engine::CopyEngine;
use super::plan::{CopyError, CopyPlan, Side, Span};
use super::{HostMemory, plan};

/// Bytes read ahead of being summed and written: what the caches next to a core hold beside the destination's lines.
const STAGE_BYTES: usize = 32 << 10;

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

    fn check(&self, src: &[HostMemory], dst: &[HostMemory]) -> Result<(), CopyError> {
        debug_assert_eq!(self.ends.last().copied().unwrap_or(0), self.pieces.len());
        for (index, piece) in self.pieces.iter().enumerate() {
            let from = plan::region(src, Side::Source, index, piece.src)?;
            from.check(Side::Source, index, piece.src, piece.len)?;
        }
        // What is refused without sums is refused with them.
        self.unsummed().check(src, dst)
    }
}

/// The checksum of a part (docs/shm-layout.md, "Pool"): XXH3-64 with seed 0, and 1 where that is 0.
#[derive(Default)]
pub struct Checksum(XxHash3_64);

impl Checksum {
    /// Of no bytes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The checksum. Never 0, which stands for "not computed".
    pub fn value(&self) -> u64 {
        self.0.finish().max(1)
    }
}

/// As much of a piece as fits in the stage with what comes before it.
#[derive(Debug, Clone, Copy)]
struct Cut {
    src: Span,
    dst: Option<Span>,
    len: usize,
    /// Its part ends here.
    last: bool,
}

/// The pieces of a plan, cut so that the runs between the returned places fill the stage.
fn cut(plan: &SummedPlan) -> (Vec<Cut>, Vec<usize>) {
    let (mut cuts, mut fills) = (Vec::with_capacity(plan.pieces.len()), Vec::new());
    let (mut filled, mut first) = (0, 0);
    for &end in &plan.ends {
        for piece in &plan.pieces[first..end] {
            let mut done = 0;
            while done < piece.len {
                let len = (piece.len - done).min((STAGE_BYTES - filled) as u64);
                let at = |span: Span| Span::new(span.region, span.offset + done);
                cuts.push(Cut {
                    src: at(piece.src),
                    dst: piece.dst.map(at),
                    len: len as usize,
                    last: false,
                });
                done += len;
                filled += len as usize;
                if filled == STAGE_BYTES {
                    fills.push(cuts.len());
                    filled = 0;
                }
            }
        }
        match cuts.last_mut() {
            Some(cut) if end > first => cut.last = true,
            // A part without bytes has a sum too.
            _ => cuts.push(Cut {
                src: Span::new(0, 0),
                dst: None,
                len: 0,
                last: true,
            }),
        }
        first = end;
    }
    fills.push(cuts.len());
    (cuts, fills)
}

impl CopyEngine {
    /// Checks the whole of `plan`, then copies it from regions `src` to regions `dst` and returns the checksum of each part.
    ///
    /// On return all stores are ordered before whatever the caller does next, as after [`execute`](Self::execute). On an
    /// error nothing has been copied.
    pub fn execute_summed(
        &self,
        plan: &SummedPlan,
        src: &[HostMemory],
        dst: &[HostMemory],
    ) -> Result<Vec<u64>, CopyError> {
        plan.check(src, dst)?;
        if let Some(sums) = self.copy_fused(plan, src, dst) {
            return Ok(sums);
        }
        self.copy_staged(plan, src, dst)
    }

    /// Through the stage, which is summed before it is written on.
    fn copy_staged(
        &self,
        plan: &SummedPlan,
        src: &[HostMemory],
        dst: &[HostMemory],
    ) -> Result<Vec<u64>, CopyError> {
        let (cuts, fills) = cut(plan);
        let mut stage = vec![0; STAGE_BYTES];
        let mut sums = Vec::with_capacity(plan.ends.len());
        let (mut sum, mut first) = (Checksum::new(), 0);
        for end in fills {
            let mut filled = 0;
            for cut in &cuts[first..end] {
                let here = &mut stage[filled..filled + cut.len];
                if cut.len > 0 {
                    src[usize::from(cut.src.region)].read(cut.src.offset, here)?;
                }
                sum.update(here);
                if let Some(to) = cut.dst {
                    dst[usize::from(to.region)].write(to.offset, here)?;
                }
                if cut.last {
                    sums.push(std::mem::take(&mut sum).value());
                }
                filled += cut.len;
            }
            first = end;
        }
        Ok(sums)
    }
}
