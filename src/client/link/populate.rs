//! Page tables for granted space, before a store needs them.
//!
//! The server has made the pool's pages present, but a mapping of this process learns of each 4 KiB page by a fault of its own, and for writes
//! one by one: that costs several times the copy. Asking the kernel for a run at once is far cheaper, and cheaper still when it is done
//! between two stores by a thread of its own. Only space that was granted is asked for, each frame once per connection,
//! so the page tables (8 bytes a page) grow with what this client writes and not with the pool.

use std::ops::Range;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::object::Extent;
use crate::shm::{Mapping, ReadWrite};
use crate::sync::shared::{AtomicU64, Ordering};

/// Bytes that the thread asks for in one call, so that a connection that ends is not held for long.
const STEP: usize = 16 << 20;

/// Places of the pool that are asked on which node they lie.
const NODE_SAMPLES: usize = 16;

/// When the space will be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// By the copy that comes next.
    Now,
    /// By a later call.
    Later,
}

/// What became of the space asked for so far.
#[derive(Debug, Default)]
pub(crate) struct Populated {
    /// Bytes whose pages were mapped ahead.
    pub(crate) bytes: AtomicU64,
    /// Bytes that are left to faults, since the kernel did not do as asked.
    pub(crate) left_bytes: AtomicU64,
}

/// Asks for the pages of a pool's mapping.
#[derive(Debug)]
pub(crate) struct Populate {
    mapping: Arc<Mapping<ReadWrite>>,
    frame_bytes: usize,
    counts: Arc<Populated>,
    asked: Mutex<Asked>,
}

#[derive(Debug)]
struct Asked {
    /// A bit for every frame that was asked for.
    frames: Vec<u64>,
    /// To the thread; nothing where none could be started. Its end is the thread's.
    later: Option<Sender<Range<usize>>>,
}

impl Populate {
    /// For one mapping of `frames` frames.
    pub(crate) fn new(
        mapping: Arc<Mapping<ReadWrite>>,
        frames: u64,
        frame_bytes: u64,
        counts: Arc<Populated>,
    ) -> Self {
        let (later, asked) = mpsc::channel();
        let thread = std::thread::Builder::new().name("kvasir-populate".into());
        let (of_thread, counted) = (Arc::downgrade(&mapping), Arc::clone(&counts));
        let started = thread.spawn(move || run(&of_thread, &asked, &counted));
        let asked = Asked {
            frames: vec![0; frames.div_ceil(64) as usize],
            later: started.is_ok().then_some(later),
        };
        Self {
            mapping,
            frame_bytes: frame_bytes as usize,
            counts,
            asked: Mutex::new(asked),
        }
    }

    /// The NUMA node on which all of the pool lies, judged by a few of its first `present` bytes, which are in memory.
    pub(crate) fn node(&self, present: u64) -> Option<u32> {
        let present = self.mapping.len().min(usize::try_from(present).ok()?);
        let step = (present / NODE_SAMPLES).max(self.frame_bytes).max(1);
        let mut nodes = (0..present).step_by(step).map(|at| self.mapping.node_at(at));
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }

    /// Sees to an extent that lies in the pool.
    pub(crate) fn extent(&self, extent: &Extent, when: When) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, end) = (
            extent.frame as usize,
            extent.frame as usize + extent.count as usize,
        );
        let mut new = Vec::new();
        let mut start = first;
        for frame in first..=end {
            if frame == end || asked.is_asked(frame) {
                if start < frame {
                    new.push(start * self.frame_bytes..frame * self.frame_bytes);
                }
                start = frame + 1;
            } else {
                asked.ask(frame);
            }
        }
        let later = asked.later.clone();
        // The kernel takes its time, and others may ask meanwhile.
        drop(asked);
        for range in new {
            let rest = match (when, &later) {
                // Without a thread it waits for its first use.
                (When::Later, Some(later)) => later.send(range).err().map(|error| error.0),
                (When::Later, None) => Some(range),
                (When::Now, _) => {
                    populate(&self.mapping, range, &self.counts);
                    None
                }
            };
            if let Some(range) = rest {
                self.counts
                    .left_bytes
                    .fetch_add(range.len() as u64, Ordering::Relaxed);
            }
        }
    }
}

