//! Making the pool's pages present in the background.
//!
//! May import `shm`, `sync` and this module's `error`.
//!
//! A page is charged to whoever touches it first, so the server touches all of them, and grants only what
//! it has touched.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::PoolError;
use crate::shm::{Mapping, ReadWrite, ShmError};
use crate::sync::shared::{AtomicU32, Ordering};

/// Bytes between two reports.
pub const PREFAULT_STEP: usize = 16 << 20;

/// What the prefault thread reports.
#[derive(Debug)]
pub enum PrefaultEvent {
    /// The first bytes of the pool are present.
    Ready(u64),
    /// All of the pool is present.
    Done,
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
    /// Starts with the first page. The callback runs on the new thread and must not wait for its end.
    ///
    /// # Errors
    /// [`PoolError::Shm`] when no thread can be started.
    pub fn start(
        mapping: Arc<Mapping<ReadWrite>>,
        on_event: impl Fn(PrefaultEvent) + Send + 'static,
    ) -> Result<Self, PoolError> {
        let stop = Arc::new(AtomicU32::new(0));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("kvasir-prefault".to_owned())
            .spawn(move || run(&mapping, &stopped, on_event))
            .map_err(|e: io::Error| ShmError::os("clone", "the prefault thread", e))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Asks the thread to end after the step it is in.
    pub fn stop(&self) {
        self.stop.store(1, Ordering::Relaxed);
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

fn run(mapping: &Mapping<ReadWrite>, stop: &AtomicU32, on_event: impl Fn(PrefaultEvent)) {
    let mut ready = 0;
    while ready < mapping.len() {
        if stop.load(Ordering::Relaxed) != 0 {
            return;
        }
        let end = (ready + PREFAULT_STEP).min(mapping.len());
        if let Err(error) = mapping.prefault(ready..end) {
            on_event(PrefaultEvent::Failed(error.into()));
            return;
        }
        ready = end;
        on_event(PrefaultEvent::Ready(ready as u64));
    }
    on_event(PrefaultEvent::Done);
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
        let _thread = Prefault::start(mapping(bytes), move |e| send.send(e).unwrap()).unwrap();
        let mut ready = Vec::new();
        loop {
            match events.recv().unwrap() {
                PrefaultEvent::Ready(bytes) => ready.push(bytes),
                PrefaultEvent::Done => break,
                PrefaultEvent::Failed(error) => panic!("{error}"),
            }
        }
        let step = PREFAULT_STEP as u64;
        assert_eq!(ready, [step, 2 * step, bytes]);
    }

    #[test]
    fn stops_between_steps() {
        let (send, events) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let thread = Prefault::start(mapping(PREFAULT_STEP as u64 * 3), move |e| {
            send.send(e).unwrap();
            let _ = gate.recv();
        })
        .unwrap();
        assert!(matches!(events.recv().unwrap(), PrefaultEvent::Ready(_)));
        thread.stop();
        go.send(()).unwrap();
        drop(thread);
        assert!(events.recv().is_err(), "nothing is reported after the stop");
    }
}
