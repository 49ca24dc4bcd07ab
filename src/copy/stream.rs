//! The AVX2 kernel: non-temporal stores over interleaved strips.
//!
//! Unsafe is opened here. The invariant: every strip is part of a piece that its caller vouches for
//! (readable at the source, writable at the destination, the two disjoint), its destination is aligned to a
//! cache line and its length is a multiple of one. A fence ends the copy, because non-temporal stores are
//! outside the usual store order of x86-64.
//!
//! Several strips advance together, so that the memory system's queues stay full where one stream leaves
//! them half empty. It makes no difference whether the strips are pages of one large piece or as many small
//! pieces. How many strips, and how far one advances before the next has its turn, depends on the CPU: on an AMD EPYC, changing
//! the stream with every line makes these stores three times slower than with every 512 bytes, and on an Intel Xeon it is best. So
//! what is taken is measured (`tune`).

#![allow(unsafe_code)]

use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
use std::ptr;

use super::ahead::Ahead;
use super::lanes::{Avx2, Lanes as _};
use super::memory::Resolved;
use super::path::{STRIP_BYTES, Weave};

/// Most strips that advance together; sixteen gained nothing anywhere.
const STREAMS_MAX: usize = 8;

/// Cache line, the unit of a full write-combining buffer.
const LINE: usize = 64;

/// Pieces below this are copied plainly: hardly any whole line is in them.
const STREAMED_BYTES_MIN: usize = 4 * LINE;

/// Copies all pieces and fences.
///
/// # Safety
///
/// The CPU has AVX2. Every piece is valid for reads of `len` bytes at `src` and for writes at `dst`, and no
/// byte of any `src` is a byte of any `dst`.
pub(super) unsafe fn copy(weave: Weave, pieces: impl Iterator<Item = Resolved> + Clone) {
    // SAFETY: the contract is passed on unchanged.
    unsafe {
        match weave {
            Weave::EightByLine => copy_woven::<8, LINE>(pieces),
            Weave::FourByRun => copy_woven::<4, 512>(pieces),
            Weave::Ahead => copy_ahead(pieces),
        }
    }
}

/// [`copy`] with `STREAMS` strips at once, `RUN` bytes of each in turn.
///
/// # Safety
///
/// As for [`copy`].
#[target_feature(enable = "avx2")]
unsafe fn copy_woven<const STREAMS: usize, const RUN: usize>(pieces: impl Iterator<Item = Resolved>) {
    const { assert!(STREAMS <= STREAMS_MAX && RUN.is_multiple_of(LINE)) };
    let mut strips = Strips::<STREAMS, RUN>::new();
    for Resolved { src, dst, len } in pieces {
        if len < STREAMED_BYTES_MIN {
            // SAFETY: the caller vouches for the piece.
            unsafe { ptr::copy_nonoverlapping(src, dst, len) };
            continue;
        }
        let (head, body, tail) = cut(dst, len);
        // SAFETY: head + body + tail = len, so all three ranges are inside the piece; `dst + head` is
        // aligned to a line by the choice of `head`.
        unsafe {
            ptr::copy_nonoverlapping(src, dst, head);
            ptr::copy_nonoverlapping(src.add(head + body), dst.add(head + body), tail);
            strips.push_body(src.add(head), dst.add(head), body);
        }
    }
    // SAFETY: only `push_body` adds strips.
    unsafe { strips.finish() };
    _mm_sfence();
}

/// How much of a piece comes before its whole destination lines, is of them, and comes after.
fn cut(dst: *mut u8, len: usize) -> (usize, usize, usize) {
    let head = dst.addr().wrapping_neg() % LINE;
    let body = (len - head) / LINE * LINE;
    (head, body, len - head - body)
}

/// [`copy`] of one line after the other, while lines of the next eight strips are fetched.
///
/// # Safety
///
/// As for [`copy`].
#[target_feature(enable = "avx2")]
unsafe fn copy_ahead(pieces: impl Iterator<Item = Resolved> + Clone) {
    let mut ahead = Ahead::<_, 8>::new::<Avx2>(pieces.clone().map(|piece| (piece.src, piece.len)));
    for Resolved { src, dst, len } in pieces {
        if len < STREAMED_BYTES_MIN {
            (0..len.div_ceil(LINE)).for_each(|_| ahead.step::<Avx2>());
            // SAFETY: the caller vouches for the piece.
            unsafe { ptr::copy_nonoverlapping(src, dst, len) };
            continue;
        }
        let (head, body, tail) = cut(dst, len);
        // SAFETY: head + body + tail = len, so all ranges are inside the piece; `dst + head` is aligned to a line by the choice
        // of `head`, and the body is whole lines.
        unsafe {
            ptr::copy_nonoverlapping(src, dst, head);
            let (src_lines, dst_lines, many) = (src.add(head), dst.add(head), body / (16 * LINE) * 16);
            for first in (0..many).step_by(16) {
                for step in 0..16 {
                    ahead.step_of_many::<Avx2>(step);
                    let at = (first + step) * LINE;
                    Avx2::load(src_lines.add(at)).stream(dst_lines.add(at));
                }
            }
            for at in (many * LINE..body).step_by(LINE) {
                ahead.step::<Avx2>();
                Avx2::load(src_lines.add(at)).stream(dst_lines.add(at));
            }
            ptr::copy_nonoverlapping(src.add(head + body), dst.add(head + body), tail);
        }
    }
    _mm_sfence();
}

