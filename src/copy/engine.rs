//! Execution of checked plans.
//!
//! Unsafe is opened here. The invariant: every piece has been checked against these very regions, by
//! [`CopyPlan::check`] or [`SummedPlan::check`]; so it lies inside them, the destinations are
//! writable, and no byte is both read and written. Regions are immutable handles borrowed for the whole call, so nothing can
//! change between check and copy. A path is taken only if [`CopyEngine::on`] found what it needs.

#![allow(unsafe_code)]

use std::{fmt, ptr};

use super::error::CopyError;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::fused;
use super::leaf;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::memory::SummedRun;
use super::memory::{HostMemory, Resolved};
#[cfg(test)]
use super::path::AHEADS;
use super::path::{CopyPath, Kernel, Summing, Weave};
use super::plan::{CopyPlan, Piece};
use super::share::{self, Share};
#[cfg(target_arch = "x86_64")]
use super::stream;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::summed::SummedPiece;
use super::summed::SummedPlan;
use super::window::Window;

/// Executes copy plans on one path, with one number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyEngine {
    path: CopyPath,
    /// Threads of a large copy, the caller's among them.
    threads: usize,
}

/// The path, and how many threads if more than one: what status shows.
impl fmt::Display for CopyEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.threads {
            1 => self.path.fmt(f),
            threads => write!(f, "{}, {threads} threads", self.path),
        }
    }
}

impl CopyEngine {
    /// The portable path, on any machine.
    pub const fn portable() -> Self {
        Self {
            path: CopyPath::PORTABLE,
            threads: 1,
        }
    }

    /// That path, if this machine can take it.
    pub fn on(path: CopyPath) -> Option<Self> {
        let plain = path.plain.is_none_or(has_weave);
        let summing = path.summing.is_none_or(|summing| has_kernel(summing.kernel));
        (plain && summing).then_some(Self { path, threads: 1 })
    }

    /// With up to that many threads for large copies, the calling one among them.
    pub fn with_threads(self, threads: usize) -> Self {
        let threads = threads.clamp(1, share::THREADS_MAX);
        Self { threads, ..self }
    }

    /// Every way that this machine can take, each of them in one path at least, for tests.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Self> {
        let plains = Weave::ALL.into_iter().map(Some).chain([None]);
        let plains = plains.filter(|plain| plain.is_none_or(has_weave));
        let kernels = Kernel::ALL.iter().copied().filter(|kernel| has_kernel(*kernel));
        let summings = kernels.flat_map(|kernel| AHEADS.map(|ahead| Some(Summing { kernel, ahead })));
        let (plains, summings): (Vec<_>, Vec<_>) = (plains.collect(), summings.chain([None]).collect());
        let count = plains.len().max(summings.len());
        let paths = plains.iter().cycle().zip(summings.iter().cycle()).take(count);
        paths
            .map(|(&plain, &summing)| Self {
                path: CopyPath { plain, summing },
                threads: 1,
            })
            .collect()
    }

    /// The path that copies take.
    pub fn path(&self) -> CopyPath {
        self.path
    }

    /// Threads of a large copy.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Checks the whole of `plan`, then copies it from regions `src` to regions `dst`. Returns the number
    /// of bytes copied.
    ///
    /// On return all stores are ordered before whatever the caller does next, so a release store, or a
    /// message, hands the bytes over. On an error nothing has been copied. Bytes that someone else writes
    /// during the copy come out torn; callers validate incarnations afterwards.
    pub fn execute(&self, plan: &CopyPlan, src: &[HostMemory], dst: &[HostMemory]) -> Result<u64, CopyError> {
        plan.check(src, dst)?;
        let bytes = plan.bytes();
        let shares = share::by_bytes(bytes, self.threads);
        share::run(shares, |share| {
            let pieces = plan.pieces().iter().map(|piece| {
                // SAFETY: `check` has passed for `src` and `dst`.
                unsafe { resolve(piece, src, dst) }
            });
            // SAFETY: `check` has passed, so all pieces are valid for their lengths, and read and written bytes are
            // disjoint.
            unsafe { self.run(Window::new(pieces, share.first, share.len)) };
        });
        Ok(bytes)
    }

    /// Copies and sums in one pass, where this machine can; the plan has been checked for these regions. Returns the sums of all
    /// leaves, part by part.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) fn copy_fused(
        &self,
        plan: &SummedPlan,
        src: &[HostMemory],
        dst: &[HostMemory],
    ) -> Option<Vec<u64>> {
        let Summing { kernel, ahead } = self.path.summing?;
        let parts = plan.part_bytes();
        let mut sums = vec![0; parts.clone().map(leaf::leaves_of).sum()];
        let shares = share::by_leaves(parts.clone(), &mut sums, self.threads);
        share::run(shares, |(share, first_leaf, sums): (Share, usize, &mut [u64])| {
            let runs = plan.pieces.iter().map(|piece| {
                // SAFETY: `check` has passed for `src` and `dst`.
                unsafe { resolve_summed(piece, src, dst) }
            });
            let runs = Window::new(runs, share.first, share.len);
            let leaves = parts.clone().flat_map(leaf::lengths_of).skip(first_leaf);
            // SAFETY: a path with this kernel exists only where its features were found. `check` has passed, so all pieces are
            // valid for their lengths, and read and written bytes are disjoint.
            unsafe { fused::copy(kernel, ahead, runs, leaves, sums) };
        });
        Some(sums)
    }

    /// There is no such way here.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub(super) fn copy_fused(&self, _: &SummedPlan, _: &[HostMemory], _: &[HostMemory]) -> Option<Vec<u64>> {
        None
    }

    /// Moves pieces and orders the stores before what follows.
    ///
    /// # Safety
    ///
    /// Every piece is valid for reads of `len` bytes at `src` and for writes at `dst`, and no byte of any `src` is a
    /// byte of any `dst`.
    unsafe fn run(&self, pieces: impl Iterator<Item = Resolved> + Clone) {
        match self.path.plain {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a path with a weave exists only where AVX2 was found; the rest is the caller's contract.
            Some(weave) => unsafe { stream::copy(weave, pieces) },
            _ => {
                for Resolved { src, dst, len } in pieces {
                    // SAFETY: the caller's contract.
                    unsafe { ptr::copy_nonoverlapping(src, dst, len) };
                }
            }
        }
    }
}

/// Miri interprets no non-temporal stores.
fn has_weave(_: Weave) -> bool {
    #[cfg(target_arch = "x86_64")]
    return !cfg!(miri) && std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

fn has_kernel(kernel: Kernel) -> bool {
    if cfg!(miri) {
        return false;
    }
    match kernel {
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2 => std::arch::is_x86_feature_detected!("avx2"),
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512 => {
            std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("avx512dq")
        }
        #[cfg(target_arch = "aarch64")]
        Kernel::Neon => std::arch::is_aarch64_feature_detected!("neon"),
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
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
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
