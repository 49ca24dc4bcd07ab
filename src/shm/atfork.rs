//! Descriptors that a forked child must not keep.
//!
//! A lock of an open file description ends when its last descriptor is closed, and so does a connection; `fork` copies
//! descriptors. A child that lives on would therefore keep its parent's lock byte held and its parent's socket open after
//! the parent died. Descriptors given to [`ForkClosedFd`] are closed in every forked child before `fork` returns there. (Children made by `vfork`, `posix_spawn` or
//! `exec` lose them by `CLOEXEC`.)
//!
//! No fork comes between the moment in which a slot forgets its descriptor and the one in which that is closed: both
//! happen under a lock that `fork` takes too.
//!
//! Unsafe is opened here for `pthread_atfork` and for the `close` in its child handler. The invariant: a slot of `SLOTS`
//! holds either 0 or one more than a descriptor that the slot owns alone, and whoever swaps it out closes it. The handlers touch
//! atomics and call `close` only, which a child of a threaded process may.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use super::ShmError;
use crate::sync::shared::{AtomicU32, AtomicU64, Ordering};

/// Most descriptors at one time: two per connection that maps the pool, of all clients of this process.
pub const MAX_FORK_CLOSED_FDS: usize = 512;

const EMPTY: u32 = 0;

static SLOTS: [AtomicU32; MAX_FORK_CLOSED_FDS] = [const { AtomicU32::new(EMPTY) }; MAX_FORK_CLOSED_FDS];
/// 1 while a descriptor is being closed or a fork is under way. A mutex of the standard library cannot be held across
/// `fork` and be given back in the child.
static GATE: AtomicU32 = AtomicU32::new(0);
/// 1 once the handlers are installed.
static INSTALLED: AtomicU32 = AtomicU32::new(0);
/// The thread that forks, and how often its handlers were called again. They may be installed twice.
static FORKER: AtomicU32 = AtomicU32::new(0);
static CALLED_AGAIN: AtomicU32 = AtomicU32::new(0);
static FORKS_STARTED: AtomicU64 = AtomicU64::new(0);
static FORKS_ENDED: AtomicU64 = AtomicU64::new(0);
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// How many forks lie between this process and the one in which the handlers were installed. An object that
/// remembers the number it was made under can tell that it is a copy in a child, where its mappings and threads are missing.
pub fn process_generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// The number of forks so far, or nothing while one is under way. When it is the same before a descriptor came into the
/// process and after it was registered, no child has a copy of it.
pub fn forks_so_far() -> Result<Option<u64>, ShmError> {
    install()?;
    let started = FORKS_STARTED.load(Ordering::SeqCst);
    let ended = FORKS_ENDED.load(Ordering::SeqCst);
    Ok((started == ended).then_some(started))
}

/// A descriptor that forked children do not keep.
#[derive(Debug)]
pub struct ForkClosedFd {
    slot: &'static AtomicU32,
    generation: u64,
}

impl ForkClosedFd {
    /// Takes the descriptor over.
    ///
    /// # Errors
    /// [`ShmError::Os`] when the handlers cannot be installed or [`MAX_FORK_CLOSED_FDS`] are registered already.
    pub fn new(fd: OwnedFd) -> Result<Self, ShmError> {
        install()?;
        let word = fd.as_raw_fd() as u32 + 1; // descriptors are not negative
        for slot in &SLOTS {
            if slot
                .compare_exchange(EMPTY, word, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                let _ = fd.into_raw_fd(); // the slot owns it now
                return Ok(Self {
                    slot,
                    generation: process_generation(),
                });
            }
        }
        Err(ShmError::os(
            "pthread_atfork",
            format!("the {MAX_FORK_CLOSED_FDS} descriptors this process may register"),
            io::Error::from_raw_os_error(libc::EMFILE),
        ))
    }

    /// The descriptor; nothing in a forked child.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        if self.generation != process_generation() {
            return None;
        }
        let raw = raw_of(self.slot.load(Ordering::SeqCst))?;
        // SAFETY: the slot owns the descriptor until this handle is dropped, which the borrow prevents.
        Some(unsafe { BorrowedFd::borrow_raw(raw) })
    }
}