/// Up to `STREAMS` strips in flight. Entries from `active` on are unused.
struct Strips<const STREAMS: usize, const RUN: usize> {
    src: [*const u8; STREAMS],
    dst: [*mut u8; STREAMS],
    left: [usize; STREAMS],
    active: usize,
}

impl<const STREAMS: usize, const RUN: usize> Strips<STREAMS, RUN> {
    fn new() -> Self {
        Self {
            src: [ptr::null(); STREAMS],
            dst: [ptr::null_mut(); STREAMS],
            left: [0; STREAMS],
            active: 0,
        }
    }

    /// Cuts a body into strips and copies whenever all streams are taken.
    ///
    /// # Safety
    ///
    /// As for [`copy`], and `dst` and `len` are multiples of [`LINE`].
    #[target_feature(enable = "avx2")]
    unsafe fn push_body(&mut self, src: *const u8, dst: *mut u8, len: usize) {
        let mut at = 0;
        while at < len {
            let strip = STRIP_BYTES.min(len - at);
            // SAFETY: at < len, so both pointers stay inside the body.
            (self.src[self.active], self.dst[self.active]) = unsafe { (src.add(at), dst.add(at)) };
            self.left[self.active] = strip;
            self.active += 1;
            at += strip;
            if self.active == STREAMS {
                // SAFETY: all entries are strips inside bodies.
                unsafe { self.advance::<STREAMS>() };
            }
        }
    }

    /// Copies what is left, with ever fewer streams.
    ///
    /// # Safety
    ///
    /// All active entries come from [`push_body`](Self::push_body).
    #[target_feature(enable = "avx2")]
    unsafe fn finish(&mut self) {
        while self.active > 0 {
            // SAFETY: the first `active` entries are strips inside bodies.
            unsafe {
                match self.active {
                    1 => self.advance::<1>(),
                    2 => self.advance::<2>(),
                    3 => self.advance::<3>(),
                    4 => self.advance::<4>(),
                    5 => self.advance::<5>(),
                    6 => self.advance::<6>(),
                    7 => self.advance::<7>(),
                    _ => self.advance::<STREAMS_MAX>(),
                }
            }
        }
    }

    /// Advances the first `N` strips by the shortest of them, and drops those that are done.
    ///
    /// # Safety
    ///
    /// `N` is `active`, and these entries are strips inside bodies.
    #[target_feature(enable = "avx2")]
    unsafe fn advance<const N: usize>(&mut self) {
        debug_assert_eq!(self.active, N);
        let step = self.left[..N].iter().copied().min().unwrap_or(0);
        // SAFETY: `step` is at most what is left of each strip and a multiple of a line, as all are.
        unsafe { interleave::<N, STREAMS, RUN>(&self.src, &self.dst, step) };
        let mut kept = 0;
        for i in 0..N {
            let left = self.left[i] - step;
            if left > 0 {
                // SAFETY: `step` is less than what was left, so the pointers stay inside the strip.
                (self.src[kept], self.dst[kept]) = unsafe { (self.src[i].add(step), self.dst[i].add(step)) };
                self.left[kept] = left;
                kept += 1;
            }
        }
        self.active = kept;
    }
}

/// Copies `bytes` bytes of each of the first `N` strips, `RUN` bytes of each in turn.
///
/// # Safety
///
/// As for [`copy`] with pieces `(src[i], dst[i], bytes)`, `i < N`; every `dst[i]` and `bytes` are multiples
/// of [`LINE`].
#[target_feature(enable = "avx2")]
unsafe fn interleave<const N: usize, const STREAMS: usize, const RUN: usize>(
    src: &[*const u8; STREAMS],
    dst: &[*mut u8; STREAMS],
    bytes: usize,
) {
    for run in (0..bytes).step_by(RUN) {
        let run_end = bytes.min(run + RUN);
        for (src, dst) in src.iter().zip(dst).take(N) {
            for at in (run..run_end).step_by(LINE) {
                // SAFETY: at + LINE <= bytes, so both lines lie inside their strips. Loads may be
                // unaligned; the two stores go to a line-aligned address and to 32 bytes after it.
                unsafe {
                    let from = src.add(at).cast::<__m256i>();
                    let to = dst.add(at).cast::<__m256i>();
                    let low = _mm256_loadu_si256(from);
                    let high = _mm256_loadu_si256(from.add(1));
                    _mm256_stream_si256(to, low);
                    _mm256_stream_si256(to.add(1), high);
                }
            }
        }
    }
}
