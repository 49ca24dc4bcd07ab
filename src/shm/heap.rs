//! How this process keeps the memory that it has freed.
//!
//! Unsafe is opened here for calls of the C library that have no safe wrapper.
//! One takes two integers and changes parameters of the allocator, which is allowed at any time.
//! The others write down what it holds, into memory that lasts as long as the process.

#![allow(unsafe_code)]

use std::sync::{Mutex, PoisonError};

/// Keeps freed memory instead of giving it back to the kernel piece by piece: with glibc, what was freed bit by bit is given
/// back all at once when the last bit goes, and whoever frees that waits for it (46 ms after 250,000 incomplete objects).
/// Freed memory is used again; the process stays as large as it has been.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // Never give back from the top of the heap; take nothing below 32 MiB by a mapping of its own; join freed
        // pieces at once and not many of them later.
        let settings = [
            (libc::M_TRIM_THRESHOLD, i32::MAX),
            (libc::M_MMAP_THRESHOLD, 32 << 20),
            (libc::M_MXFAST, 0),
        ];
        for (parameter, value) in settings {
            // SAFETY: two integers go in. A value that is refused leaves the parameter as it was.
            unsafe { libc::mallopt(parameter, value) };
        }
    }
}

/// More than what the C library's caches keep for each thread, so that a request of so many bytes goes to its lists.
const BEYOND_CACHES: usize = 1288;

/// Has the allocator sort what was freed since the last time.
///
/// With glibc, what is freed goes to one list. The next request of more than a kilobyte goes through that list, up to 10,000 pieces
/// at once: after the death of a client that held much that took 280 us. So who frees many pieces has each turn's sorted at its end,
/// which is one request that is given back at once.
pub fn sort_freed_memory() {
    let room: Vec<u8> = Vec::with_capacity(std::hint::black_box(BEYOND_CACHES));
    drop(std::hint::black_box(room));
}

/// How many freed pieces of memory are not sorted yet, of all threads. Nothing where the C library does not say. Only the first call
/// takes memory, which has them sorted.
pub fn unsorted_pieces() -> Option<u64> {
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.is_none() {
        *told = told::Told::open();
    }
    let text = told.as_mut()?.text()?;
    let lists = text.lines().filter(|line| line.contains("<unsorted "));
    let counts = lists.filter_map(|line| {
        line.split("count=\"")
            .nth(1)?
            .split('"')
            .next()?
            .parse::<u64>()
            .ok()
    });
    Some(counts.sum())
}

static TOLD: Mutex<Option<told::Told>> = Mutex::new(None);

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod told {
    /// Room for what the allocator says: a line for each list that is not empty, of each arena.
    const ROOM: usize = 1 << 20;

    /// Where the allocator writes down what it holds.
    #[derive(Debug)]
    pub(super) struct Told {
        stream: *mut libc::FILE,
        /// `ROOM` bytes that the stream writes, given up for the life of the process: no reference to them outlives a read.
        text: *mut u8,
    }

    // SAFETY: the stream and the memory behind it are this value's alone, and the C library lets any thread use a stream.
    unsafe impl Send for Told {}

    impl Told {
        pub(super) fn open() -> Option<Self> {
            let text = Box::leak(vec![0; ROOM].into_boxed_slice()).as_mut_ptr();
            // SAFETY: the memory is as long as is said, and is never given back.
            let stream = unsafe { libc::fmemopen(text.cast(), ROOM, c"w".as_ptr()) };
            if stream.is_null() {
                return None;
            }
            // SAFETY: the stream is open and nothing was written to it. Without a buffer of its own it takes no memory later.
            unsafe { libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0) };
            Some(Self { stream, text })
        }

        pub(super) fn text(&mut self) -> Option<&str> {
            // SAFETY: the stream is open; all of these may be called at any time.
            let told = unsafe {
                libc::rewind(self.stream);
                libc::malloc_info(0, self.stream) == 0 && libc::fflush(self.stream) == 0
            };
            // SAFETY: as before.
            let end = unsafe { libc::ftell(self.stream) };
            let length = usize::try_from(end).ok().filter(|length| *length <= ROOM)?;
            // SAFETY: so many bytes lie within the room, which lasts and is initialised. The stream has been flushed and writes again
            // only in the next call, which takes this value by `&mut` and so ends the borrow.
            let text = unsafe { std::slice::from_raw_parts(self.text, length) };
            std::str::from_utf8(text).ok().filter(|_| told)
        }
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod told {
    #[derive(Debug)]
    pub(super) struct Told;

    impl Told {
        pub(super) fn open() -> Option<Self> {
            None
        }

        pub(super) fn text(&mut self) -> Option<&str> {
            None
        }
    }
}
