//! Handles. What C holds is a number that was given out once, never an address: a handle that was closed, one of another
//! kind and any garbage are found in a table or not.
//!
//! A forked child gets a table of its own. The parent's is left alone there: a thread that is not in the child may have held
//! its lock, and what is in it names mappings that the child does not have.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kvasir::client::{Client, Prompt};
use kvasir::shm::atfork;

use crate::failure::{Failure, Outcome, kvasir_code};

/// Bits of a handle that count; those above say of which kind it is.
const COUNT_BITS: u32 = 56;

/// A client and the calls that are in it.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    value: T,
    calls: AtomicUsize,
    closing: AtomicBool,
    waiting: Mutex<()>,
    ended: Condvar,
}

impl<T> Entry<T> {
    fn new(value: T) -> Self {
        Self {
            value,
            calls: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            waiting: Mutex::new(()),
            ended: Condvar::new(),
        }
    }
}

/// A call that is in an entry. As long as it lives, whoever closes the handle waits.
pub(crate) struct InUse<T>(Arc<Entry<T>>);

impl<T> Deref for InUse<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Drop for InUse<T> {
    fn drop(&mut self) {
        // SeqCst on both words: either this sees `closing`, or who closes sees one call less.
        if self.0.calls.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.closing.load(Ordering::SeqCst) {
            drop(self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            self.0.ended.notify_all();
        }
    }
}

/// Something that was taken out of the table and that calls may still be in.
pub(crate) struct Removed<T>(Arc<Entry<T>>);

impl<T> Removed<T> {
    pub(crate) fn value(&self) -> &T {
        &self.0.value
    }

