//! A stretch of a row of runs: the share of one thread.

use super::memory::Resolved;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::memory::SummedRun;

/// A run that can be made shorter.
pub(super) trait Run {
    /// Bytes of it.
    fn len(&self) -> usize;
    /// Without the first `bytes`, of which it has as many.
    fn advance(&mut self, bytes: usize);
    /// Without all but the first `bytes`.
    fn truncate(&mut self, bytes: usize);
}

impl Run for Resolved {
    fn len(&self) -> usize {
        self.len
    }

    fn advance(&mut self, bytes: usize) {
        // The addresses stay inside the run or become its end.
        (self.src, self.dst) = (self.src.wrapping_add(bytes), self.dst.wrapping_add(bytes));
        self.len -= bytes;
    }

    fn truncate(&mut self, bytes: usize) {
        self.len = self.len.min(bytes);
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Run for SummedRun {
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn advance(&mut self, bytes: usize) {
        self.src = self.src.wrapping_add(bytes);
        self.dst = self.dst.map(|dst| dst.wrapping_add(bytes));
        self.len -= bytes;
    }

    fn truncate(&mut self, bytes: usize) {
        self.len = self.len.min(bytes);
    }
}

/// The bytes of `runs` from `skip` on, `left` of them.
#[derive(Clone)]
pub(super) struct Window<R> {
    runs: R,
    skip: u64,
    left: u64,
}

impl<R> Window<R> {
    pub(super) fn new(runs: R, skip: u64, left: u64) -> Self {
        Self { runs, skip, left }
    }
}

impl<R: Iterator<Item: Run>> Iterator for Window<R> {
    type Item = R::Item;

    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            let mut run = self.runs.next()?;
            if run.len() as u64 <= self.skip {
                self.skip -= run.len() as u64;
                continue;
            }
            run.advance(self.skip as usize);
            self.skip = 0;
            run.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= run.len() as u64;
            return Some(run);
        }
        None
    }
}
