//! Values of the process that are made when they are first asked for, and that no fork leaves half made.
//!
//! `OnceLock` has all others wait while one thread makes the value. A child forked meanwhile has no such thread, so it would wait
//! for ever. Here nobody waits: threads that come at the same time make a value each, and the first that is ready is everyone's.
//!
//! Unsafe is opened here. The invariant: the pointer is null, or came from `Box::into_raw` of a finished value that is never freed
//! and never changed.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A place for one value, for the life of the process.
#[derive(Debug)]
pub struct FirstMade<T: Send + Sync + 'static>(AtomicPtr<T>);

impl<T: Send + Sync> FirstMade<T> {
    /// A place without a value.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The value, which `make` makes if there is none yet.
    pub fn get_or_make(&'static self, make: impl FnOnce() -> T) -> &'static T {
        let seen = self.0.load(Ordering::Acquire);
        // SAFETY: the module's invariant.
        if let Some(value) = unsafe { seen.as_ref() } {
            return value;
        }
        let own = Box::into_raw(Box::new(make()));
        // SAFETY: both pointers are the invariant's. `own` was given to nobody where another value was there first.
        unsafe {
            match (self.0).compare_exchange(ptr::null_mut(), own, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => &*own,
                Err(first) => {
                    drop(Box::from_raw(own));
                    &*first
                }
            }
        }
    }
}

impl<T: Send + Sync> Default for FirstMade<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn the_first_that_is_ready_is_everyones() {
        static PLACE: FirstMade<String> = FirstMade::new();
        // Another thread begins and ends while this one makes its own.
        let own = PLACE.get_or_make(|| {
            let other = thread::spawn(|| PLACE.get_or_make(|| "other".to_owned()));
            assert_eq!(other.join().unwrap(), "other");
            "own".to_owned()
        });
        assert_eq!(own, "other");
        assert_eq!(PLACE.get_or_make(|| panic!("made again")), "other");
    }

    #[test]
    fn a_child_forked_while_a_value_is_made_makes_its_own() {
        static PLACE: FirstMade<u64> = FirstMade::new();
        let (begin, begun) = mpsc::channel();
        let (go_on, wait) = mpsc::channel();
        let maker = thread::spawn(move || {
            *PLACE.get_or_make(|| {
                begin.send(()).unwrap();
                wait.recv().unwrap();
                1
            })
        });
        begun.recv().unwrap();
        // SAFETY: the child allocates, which the C library allows after a fork, and ends by `_exit` or by the alarm.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::alarm(20);
                libc::_exit(i32::from(*PLACE.get_or_make(|| 2) != 2));
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        go_on.send(()).unwrap();
        assert_eq!(maker.join().unwrap(), 1);
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            "{status:#x}"
        );
    }
}
