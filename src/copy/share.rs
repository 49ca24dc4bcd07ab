//! Shares of a large copy, one for each thread.
//!
//! Threads live as long as the copy: nothing waits between copies, and nothing has to outlive a fork.

use std::sync::{Mutex, PoisonError};
use std::thread;

use nix::sys::signal::{SigSet, SigmaskHow};

use super::leaf::lengths_of;
use super::path::STRIP_BYTES;

/// Most threads of one copy.
pub const THREADS_MAX: usize = 16;
/// What a thread has to copy at least: starting one costs as long as a fraction of this.
pub(super) const SHARE_BYTES_MIN: u64 = 2 << 20;
/// A copy needs little of it.
const STACK_BYTES: usize = 256 << 10;

/// A stretch of the bytes of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) first: u64,
    pub(super) len: u64,
}

/// How many threads copy that many bytes, of those that are allowed.
fn threads_for(bytes: u64, threads: usize) -> usize {
    threads.min((bytes / SHARE_BYTES_MIN) as usize).max(1)
}

/// Equal shares of `bytes`.
pub(super) fn by_bytes(bytes: u64, threads: usize) -> impl Iterator<Item = Share> {
    let threads = threads_for(bytes, threads) as u64;
    // Strips begin on multiples of their length, and so do shares.
    let strip = STRIP_BYTES as u64;
    let at = move |share: u64| match share == threads {
        true => bytes,
        false => bytes / threads * share / strip * strip,
    };
    (0..threads).map(move |share| Share {
        first: at(share),
        len: at(share + 1) - at(share),
    })
}

/// Shares of equally many leaves, each with the number of its first leaf and the room for its sums.
pub(super) fn by_leaves(
    parts: impl Iterator<Item = u64> + Clone,
    mut sums: &mut [u64],
    threads: usize,
) -> Vec<(Share, usize, &mut [u64])> {
    let leaves = sums.len();
    let threads = threads_for(parts.clone().sum(), threads);
    let mut lengths = parts.flat_map(lengths_of);
    let (mut shares, mut first, mut leaf) = (Vec::with_capacity(threads), 0, 0);
    for share in 1..=threads {
        let end = leaves * share / threads;
        let len = lengths.by_ref().take(end - leaf).map(|len| len as u64).sum();
        let (here, rest) = sums.split_at_mut(end - leaf);
        shares.push((Share { first, len }, leaf, here));
        (sums, first, leaf) = (rest, first + len, end);
    }
    shares
}

/// Copies all shares: the first in this thread, each other in one of its own. What gets no thread is copied here too.
pub(super) fn run<S: Send>(shares: impl IntoIterator<Item = S>, copy: impl Fn(S) + Sync) {
    run_with(shares, copy, |_| true);
}

/// [`run`], where the helper of that number can be had.
fn run_with<S: Send>(
    shares: impl IntoIterator<Item = S>,
    copy: impl Fn(S) + Sync,
    can_be_had: impl Fn(usize) -> bool,
) {
    let mut shares = shares.into_iter();
    let Some(own) = shares.next() else { return };
    let others: Vec<Mutex<Option<S>>> = shares.map(|share| Mutex::new(Some(share))).collect();
    if others.is_empty() {
        return copy(own);
    }
    let copy_one = |share: &Mutex<Option<S>>| {
        let taken = share.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(share) = taken {
            copy(share);
        }
    };
    thread::scope(|scope| {
        // Helpers live for one copy and take none of the engine's signals.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        for (number, share) in others.iter().enumerate() {
            if can_be_had(number) {
                let helper = thread::Builder::new().name("kvasir-copy".into());
                // What gets no thread is copied below. Another share may get one after it.
                let _ = helper
                    .stack_size(STACK_BYTES)
                    .spawn_scoped(scope, || copy_one(share));
            }
        }
        if let Ok(before) = before {
            // Cannot fail: it was in force a moment ago.
            let _ = before.thread_set_mask();
        }
        copy(own);
        // Whatever no thread has taken by now, one after the other.
        others.iter().for_each(copy_one);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_bytes_once() {
        for bytes in [0, 1, 5 << 20, (32 << 20) + 17] {
            for threads in [1, 2, 3, 16] {
                let mut end = 0;
                let shares: Vec<Share> = by_bytes(bytes, threads).collect();
                for share in &shares {
                    assert_eq!((share.first, share.first % 4096), (end, 0));
                    end += share.len;
                }
                assert_eq!(end, bytes);
                assert_eq!(shares.len(), threads.min((bytes >> 21) as usize).max(1));
            }
        }
    }

    #[test]
    fn leaves_are_dealt_out_whole_and_in_order() {
        let parts = [5 << 20, 0, 1, (4 << 20) + 17, 16384];
        let mut sums = vec![0; 320 + 1 + 1 + 257 + 1];
        for threads in [1, 2, 3, 16] {
            let (mut byte, mut leaf) = (0, 0);
            let shares = by_leaves(parts.into_iter(), &mut sums, threads);
            assert_eq!(shares.len(), threads.min(4));
            for (share, first_leaf, sums) in shares {
                assert_eq!((share.first, first_leaf), (byte, leaf));
                (byte, leaf) = (byte + share.len, leaf + sums.len());
            }
            assert_eq!((byte, leaf), (parts.iter().sum(), 580));
        }
    }

    #[test]
    fn more_than_one_share_get_threads_that_work_at_the_same_time() {
        let seen = Mutex::new(Vec::new());
        let note = |share: u32| {
            let name = thread::current().name().map(str::to_owned);
            seen.lock().unwrap().push((share, name));
        };
        run(0..1, note);
        let here = thread::current().name().map(str::to_owned);
        assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), [(0, here.clone())]);
        let all_at_once = std::sync::Barrier::new(3);
        run(0..3, |share| {
            all_at_once.wait();
            note(share);
        });
        let mut all = seen.into_inner().unwrap();
        all.sort();
        let helper = Some("kvasir-copy".to_owned());
        assert_eq!(all, [(0, here), (1, helper.clone()), (2, helper)]);
    }

    /// Threads may be refused and be had again a moment later.
    #[test]
    fn every_share_is_copied_once_whichever_helpers_can_be_had() {
        for had in 0..1_u32 << 4 {
            let seen = Mutex::new(Vec::new());
            run_with(
                0..5,
                |share| seen.lock().unwrap().push(share),
                |number| had >> number & 1 == 1,
            );
            let mut all = seen.into_inner().unwrap();
            all.sort();
            assert_eq!(all, [0, 1, 2, 3, 4], "helpers {had:04b}");
        }
    }
}
