//! What the program's allocator does with freed memory: it keeps it, so that no request waits for its way back to the kernel.
//!
//! An allocator is one for the whole process, so each case is a process of its own.

#![allow(unsafe_code)] // asks the allocator what it was told

use std::process::Command;
use std::thread;
use std::time::Duration;

use kvasir::shm::heap::{PROGRAM_ALLOCATOR, ProgramAllocator, keep_freed_memory};

#[global_allocator]
static ALLOCATOR: ProgramAllocator = PROGRAM_ALLOCATOR;

/// Set in a case: whether freed memory is kept.
const CASE: &str = "FREED_MEMORY";
const PIECES: usize = 50_000;
const PIECE: usize = 1000;
const BYTES: u64 = (PIECES * PIECE) as u64;

unsafe extern "C" {
    fn mi_options_print();
}

/// Bytes of anonymous memory of this process.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// Takes many pieces, gives them back, and goes on a little later. Bytes that the process has kept.
fn kept_of_freed() -> u64 {
    let before = anonymous();
    let pieces: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![1; PIECE]).collect();
    assert!(anonymous() - before >= BYTES);
    drop(pieces);
    // The allocator looks at what it may give back when it is asked for something.
    for _ in 0..50 {
        thread::sleep(Duration::from_millis(10));
        for _ in 0..1000 {
            drop(std::hint::black_box(vec![1_u8; 64 << 10]));
        }
    }
    anonymous().saturating_sub(before)
}

/// Runs in the process of a case; as a test of its own it does nothing.
#[test]
fn a_case() {
    match std::env::var(CASE).as_deref() {
        Ok("kept") => {
            keep_freed_memory();
            // SAFETY: it prints, with the names that belong to the numbers of `keep_freed_memory`.
            unsafe { mi_options_print() };
            let kept = kept_of_freed();
            assert!(kept >= BYTES, "{kept} bytes were kept");
        }
        Ok("given back") => {
            let kept = kept_of_freed();
            assert!(kept < BYTES / 2, "{kept} bytes were kept");
        }
        _ => {}
    }
}

#[test]
fn what_was_freed_stays_with_the_process() {
    for case in ["kept", "given back"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_case", "--nocapture"]).env(CASE, case);
        // In a moment, where nobody says otherwise.
        let output = command.env("MIMALLOC_PURGE_DELAY", "1").output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{case}: {said}"
        );
        let told = ["option 'purge_delay': -1 ", "option 'generic_collect': 1000000 "];
        assert!(
            case != "kept" || told.iter().all(|told| said.contains(told)),
            "{said}"
        );
    }
}
