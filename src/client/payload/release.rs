//! Taking memory away that no copy touches any more.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::client::link::core::Core;
use crate::client::memory::KvMemory;

/// How often a wait looks.
const POLL: Duration = Duration::from_millis(1);

impl Core {
    /// See [`crate::client::Client::release_memory`].
    pub(crate) fn release_memory(self: &Arc<Self>, wait: Duration) -> bool {
        let Some(memory) = self.take_memory() else {
            return true;
        };
        let begin = Instant::now();
        while Arc::strong_count(&memory) > 1 || self.may_touch(&memory) {
            let left = wait.saturating_sub(begin.elapsed());
            if left.is_zero() {
                self.put_memory_back(memory);
                return false;
            }
            thread::sleep(POLL.min(left));
        }
        true
    }

    /// Whether a copy that no call waits for may still touch the memory.
    #[cfg(feature = "cuda")]
    fn may_touch(self: &Arc<Self>, memory: &KvMemory) -> bool {
        self.sweep_copies();
        memory
            .device()
            .is_some_and(|pages| self.held.touches(pages) || pages.engine.quarantined_bytes() > 0)
    }

    /// Copies of the host end with their calls.
    #[cfg(not(feature = "cuda"))]
    fn may_touch(self: &Arc<Self>, _: &KvMemory) -> bool {
        false
    }
}
