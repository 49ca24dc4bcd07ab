//! Token buffers of chains that have ended, for the next ones.
//!
//! The tokens of a long prompt fill more than the allocator keeps, so it would take them from the system and give them
//! back for each request, and the page faults of fresh memory cost the scheduler's thread more than the hashing.

use std::cell::RefCell;

/// Smaller ones are cheap to allocate.
const BYTES_MIN: usize = 64 << 10;
/// Larger ones are too rare to be worth their memory.
const BYTES_MAX: usize = 1 << 20;
/// Buffers that a thread keeps: as many long prompts as begin and end in a few steps.
const KEPT: usize = 8;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer for about `bytes` bytes.
pub(super) fn take(bytes: usize) -> Vec<u8> {
    let kept = (BYTES_MIN..=BYTES_MAX).contains(&bytes).then(|| {
        let free = FREE.try_with(|free| free.borrow_mut().pop());
        free.ok().flatten()
    });
    kept.flatten().unwrap_or_default()
}

/// Keeps a buffer that nobody needs any more. Its tokens stay in this process's memory until they are overwritten, as
/// they do in memory that goes back to the allocator.
pub(super) fn give(mut buffer: Vec<u8>) {
    if !(BYTES_MIN..=BYTES_MAX).contains(&buffer.capacity()) {
        return;
    }
    buffer.clear();
    // Fails while the thread ends, and then there is nothing to keep it for.
    let _ = FREE.try_with(|free| {
        let mut free = free.borrow_mut();
        if free.len() < KEPT {
            free.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_and_only_so_many_are_kept() {
        let buffer = vec![7_u8; BYTES_MIN];
        let address = buffer.as_ptr();
        give(buffer);
        let again = take(BYTES_MIN);
        assert_eq!((again.as_ptr(), again.len()), (address, 0));
        assert_eq!(take(BYTES_MIN).capacity(), 0, "it was the only one");
        for _ in 0..2 * KEPT {
            give(Vec::with_capacity(BYTES_MIN));
        }
        let kept = (0..2 * KEPT).filter(|_| take(BYTES_MIN).capacity() > 0).count();
        assert_eq!(kept, KEPT);
    }

    #[test]
    fn small_and_huge_ones_are_left_to_the_allocator() {
        give(Vec::with_capacity(BYTES_MIN - 1));
        give(Vec::with_capacity(2 * BYTES_MAX));
        assert_eq!(take(BYTES_MIN).capacity(), 0);
        give(Vec::with_capacity(BYTES_MIN));
        assert_eq!(take(16).capacity(), 0);
        assert!(take(BYTES_MIN).capacity() > 0);
    }
}