impl Asked {
    fn is_asked(&self, frame: usize) -> bool {
        self.frames
            .get(frame / 64)
            .is_none_or(|word| word >> (frame % 64) & 1 == 1)
    }

    fn ask(&mut self, frame: usize) {
        if let Some(word) = self.frames.get_mut(frame / 64) {
            *word |= 1 << (frame % 64);
        }
    }
}

/// The thread, until the connection has ended, whatever was asked for by then. Its share of the mapping may outlive the
/// lock byte by a step, and does no harm by it: it writes nothing.
fn run(mapping: &Weak<Mapping<ReadWrite>>, asked: &Receiver<Range<usize>>, counts: &Populated) {
    while let Ok(range) = asked.recv() {
        for start in range.clone().step_by(STEP) {
            let Some(mapping) = mapping.upgrade() else { return };
            populate(&mapping, start..range.end.min(start + STEP), counts);
        }
    }
}

fn populate(mapping: &Mapping<ReadWrite>, range: Range<usize>, counts: &Populated) {
    let bytes = range.len() as u64;
    match mapping.populate(range) {
        Ok(()) => counts.bytes.fetch_add(bytes, Ordering::Relaxed),
        // An old kernel, or one that is short of memory: a fault will come by it, or fail as it would have.
        Err(_) => counts.left_bytes.fetch_add(bytes, Ordering::Relaxed),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Memfd, OwnerAccess};

    const FRAME: u64 = 65536;

    fn pool(frames: u64) -> (Memfd, Populate, Arc<Populated>) {
        let memfd = Memfd::create("populate", frames * FRAME, OwnerAccess::ReadWrite).unwrap();
        let owner = memfd.map().unwrap();
        owner.prefault(0..(frames * FRAME) as usize).unwrap();
        let counts = Arc::new(Populated::default());
        let mapping = Arc::new(memfd.map().unwrap());
        let populate = Populate::new(mapping, frames, FRAME, Arc::clone(&counts));
        (memfd, populate, counts)
    }

    fn seen(counts: &Populated) -> u64 {
        counts.bytes.load(Ordering::Relaxed) + counts.left_bytes.load(Ordering::Relaxed)
    }

    #[test]
    fn a_pool_on_one_node_is_on_that_node() {
        let (_memfd, populate, _) = pool(64);
        let node = populate.mapping.node_at(0);
        let nodes = crate::shm::numa::nodes(std::path::Path::new("/"));
        assert!(node.is_none_or(|node| nodes.contains(&node)));
        if nodes.len() == 1 {
            assert_eq!(populate.node(64 * FRAME), node);
        }
        assert_eq!(populate.node(0), None, "nothing is there to be asked about");
    }

    #[test]
    fn each_frame_is_asked_for_once() {
        let (_memfd, populate, counts) = pool(200);
        let ask = |frame, count, when| populate.extent(&Extent { frame, count }, when);
        ask(10, 20, When::Now);
        assert_eq!(seen(&counts), 20 * FRAME);
        ask(5, 30, When::Now);
        assert_eq!(seen(&counts), 30 * FRAME);
        ask(5, 30, When::Now);
        ask(63, 2, When::Now);
        ask(199, 1, When::Now);
        assert_eq!(seen(&counts), 33 * FRAME);
        // Out of the pool: the caller has checked, and still nothing is asked of the kernel.
        ask(300, 2, When::Now);
        assert_eq!(seen(&counts), 33 * FRAME);
    }

    #[test]
    fn the_thread_does_what_is_for_later_and_ends_with_its_sender() {
        let (_memfd, populate, counts) = pool(64);
        populate.extent(&Extent { frame: 0, count: 64 }, When::Later);
        while seen(&counts) < 64 * FRAME {
            std::thread::yield_now();
        }
        let mapping = Arc::downgrade(&populate.mapping);
        drop(populate);
        while mapping.upgrade().is_some() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn without_a_thread_it_is_left_to_faults_and_counted() {
        let (_memfd, populate, counts) = pool(8);
        populate.asked.lock().unwrap().later = None;
        populate.extent(&Extent { frame: 0, count: 8 }, When::Later);
        assert_eq!(counts.left_bytes.load(Ordering::Relaxed), 8 * FRAME);
    }
}
