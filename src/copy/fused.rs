//! Copy and checksum in one pass: each stripe is loaded once, and the same registers are summed and written.
//!
//! Unsafe is opened here. The invariant: every piece is one that its caller vouches for (readable at the source; where it
//! has a destination, writable there, and no byte both read and written). Non-temporal stores are outside the usual
//! store order of x86-64, so a fence ends the copy.
//!
//! A sum is sequential, so the strips cannot advance together as in `stream`. What keeps the memory system's queues full instead
//! is [`Ahead`]: with every stripe one line of the strips that come next is fetched, of several strips in turn.
//! Why, and what it gains: docs/decisions/0006-payload-checksums.md.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m256i, _MM_HINT_T0, _mm_prefetch, _mm_sfence, _mm256_add_epi64, _mm256_loadu_si256, _mm256_mul_epu32,
    _mm256_set1_epi64x, _mm256_shuffle_epi32, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_storeu_si256,
    _mm256_stream_si256, _mm256_xor_si256,
};
use std::ptr;

use twox_hash::XxHash3_64;

use super::xxh3::{
    Accumulators, BLOCK_STRIPES, SCRAMBLE_PRIME, SCRAMBLE_SECRET, SECRET, SHORT_BYTES_MAX, STRIPE_BYTES,
};

/// Strips that are fetched in turn.
const STRIPS: usize = 8;
/// Longest strip: a page, the reach of a hardware prefetcher.
const STRIP_BYTES: usize = 4096;
/// Cache line.
const LINE: usize = 64;

/// A piece as addresses; without a destination it is only summed.
#[derive(Clone, Copy)]
pub(super) struct SummedRun {
    pub(super) src: *const u8,
    pub(super) dst: Option<*mut u8>,
    pub(super) len: usize,
}

/// Copies the pieces of some parts and returns the sum of each part: XXH3-64 with seed 0 over its bytes in order. `ends` are the
/// numbers of pieces up to the end of each part.
///
/// # Safety
///
/// The CPU has AVX2. Every piece is valid for reads of `len` bytes at `src` and, where it has one, for writes at `dst`, and no
/// byte of any `src` is a byte of any `dst`.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn copy(pieces: impl Iterator<Item = SummedRun> + Clone, ends: &[usize]) -> Vec<u64> {
    let mut ahead = Ahead::new(pieces.clone());
    let mut pieces = pieces;
    let mut sums = Vec::with_capacity(ends.len());
    let mut first = 0;
    for &end in ends {
        let of_part = pieces.clone().take(end - first);
        let len: u64 = of_part.clone().map(|piece| piece.len as u64).sum();
        // SAFETY: the caller vouches for the pieces.
        sums.push(unsafe {
            match len <= SHORT_BYTES_MAX {
                true => short_part(of_part),
                false => long_part(of_part, len, &mut ahead),
            }
        });
        (1..=end - first).for_each(|_| _ = pieces.next());
        first = end;
    }
    _mm_sfence();
    sums
}

/// Copies and sums a part of more than [`SHORT_BYTES_MAX`] bytes.
///
/// # Safety
///
/// As for [`copy`].
#[target_feature(enable = "avx2")]
unsafe fn long_part(
    pieces: impl Iterator<Item = SummedRun>,
    len: u64,
    ahead: &mut Ahead<impl Iterator<Item = SummedRun>>,
) -> u64 {
    let (mut part, mut left) = (Part::new(), len);
    for piece in pieces {
        left -= piece.len as u64;
        // SAFETY: the caller vouches for the piece.
        unsafe { part.add(piece, left == 0, ahead) };
    }
    part.sum(len)
}

