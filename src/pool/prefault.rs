//! Making the pool's pages present in the background, by several threads.
//!
//! A page is charged to whoever touches it first, so the server touches all of them, and grants only what
//! it has touched. It goes no further than memory allows: a page too many would end the process.
//!
//! Each thread takes the next step and makes it present. What is reported is the part from the start without a gap. The first
//! thread decides when there is too little memory; the others end then, and it goes on alone.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use super::PoolError;
use super::backing::Backing;
use super::memory::SYSTEM_ROOT;
use crate::shm::huge::MadeHuge;
use crate::shm::process::give_way;
use crate::shm::{Mapping, ReadWrite, ShmError, numa};
use crate::sync::shared::{AtomicU32, Ordering};

/// Bytes between two reports.
pub const PREFAULT_STEP: usize = 16 << 20;

/// Memory that is left to others, for a pool of any size: the server's own, and what programs beside it take at once.
const RESERVE_BYTES: u64 = 16 << 20;
/// The part of a pool's size that its regions beside it may come to need, as a divisor.
const REGION_SHARE: u64 = 64;
/// How often memory is looked at again once there was too little.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// More threads than this are held up by memory and by each other.
const MOST_THREADS: usize = 8;
/// Refused huge pages after which none is asked for any more, if there was none that was not refused.
const HUGE_TRIES: u64 = 32;
/// Bytes for which one page stands when it is asked on which node it lies.
const NODE_SAMPLE: usize = 2 << 20;

/// Bytes that have to stay available beside a pool of this size.
pub fn prefault_reserve(pool_bytes: u64) -> u64 {
    RESERVE_BYTES + pool_bytes / REGION_SHARE
}

/// As many threads as there are processors for this process, and no more than are of use.
pub(super) fn prefault_threads() -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    processors.min(MOST_THREADS)
}

/// What the prefault threads report, one after another.
#[derive(Debug)]
pub enum PrefaultEvent {
    /// The first bytes of the pool are present.
    Ready(u64),
    /// All of the pool is present.
    Done,
    /// The rest would not leave enough memory to others. It is tried again from time to time.
    Limited {
        /// Bytes that are present.
        ready: u64,
        /// Bytes that can be had, of which the reserve is part.
        available: u64,
    },
    /// Only huge pages are wanted, and there are no more of them. It is tried again from time to time.
    NoHugePages {
        /// Bytes that are present.
        ready: u64,
    },
    /// No more will be: memory has run out, most likely. What was reported stays.
    Failed(PoolError),
    /// What the present pages are. Told after the first step, and whenever it has come to a halt.
    Seen(Seen),
}

/// What the kernel says of the pages that are present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Bytes that huge pages map. `None`: nobody wanted any, or the kernel does not say.
    pub huge_bytes: Option<u64>,
    /// What came of each transparent huge page that was asked for. A page that was refused may be asked for again.
    pub asked: MadeHuge,
    /// Bytes by the node that they lie on, judged by one page of each 2 MiB. Empty: the kernel does not say.
    pub nodes: BTreeMap<u32, u64>,
}

/// What is made present, and how.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) mapping: Arc<Mapping<ReadWrite>>,
    pub(super) backing: Backing,
    /// The node near which to work.
    pub(super) node: Option<u32>,
    pub(super) threads: usize,
}

/// The threads. Dropping it has them end after the steps they are in, and waits for none: the kernel may be at a step for long,
/// and whoever stops a server has clients to let go.
#[derive(Debug)]
pub struct Prefault {
    stop: Arc<AtomicU32>,
    threads: Vec<JoinHandle<()>>,
}

