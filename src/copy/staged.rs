//! Summed copies: in one pass where this machine can, and otherwise through a stage that stays in the core's own caches.

use super::engine::CopyEngine;
use super::error::CopyError;
use super::leaf::{self, Checksum, LeafSums};
use super::memory::{HostMemory, Span};
use super::summed::SummedPlan;

/// Bytes read ahead of being summed and written: what the caches next to a core hold beside the destination's lines.
const STAGE_BYTES: usize = 32 << 10;

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
        let sums = self.leaf_sums(plan, src, dst)?;
        Ok(by_part(plan, &sums)
            .map(|(_, sums)| leaf::of_leaves(sums))
            .collect())
    }

    /// As [`execute_summed`](Self::execute_summed), and returns the sums of the leaves of each part.
    ///
    /// A plan of only the front of a part brings the sums of the front's leaves: [`LeafSums::confirmed`] says how much of the
    /// front they confirm to a reader who has the leaf sums of the whole.
    pub fn execute_leaves(
        &self,
        plan: &SummedPlan,
        src: &[HostMemory],
        dst: &[HostMemory],
    ) -> Result<Vec<LeafSums>, CopyError> {
        let sums = self.leaf_sums(plan, src, dst)?;
        let parts = by_part(plan, &sums).map(|(bytes, sums)| LeafSums {
            bytes,
            sums: sums.to_vec(),
        });
        Ok(parts.collect())
    }

    fn leaf_sums(
        &self,
        plan: &SummedPlan,
        src: &[HostMemory],
        dst: &[HostMemory],
    ) -> Result<Vec<u64>, CopyError> {
        plan.check(src, dst)?;
        if let Some(sums) = self.copy_fused(plan, src, dst) {
            return Ok(sums);
        }
        copy_staged(plan, src, dst)
    }
}

/// The bytes and the leaf sums of each part, from the sums of all.
fn by_part<'a>(plan: &SummedPlan, mut sums: &'a [u64]) -> impl Iterator<Item = (u64, &'a [u64])> {
    plan.part_bytes().map(move |bytes| {
        let (part, rest) = sums.split_at(leaf::leaves_of(bytes));
        sums = rest;
        (bytes, part)
    })
}

/// Through the stage, which is summed before it is written on. Returns the sums of all leaves, part by part.
fn copy_staged(plan: &SummedPlan, src: &[HostMemory], dst: &[HostMemory]) -> Result<Vec<u64>, CopyError> {
    let (cuts, fills) = cut(plan);
    let mut stage = vec![0; STAGE_BYTES];
    let mut sums = Vec::with_capacity(plan.part_bytes().map(leaf::leaves_of).sum());
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
                sums.extend_from_slice(std::mem::take(&mut sum).leaves().sums());
            }
            filled += cut.len;
        }
        first = end;
    }
    Ok(sums)
}
