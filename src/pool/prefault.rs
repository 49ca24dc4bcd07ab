//! Making the pool's pages present in the background.
//!
//! A page is charged to whoever touches it first, so the server touches all of them, and grants only what
//! it has touched. It goes no further than memory allows: a page too many would end the process.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::PoolError;
use crate::shm::{Mapping, ReadWrite, ShmError};
use crate::sync::shared::{AtomicU32, Ordering};

/// Bytes between two reports.
pub const PREFAULT_STEP: usize = 16 << 20;

/// Memory that is left to others, for a pool of any size: the server's own, and what programs beside it take at once.
const RESERVE_BYTES: u64 = 16 << 20;
/// The part of a pool's size that its regions beside it may come to need, as a divisor.
const REGION_SHARE: u64 = 64;
/// How often memory is looked at again once there was too little.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Bytes that have to stay available beside a pool of this size.
pub fn prefault_reserve(pool_bytes: u64) -> u64 {
    RESERVE_BYTES + pool_bytes / REGION_SHARE
}

/// What the prefault thread reports.
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
    /// No more will be: memory has run out, most likely. What was reported stays.
    Failed(PoolError),
}

/// The thread. Dropping it stops it after the step it is in.
#[derive(Debug)]
pub struct Prefault {
    stop: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl Prefault {
    /// Starts with the first page. `available` says how many bytes of memory can be had (nothing: not known), and is
    /// asked before every step. The callbacks run on the new thread and must not wait for its end.
    ///
    /// # Errors
    /// [`PoolError::Shm`] when no thread can be started.
    pub fn start(
        mapping: Arc<Mapping<ReadWrite>>,
        available: impl Fn() -> Option<u64> + Send + 'static,
        on_event: impl Fn(PrefaultEvent) + Send + 'static,
    ) -> Result<Self, PoolError> {
        let stop = Arc::new(AtomicU32::new(0));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("kvasir-prefault".to_owned())
            .spawn(move || run(&mapping, &stopped, available, on_event))
            .map_err(|e: io::Error| ShmError::os("clone", "the prefault thread", e))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Asks the thread to end after the step it is in.
    pub fn stop(&self) {
        self.stop.store(1, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Prefault {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nothing left to undo.
            let _ = thread.join();
        }
    }
}

fn run(
    mapping: &Mapping<ReadWrite>,
    stop: &AtomicU32,
    available: impl Fn() -> Option<u64>,
    on_event: impl Fn(PrefaultEvent),
) {
    let stopped = || stop.load(Ordering::Relaxed) != 0;
    let reserve = prefault_reserve(mapping.len() as u64);
    let mut ready = 0;
    let mut limited = false;
    while ready < mapping.len() && !stopped() {
        let end = (ready + PREFAULT_STEP).min(mapping.len());
        let step = (end - ready) as u64;
        if let Some(available) = available().filter(|available| *available < reserve + step) {
            // Said when it begins, and again only after there was room in between.
            if !limited {
                let ready = ready as u64;
                on_event(PrefaultEvent::Limited { ready, available });
            }
            limited = true;
            // `stop` ends this at once. A wake-up for no reason only looks earlier.
            thread::park_timeout(LOOK_AGAIN);
            continue;
        }
        limited = false;
        if let Err(error) = mapping.prefault(ready..end) {
            on_event(PrefaultEvent::Failed(error.into()));
            return;
        }
        ready = end;
        on_event(PrefaultEvent::Ready(ready as u64));
    }
    if ready == mapping.len() {
        on_event(PrefaultEvent::Done);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::shm::{Memfd, OwnerAccess};

    fn mapping(bytes: u64) -> Arc<Mapping<ReadWrite>> {
        let memfd = Memfd::create("prefault", bytes, OwnerAccess::ReadWrite).unwrap();
        Arc::new(memfd.map().unwrap())
    }

    #[test]
    fn reports_each_step_and_the_end() {
        let (send, events) = mpsc::channel();
        let bytes = PREFAULT_STEP as u64 * 2 + 4096;
        let _thread = Prefault::start(mapping(bytes), || None, move |e| send.send(e).unwrap()).unwrap();
        let mut ready = Vec::new();
        loop {
            match events.recv().unwrap() {
                PrefaultEvent::Ready(bytes) => ready.push(bytes),
                PrefaultEvent::Done => break,
                other => panic!("{other:?}"),
            }
        }
        let step = PREFAULT_STEP as u64;
        assert_eq!(ready, [step, 2 * step, bytes]);
    }

    #[test]
    fn stops_between_steps() {
        let (send, events) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let thread = Prefault::start(
            mapping(PREFAULT_STEP as u64 * 3),
            || None,
            move |e| {
                send.send(e).unwrap();
                let _ = gate.recv();
            },
        )
        .unwrap();
        assert!(matches!(events.recv().unwrap(), PrefaultEvent::Ready(_)));
        thread.stop();
        go.send(()).unwrap();
        drop(thread);
        assert!(events.recv().is_err(), "nothing is reported after the stop");
    }

    #[test]
    fn goes_no_further_than_memory_allows_and_on_when_it_does() {
        use std::sync::Mutex;
        let (send, events) = mpsc::channel();
        let step = PREFAULT_STEP as u64;
        let bytes = 4 * step;
        let reserve = prefault_reserve(bytes);
        // Room for two steps beside the reserve, whose pages are taken out of it.
        let room = Arc::new(Mutex::new(reserve + 2 * step + 1));
        let (seen, taken) = (Arc::clone(&room), Arc::clone(&room));
        let thread = Prefault::start(
            mapping(bytes),
            move || Some(*seen.lock().unwrap()),
            move |event| {
                if matches!(event, PrefaultEvent::Ready(_)) {
                    *taken.lock().unwrap() -= step;
                }
                send.send(event).unwrap();
            },
        )
        .unwrap();
        let next = || format!("{:?}", events.recv().unwrap());
        assert_eq!(next(), format!("Ready({step})"));
        assert_eq!(next(), format!("Ready({})", 2 * step));
        let limited = format!("Limited {{ ready: {}, available: {} }}", 2 * step, reserve + 1);
        assert_eq!(next(), limited);
        *room.lock().unwrap() = u64::MAX / 2;
        thread.thread.as_ref().unwrap().thread().unpark();
        assert_eq!(next(), format!("Ready({})", 3 * step));
        assert_eq!(next(), format!("Ready({bytes})"));
        assert_eq!(next(), "Done");
    }
}
