//! Copies whose bytes are summed on their way. No unsafe here.
//!
//! Every byte is read once, into a stage that stays in the core's own caches, summed there and written on from there. So
//! a sum is of exactly the bytes that arrived, whoever else writes the source meanwhile.

use std::hash::Hasher;
use std::ops::Range;

use twox_hash::XxHash3_64;

use super::engine::CopyEngine;
use super::plan::{CopyError, CopyPlan, Side, Span};
use super::{HostMemory, plan};

/// Bytes read ahead of being summed and written: what the caches next to a core hold beside the destination's lines.
const STAGE_BYTES: usize = 32 << 10;

/// A run of bytes of a part: read from `src` for the sum and, unless nobody wants it, written to `dst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SummedPiece {
    src: Span,
    dst: Option<Span>,
    len: u64,
}

/// The bytes of some parts in their order, and where they go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SummedPlan {
    pieces: Vec<SummedPiece>,
    /// Number of pieces up to the end of each part.
    ends: Vec<usize>,
}

impl SummedPlan {
    /// An empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the next bytes of the part; without a `dst` they are only summed.
    pub fn push(&mut self, src: Span, dst: Option<Span>, len: u64) {
        if len > 0 {
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
        for (index, piece) in self.pieces.iter().enumerate() {
            let from = plan::region(src, Side::Source, index, piece.src)?;
            from.check(Side::Source, index, piece.src, piece.len)?;
            if let Some(to) = piece.dst {
                let region = plan::region(dst, Side::Destination, index, to)?;
                region.check(Side::Destination, index, to, piece.len)?;
            }
        }
        Ok(())
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

/// Bytes on their way, and where they go.
struct Stage<'a> {
    engine: &'a CopyEngine,
    dst: &'a [HostMemory],
    bytes: Vec<u8>,
    filled: usize,
    out: Vec<(Range<usize>, Span)>,
}

impl Stage<'_> {
    /// Reads a piece, passing on whatever fills up.
    fn take(&mut self, piece: &SummedPiece, src: &HostMemory, sum: &mut Checksum) -> Result<(), CopyError> {
        let mut done = 0;
        while done < piece.len {
            let len = (piece.len - done).min((STAGE_BYTES - self.filled) as u64) as usize;
            let here = self.filled..self.filled + len;
            src.read(piece.src.offset + done, &mut self.bytes[here.clone()])?;
            if let Some(dst) = piece.dst {
                self.out.push((here, Span::new(dst.region, dst.offset + done)));
            }
            self.filled += len;
            done += len as u64;
            if self.filled == STAGE_BYTES {
                self.pass_on(sum)?;
            }
        }
        Ok(())
    }

    fn pass_on(&mut self, sum: &mut Checksum) -> Result<(), CopyError> {
        sum.update(&self.bytes[..self.filled]);
        self.engine.write(&self.bytes, &self.out, self.dst)?;
        self.out.clear();
        self.filled = 0;
        Ok(())
    }
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
        let mut stage = Stage {
            engine: self,
            dst,
            bytes: vec![0; STAGE_BYTES],
            filled: 0,
            out: Vec::new(),
        };
        let mut sums = Vec::with_capacity(plan.ends.len());
        let mut first = 0;
        for &end in &plan.ends {
            let mut sum = Checksum::new();
            for piece in &plan.pieces[first..end] {
                stage.take(piece, &src[usize::from(piece.src.region)], &mut sum)?;
            }
            stage.pass_on(&mut sum)?;
            sums.push(sum.value());
            first = end;
        }
        Ok(sums)
    }
}
