//! The program's allocator, and how it keeps what was freed.
//!
//! A library leaves its memory to the program that it is in, so this is of the feature `cli`. Why another than the C library's:
//! docs/decisions/0021-the-programs-allocator.md.
//!
//! Unsafe is opened here for one call of the allocator that has no safe wrapper. It takes two numbers and may be made at any time.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};

use mimalloc::MiMalloc;

/// What the program allocates with.
pub type ProgramAllocator = MiMalloc;

/// It, for `#[global_allocator]`.
pub const PROGRAM_ALLOCATOR: ProgramAllocator = MiMalloc;

/// `mi_option_purge_delay`: after how many milliseconds freed memory goes back to the kernel.
const PURGE_DELAY: c_int = 15;
/// Not at all.
const NEVER: c_long = -1;
/// `mi_option_generic_collect`: after how many requests that need more than a look at a list it goes through all its pages.
const COLLECT: c_int = 34;
/// The most that it takes. It finds nothing there that the next request would not find.
const SELDOM: c_long = 1_000_000;

unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
}

/// Keeps what one request waits for short.
///
/// Freed memory is kept and not given back to the kernel: whoever allocates next would wait for that, in one go for all that has
/// been freed in the last second. It is used again; the process stays as large as it has been.
///
/// And the allocator goes through all its pages only once in a million slow requests, and not a hundred times. With that a turn of
/// 1.7 ms was seen at a million records.
pub fn keep_freed_memory() {
    for (option, value) in [(PURGE_DELAY, NEVER), (COLLECT, SELDOM)] {
        // SAFETY: two numbers go in. An option is a word that is read where it matters.
        unsafe { mi_option_set(option, value) };
    }
}