impl Drop for ForkClosedFd {
    fn drop(&mut self) {
        if self.generation != process_generation() {
            return; // a copy made by fork: its descriptor is closed, and the slot may be another's by now
        }
        lock_gate();
        if let Some(raw) = raw_of(self.slot.swap(EMPTY, Ordering::SeqCst)) {
            // SAFETY: the slot owned it, and the swap made this the only place that knows it.
            drop(unsafe { OwnedFd::from_raw_fd(raw) });
        }
        unlock_gate();
    }
}

/// Held for one `close` or one `fork`, so whoever waits gives its time slice away and looks again.
fn lock_gate() {
    while GATE
        .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
        .is_err()
    {
        std::thread::yield_now();
    }
}

fn unlock_gate() {
    GATE.store(0, Ordering::Release);
}

fn raw_of(word: u32) -> Option<RawFd> {
    word.checked_sub(1).map(|raw| raw as RawFd)
}

/// Threads that come at the same time install the handlers twice, which the handlers bear. Having one wait for the other would be
/// worse: a child that was forked meanwhile would wait for a thread that it does not have.
fn install() -> Result<(), ShmError> {
    if INSTALLED.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let rc = install_again();
    if rc == 0 {
        INSTALLED.store(1, Ordering::Release);
        return Ok(());
    }
    Err(ShmError::os(
        "pthread_atfork",
        "this process",
        io::Error::from_raw_os_error(rc),
    ))
}

fn install_again() -> i32 {
    // SAFETY: the three handlers are `extern "C"` functions of this module that live as long as the program.
    unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) }
}

/// Never 0.
fn this_thread() -> u32 {
    // SAFETY: no argument and no effect.
    unsafe { libc::gettid() as u32 }
}

/// Whether this is the last call of the handlers that follow a fork. The gate is held.
fn is_last_call() -> bool {
    let left = CALLED_AGAIN.load(Ordering::Relaxed);
    if left > 0 {
        CALLED_AGAIN.store(left - 1, Ordering::Relaxed);
        return false;
    }
    FORKER.store(0, Ordering::Relaxed);
    true
}

unsafe extern "C" fn prepare() {
    let this = this_thread();
    // Only this thread has written its own number.
    if FORKER.load(Ordering::Relaxed) == this {
        CALLED_AGAIN.fetch_add(1, Ordering::Relaxed);
        return;
    }
    lock_gate();
    FORKER.store(this, Ordering::Relaxed);
    FORKS_STARTED.fetch_add(1, Ordering::SeqCst);
}

unsafe extern "C" fn in_parent() {
    if !is_last_call() {
        return;
    }
    FORKS_ENDED.fetch_add(1, Ordering::SeqCst);
    unlock_gate();
}

unsafe extern "C" fn in_child() {
    if !is_last_call() {
        return;
    }
    // Other threads' forks that were under way in the parent will never end here.
    FORKS_ENDED.store(FORKS_STARTED.load(Ordering::SeqCst), Ordering::SeqCst);
    GENERATION.fetch_add(1, Ordering::SeqCst);
    for slot in &SLOTS {
        if let Some(raw) = raw_of(slot.swap(EMPTY, Ordering::SeqCst)) {
            // SAFETY: the child's copy of a descriptor that the slot owned; nothing else in the child closes it.
            unsafe { libc::close(raw) };
        }
    }
    unlock_gate();
}