impl Prefault {
    /// Starts with the first page. `available` says how many bytes of memory can be had (nothing: not known), and is
    /// asked before every step. The callbacks run on the new threads, one at a time, and must not wait for their end.
    ///
    /// # Errors
    /// [`PoolError::Shm`] when no thread can be started.
    pub(super) fn start(
        pages: Pages,
        available: impl Fn() -> Option<u64> + Send + 'static,
        on_event: impl Fn(PrefaultEvent) + Send + 'static,
    ) -> Result<Self, PoolError> {
        let stop = Arc::new(AtomicU32::new(0));
        let steps = pages.mapping.len().div_ceil(PREFAULT_STEP);
        let wanted = pages.threads.clamp(1, steps.max(1));
        let work = Arc::new(Work {
            step: pages
                .backing
                .page_bytes()
                .map_or(PREFAULT_STEP, |page| PREFAULT_STEP.max(page as usize)),
            reserve: prefault_reserve(pages.mapping.len() as u64),
            pages,
            stop: Arc::clone(&stop),
            first: OnceLock::new(),
            state: Mutex::new(State {
                next: 0,
                ready: 0,
                done: BTreeMap::new(),
                back: Vec::new(),
                in_flight: 0,
                said_limited: false,
                said_not_huge: false,
                waited_for_huge: false,
                failed: None,
                asked: MadeHuge::default(),
                nodes: BTreeMap::new(),
                available,
                on_event,
            }),
        });
        let mut threads = Vec::new();
        for number in 0..wanted {
            let work = Arc::clone(&work);
            let thread = thread::Builder::new().name("kvasir-prefault".to_owned());
            let started = thread.spawn(move || work.run(number == 0));
            match started {
                Ok(thread) => threads.push(thread),
                // One is enough.
                Err(_) if number > 0 => break,
                Err(e) => {
                    let error: io::Error = e;
                    return Err(ShmError::os("clone", "the prefault thread", error).into());
                }
            }
        }
        Ok(Self { stop, threads })
    }

    /// Asks the threads to end: after the huge page that each of them is at, or the small pages of a step.
    pub fn stop(&self) {
        self.stop.store(1, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        for thread in &self.threads {
            thread.thread().unpark();
        }
    }
}

impl Drop for Prefault {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Work<A, E> {
    pages: Pages,
    step: usize,
    reserve: u64,
    stop: Arc<AtomicU32>,
    /// The first thread, which is waited for and woken.
    first: OnceLock<Thread>,
    state: Mutex<State<A, E>>,
}

struct State<A, E> {
    /// Where the next step begins.
    next: usize,
    /// What is present without a gap.
    ready: usize,
    /// Steps behind a gap that are present, by where they begin.
    done: BTreeMap<usize, usize>,
    /// Steps that were given back since there were no huge pages.
    back: Vec<Range<usize>>,
    /// Bytes of steps under way.
    in_flight: usize,
    /// Too little memory was said, and it has not gone on since.
    said_limited: bool,
    /// The same of huge pages.
    said_not_huge: bool,
    /// It was waited for huge pages since the last try.
    waited_for_huge: bool,
    failed: Option<PoolError>,
    asked: MadeHuge,
    nodes: BTreeMap<u32, u64>,
    available: A,
    on_event: E,
}

/// What became of a step.
enum Made {
    Present,
    /// Only huge pages are wanted, and there were too few.
    NotHuge,
    /// It was left, for it is to stop.
    Left,
}

/// Whether huge pages need not be asked for any more.
fn is_hopeless(asked: &MadeHuge) -> bool {
    asked.made == 0 && asked.asked() >= HUGE_TRIES
}

impl<A: Fn() -> Option<u64>, E: Fn(PrefaultEvent)> Work<A, E> {
    fn run(&self, is_first: bool) {
        if is_first {
            let _ = self.first.set(thread::current());
        } else {
            give_way();
        }
        if let Some(node) = self.pages.node {
            numa::run_on(Path::new(SYSTEM_ROOT), node);
        }
        while let Some(range) = self.take(is_first) {
            let made = self.make(range.clone());
            self.finish(range, made);
        }
        if is_first {
            self.end();
        }
    }

    fn state(&self) -> MutexGuard<'_, State<A, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) != 0
    }

    /// The next step; nothing when this thread has none to do any more. The first thread waits until there is memory for one.
    fn take(&self, is_first: bool) -> Option<Range<usize>> {
        loop {
            let mut state = self.state();
            let len = self.pages.mapping.len();
            if self.is_stopped() || state.failed.is_some() {
                return None;
            }
            let range = match state.back.last() {
                Some(_) if !is_first => return None,
                Some(range) => range.clone(),
                None if state.next < len => state.next..(state.next + self.step).min(len),
                None if is_first && state.in_flight > 0 => {
                    // A step under way may be given back.
                    drop(state);
                    thread::park();
                    continue;
                }
                None => return None,
            };
            let needed = self.reserve + (range.len() + state.in_flight) as u64;
            let short = (state.available)().filter(|available| *available < needed);
            if short.is_none() && (state.back.is_empty() || state.waited_for_huge) {
                state.said_limited = false;
                state.waited_for_huge = false;
                if state.back.pop().is_none() {
                    state.next = range.end;
                }
                state.in_flight += range.len();
                return Some(range);
            }
            if !is_first {
                return None;
            }
            if state.in_flight > 0 {
                // What the others are about to have counts for them.
                drop(state);
                thread::park();
                continue;
            }
            let ready = state.ready as u64;
            let (said, event) = match short {
                Some(available) => (
                    std::mem::replace(&mut state.said_limited, true),
                    PrefaultEvent::Limited { ready, available },
                ),
                None => (
                    std::mem::replace(&mut state.said_not_huge, true),
                    PrefaultEvent::NoHugePages { ready },
                ),
            };
            if !said {
                self.tell_seen(&mut state);
                (state.on_event)(event);
            }
            state.waited_for_huge = true;
            drop(state);
            // `stop` ends this at once. A wake-up for no reason only looks earlier.
            thread::park_timeout(LOOK_AGAIN);
        }
    }