/// Copies and sums a part of at most [`SHORT_BYTES_MAX`] bytes.
///
/// # Safety
///
/// As for [`copy`].
unsafe fn short_part(pieces: impl Iterator<Item = SummedRun>) -> u64 {
    let (mut bytes, mut len) = ([0; SHORT_BYTES_MAX as usize], 0);
    for piece in pieces {
        let here = &mut bytes[len..len + piece.len];
        // SAFETY: `here` is private memory of the piece's length; the rest is the caller's contract.
        unsafe {
            ptr::copy_nonoverlapping(piece.src, here.as_mut_ptr(), piece.len);
            if let Some(dst) = piece.dst {
                ptr::copy_nonoverlapping(here.as_ptr(), dst, piece.len);
            }
        }
        len += piece.len;
    }
    XxHash3_64::oneshot(&bytes[..len])
}

/// Fetches what is read next, one line at a time: of [`STRIPS`] strips in turn, so that as many pages are under way at once.
struct Ahead<R> {
    runs: R,
    /// What is left of the run that was taken last.
    run: (*const u8, usize),
    strips: [*const u8; STRIPS],
    /// Lines of the longest strip; 0 once there is nothing left to fetch.
    lines: usize,
    at: usize,
}

impl<R: Iterator<Item = SummedRun>> Ahead<R> {
    /// The strips that are read first are fetched by reading them; what is fetched here begins behind them.
    fn new(runs: R) -> Self {
        let mut ahead = Self {
            runs,
            run: (ptr::null(), 0),
            strips: [ptr::null(); STRIPS],
            lines: 0,
            at: 0,
        };
        ahead.next_strips();
        for strip in ahead.strips.iter().take(if ahead.lines > 0 { STRIPS } else { 0 }) {
            fetch(*strip);
        }
        ahead.next_strips();
        ahead
    }

    /// One line more, if there is one.
    #[inline(always)]
    fn step(&mut self) {
        if self.at == STRIPS * self.lines {
            if self.lines == 0 {
                return;
            }
            self.next_strips();
            if self.lines == 0 {
                return;
            }
        }
        fetch(self.strips[self.at % STRIPS].wrapping_add(self.at / STRIPS * LINE));
        self.at += 1;
    }

    #[cold]
    fn next_strips(&mut self) {
        (self.lines, self.at) = (0, 0);
        for taken in 0..STRIPS {
            while self.run.1 == 0 {
                let Some(next) = self.runs.next() else {
                    // Fewer are left: the first of them stands in, whose lines are near already.
                    let first = self.strips[0];
                    self.strips[taken..].fill(first);
                    return;
                };
                self.run = (next.src, next.len);
            }
            let len = self.run.1.min(STRIP_BYTES);
            self.strips[taken] = self.run.0;
            self.lines = self.lines.max(len.div_ceil(LINE));
            self.run = (self.run.0.wrapping_add(len), self.run.1 - len);
        }
    }
}

#[inline(always)]
fn fetch(line: *const u8) {
    // SAFETY: a hint that never faults, without effect on what the program reads or writes.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
}

/// The sum of one part while it is copied. Bytes that fill no stripe yet wait in `waiting`.
struct Part {
    accumulators: Accumulators,
    /// The last stripe that was summed, then the bytes that wait: the end of the stream is in here.
    tail: [u8; 2 * STRIPE_BYTES],
    waiting: usize,
}

impl Part {
    fn new() -> Self {
        Self {
            accumulators: Accumulators::new(),
            tail: [0; 2 * STRIPE_BYTES],
            waiting: 0,
        }
    }

    /// Copies and sums a piece. Of the part's `last` piece up to 64 bytes stay behind for [`sum`](Self::sum).
    ///
    /// # Safety
    ///
    /// As for [`copy`].
    #[target_feature(enable = "avx2")]
    unsafe fn add(
        &mut self,
        piece: SummedRun,
        last: bool,
        ahead: &mut Ahead<impl Iterator<Item = SummedRun>>,
    ) {
        let SummedRun { src, dst, len } = piece;
        let mut done = 0;
        if self.waiting > 0 {
            done = len.min(STRIPE_BYTES - self.waiting);
            // SAFETY: done <= len, so the run is inside the piece.
            unsafe { self.wait(src, dst, done) };
            ahead.step();
            if self.waiting < STRIPE_BYTES || (last && done == len) {
                return;
            }
            self.add_waiting();
        }
        let left = len - done;
        let stripes = left.saturating_sub(usize::from(last)) / STRIPE_BYTES;
        // SAFETY: done + 64 stripes <= len, so source and destination are inside the piece.
        unsafe {
            let (from, to) = (src.add(done), dst.map(|dst| dst.add(done)));
            self.add_stripes(from, to, stripes, ahead);
        }
        done += stripes * STRIPE_BYTES;
        if done < len {
            // SAFETY: what is left of the piece; at most 64 bytes, and nothing waits.
            unsafe { self.wait(src.add(done), dst.map(|dst| dst.add(done)), len - done) };
            ahead.step();
        }
    }

