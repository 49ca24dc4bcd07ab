//! What the tests of the stand-in share.
//!
//! Each case is a process of its own, because the driver's state and its faults are the process's. A test runs its
//! program again for itself, and a case of two processes does so once more.

#![allow(dead_code, unreachable_pub, unsafe_code)]

use std::env;
use std::ffi::c_void;
use std::process::{Command, Output};
use std::time::Duration;

use softcuda::abi::{AllocationProp, IpcHandle, LOCATION_DEVICE, Location, Out};
use softcuda::{copy::*, device::*, host::*, memory::*, order::*};

pub const CASE: &str = "SOFTCUDA_TEST_CASE";
pub const PEER: &str = "SOFTCUDA_TEST_PEER";
pub const BYTES: usize = 1 << 20;

/// Calls the driver and gives its result.
macro_rules! call {
    // SAFETY: pointers are to live values of the call's types, or are what the case is about.
    ($function:ident($($argument:expr),* $(,)?)) => { unsafe { $function($($argument),*) } };
}

/// Calls the driver, which has to succeed.
macro_rules! good {
    ($function:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(call!($function($($argument),*)), 0, stringify!($function))
    };
}

/// Runs this program for one test.
pub fn again(test: &str, role: &str, more: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(role, "1")
        .envs(more.iter().copied());
    command.output().unwrap()
}

pub fn is(role: &str) -> bool {
    env::var_os(role).is_some()
}

/// The case passes in a process of its own.
pub fn passes(test: &str, environment: &[(&str, &str)], case: impl FnOnce()) {
    if is(CASE) {
        return case();
    }
    let output = again(test, CASE, environment);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The case ends its process, with a message that holds `message`.
pub fn aborts(test: &str, message: &str, case: impl FnOnce()) {
    if is(CASE) {
        case();
        // What the stand-in finds only when a stream comes to it.
        std::thread::sleep(Duration::from_secs(20));
        return;
    }
    let output = again(test, CASE, &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(message), "{said}");
}

/// A context on device 0, current.
pub fn context() -> u64 {
    let mut context = 0;
    good!(cuInit(0));
    good!(cuDevicePrimaryCtxRetain(Out::to(&mut context), 0));
    good!(cuCtxSetCurrent(context));
    context
}

pub fn allocated(bytes: usize) -> u64 {
    let mut address = 0;
    good!(cuMemAlloc_v2(Out::to(&mut address), bytes));
    address
}

pub fn stream(flags: u32) -> u64 {
    let mut stream = 0;
    good!(cuStreamCreate(Out::to(&mut stream), flags));
    stream
}

pub fn event(flags: u32) -> u64 {
    let mut event = 0;
    good!(cuEventCreate(Out::to(&mut event), flags));
    event
}

/// Bytes that follow from `seed` and their place.
pub fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at as u8).wrapping_mul(7) ^ (at >> 8) as u8 ^ seed)
        .collect()
}

pub fn write(to: u64, bytes: &[u8]) {
    good!(cuMemcpyHtoD_v2(to, bytes.as_ptr().cast::<c_void>(), bytes.len()));
}

pub fn read(from: u64, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    good!(cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), from, bytes));
    found
}

pub fn register(bytes: &mut [u8]) {
    good!(cuMemHostRegister_v2(bytes.as_mut_ptr().cast(), bytes.len(), 0));
}

pub fn prop(handle_types: u32) -> AllocationProp {
    AllocationProp {
        kind: 1,
        handle_types,
        location: Location {
            kind: LOCATION_DEVICE,
            id: 0,
        },
        win32: std::ptr::null_mut(),
        compression: 0,
        rdma: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

pub fn hex(handle: IpcHandle) -> String {
    handle.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The handle that a process was given in its environment.
pub fn handle(name: &str) -> IpcHandle {
    let text = env::var(name).unwrap();
    IpcHandle(std::array::from_fn(|at| {
        u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()
    }))
}