#[cfg(test)]
mod tests {
    use super::super::lock::{byte_is_locked, try_lock_byte};
    use super::super::{Memfd, OwnerAccess};
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_forked_child_does_not_keep_the_lock() {
        let memfd = Memfd::create("atfork", 4096, OwnerAccess::ReadWrite).unwrap();
        let handle = ForkClosedFd::new(memfd.reopen_read_write().unwrap()).unwrap();
        assert!(try_lock_byte(handle.fd().unwrap(), 3).unwrap());
        let observer = memfd.reopen_read_write().unwrap();
        assert!(byte_is_locked(observer.as_fd(), 3).unwrap());

        let (reader, writer) = nix::unistd::pipe().unwrap();
        let (started, start) = nix::unistd::pipe().unwrap();
        let before = process_generation();
        // SAFETY: the child calls async-signal-safe functions only: write, close, read and _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let ok = handle.fd().is_none() && process_generation() == before + 1;
            let mut byte = [0u8; 1];
            // SAFETY: as above; the pipe's write end is closed first, so that the parent's close is seen.
            unsafe {
                libc::write(start.as_raw_fd(), byte.as_ptr().cast(), 1);
                libc::close(writer.as_raw_fd());
                libc::read(reader.as_raw_fd(), byte.as_mut_ptr().cast(), 1);
                libc::_exit(i32::from(!ok));
            }
        }
        assert!(child > 0);
        drop(start); // of a child that ends before it writes the read below sees the end
        // The handlers have run in the child once it writes; before that it may hold the copy for an instant.
        assert_eq!(nix::unistd::read(&started, &mut [0]).unwrap(), 1);
        drop(handle); // the parent's last descriptor; the child is alive and waits
        let free = !byte_is_locked(observer.as_fd(), 3).unwrap();
        drop(writer);
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            "{status:#x}"
        );
        assert!(free, "the living child kept its parent's lock");
    }

    #[test]
    fn no_fork_comes_between_forgetting_a_descriptor_and_closing_it() {
        let memfd = Memfd::create("atfork", 4096, OwnerAccess::ReadWrite).unwrap();
        let handle = ForkClosedFd::new(memfd.reopen_read_write().unwrap()).unwrap();
        let slot = handle.slot;
        let word = slot.load(Ordering::SeqCst);
        // In the place of a fork for the one thread, and of a drop for the other.
        lock_gate();
        let started = FORKS_STARTED.load(Ordering::SeqCst);
        let dropper = std::thread::spawn(move || drop(handle));
        let forker = std::thread::spawn(|| {
            // SAFETY: the child calls _exit only.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        });
        // Long enough for both to get there; too short only means that nothing was seen.
        for _ in 0..100 {
            std::thread::sleep(std::time::Duration::from_millis(2));
            assert_eq!(
                slot.load(Ordering::SeqCst),
                word,
                "forgotten while a fork is under way"
            );
            assert_eq!(
                FORKS_STARTED.load(Ordering::SeqCst),
                started,
                "a fork during a drop"
            );
        }
        unlock_gate();
        dropper.join().unwrap();
        forker.join().unwrap();
        assert!(FORKS_STARTED.load(Ordering::SeqCst) > started);
    }

    /// Other tests of this process fork with twice the handlers from here on, as they may.
    #[test]
    fn handlers_that_are_installed_twice_do_their_work_once() {
        install().unwrap();
        assert_eq!(install_again(), 0);
        let (started, generation) = (FORKS_STARTED.load(Ordering::SeqCst), process_generation());
        // SAFETY: the child calls alarm and _exit only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let ok =
                process_generation() == generation + 1 && forks_so_far().is_ok_and(|forks| forks.is_some());
            // SAFETY: as above. A gate that stays locked ends by the alarm.
            unsafe {
                libc::alarm(20);
                lock_gate();
                libc::_exit(i32::from(!ok));
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            "{status:#x}"
        );
        assert!(FORKS_STARTED.load(Ordering::SeqCst) > started);
        lock_gate();
        unlock_gate();
    }

    #[test]
    fn fork_count_is_stable_without_forks_and_slots_are_reused() {
        let memfd = Memfd::create("atfork", 4096, OwnerAccess::ReadWrite).unwrap();
        for _ in 0..2 * MAX_FORK_CLOSED_FDS {
            let handle = ForkClosedFd::new(memfd.reopen_read_write().unwrap()).unwrap();
            assert!(handle.fd().is_some());
        }
    }
}
