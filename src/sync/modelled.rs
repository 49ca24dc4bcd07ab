//! Words of mapped memory that loom follows, for models that run the product's own publish, evict and read.
//!
//! A model names the words that it is about. From then on each load, store and fence of the thread that runs it goes to loom
//! where such a word is meant, and to the processor for all others: these are as if every process saw each change at once.
//! The same word may be mapped at several addresses.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic as real;

use loom::sync::atomic as model;

use super::shared::Ordering;

thread_local! {
    /// Loom runs all threads of a model on one thread of the system.
    static FOLLOWED: RefCell<Option<Followed>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Followed {
    /// Which word an address is.
    words: HashMap<usize, usize>,
    cells: Vec<Rc<model::AtomicU64>>,
}

/// A word that is followed: everywhere where it is mapped. All of them have its value now.
pub(crate) struct Word(pub(crate) Vec<usize>);

/// Follows these words from here on, and no others.
pub(crate) fn follow(words: &[(Word, u64)]) {
    let mut followed = Followed::default();
    for (number, (word, value)) in words.iter().enumerate() {
        followed.cells.push(Rc::new(model::AtomicU64::new(*value)));
        followed
            .words
            .extend(word.0.iter().map(|address| (*address, number)));
    }
    FOLLOWED.with(|now| *now.borrow_mut() = Some(followed));
}

/// Loads a followed word by its place in the list, as a process does that maps it and is no client.
pub(crate) fn load(number: usize, order: Ordering) -> u64 {
    let cell = FOLLOWED.with(|now| {
        now.borrow()
            .as_ref()
            .map(|followed| Rc::clone(&followed.cells[number]))
    });
    cell.map_or(0, |cell| cell.load(order))
}

/// Follows nothing any more.
pub(crate) fn forget() {
    FOLLOWED.with(|now| *now.borrow_mut() = None);
}

/// A 64-bit word in memory, or loom's in its place.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct AtomicU64(pub(crate) real::AtomicU64);

impl AtomicU64 {
    /// A word of this process.
    pub const fn new(value: u64) -> Self {
        Self(real::AtomicU64::new(value))
    }

    fn cell(&self) -> Option<Rc<model::AtomicU64>> {
        FOLLOWED.with(|now| {
            let now = now.borrow();
            let followed = now.as_ref()?;
            let number = followed.words.get(&std::ptr::from_ref(self).addr())?;
            Some(Rc::clone(&followed.cells[*number]))
        })
    }

    /// As that of `std`.
    pub fn load(&self, order: Ordering) -> u64 {
        self.cell()
            .map_or_else(|| self.0.load(order), |cell| cell.load(order))
    }

    /// As that of `std`.
    pub fn store(&self, value: u64, order: Ordering) {
        match self.cell() {
            Some(cell) => cell.store(value, order),
            None => self.0.store(value, order),
        }
    }

    /// As that of `std`.
    pub fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.cell()
            .map_or_else(|| self.0.swap(value, order), |cell| cell.swap(value, order))
    }

    /// As that of `std`.
    ///
    /// # Errors
    /// The value that was there instead.
    pub fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        match self.cell() {
            Some(cell) => cell.compare_exchange(current, new, success, failure),
            None => self.0.compare_exchange(current, new, success, failure),
        }
    }

    /// As that of `std`.
    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.cell().map_or_else(
            || self.0.fetch_add(value, order),
            |cell| cell.fetch_add(value, order),
        )
    }
}

/// As that of `std`, for followed words as well.
pub fn fence(order: Ordering) {
    match FOLLOWED.with(|now| now.borrow().is_some()) {
        true => model::fence(order),
        false => real::fence(order),
    }
}
