//! Why the pool cannot be made, or what its books got wrong.

use std::fmt;

use crate::geometry::Bytes;
use crate::object::{Extent, FRAME_BYTES};
use crate::shm::ShmError;
use crate::shm::huge::Reserved;

/// A failure of the pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Memory could not be made or mapped.
    #[error("pool memory: {0}")]
    Shm(#[from] ShmError),
    /// Only huge pages are wanted, and there are none.
    #[error(transparent)]
    NoHugePages(Box<NoHugePages>),
    /// Not even one frame.
    #[error("a pool of {} is smaller than one frame of {}; enlarge --pool-size", Bytes(*.bytes), Bytes(FRAME_BYTES))]
    TooSmall {
        /// The size asked for.
        bytes: u64,
    },
    /// More frames than a record can number.
    #[error("a pool of {} has more than {max} frames; reduce --pool-size", Bytes(*.bytes))]
    TooLarge {
        /// The size asked for.
        bytes: u64,
        /// The most frames there can be.
        max: u64,
    },
    /// A boot sequence of 0 or of more than 20 bits.
    #[error("boot sequence {boot_seq} is not between 1 and {max}; discard the pool")]
    BootSeq {
        /// The number.
        boot_seq: u64,
        /// The largest one.
        max: u64,
    },
    /// Frames given back that were not held as the caller says, or that the pool does not have.
    #[error("internal error: extent {}+{} was not held by who frees it, or is outside the pool; please report it", .0.frame, .0.count)]
    DoubleFree(Extent),
    /// An invariant of the books does not hold.
    #[error("internal error: {what} ({a}, {b}); please report it")]
    Broken {
        /// What does not hold.
        what: &'static str,
        /// First number that says where.
        a: u64,
        /// Second number.
        b: u64,
    },
}

/// Why there are no huge pages: what was found of both kinds.
#[derive(Debug)]
pub struct NoHugePages {
    /// Bytes of the pool.
    pub(super) bytes: u64,
    /// Those that are set aside.
    pub(super) reserved: Reserved,
    /// What the kernel answered to a request for them.
    pub(super) refused: String,
    /// Bytes of a transparent one; 0 where there are none.
    pub(super) transparent_bytes: u64,
    /// The setting in force for them.
    pub(super) transparent_setting: String,
    /// What the kernel answered to a request for one.
    pub(super) transparent_refused: String,
}

impl std::error::Error for NoHugePages {}

impl fmt::Display for NoHugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reserved { page_bytes, free } = self.reserved;
        write!(
            f,
            "--huge-pages is require, but a pool of {} cannot have them: ",
            Bytes(self.bytes)
        )?;
        match self.bytes.checked_div(page_bytes) {
            None => write!(f, "this kernel has no reserved huge pages")?,
            Some(needed) => write!(
                f,
                "of reserved huge pages of {} it needs {needed}, and {free} are free ({})",
                Bytes(page_bytes),
                self.refused
            )?,
        }
        if self.transparent_bytes == 0 {
            write!(f, "; this kernel has no transparent huge pages")?;
        } else {
            write!(
                f,
                "; a transparent huge page of {} was asked for and not had: {} (shmem_enabled is {})",
                Bytes(self.transparent_bytes),
                self.transparent_refused,
                self.transparent_setting
            )?;
        }
        let pages = self.bytes.div_ceil(page_bytes.max(1));
        if page_bytes > 0 {
            write!(
                f,
                "; reserve pages (sysctl vm.nr_hugepages={pages}), or use --huge-pages try"
            )
        } else {
            f.write_str("; use --huge-pages try")
        }
    }
}
