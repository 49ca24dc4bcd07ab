//! A fork at the worst moment of a descriptor that children must not keep.
//!
//! Alone in its file: a child has copies of whatever other tests of its process have open.

#![allow(unsafe_code)] // forks

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvasir::shm::atfork::{ForkClosedFd, forks_so_far};
use kvasir::shm::lock::{byte_is_locked, try_lock_byte};
use kvasir::shm::{Memfd, OwnerAccess, reopen_read_write};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, fork};

/// Longer than a child needs on the slowest machine to begin, and shorter than it lives.
const WATCHDOG: Duration = Duration::from_secs(60);

fn sleep_and_exit() -> ! {
    std::thread::sleep(Duration::from_secs(600));
    // SAFETY: ends this process without running anything of its parent's.
    unsafe { nix::libc::_exit(0) }
}

/// One thread makes handles and drops them, the other forks: no child may be left with a lock that its parent has given
/// up.
#[test]
fn a_fork_during_a_drop_leaves_no_lock_behind() {
    const FORKS: usize = 300;
    let memfd = Memfd::create("forks", 4096, OwnerAccess::ReadWrite).unwrap();
    let observer = memfd.reopen_read_write().unwrap();
    let stop = AtomicBool::new(false);
    let children = std::thread::scope(|scope| {
        let dropper = scope.spawn(|| {
            let mut checked = 0_u64;
            for byte in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let before = forks_so_far().unwrap();
                let handle = ForkClosedFd::new(reopen_read_write(memfd.as_fd()).unwrap()).unwrap();
                // As a client does: with a fork since the descriptor came, it would not use it.
                let unforked = before.is_some() && before == forks_so_far().unwrap();
                assert!(try_lock_byte(handle.fd().unwrap(), byte).unwrap());
                drop(handle);
                if unforked {
                    // A child that was forked before the drop closes its copy before it does anything else.
                    let begin = Instant::now();
                    while byte_is_locked(observer.as_fd(), byte).unwrap() {
                        assert!(begin.elapsed() < WATCHDOG, "a child keeps byte {byte} locked");
                        std::thread::yield_now();
                    }
                    checked += 1;
                }
            }
            checked
        });
        let mut children = Vec::new();
        for _ in 0..FORKS {
            // SAFETY: the child sleeps and exits, and calls nothing else.
            match unsafe { fork() }.unwrap() {
                ForkResult::Child => sleep_and_exit(),
                ForkResult::Parent { child } => children.push(child),
            }
        }
        stop.store(true, Ordering::Relaxed);
        let checked = dropper.join();
        for child in &children {
            kill(*child, Signal::SIGKILL).unwrap();
            nix::sys::wait::waitpid(*child, None).unwrap();
        }
        assert!(checked.unwrap() > 0);
        children
    });
    assert_eq!(children.len(), FORKS);
}