    /// Copies bytes that fill no stripe, from where they wait: what is summed is what was written.
    ///
    /// # Safety
    ///
    /// As for [`copy`] with this piece; `waiting + len` is at most 64.
    unsafe fn wait(&mut self, src: *const u8, dst: Option<*mut u8>, len: usize) {
        let waiting = &mut self.tail[STRIPE_BYTES + self.waiting..][..len];
        // SAFETY: `waiting` is private memory of `len` bytes; the rest is the caller's contract.
        unsafe {
            ptr::copy_nonoverlapping(src, waiting.as_mut_ptr(), len);
            if let Some(dst) = dst {
                ptr::copy_nonoverlapping(waiting.as_ptr(), dst, len);
            }
        }
        self.waiting += len;
    }

    /// Sums the stripe that waits; more bytes follow.
    fn add_waiting(&mut self) {
        self.tail.copy_within(STRIPE_BYTES.., 0);
        let stripe = self.tail.first_chunk().expect("the tail is longer than a stripe");
        self.accumulators.add(stripe);
        self.waiting = 0;
    }

    /// The sum of the `len` bytes that were added.
    fn sum(self, len: u64) -> u64 {
        let last = self.tail[self.waiting..].first_chunk();
        let last = last.expect("at most one of the two stripes waits");
        self.accumulators.finish(last, len)
    }

    /// Copies and sums whole stripes.
    ///
    /// # Safety
    ///
    /// As for [`copy`] with a piece of `64 * stripes` bytes.
    #[target_feature(enable = "avx2")]
    unsafe fn add_stripes(
        &mut self,
        src: *const u8,
        dst: Option<*mut u8>,
        stripes: usize,
        ahead: &mut Ahead<impl Iterator<Item = SummedRun>>,
    ) {
        if stripes == 0 {
            return;
        }
        // SAFETY: the caller's contract; non-temporal stores only where the address allows them.
        unsafe {
            match dst {
                None => self.run::<NOWHERE>(src, ptr::null_mut(), stripes, ahead),
                Some(dst) if dst.addr().is_multiple_of(32) => {
                    self.run::<PAST_CACHES>(src, dst, stripes, ahead)
                }
                Some(dst) => self.run::<THROUGH_CACHES>(src, dst, stripes, ahead),
            }
        }
    }

