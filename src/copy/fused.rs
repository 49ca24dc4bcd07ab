//! Copy and checksum in one pass: each stripe is loaded once, and the same registers are summed and written.
//!
//! Unsafe is opened here. The invariant: every run is one that its caller vouches for (readable at the source; where it has a
//! destination, writable there, and no byte both read and written), and a kernel runs only where its processor features were found.
//! Non-temporal stores are outside the usual store order of x86-64, so a fence ends the copy.
//!
//! The sum of a leaf is sequential, so strips do not advance together as in `stream`. What keeps the memory system's queues full instead
//! is [`Ahead`]: with every stripe one line of the strips that come next is fetched, of several strips in turn.
//! Why, and what it gains: docs/decisions/0006-payload-checksums.md.

#![allow(unsafe_code)]

use std::ptr;

use twox_hash::XxHash3_64;

use super::ahead::Ahead;
use super::lanes::Lanes;
#[cfg(target_arch = "aarch64")]
use super::lanes::Neon;
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::memory::SummedRun;
use super::path::Kernel;
use super::window::Run as _;
use super::xxh3::{
    Accumulators, BLOCK_STRIPES, LAST_SECRET, SCRAMBLE_SECRET, SECRET, SHORT_BYTES_MAX, STRIPE_BYTES,
};

/// Copies runs and writes the XXH3-64 of each leaf of them to `sums`, while lines of the next `ahead` strips are fetched. `leaves` are
/// the lengths of the leaves, as many as `sums`, together as long as the runs.
///
/// # Safety
///
/// The processor has what the kernel needs. Every run is valid for reads of `len` bytes at `src` and, where it has one, for writes
/// at `dst`, and no byte of any `src` is a byte of any `dst`.
pub(super) unsafe fn copy(
    kernel: Kernel,
    ahead: usize,
    runs: impl Iterator<Item = SummedRun> + Clone,
    leaves: impl Iterator<Item = usize>,
    sums: &mut [u64],
) {
    macro_rules! with {
        ($kernel:ident) => {
            // SAFETY: the contract is passed on unchanged.
            unsafe {
                match ahead {
                    0 => $kernel::<0>(runs, leaves, sums),
                    1..=4 => $kernel::<4>(runs, leaves, sums),
                    5..=8 => $kernel::<8>(runs, leaves, sums),
                    _ => $kernel::<16>(runs, leaves, sums),
                }
            }
        };
    }
    match kernel {
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2 => with!(avx2),
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512 => with!(avx512),
        #[cfg(target_arch = "aarch64")]
        Kernel::Neon => with!(neon),
    }
}

/// [`all_leaves`], with the features of a processor.
macro_rules! kernel {
    ($name:ident, $lanes:ty, $features:literal) => {
        /// # Safety
        ///
        /// As for [`copy`].
        #[target_feature(enable = $features)]
        unsafe fn $name<const AHEAD: usize>(
            runs: impl Iterator<Item = SummedRun> + Clone,
            leaves: impl Iterator<Item = usize>,
            sums: &mut [u64],
        ) {
            // SAFETY: the contract is passed on unchanged.
            unsafe { all_leaves::<$lanes, AHEAD>(runs, leaves, sums) };
        }
    };
}

#[cfg(target_arch = "x86_64")]
kernel!(avx2, Avx2, "avx2");
#[cfg(target_arch = "x86_64")]
kernel!(avx512, Avx512, "avx512f,avx512dq");
#[cfg(target_arch = "aarch64")]
kernel!(neon, Neon, "neon");

/// # Safety
///
/// As for [`copy`]; inlined into a function with the features that `L` needs.
#[inline(always)]
unsafe fn all_leaves<L: Lanes, const AHEAD: usize>(
    runs: impl Iterator<Item = SummedRun> + Clone,
    leaves: impl Iterator<Item = usize>,
    sums: &mut [u64],
) {
    let mut ahead = Ahead::<_, AHEAD>::new::<L>(runs.clone().map(|run| (run.src, run.len)));
    let mut rest = Rest::new(runs);
    for (len, sum) in leaves.zip(sums) {
        // SAFETY: the caller vouches for the runs.
        *sum = unsafe {
            match len as u64 <= SHORT_BYTES_MAX {
                true => short_leaf(&mut rest, len),
                false => long_leaf::<L, AHEAD>(&mut rest, len, &mut ahead),
            }
        };
    }
    L::fence();
}

/// What of the runs is not copied yet.
struct Rest<R> {
    runs: R,
    run: SummedRun,
}

impl<R: Iterator<Item = SummedRun>> Rest<R> {
    fn new(runs: R) -> Self {
        let run = SummedRun {
            src: ptr::null(),
            dst: None,
            len: 0,
        };
        Self { runs, run }
    }

