//! Copy plans and the host copy engine that executes them.
//!
//! A [`CopyPlan`] lists pieces (source span, destination span, length) between two sets of registered
//! [`HostMemory`] regions: an engine's KV tensors on one side, the pool on the other. A [`CopyEngine`]
//! checks the whole plan before it moves the first byte, then moves it.
//!
//! KV bytes are cold on both sides and are not read back by the core that copied them. So payload is
//! written past the caches by non-temporal stores, while several 4 KiB strips are read at once, and the copy ends in a
//! store fence: after [`CopyEngine::execute`] returns, an ordinary release store publishes the bytes.
//! Why, and with which gain: `docs/decisions/0003-copy-engine.md`. Headers and rings use plain copies, not
//! this module.
//!
//! A [`SummedPlan`] is such a list in which the bytes of each part are also summed: what is stored carries a checksum, and
//! what is loaded is compared with it (docs/decisions/0006-payload-checksums.md). Sums have two levels, so that several threads
//! can share a copy (docs/decisions/0013-two-level-sums.md).
//!
//! ```text
//! memory, mapped   the regions of a plan
//! plan, summed     what is to be copied; and summed as well
//! overlap          whether a plan reads what it writes
//! path, tune       the ways to copy, and which of them this machine does best
//! leaf, xxh3       the sum of a part
//! window, share    the shares of several threads
//! engine, stream   the copy, with streaming stores where the processor has them
//! fused, lanes     copy and sum in one pass, in AVX2, AVX-512 or NEON
//! ahead            what is read next, fetched ahead
//! staged           which of the two a summed copy takes, and the way without vectors
//! ```
//!
//! `unsafe` is opened in `memory` and `mapped` (what a region promises), `engine`, `stream`, `fused` and `lanes` (moving checked pieces).

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod ahead;
mod engine;
mod error;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod fused;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
mod leaf;
mod mapped;
mod memory;
pub(crate) mod overlap;
mod path;
mod plan;
mod share;
mod staged;
#[cfg(target_arch = "x86_64")]
mod stream;
mod summed;
mod tune;
mod window;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", test))]
mod xxh3;

pub use engine::CopyEngine;
pub use error::{CopyError, Side};
pub use leaf::{Checksum, LEAF_BYTES, LeafSums};
pub use memory::{HostMemory, Span};
pub use path::{CopyPath, CopyPathError};
pub use plan::{CopyPlan, Piece};
pub use share::THREADS_MAX;
pub use summed::SummedPlan;
pub use tune::{NamedPathError, PATH_VARIABLE};

/// Executes `plan` on the fastest path of this machine: `CopyEngine::detect().execute(..)`.
pub fn execute(plan: &CopyPlan, src: &[HostMemory], dst: &[HostMemory]) -> Result<u64, CopyError> {
    CopyEngine::detect().execute(plan, src, dst)
}

#[cfg(test)]
mod tests;