    /// # Safety
    ///
    /// As for [`add_stripes`](Self::add_stripes); `dst` is written unless `TO` is [`NOWHERE`], and aligned to 32 bytes if it is
    /// [`PAST_CACHES`].
    #[target_feature(enable = "avx2")]
    unsafe fn run<const TO: u8>(
        &mut self,
        src: *const u8,
        dst: *mut u8,
        stripes: usize,
        ahead: &mut Ahead<impl Iterator<Item = SummedRun>>,
    ) {
        let lanes = &mut self.accumulators.lanes;
        // SAFETY: eight lanes are two vectors.
        let mut sums = unsafe {
            let lanes = lanes.as_ptr().cast::<__m256i>();
            [_mm256_loadu_si256(lanes), _mm256_loadu_si256(lanes.add(1))]
        };
        let mut stripe = self.accumulators.stripe;
        let mut data = sums;
        let mut done = 0;
        while done < stripes {
            let until = BLOCK_STRIPES.min(stripe + stripes - done);
            let begin = done;
            let mut one = |stripe: usize, done: usize| {
                ahead.step();
                // SAFETY: done < stripes, so the 64 bytes are inside source and destination; the secret of a stripe
                // below 16 ends before its 192 bytes do.
                unsafe {
                    let from = src.add(done * STRIPE_BYTES).cast::<__m256i>();
                    data = [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))];
                    let to = dst.wrapping_add(done * STRIPE_BYTES).cast::<__m256i>();
                    match TO {
                        PAST_CACHES => {
                            _mm256_stream_si256(to, data[0]);
                            _mm256_stream_si256(to.add(1), data[1]);
                        }
                        THROUGH_CACHES => {
                            _mm256_storeu_si256(to, data[0]);
                            _mm256_storeu_si256(to.add(1), data[1]);
                        }
                        _ => {}
                    }
                    let secret = SECRET.as_ptr().add(8 * stripe).cast::<__m256i>();
                    sums[0] = accumulate(sums[0], data[0], _mm256_loadu_si256(secret));
                    sums[1] = accumulate(sums[1], data[1], _mm256_loadu_si256(secret.add(1)));
                }
            };
            if stripe == 0 && until == BLOCK_STRIPES {
                for at in 0..BLOCK_STRIPES {
                    one(at, begin + at);
                }
            } else {
                for at in stripe..until {
                    one(at, begin + at - stripe);
                }
            }
            done += until - stripe;
            stripe = until;
            if stripe == BLOCK_STRIPES {
                // SAFETY: the secret of a scramble is the last 64 of its 192 bytes.
                unsafe {
                    let secret = SECRET.as_ptr().add(SCRAMBLE_SECRET).cast::<__m256i>();
                    sums[0] = scramble(sums[0], _mm256_loadu_si256(secret));
                    sums[1] = scramble(sums[1], _mm256_loadu_si256(secret.add(1)));
                }
                stripe = 0;
            }
        }
        self.accumulators.stripe = stripe;
        // SAFETY: eight lanes are two vectors, and the first half of the tail is as long.
        unsafe {
            let lanes = lanes.as_mut_ptr().cast::<__m256i>();
            _mm256_storeu_si256(lanes, sums[0]);
            _mm256_storeu_si256(lanes.add(1), sums[1]);
            let tail = self.tail.as_mut_ptr().cast::<__m256i>();
            _mm256_storeu_si256(tail, data[0]);
            _mm256_storeu_si256(tail.add(1), data[1]);
        }
    }
}

/// Where a run is written: nowhere, past the caches, or through them where its address is too odd for that.
const NOWHERE: u8 = 0;
const PAST_CACHES: u8 = 1;
const THROUGH_CACHES: u8 = 2;

/// Four lanes of a stripe: the data to its neighbour's lane, the product of the keyed halves to its own.
#[target_feature(enable = "avx2")]
#[inline]
fn accumulate(sums: __m256i, data: __m256i, secret: __m256i) -> __m256i {
    let keyed = _mm256_xor_si256(data, secret);
    let product = _mm256_mul_epu32(keyed, _mm256_srli_epi64::<32>(keyed));
    let swapped = _mm256_shuffle_epi32::<0b01_00_11_10>(data);
    _mm256_add_epi64(sums, _mm256_add_epi64(product, swapped))
}

/// Four lanes at the end of a block. There is no 64-bit product of vectors, so it is put together of halves.
#[target_feature(enable = "avx2")]
#[inline]
fn scramble(sums: __m256i, secret: __m256i) -> __m256i {
    let prime = _mm256_set1_epi64x(SCRAMBLE_PRIME as i64);
    let mixed = _mm256_xor_si256(_mm256_xor_si256(sums, _mm256_srli_epi64::<47>(sums)), secret);
    let low = _mm256_mul_epu32(mixed, prime);
    let high = _mm256_mul_epu32(_mm256_srli_epi64::<32>(mixed), prime);
    _mm256_add_epi64(low, _mm256_slli_epi64::<32>(high))
}
