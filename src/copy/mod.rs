//! Copy plans and the host copy engine that executes them.
//!
//! A [`CopyPlan`] lists pieces (source span, destination span, length) between two sets of registered
//! [`HostMemory`] regions: an engine's KV tensors on one side, the pool on the other. A [`CopyEngine`]
//! checks the whole plan before it moves the first byte, then moves it.
//!
//! KV bytes are cold on both sides and are not read back by the core that copied them. So payload is
//! written past the caches by non-temporal stores, over interleaved 4 KiB strips, and the copy ends in a
//! store fence: after [`CopyEngine::execute`] returns, an ordinary release store publishes the bytes.
//! Why, and with which gain: `docs/decisions/0003-copy-engine.md`. Headers and rings use plain copies, not
//! this module.
//!
//! A [`SummedPlan`] is such a list in which the bytes of each part are also summed: what is stored carries a checksum, and
//! what is loaded is compared with it (docs/decisions/0006-payload-checksums.md).
//!
//! ```text
//! memory, mapped   the regions of a plan
//! plan, summed     what is to be copied; and summed as well
//! engine, stream   the copy, with streaming stores where the processor has them
//! fused, xxh3      copy and sum in one pass, with AVX2
//! staged           which of the two a summed copy takes, and the way without AVX2
//! ```
//!
//! `unsafe` is opened in `memory` and `mapped` (what a region promises), `engine`, `stream` and `fused` (moving checked pieces).

mod engine;
mod error;
#[cfg(target_arch = "x86_64")]
mod fused;
mod mapped;
mod memory;
mod plan;
mod staged;
#[cfg(target_arch = "x86_64")]
mod stream;
mod summed;
#[cfg(any(target_arch = "x86_64", test))]
mod xxh3;

pub use engine::{CopyEngine, CopyPath};
pub use error::{CopyError, Side};
pub use memory::{HostMemory, Span};
pub use plan::{CopyPlan, Piece};
pub use summed::{Checksum, SummedPlan};

/// Executes `plan` on the fastest path of this machine: `CopyEngine::detect().execute(..)`.
pub fn execute(plan: &CopyPlan, src: &[HostMemory], dst: &[HostMemory]) -> Result<u64, CopyError> {
    CopyEngine::detect().execute(plan, src, dst)
}

#[cfg(test)]
mod tests;
