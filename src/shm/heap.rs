//! How this process keeps the memory that it has freed.
//!
//! Unsafe is opened here for one call of the C library that has no safe wrapper. The invariant: it takes two integers and changes
//! parameters of the allocator, which is allowed at any time.

#![allow(unsafe_code)]

/// Keeps freed memory instead of giving it back to the kernel piece by piece: with glibc, what was freed bit by bit is given
/// back all at once when the last bit goes, and whoever frees that waits for it (46 ms after 250,000 incomplete objects). Freed memory is used again; the process stays as
/// large as it has been.
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