    /// The next bytes that lie together, at most `len` and at least one.
    #[inline(always)]
    fn take(&mut self, len: usize) -> SummedRun {
        while self.run.len == 0 {
            self.run = self.runs.next().expect("leaves are as long as the runs");
        }
        let now = SummedRun {
            len: len.min(self.run.len),
            ..self.run
        };
        self.run.advance(now.len);
        now
    }
}

/// Copies and sums a leaf of at most [`SHORT_BYTES_MAX`] bytes.
///
/// # Safety
///
/// As for [`copy`].
unsafe fn short_leaf(rest: &mut Rest<impl Iterator<Item = SummedRun>>, len: usize) -> u64 {
    let (mut bytes, mut done) = ([0; SHORT_BYTES_MAX as usize], 0);
    while done < len {
        let run = rest.take(len - done);
        let here = &mut bytes[done..done + run.len];
        // SAFETY: `here` is private memory of the run's length; the rest is the caller's contract.
        unsafe { through(run, here) };
        done += run.len;
    }
    XxHash3_64::oneshot(&bytes[..len])
}

/// Copies a run by way of private memory of its length, so that what is summed there is what was written.
///
/// # Safety
///
/// As for [`copy`] with this run.
unsafe fn through(run: SummedRun, here: &mut [u8]) {
    assert_eq!(run.len, here.len());
    // SAFETY: `here` is private memory of the run's length; the rest is the caller's contract.
    unsafe {
        ptr::copy_nonoverlapping(run.src, here.as_mut_ptr(), run.len);
        if let Some(dst) = run.dst {
            ptr::copy_nonoverlapping(here.as_ptr(), dst, run.len);
        }
    }
}

/// Copies and sums a leaf of more than [`SHORT_BYTES_MAX`] bytes.
///
/// # Safety
///
/// As for [`copy`]; inlined into a function with the features that `L` needs.
#[inline(always)]
unsafe fn long_leaf<L: Lanes, const AHEAD: usize>(
    rest: &mut Rest<impl Iterator<Item = SummedRun>>,
    len: usize,
    ahead: &mut Ahead<impl Iterator<Item = (*const u8, usize)>, AHEAD>,
) -> u64 {
    let mut leaf = Leaf::new();
    let mut left = len;
    loop {
        let run = rest.take(left);
        left -= run.len;
        // SAFETY: the caller vouches for the run.
        unsafe { leaf.add::<L, AHEAD>(run, left == 0, ahead) };
        if left == 0 {
            return leaf.sum(len as u64);
        }
    }
}

/// The sum of one leaf while it is copied. Bytes that fill no stripe yet wait in `tail`.
struct Leaf {
    accumulators: Accumulators,
    /// The last stripe that was summed, then the bytes that wait: the end of the leaf is in here, unless it was summed already.
    tail: [u8; 2 * STRIPE_BYTES],
    waiting: usize,
    /// The leaf's last stripe has been summed.
    complete: bool,
}

impl Leaf {
    #[inline(always)]
    fn new() -> Self {
        Self {
            accumulators: Accumulators::new(),
            tail: [0; 2 * STRIPE_BYTES],
            waiting: 0,
            complete: false,
        }
    }

    /// Copies and sums a run. Of the leaf's `last` run up to 64 bytes may stay behind for [`sum`](Self::sum).
    ///
    /// # Safety
    ///
    /// As for [`copy`]; inlined into a function with the features that `L` needs.
    #[inline(always)]
    unsafe fn add<L: Lanes, const AHEAD: usize>(
        &mut self,
        mut run: SummedRun,
        last: bool,
        ahead: &mut Ahead<impl Iterator<Item = (*const u8, usize)>, AHEAD>,
    ) {
        if self.waiting > 0 {
            let len = run.len.min(STRIPE_BYTES - self.waiting);
            // SAFETY: the first bytes of the run.
            unsafe { self.wait(SummedRun { len, ..run }) };
            run.advance(len);
            ahead.step::<L>();
            if self.waiting < STRIPE_BYTES || (last && run.len == 0) {
                return;
            }
            self.add_waiting();
        }
        // The last stripe of a leaf is summed in another way. Where it lies in one piece it need not wait.
        let whole = last && run.len > 0 && run.len.is_multiple_of(STRIPE_BYTES);
        let stripes = run.len.saturating_sub(usize::from(last)) / STRIPE_BYTES;
        // SAFETY: 64 stripes, and one more if `whole`, are at most the run's length. Non-temporal stores only where the
        // address allows them.
        unsafe {
            match run.dst {
                None => self.stripes::<L, NOWHERE, AHEAD>(run.src, ptr::null_mut(), stripes, whole, ahead),
                Some(dst) if dst.addr().is_multiple_of(L::ALIGN) => {
                    self.stripes::<L, PAST_CACHES, AHEAD>(run.src, dst, stripes, whole, ahead)
                }
                Some(dst) => self.stripes::<L, THROUGH_CACHES, AHEAD>(run.src, dst, stripes, whole, ahead),
            }
        }
        run.advance((stripes + usize::from(whole)) * STRIPE_BYTES);
        if run.len > 0 {
            // SAFETY: what is left of the run; at most 64 bytes, and nothing waits.
            unsafe { self.wait(run) };
            ahead.step::<L>();
        }
    }

