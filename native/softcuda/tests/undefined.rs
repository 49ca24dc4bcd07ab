//! What a real driver leaves undefined ends the process on the stand-in, with a message.

#![allow(unsafe_code, missing_docs)]

#[macro_use]
mod support;

use std::env;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use softcuda::abi::{AccessDesc, In, IpcHandle, LOCATION_DEVICE, Location, Out};
use softcuda::{copy::*, device::*, host::*, ipc::*, memory::*, order::*, vmm::*};
use support::*;

#[test]
fn memory_freed_while_another_process_has_it_ends_the_process() {
    let test = "memory_freed_while_another_process_has_it_ends_the_process";
    if is(PEER) {
        context();
        let mut memory = 0;
        good!(cuIpcOpenMemHandle_v2(Out::to(&mut memory), handle("MEMORY"), 1));
        println!("open");
        // Until the other side is gone.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    aborts(test, "is freed while another process has it open", || {
        context();
        let (memory, mut of_memory) = (allocated(BYTES), IpcHandle([0; 64]));
        good!(cuIpcGetMemHandle(Out::to(&mut of_memory), memory));
        let mut peer = Command::new(env::current_exe().unwrap());
        peer.args(["--exact", test, "--nocapture"])
            .env(PEER, "1")
            .env("MEMORY", hex(of_memory));
        let mut peer = peer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(peer.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("open")));
        let _ = call!(cuMemFree_v2(memory));
        peer.wait().unwrap();
    });
}

#[test]
fn memory_used_after_it_was_freed_ends_the_process() {
    aborts(
        "memory_used_after_it_was_freed_ends_the_process",
        "is used after cuMemFree",
        || {
            context();
            let (memory, stream) = (allocated(64), stream(1));
            good!(cuStreamWaitValue32_v2(stream, allocated(4), 1, 1));
            good!(cuMemcpyAsync(memory + 32, memory, 32, stream));
            good!(cuMemFree_v2(memory));
            let _ = call!(cuMemcpyAsync(memory, memory, 32, stream));
        },
    );
}

#[test]
fn memory_unregistered_under_a_copy_ends_the_process() {
    aborts(
        "memory_unregistered_under_a_copy_ends_the_process",
        "unregistered while a copy",
        || {
            context();
            let (memory, gate, stream) = (allocated(64), allocated(4), stream(1));
            let mut host = vec![0; 64];
            register(&mut host);
            good!(cuStreamWaitValue32_v2(stream, gate, 1, 1));
            good!(cuMemcpyAsync(memory, host.as_ptr() as u64, 64, stream));
            good!(cuMemHostUnregister(host.as_mut_ptr().cast()));
            good!(cuMemsetD8_v2(gate, 1, 1));
        },
    );
}

#[test]
fn host_memory_that_is_gone_ends_the_process() {
    aborts(
        "host_memory_that_is_gone_ends_the_process",
        "is gone when a copy comes to it",
        || {
            context();
            let memory = allocated(64);
            let _ = call!(cuMemcpyAsync(memory, 4096, 64, 0));
        },
    );
}

#[test]
fn a_stream_of_another_context_ends_the_process() {
    if is(CASE) {
        // SAFETY: no other thread of this process reads the environment now.
        unsafe { env::set_var("SOFTCUDA_DEVICES", "2") };
    }
    aborts(
        "a_stream_of_another_context_ends_the_process",
        "is of context",
        || {
            context();
            let (mut other, stream) = (0, stream(1));
            good!(cuDevicePrimaryCtxRetain(Out::to(&mut other), 1));
            good!(cuCtxSetCurrent(other));
            let _ = call!(cuStreamSynchronize(stream));
        },
    );
}

#[test]
fn memory_used_after_it_was_closed_ends_the_process() {
    let test = "memory_used_after_it_was_closed_ends_the_process";
    if is(PEER) {
        context();
        let mut memory = 0;
        good!(cuIpcOpenMemHandle_v2(Out::to(&mut memory), handle("MEMORY"), 1));
        let own = allocated(64);
        good!(cuMemcpy(own, memory, 64));
        good!(cuIpcCloseMemHandle(memory));
        let _ = call!(cuMemcpy(own, memory, 64));
        return;
    }
    aborts(test, "is used after cuIpcCloseMemHandle", || {
        context();
        let mut of_memory = IpcHandle([0; 64]);
        good!(cuIpcGetMemHandle(Out::to(&mut of_memory), allocated(BYTES)));
        let output = again(test, PEER, &[("MEMORY", &hex(of_memory))]);
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success());
    });
}

#[test]
fn memory_used_after_it_was_unmapped_ends_the_process() {
    aborts(
        "memory_used_after_it_was_unmapped_ends_the_process",
        "is used after cuMemUnmap",
        || {
            context();
            let (granule, own, gate, stream) = (2 << 20, allocated(64), allocated(4), stream(1));
            let (mut handle, mut memory) = (0, 0);
            good!(cuMemCreate(
                Out::to(&mut handle),
                granule,
                In::from(&[prop(0)]),
                0
            ));
            good!(cuMemAddressReserve(Out::to(&mut memory), granule, 0, 0, 0));
            good!(cuMemMap(memory, granule, 0, handle, 0));
            let location = Location {
                kind: LOCATION_DEVICE,
                id: 0,
            };
            good!(cuMemSetAccess(
                memory,
                granule,
                In::from(&[AccessDesc { location, flags: 3 }]),
                1
            ));
            // Unmapped under a copy that has not begun.
            good!(cuStreamWaitValue32_v2(stream, gate, 1, 1));
            good!(cuMemcpyAsync(own, memory, 64, stream));
            good!(cuMemUnmap(memory, granule));
            good!(cuMemsetD8_v2(gate, 1, 1));
        },
    );
}

#[test]
fn addresses_freed_under_a_mapping_end_the_process() {
    aborts(
        "addresses_freed_under_a_mapping_end_the_process",
        "while memory is mapped there",
        || {
            context();
            let (granule, mut handle, mut memory) = (2 << 20, 0, 0);
            good!(cuMemCreate(
                Out::to(&mut handle),
                granule,
                In::from(&[prop(0)]),
                0
            ));
            good!(cuMemAddressReserve(Out::to(&mut memory), granule, 0, 0, 0));
            good!(cuMemMap(memory, granule, 0, handle, 0));
            let _ = call!(cuMemAddressFree(memory, granule));
        },
    );
}

#[test]
fn a_stream_used_after_it_was_destroyed_ends_the_process() {
    aborts(
        "a_stream_used_after_it_was_destroyed_ends_the_process",
        "was destroyed",
        || {
            context();
            let stream = stream(1);
            good!(cuStreamDestroy_v2(stream));
            let _ = call!(cuStreamQuery(stream));
        },
    );
}

/// The host has no business at a device's addresses: it ends as on a card, by the kernel's signal.
#[test]
fn device_memory_touched_by_the_host_ends_the_process() {
    let test = "device_memory_touched_by_the_host_ends_the_process";
    if is(CASE) {
        context();
        let memory: *const u8 = std::ptr::with_exposed_provenance(allocated(64) as usize);
        // SAFETY: none: this is the fault that the case is about.
        println!("read {}", unsafe { memory.read_volatile() });
        return;
    }
    let output = again(test, CASE, &[]);
    assert_eq!(
        output.status.signal(),
        Some(11),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}
