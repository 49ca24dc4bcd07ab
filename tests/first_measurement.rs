//! A fork while another thread measures the copy for the first time in the process: its child copies too.
//!
//! The measurement is once in a process, so this test has a process of its own.

#![allow(unsafe_code)] // forks

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use kvasir::copy::CopyEngine;

#[test]
fn a_child_forked_during_the_measurement_makes_its_own() {
    let begin = Barrier::new(2);
    let status = thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            begin.wait();
            CopyEngine::detect().with_measured_threads()
        });
        begin.wait();
        // Into the measurement, which takes some milliseconds. Too late only means that nothing was seen.
        thread::sleep(Duration::from_millis(1));
        // SAFETY: the child measures, for which it needs no thread of its parent, and ends by `_exit` or the alarm.
        let child = unsafe { nix::libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                nix::libc::alarm(30);
                let measured = CopyEngine::on(CopyEngine::detect().path()).is_some();
                nix::libc::_exit(i32::from(!measured));
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { nix::libc::waitpid(child, &mut status, 0) }, child);
        measuring.join().unwrap();
        status
    });
    assert_eq!(status, 0, "the child waited for a thread that it does not have");
}
