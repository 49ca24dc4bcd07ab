//! What is read next, fetched while something else is copied.

use std::ptr;

use super::lanes::Lanes;
use super::path::STRIP_BYTES;

/// Cache line.
const LINE: usize = 64;

/// Fetches what is read next, one line at a time: of `STRIPS` strips in turn, so that as many pages are under way at once. With 0 strips
/// nothing is fetched.
pub(super) struct Ahead<R, const STRIPS: usize> {
    runs: R,
    /// What is left of the run that was taken last.
    run: (*const u8, usize),
    strips: [*const u8; STRIPS],
    /// Where in the strips the next lines are; the strip that has its turn; where the longest strip ends.
    at: usize,
    turn: usize,
    end: usize,
    /// What `at` grows by: a line, or nothing once there is nothing left to fetch.
    stride: usize,
}

impl<R: Iterator<Item = (*const u8, usize)>, const STRIPS: usize> Ahead<R, STRIPS> {
    /// The strips that are read first are fetched by reading them; what is fetched here begins behind them.
    pub(super) fn new<L: Lanes>(runs: R) -> Self {
        let mut ahead = Self {
            runs,
            run: (ptr::null(), 0),
            strips: [ptr::null(); STRIPS],
            at: 0,
            turn: 0,
            end: 0,
            stride: LINE,
        };
        if STRIPS > 0 {
            ahead.next_strips();
            ahead.strips.iter().for_each(|strip| L::fetch(*strip));
            ahead.next_strips();
        }
        ahead
    }

    /// One line more.
    #[inline(always)]
    pub(super) fn step<L: Lanes>(&mut self) {
        if STRIPS > 0 {
            self.fetch::<L>(self.turn);
            self.turn += 1;
            if self.turn == STRIPS {
                self.turn = 0;
                self.next_lines();
            }
        }
    }

    /// The `step`th of as many steps as a multiple of 16, which follow each other. Cheaper than [`step`](Self::step) where the number
    /// is known to the compiler.
    #[inline(always)]
    pub(super) fn step_of_many<L: Lanes>(&mut self, step: usize) {
        if STRIPS > 0 {
            const { assert!(STRIPS == 0 || 16 % STRIPS == 0) };
            self.fetch::<L>(step % STRIPS.max(1));
            if step % STRIPS.max(1) == STRIPS - 1 {
                self.next_lines();
            }
        }
    }

    #[inline(always)]
    fn fetch<L: Lanes>(&self, strip: usize) {
        L::fetch(self.strips[strip].wrapping_add(self.at));
    }

    #[inline(always)]
    fn next_lines(&mut self) {
        self.at += self.stride;
        if self.at >= self.end {
            self.next_strips();
        }
    }

    #[cold]
    fn next_strips(&mut self) {
        (self.at, self.end) = (0, 0);
        for taken in 0..STRIPS {
            while self.run.1 == 0 {
                let Some(next) = self.runs.next() else {
                    // Fewer are left, or none: something that is near already stands in.
                    let near = ptr::from_ref(self).cast();
                    self.strips[taken..].fill(near);
                    if taken == 0 {
                        (self.end, self.stride) = (LINE, 0);
                    }
                    return;
                };
                self.run = next;
            }
            let len = self.run.1.min(STRIP_BYTES);
            self.strips[taken] = self.run.0;
            self.end = self.end.max(len);
            self.run = (self.run.0.wrapping_add(len), self.run.1 - len);
        }
    }
}
