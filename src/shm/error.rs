//! What can go wrong with shared memory, with the numbers that were involved.

use std::io;
use std::path::PathBuf;

/// A failure to create, seal, map, lock or address shared memory.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// A system call failed.
    #[error("{call} failed on {what}: {source}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// The region or path it was made for.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Where a lock file should be is something that no holder can have left; it was not touched.
    #[error(
        "{} is {found}, not a lock file; it was left alone: move it away or use another path",
        path.display()
    )]
    NotALockFile {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// A region of this size cannot exist.
    #[error("a shared region of {len} bytes is not possible; sizes are 1 to {max} bytes")]
    BadLength {
        /// The size asked for.
        len: u64,
        /// The largest possible one.
        max: u64,
    },
    /// An access would reach outside the mapping.
    #[error("{bytes} bytes at offset {offset} are outside a mapping of {len} bytes")]
    OutOfRange {
        /// Where the access starts.
        offset: usize,
        /// How many bytes it covers.
        bytes: usize,
        /// The size of the mapping.
        len: usize,
    },
    /// An offset does not have the alignment that the access needs.
    #[error("offset {offset} is not a multiple of {align}")]
    Misaligned {
        /// The offset.
        offset: u64,
        /// The alignment needed.
        align: u64,
    },
    /// The file ends before the range to be mapped: touching the rest would raise `SIGBUS`.
    #[error(
        "the file has {actual} bytes, but {expected} are to be mapped; the peer described another region"
    )]
    TooShort {
        /// The end of the range to be mapped.
        expected: u64,
        /// The size of the file.
        actual: u64,
    },
    /// A file made by another process could be truncated under the mapping.
    #[error(
        "the file has the seals {seals:#x} but lacks {missing:#x}; regions of another process are mapped \
         only when their size is sealed"
    )]
    NotSealed {
        /// The seals the file has.
        seals: u32,
        /// The ones it lacks.
        missing: u32,
    },
}

impl ShmError {
    pub(crate) fn os(call: &'static str, what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Os {
            call,
            what: what.into(),
            source: source.into(),
        }
    }
}