    fn make(&self, range: Range<usize>) -> Result<Made, PoolError> {
        let mapping = &self.pages.mapping;
        if let Backing::Transparent { required } = self.pages.backing {
            let go_on = || !self.is_stopped() && (required || !is_hopeless(&self.state().asked));
            let asked = mapping.make_huge(range.clone(), go_on)?;
            self.state().asked.add(&asked);
            if self.is_stopped() {
                return Ok(Made::Left);
            }
            let made = asked.made * self.pages.backing.page_bytes().unwrap_or(0);
            if required && made < range.len() as u64 {
                return Ok(Made::NotHuge);
            }
        }
        mapping.prefault(range)?;
        Ok(Made::Present)
    }

    fn finish(&self, range: Range<usize>, made: Result<Made, PoolError>) {
        let nodes = match &made {
            Ok(Made::Present) => self.nodes_of(&range),
            _ => BTreeMap::new(),
        };
        let mut state = self.state();
        state.in_flight -= range.len();
        match made {
            Ok(Made::Present) => {
                for (node, bytes) in nodes {
                    *state.nodes.entry(node).or_default() += bytes;
                }
                state.said_not_huge = false;
                state.done.insert(range.start, range.end);
                let before = state.ready;
                while let Some(end) = {
                    let ready = state.ready;
                    state.done.remove(&ready)
                } {
                    state.ready = end;
                }
                if state.ready > before {
                    let ready = state.ready as u64;
                    (state.on_event)(PrefaultEvent::Ready(ready));
                    if before == 0 && state.ready < self.pages.mapping.len() {
                        self.tell_seen(&mut state);
                    }
                }
            }
            Ok(Made::NotHuge) => {
                state.back.push(range);
                // The lowest last, which is taken first.
                state.back.sort_by_key(|range| std::cmp::Reverse(range.start));
            }
            Ok(Made::Left) => {}
            // What lies behind it and is present stays so and is never granted: at most a step of each thread.
            Err(error) => state.failed = state.failed.take().or(Some(error)),
        }
        drop(state);
        if let Some(first) = self.first.get() {
            first.unpark();
        }
    }

    /// The end of the first thread: it says how it all ended.
    fn end(&self) {
        loop {
            let mut state = self.state();
            if self.is_stopped() {
                return;
            }
            if state.in_flight == 0 {
                let last = match state.failed.take() {
                    Some(error) => PrefaultEvent::Failed(error),
                    None => PrefaultEvent::Done,
                };
                self.tell_seen(&mut state);
                (state.on_event)(last);
                return;
            }
            drop(state);
            thread::park();
        }
    }

    /// Where the pages of a step lie.
    fn nodes_of(&self, range: &Range<usize>) -> BTreeMap<u32, u64> {
        let mut nodes = BTreeMap::new();
        for start in range.clone().step_by(NODE_SAMPLE) {
            let Some(node) = self.pages.mapping.node_at(start) else {
                return BTreeMap::new(); // no kernel says it of some pages only
            };
            let bytes = NODE_SAMPLE.min(range.end - start) as u64;
            *nodes.entry(node).or_default() += bytes;
        }
        nodes
    }

    fn tell_seen(&self, state: &mut State<A, E>) {
        let wanted = self.pages.backing != Backing::Small;
        let seen = Seen {
            huge_bytes: wanted.then(|| self.pages.mapping.huge_bytes()).flatten(),
            asked: state.asked.clone(),
            nodes: state.nodes.clone(),
        };
        (state.on_event)(PrefaultEvent::Seen(seen));
    }
}

#[cfg(test)]
#[path = "tests/prefault.rs"]
mod tests;