    /// Copies bytes that fill no stripe, from where they wait.
    ///
    /// # Safety
    ///
    /// As for [`copy`] with this run; `waiting + len` is at most 64.
    unsafe fn wait(&mut self, run: SummedRun) {
        let waiting = &mut self.tail[STRIPE_BYTES + self.waiting..][..run.len];
        // SAFETY: the caller's contract.
        unsafe { through(run, waiting) };
        self.waiting += run.len;
    }

    /// Sums the stripe that waits; more bytes follow.
    fn add_waiting(&mut self) {
        self.tail.copy_within(STRIPE_BYTES.., 0);
        let stripe = self.tail.first_chunk().expect("the tail is longer than a stripe");
        self.accumulators.add(stripe);
        self.waiting = 0;
    }

    /// The sum of the `len` bytes that were added.
    #[inline(always)]
    fn sum(mut self, len: u64) -> u64 {
        if !self.complete {
            let last = self.tail[self.waiting..].first_chunk();
            self.accumulators
                .add_last(last.expect("at most one of the two stripes waits"));
        }
        self.accumulators.finish(len)
    }

    /// Copies and sums whole stripes; then, if `whole`, the last one of the leaf.
    ///
    /// # Safety
    ///
    /// As for [`copy`] with a run of that many stripes; `dst` is written unless `TO` is [`NOWHERE`], and aligned if it is
    /// [`PAST_CACHES`]. Inlined into a function with the features that `L` needs.
    #[inline(always)]
    unsafe fn stripes<L: Lanes, const TO: u8, const AHEAD: usize>(
        &mut self,
        src: *const u8,
        dst: *mut u8,
        stripes: usize,
        whole: bool,
        ahead: &mut Ahead<impl Iterator<Item = (*const u8, usize)>, AHEAD>,
    ) {
        if stripes + usize::from(whole) == 0 {
            return;
        }
        // SAFETY: eight lanes are 64 bytes.
        let (mut sums, mut data) = unsafe {
            let lanes = L::load(self.accumulators.lanes.as_ptr().cast());
            (lanes, lanes)
        };
        // A macro and not a closure: what is not inlined by force would not have the features of its caller.
        macro_rules! one {
            ($at:expr, $secret:expr, $fetch:expr) => {
                $fetch;
                // SAFETY: `at` is one of the stripes, so the 64 bytes are inside source and destination; the secret of a
                // stripe ends before its 192 bytes do.
                unsafe {
                    data = L::load(src.add($at * STRIPE_BYTES));
                    let to = dst.wrapping_add($at * STRIPE_BYTES);
                    match TO {
                        PAST_CACHES => data.stream(to),
                        THROUGH_CACHES => data.store(to),
                        _ => {}
                    }
                    sums = sums.accumulate(data, SECRET.as_ptr().add($secret));
                }
            };
        }
        let (mut stripe, mut done) = (self.accumulators.stripe, 0);
        while done < stripes {
            let until = BLOCK_STRIPES.min(stripe + stripes - done);
            if stripe == 0 && until == BLOCK_STRIPES {
                for at in 0..BLOCK_STRIPES {
                    one!(done + at, 8 * at, ahead.step_of_many::<L>(at));
                }
            } else if stripe == 0 && until == BLOCK_STRIPES - 1 && whole {
                // So ends a whole leaf: a loop of known length, as above.
                for at in 0..BLOCK_STRIPES - 1 {
                    one!(done + at, 8 * at, ahead.step_of_many::<L>(at));
                }
                one!(stripes, LAST_SECRET, ahead.step_of_many::<L>(BLOCK_STRIPES - 1));
                self.complete = true;
            } else {
                for at in stripe..until {
                    one!(done + at - stripe, 8 * at, ahead.step::<L>());
                }
            }
            done += until - stripe;
            stripe = until;
            if stripe == BLOCK_STRIPES {
                // SAFETY: the secret of a scramble is the last 64 of its 192 bytes.
                sums = unsafe { sums.scramble(SECRET.as_ptr().add(SCRAMBLE_SECRET)) };
                stripe = 0;
            }
        }
        if whole && !self.complete {
            one!(stripes, LAST_SECRET, ahead.step::<L>());
            self.complete = true;
        }
        self.accumulators.stripe = stripe;
        // SAFETY: eight lanes are 64 bytes.
        unsafe { sums.store(self.accumulators.lanes.as_mut_ptr().cast()) };
        if !whole {
            // SAFETY: the first half of the tail is 64 bytes.
            unsafe { data.store(self.tail.as_mut_ptr()) };
        }
    }
}

/// Where stripes are written: nowhere, past the caches, or through them where the address is too odd for that.
const NOWHERE: u8 = 0;
const PAST_CACHES: u8 = 1;
const THROUGH_CACHES: u8 = 2;
