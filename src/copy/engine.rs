//! Execution of checked plans.
//!
//! Unsafe is opened here. The invariant: every piece has been checked against these very regions, by
//! [`CopyPlan::check`] or [`SummedPlan::check`]; so it lies inside them, the destinations are
//! writable, and no byte is both read and written. Regions are immutable handles borrowed for the whole call, so nothing can
//! change between check and copy.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::{fmt, ptr};

use super::error::CopyError;
#[cfg(target_arch = "x86_64")]
use super::fused::{self, SummedRun};
use super::memory::{HostMemory, Resolved};
use super::plan::{CopyPlan, Piece};
#[cfg(target_arch = "x86_64")]
use super::stream::{self, Weave};
#[cfg(target_arch = "x86_64")]
use super::summed::{SummedPiece, SummedPlan};

/// How payload bytes are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyPath {
    /// AVX2 non-temporal stores over eight strips, 64 bytes of each in turn: on Intel.
    Avx2EightByLine,
    /// The same over four strips, 512 bytes of each in turn: on other makes.
    Avx2FourByRun,
    /// The platform's ordinary copy, piece by piece.
    Portable,
}

impl CopyPath {
    /// Name in status and logs; for AVX2 with the strips and how much of each is copied in turn.
    pub const fn name(self) -> &'static str {
        match self {
            CopyPath::Avx2EightByLine => "avx2-8x64",
            CopyPath::Avx2FourByRun => "avx2-4x512",
            CopyPath::Portable => "portable",
        }
    }
}

impl fmt::Display for CopyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Executes copy plans on one path, chosen when it is made.
#[derive(Debug, Clone, Copy)]
pub struct CopyEngine {
    mover: Mover,
}

#[derive(Debug, Clone, Copy)]
enum Mover {
    /// Made only where AVX2 was found.
    #[cfg(target_arch = "x86_64")]
    Avx2(Weave),
    Portable,
}

impl CopyEngine {
    /// The fastest path of this machine. It is looked for once in a process: the instruction that names the CPU leaves a virtual
    /// machine, which takes longer than copying a small object.
    pub fn detect() -> Self {
        static DETECTED: OnceLock<CopyEngine> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            #[cfg(target_arch = "x86_64")]
            if has_avx2() {
                return Self {
                    mover: Mover::Avx2(Weave::detect()),
                };
            }
            Self::portable()
        })
    }

    /// The portable path, on any machine.
    pub const fn portable() -> Self {
        Self {
            mover: Mover::Portable,
        }
    }

    /// Every path and weave that this machine can execute, for tests.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Self> {
        let mut engines = vec![Self::portable()];
        #[cfg(target_arch = "x86_64")]
        if has_avx2() {
            let weaves = [Weave::EightByLine, Weave::FourByRun];
            engines.extend(weaves.map(|weave| Self {
                mover: Mover::Avx2(weave),
            }));
        }
        engines
    }

    /// The path that [`execute`](Self::execute) takes.
    pub fn path(&self) -> CopyPath {
        match self.mover {
            #[cfg(target_arch = "x86_64")]
            Mover::Avx2(Weave::EightByLine) => CopyPath::Avx2EightByLine,
            #[cfg(target_arch = "x86_64")]
            Mover::Avx2(Weave::FourByRun) => CopyPath::Avx2FourByRun,
            Mover::Portable => CopyPath::Portable,
        }
    }

    /// Checks the whole of `plan`, then copies it from regions `src` to regions `dst`. Returns the number
    /// of bytes copied.
    ///
    /// On return all stores are ordered before whatever the caller does next, so a release store, or a
    /// message, hands the bytes over. On an error nothing has been copied. Bytes that someone else writes
    /// during the copy come out torn; callers validate incarnations afterwards.
    pub fn execute(&self, plan: &CopyPlan, src: &[HostMemory], dst: &[HostMemory]) -> Result<u64, CopyError> {
        plan.check(src, dst)?;
        let pieces = plan.pieces().iter().map(|piece| {
            // SAFETY: `check` has passed for `src` and `dst`.
            unsafe { resolve(piece, src, dst) }
        });
        // SAFETY: `check` has passed, so all pieces are valid for their lengths, and read and written bytes are
        // disjoint.
        unsafe { self.run(pieces) };
        Ok(plan.bytes())
    }

    /// Copies and sums in one pass, where this machine can; the plan has been checked for these regions.
    pub(super) fn copy_fused(
        &self,
        plan: &SummedPlan,
        src: &[HostMemory],
        dst: &[HostMemory],
    ) -> Option<Vec<u64>> {
        match self.mover {
            #[cfg(target_arch = "x86_64")]
            Mover::Avx2(_) => {
                let runs = plan.pieces.iter().map(|piece| {
                    // SAFETY: `check` has passed for `src` and `dst`.
                    unsafe { resolve_summed(piece, src, dst) }
                });
                // SAFETY: this mover exists only where AVX2 was found. `check` has passed, so all pieces are valid for
                // their lengths, and read and written bytes are disjoint.
                let sums = unsafe { fused::copy(runs, &plan.ends) };
                // 0 stands for "not computed".
                Some(sums.into_iter().map(|sum| sum.max(1)).collect())
            }
            Mover::Portable => None,
        }
    }

    /// Moves pieces and orders the stores before what follows.
    ///
    /// # Safety
    ///
    /// Every piece is valid for reads of `len` bytes at `src` and for writes at `dst`, and no byte of any `src` is a
    /// byte of any `dst`.
    unsafe fn run(&self, pieces: impl Iterator<Item = Resolved>) {
        match self.mover {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this mover exists only where AVX2 was found; the rest is the caller's contract.
            Mover::Avx2(weave) => unsafe { stream::copy(weave, pieces) },
            Mover::Portable => {
                for Resolved { src, dst, len } in pieces {
                    // SAFETY: the caller's contract.
                    unsafe { ptr::copy_nonoverlapping(src, dst, len) };
                }
            }
        }
    }
}

/// Miri interprets no non-temporal stores.
#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    !cfg!(miri) && std::arch::is_x86_feature_detected!("avx2")
}

impl Default for CopyEngine {
    fn default() -> Self {
        Self::detect()
    }
}

/// # Safety
///
/// A plan that holds `piece` has passed [`CopyPlan::check`] for `src` and `dst`.
unsafe fn resolve(piece: &Piece, src: &[HostMemory], dst: &[HostMemory]) -> Resolved {
    let from = src[usize::from(piece.src.region)].base().as_ptr();
    let to = dst[usize::from(piece.dst.region)].base().as_ptr();
    // SAFETY: offset + length is at most the region's length (checked), which fits `usize`.
    unsafe {
        Resolved {
            src: from.add(piece.src.offset as usize),
            dst: to.add(piece.dst.offset as usize),
            len: piece.len as usize,
        }
    }
}

/// # Safety
///
/// A plan that holds `piece` has passed [`SummedPlan::check`] for `src` and `dst`.
#[cfg(target_arch = "x86_64")]
unsafe fn resolve_summed(piece: &SummedPiece, src: &[HostMemory], dst: &[HostMemory]) -> SummedRun {
    let from = src[usize::from(piece.src.region)].base().as_ptr();
    let to = piece
        .dst
        .map(|to| (dst[usize::from(to.region)].base().as_ptr(), to.offset));
    // SAFETY: offset + length is at most the region's length (checked), which fits `usize`.
    unsafe {
        SummedRun {
            src: from.add(piece.src.offset as usize),
            dst: to.map(|(base, offset)| base.add(offset as usize)),
            len: piece.len as usize,
        }
    }
}
