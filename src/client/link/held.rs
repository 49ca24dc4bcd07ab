//! Copies that nobody waits for any more, and what must not be used before they have ended.
//!
//! A store that is late may still write into the extents that it was given, so they are neither used again nor given
//! back. A load that is late may still read the pool, so its pin stays. The session stays with them: its lock byte says to
//! the server that this client lives. After an error of the device nobody can tell whether a copy has ended, and all of
//! it is kept until the process ends.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::session::Session;
use crate::client::device::pages::DevicePages;
use crate::client::device::stage::Way;
use crate::device::{Copying, DeviceError, Event};
use crate::object::Extent;

/// What tells the end of copies.
#[derive(Debug)]
pub(crate) enum Mark {
    Copy(Copying),
    Place(Event),
    /// Nothing does.
    Never,
}

impl Mark {
    fn has_passed(&self) -> bool {
        match self {
            Self::Copy(copying) => copying.is_done() == Ok(true),
            Self::Place(event) => event.is_done() == Ok(true),
            Self::Never => false,
        }
    }
}

/// What is to be done once they have ended.
#[derive(Debug)]
pub(crate) enum Claim {
    /// These extents are free to be written again.
    Extents(Vec<Extent>),
    /// This pin may go.
    Pin(u64),
}

#[derive(Debug)]
struct Entry {
    mark: Mark,
    way: Way,
    pages: Arc<DevicePages>,
    session: Arc<Session>,
    claim: Claim,
}

/// All of a client's.
#[derive(Debug, Default)]
pub(crate) struct Held {
    entries: Mutex<Vec<Entry>>,
    last_error: Mutex<Option<DeviceError>>,
}

impl Held {
    pub(crate) fn add(
        &self,
        mark: Mark,
        way: Way,
        pages: &Arc<DevicePages>,
        session: &Arc<Session>,
        claim: Claim,
    ) {
        self.entries().push(Entry {
            mark,
            way,
            pages: Arc::clone(pages),
            session: Arc::clone(session),
            claim,
        });
    }

    /// Takes out what has ended by now.
    pub(crate) fn take_ended(&self) -> Vec<(Arc<Session>, Claim)> {
        let mut entries = self.entries();
        let (ended, left) = mem::take(&mut *entries)
            .into_iter()
            .partition(|entry| entry.mark.has_passed());
        *entries = left;
        let ended: Vec<Entry> = ended;
        ended
            .into_iter()
            .map(|entry| (entry.session, entry.claim))
            .collect()
    }

    /// Whether something stands before the next copy of a direction, which would be as late.
    pub(crate) fn blocks(&self, pages: &DevicePages, way: Way) -> bool {
        let same = |entry: &Entry| entry.pages.context().is_same(pages.context());
        let entries = self.entries();
        entries.iter().any(|entry| entry.way == way && same(entry))
    }

    /// How many have not ended.
    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    /// Whether one may still touch these pages.
    pub(crate) fn touches(&self, pages: &Arc<DevicePages>) -> bool {
        self.entries()
            .iter()
            .any(|entry| Arc::ptr_eq(&entry.pages, pages))
    }

    pub(crate) fn note(&self, error: DeviceError) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    pub(crate) fn last_error(&self) -> Option<DeviceError> {
        self.last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    /// What may still run keeps its session for the life of the process: the lock must not be free before.
    fn drop(&mut self) {
        let entries = mem::take(self.entries.get_mut().unwrap_or_else(PoisonError::into_inner));
        let running = entries.into_iter().filter(|entry| !entry.mark.has_passed());
        running.for_each(mem::forget);
    }
}