    /// Returns when no call is in it any more. No new one can begin.
    pub(crate) fn wait(self) {
        self.0.closing.store(true, Ordering::SeqCst);
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while self.0.calls.load(Ordering::SeqCst) != 0 {
            waiting = self.0.ended.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Handles of one kind.
pub(crate) struct Kind<T> {
    tag: u64,
    name: &'static str,
    entries: RwLock<HashMap<u64, Arc<Entry<T>>>>,
}

/// All handles of this process.
struct Table {
    process: u64,
    /// The first number that this process gives out.
    first: u64,
    next: AtomicU64,
    clients: Kind<Client>,
    chains: Kind<RwLock<Prompt>>,
}

impl Table {
    fn new(process: u64, first: u64) -> Self {
        Self {
            process,
            first,
            next: AtomicU64::new(first),
            clients: Kind::new(1, "client"),
            chains: Kind::new(2, "chain"),
        }
    }
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());

/// The table of this process.
#[allow(unsafe_code)]
fn table() -> &'static Table {
    loop {
        let current = TABLE.load(Ordering::Acquire);
        let process = atfork::process_generation();
        // SAFETY: what is in `TABLE` came from `Box::into_raw` and is never freed.
        let known = unsafe { current.as_ref() };
        if let Some(table) = known.filter(|table| table.process == process) {
            return table;
        }
        // Numbers go on where the parent's were at the fork, so that none of its handles is ever one of this process.
        let first = known.map_or(1, |parent| parent.next.load(Ordering::Relaxed));
        let fresh = Box::into_raw(Box::new(Table::new(process, first)));
        if TABLE
            .compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: it came from `Box::into_raw` just now, and nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

pub(crate) fn clients() -> &'static Kind<Client> {
    &table().clients
}

pub(crate) fn chains() -> &'static Kind<RwLock<Prompt>> {
    &table().chains
}

/// Has forks counted from here on. Before the first handle is made, since a copy of one has to be known for what it is.
pub(crate) fn count_forks() -> Outcome<()> {
    atfork::forks_so_far()
        .map(drop)
        .map_err(|error| Failure::new(kvasir_code::Internal, &[], error))
}

impl<T> fmt::Debug for Kind<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kind").field("name", &self.name).finish()
    }
}

impl<T> Kind<T> {
    fn new(tag: u64, name: &'static str) -> Self {
        Self {
            tag,
            name,
            entries: RwLock::default(),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<u64, Arc<Entry<T>>>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u64, Arc<Entry<T>>>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a number out.
    pub(crate) fn add(&self, value: T) -> u64 {
        let id = self.tag << COUNT_BITS | table().next.fetch_add(1, Ordering::Relaxed);
        self.write().insert(id, Arc::new(Entry::new(value)));
        id
    }

    /// What a handle names.
    pub(crate) fn find(&self, id: u64) -> Outcome<InUse<T>> {
        let entries = self.read();
        let Some(entry) = entries.get(&id) else {
            drop(entries);
            return Err(self.unknown(id));
        };
        // Under the lock: who takes the entry out after this sees the call.
        entry.calls.fetch_add(1, Ordering::SeqCst);
        Ok(InUse(Arc::clone(entry)))
    }

    /// Takes what a handle names out of the table.
    pub(crate) fn remove(&self, id: u64) -> Outcome<Removed<T>> {
        let entry = self.write().remove(&id);
        entry.map(Removed).ok_or_else(|| self.unknown(id))
    }

    /// Why a handle names nothing.
    fn unknown(&self, id: u64) -> Failure {
        let (table, name) = (table(), self.name);
        let (tag, count) = (id >> COUNT_BITS, id & ((1 << COUNT_BITS) - 1));
        if id == 0 {
            return Failure::new(
                kvasir_code::InvalidHandle,
                &[0],
                format!("the {name} is none: all zeroes"),
            );
        }
        if tag != self.tag || count == 0 || count >= table.next.load(Ordering::Relaxed) {
            return Failure::new(
                kvasir_code::InvalidHandle,
                &[id],
                format!("{id:#x} is not a {name} that this library has given out"),
            );
        }
        if count < table.first {
            return Failure::new(
                kvasir_code::Forked,
                &[id],
                format!("this {name} was made before a fork, or closed there; make a new one in the child"),
            );
        }
        Failure::new(kvasir_code::Closed, &[id], format!("this {name} was closed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind() -> Kind<u32> {
        Kind::new(7, "thing")
    }

    fn code<T>(outcome: Outcome<T>) -> kvasir_code {
        outcome.map_or_else(|failure| failure.code, |_| kvasir_code::Ok)
    }

    #[test]
    fn handles_are_found_until_they_are_closed() {
        let things = kind();
        let (one, two) = (things.add(1), things.add(2));
        assert_eq!((*things.find(one).unwrap(), *things.find(two).unwrap()), (1, 2));
        things.remove(one).unwrap().wait();
        assert_eq!(code(things.find(one)), kvasir_code::Closed);
        assert_eq!(code(things.remove(one)), kvasir_code::Closed);
        assert_eq!(*things.find(two).unwrap(), 2);
        // A number is never given out again.
        assert!(things.add(3) > two);
    }

    #[test]
    fn garbage_and_handles_of_another_kind_are_none() {
        let (things, others) = (kind(), Kind::<u32>::new(8, "other"));
        let other = others.add(1);
        for id in [
            0,
            1,
            u64::MAX,
            7 << COUNT_BITS,
            (7 << COUNT_BITS) | (1 << 40),
            other,
        ] {
            assert_eq!(code(things.find(id)), kvasir_code::InvalidHandle, "{id:#x}");
        }
    }

    #[test]
    fn closing_waits_for_calls_that_are_in() {
        let things = Arc::new(kind());
        let id = things.add(1);
        let held = things.find(id).unwrap();
        let removed = things.remove(id).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let (told, ended) = (Arc::clone(&done), removed);
        let waiter = std::thread::spawn(move || {
            ended.wait();
            told.store(true, Ordering::SeqCst);
        });
        // Long enough for the other thread to wait; too short only means that nothing was seen.
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!done.load(Ordering::SeqCst), "closed while a call was in it");
        drop(held);
        waiter.join().unwrap();
    }
}
