//! The stand-in by itself: what a card's driver does and this one has to do too.

#![allow(unsafe_code, missing_docs)]

#[macro_use]
mod support;

use std::time::{Duration, Instant};

use softcuda::abi::{AccessDesc, CopyAttributes, In, IpcHandle, LOCATION_DEVICE, Location, Out};
use softcuda::{copy::*, device::*, host::*, ipc::*, memory::*, order::*, vmm::*};
use support::*;

#[test]
fn contexts_come_and_go_and_a_call_without_one_is_refused() {
    passes(
        "contexts_come_and_go_and_a_call_without_one_is_refused",
        &[("SOFTCUDA_DEVICES", "2")],
        || {
            let (mut address, mut count, mut active, mut flags) = (0, 0, 7, 7);
            assert_eq!(call!(cuDeviceGetCount(Out::to(&mut count))), 3);
            good!(cuInit(0));
            good!(cuDeviceGetCount(Out::to(&mut count)));
            assert_eq!(count, 2);
            good!(cuDevicePrimaryCtxGetState(
                1,
                Out::to(&mut flags),
                Out::to(&mut active)
            ));
            assert_eq!((active, softcuda_count(2)), (0, 0));
            assert_eq!(call!(cuMemAlloc_v2(Out::to(&mut address), 16)), 201);
            let context = context();
            let memory = allocated(16);
            // Another thread has no current context.
            std::thread::spawn(move || assert_eq!(call!(cuMemFree_v2(memory)), 201))
                .join()
                .unwrap();
            let mut popped = 0;
            good!(cuCtxPushCurrent_v2(context));
            good!(cuCtxPopCurrent_v2(Out::to(&mut popped)));
            assert_eq!(popped, context);
            good!(cuDevicePrimaryCtxRelease_v2(0));
            assert_eq!(call!(cuMemFree_v2(memory)), 709);
            assert_eq!((softcuda_count(3), softcuda_count(4)), (0, 0));
        },
    );
}

#[test]
fn a_stream_runs_later_and_in_order() {
    passes(
        "a_stream_runs_later_and_in_order",
        &[("SOFTCUDA_FAULTS", "late=5")],
        || {
            context();
            let (mut from, mut to) = (pattern(1, BYTES), vec![0; BYTES]);
            register(&mut from);
            register(&mut to);
            let (memory, stream, event) = (allocated(BYTES), stream(1), event(2));
            let (gate, release) = (allocated(4), self::stream(1));
            good!(cuStreamWaitValue32_v2(stream, gate, 1, 1));
            good!(cuMemcpyAsync(memory, from.as_ptr() as u64, BYTES, stream));
            good!(cuMemcpyAsync(to.as_mut_ptr() as u64, memory, BYTES, stream));
            good!(cuEventRecord(event, stream));
            assert_eq!(call!(cuEventQuery(event)), 600);
            assert_eq!(call!(cuStreamQuery(stream)), 600);
            good!(cuStreamWriteValue32_v2(release, gate, 1, 0));
            good!(cuEventSynchronize(event));
            assert_eq!(to, pattern(1, BYTES));
            good!(cuStreamQuery(stream));
        },
    );
}

/// Work in `first` that waits for `release`, then a copy in `second`: the second waits for the first, or does not.
fn ordered(first: u64, second: u64, release: u64, waits: bool) {
    let (mut from, mut to) = (pattern(2, BYTES), vec![0; BYTES]);
    register(&mut from);
    register(&mut to);
    let (memory, gate, done) = (allocated(BYTES), allocated(4), event(2));
    good!(cuStreamWaitValue32_v2(first, gate, 5, 1));
    good!(cuMemcpyAsync(memory, from.as_ptr() as u64, BYTES, first));
    good!(cuMemcpyAsync(to.as_mut_ptr() as u64, memory, BYTES, second));
    good!(cuEventRecord(done, second));
    // What waits does so for ever; what does not ends some time, however busy the machine is.
    let limit = Duration::from_millis(if waits { 50 } else { 60_000 });
    let started = Instant::now();
    while call!(cuEventQuery(done)) == 600 && started.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(call!(cuEventQuery(done)) == 600, waits, "{first:#x} {second:#x}");
    good!(cuStreamWriteValue32_v2(release, gate, 5, 0));
    good!(cuStreamSynchronize(second));
    // Where it waited it found the first one's bytes, and else there were none.
    assert_eq!(to == from, waits, "{first:#x} {second:#x}");
    good!(cuCtxSynchronize());
    good!(cuMemHostUnregister(from.as_mut_ptr().cast()));
    good!(cuMemHostUnregister(to.as_mut_ptr().cast()));
}

#[test]
fn the_default_stream_and_blocking_streams_wait_for_each_other() {
    let name = "the_default_stream_and_blocking_streams_wait_for_each_other";
    passes(name, &[], || {
        context();
        let (blocking, other, free, release) = (stream(0), stream(0), stream(1), stream(1));
        ordered(0, blocking, release, true);
        ordered(blocking, 0, release, true);
        // Two streams do not wait for each other, and nothing waits for a free one.
        ordered(blocking, other, release, false);
        ordered(0, free, release, false);
        ordered(free, 0, release, false);
    });
}

#[test]
fn a_source_of_any_order_is_read_at_once() {
    passes("a_source_of_any_order_is_read_at_once", &[], || {
        context();
        let (stream, gate, memory) = (stream(1), allocated(8), allocated(2 * BYTES));
        let mut host = vec![0; 2 * BYTES];
        register(&mut host);
        write(memory, &pattern(3, BYTES));
        good!(cuCtxSynchronize());
        let attributes = |order| {
            let none = Location { kind: 0, id: 0 };
            CopyAttributes {
                order,
                source: none,
                destination: none,
                flags: 0,
            }
        };
        // "Compute" that has not run yet, then a copy of what it writes, with each order.
        good!(cuStreamWaitValue64_v2(stream, gate, 1, 1));
        good!(cuMemsetD8Async(memory, 9, BYTES, stream));
        for (part, order) in [(0, 1), (1, 3)] {
            let to = [host.as_mut_ptr() as u64 + (part * BYTES) as u64];
            good!(cuMemcpyBatchAsync(
                In::from(&to),
                In::from(&[memory]),
                In::from(&[BYTES]),
                1,
                In::from(&[attributes(order)]),
                In::from(&[0]),
                1,
                Out::to(&mut 0),
                stream,
            ));
        }
        good!(cuStreamWriteValue64_v2(0, gate, 1, 0));
        good!(cuStreamSynchronize(stream));
        assert!(host[..BYTES] == vec![9; BYTES], "the order of the stream");
        assert!(host[BYTES..] == pattern(3, BYTES), "any order");
        // The legacy default stream takes no batches.
        let refused = call!(cuMemcpyBatchAsync(
            In::from(&[memory]),
            In::from(&[memory]),
            In::from(&[8]),
            1,
            In::from(&[attributes(1)]),
            In::from(&[0]),
            1,
            Out::to(&mut 0),
            0,
        ));
        assert_eq!(refused, 1);
    });
}

#[test]
fn host_memory_is_registered_once_and_no_copy_straddles_its_ends() {
    passes(
        "host_memory_is_registered_once_and_no_copy_straddles_its_ends",
        &[("SOFTCUDA_REGISTER_LIMIT", "8192")],
        || {
            context();
            let mut host = vec![0u8; 1 << 16];
            let start = host.as_mut_ptr();
            let memory = allocated(4096);
            good!(cuMemHostRegister_v2(start.cast(), 4096, 0));
            assert_eq!(
                call!(cuMemHostRegister_v2(start.wrapping_add(100).cast(), 100, 0)),
                712
            );
            assert_eq!(
                call!(cuMemHostRegister_v2(start.wrapping_add(4096).cast(), 8192, 0)),
                2
            );
            assert_eq!(
                call!(cuMemHostRegister_v2(
                    std::ptr::without_provenance_mut(4096),
                    4096,
                    0
                )),
                1
            );
            good!(cuMemHostRegister_v2(start.wrapping_add(4096).cast(), 4096, 8));
            assert_eq!(call!(cuMemcpyAsync(memory, start as u64 + 4000, 200, 0)), 1);
            good!(cuMemHostUnregister(start.cast()));
            assert_eq!(call!(cuMemHostUnregister(start.cast())), 713);
            // What was registered for reading is not written: the fault stays with the context.
            good!(cuMemcpyAsync(start as u64 + 4096, memory, 16, 0));
            assert_eq!(call!(cuStreamSynchronize(0)), 700);
            assert_eq!(call!(cuMemFree_v2(memory)), 700);
        },
    );
}

#[test]
fn virtual_memory_has_granules_rights_and_handles() {
    passes("virtual_memory_has_granules_rights_and_handles", &[], || {
        context();
        let granule = 2 << 20;
        let (mut handle, mut address, mut found) = (0, 0, 0);
        assert_eq!(
            call!(cuMemCreate(Out::to(&mut handle), 4096, In::from(&[prop(1)]), 0)),
            1
        );
        good!(cuMemCreate(
            Out::to(&mut handle),
            granule,
            In::from(&[prop(0)]),
            0
        ));
        good!(cuMemAddressReserve(Out::to(&mut address), 2 * granule, 0, 0, 0));
        assert_eq!(call!(cuMemMap(address, granule, 4096, handle, 0)), 1);
        good!(cuMemMap(address + granule as u64, granule, 0, handle, 0));
        assert_eq!(
            call!(cuMemMap(address + granule as u64, granule, 0, handle, 0)),
            208
        );
        let memory = address + granule as u64;
        good!(cuMemRetainAllocationHandle(
            Out::to(&mut found),
            std::ptr::without_provenance_mut(memory as usize + 5)
        ));
        assert_eq!(found, handle);
        // It was made without a way of export, and it is no memory of cuMemAlloc.
        assert_eq!(
            call!(cuMemExportToShareableHandle(
                (&raw mut found).cast(),
                handle,
                1,
                0
            )),
            1
        );
        assert_eq!(
            call!(cuIpcGetMemHandle(Out::to(&mut IpcHandle([0; 64])), memory)),
            1
        );
        let access = |flags| AccessDesc {
            location: Location {
                kind: LOCATION_DEVICE,
                id: 0,
            },
            flags,
        };
        good!(cuMemSetAccess(memory, granule, In::from(&[access(3)]), 1));
        write(memory, &pattern(4, 4096));
        good!(cuMemSetAccess(memory, granule, In::from(&[access(1)]), 1));
        assert_eq!(read(memory, 4096), pattern(4, 4096));
        good!(cuMemRelease(handle));
        good!(cuMemRelease(handle));
        assert_eq!(call!(cuMemRelease(handle)), 1);
        assert_eq!(read(memory, 4096), pattern(4, 4096));
        good!(cuMemsetD8_v2(memory, 1, 16));
        assert_eq!(call!(cuCtxSynchronize()), 700);
        good!(cuMemUnmap(memory, granule));
        good!(cuMemAddressFree(address, 2 * granule));
        assert_eq!(
            (softcuda_count(4), softcuda_count(5), softcuda_count(7)),
            (0, 0, 0)
        );
    });
}

#[test]
fn another_process_opens_the_whole_allocation_and_the_event() {
    let test = "another_process_opens_the_whole_allocation_and_the_event";
    if is(PEER) {
        context();
        let (mut memory, mut event, mut second) = (0, 0, 0);
        good!(cuIpcOpenMemHandle_v2(Out::to(&mut memory), handle("MEMORY"), 1));
        good!(cuIpcOpenMemHandle_v2(Out::to(&mut second), handle("MEMORY"), 1));
        good!(cuIpcOpenEventHandle(Out::to(&mut event), handle("EVENT")));
        assert_eq!(memory, second);
        // The handle was taken of an interior address, and names the allocation.
        assert_eq!(read(memory, BYTES), pattern(5, BYTES));
        let stream = stream(1);
        good!(cuMemsetD8Async(memory, 6, BYTES, stream));
        good!(cuEventRecord(event, stream));
        good!(cuStreamSynchronize(stream));
        good!(cuIpcCloseMemHandle(memory));
        good!(cuIpcCloseMemHandle(memory));
        assert_eq!(softcuda_count(4), 0);
        return;
    }
    passes(test, &[], || {
        context();
        let (memory, event) = (allocated(BYTES), event(6));
        write(memory, &pattern(5, BYTES));
        let (mut of_memory, mut of_event) = (IpcHandle([0; 64]), IpcHandle([0; 64]));
        good!(cuIpcGetMemHandle(Out::to(&mut of_memory), memory + 4096));
        good!(cuIpcGetEventHandle(Out::to(&mut of_event), event));
        let mut own = 0;
        assert_eq!(call!(cuIpcOpenMemHandle_v2(Out::to(&mut own), of_memory, 1)), 201);
        let handles = [("MEMORY", hex(of_memory)), ("EVENT", hex(of_event))];
        let handles = handles.each_ref().map(|(name, text)| (*name, text.as_str()));
        let output = again(test, PEER, &handles);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        good!(cuEventQuery(event));
        assert_eq!(read(memory, BYTES), vec![6; BYTES]);
        good!(cuMemFree_v2(memory));
        // The allocation is gone, and so is what its handle names.
        let output = again(test, PEER, &handles);
        assert!(!output.status.success());
    });
}

#[test]
fn faults_come_where_they_are_asked_for() {
    passes(
        "faults_come_where_they_are_asked_for",
        &[("SOFTCUDA_FAULTS", "out-of-memory@2,copy-error@2,never@3")],
        || {
            context();
            let memory = allocated(64);
            let mut other = 0;
            assert_eq!(call!(cuMemAlloc_v2(Out::to(&mut other), 64)), 2);
            let (stream, event) = (stream(1), event(2));
            let copy = || call!(cuMemcpyAsync(memory + 32, memory, 32, stream));
            assert_eq!((copy(), call!(cuStreamSynchronize(stream))), (0, 0));
            assert_eq!((copy(), call!(cuStreamSynchronize(stream))), (0, 700));
            // The error stays with the context.
            assert_eq!((copy(), call!(cuEventRecord(event, stream))), (700, 700));
            call!(softcuda_faults(b"lost".as_ptr(), 4));
            assert_eq!(call!(cuCtxSynchronize()), 999);
            call!(softcuda_faults(b"".as_ptr(), 0));
            assert_eq!(call!(cuCtxSynchronize()), 999, "a lost device stays lost");
        },
    );
}

#[test]
fn a_copy_that_never_ends_leaves_its_event_open() {
    passes(
        "a_copy_that_never_ends_leaves_its_event_open",
        &[("SOFTCUDA_FAULTS", "never@1")],
        || {
            context();
            let (memory, stream, other, event) = (allocated(64), stream(1), stream(1), event(2));
            good!(cuMemcpyAsync(memory + 32, memory, 32, stream));
            good!(cuEventRecord(event, stream));
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(200) {
                assert_eq!(call!(cuEventQuery(event)), 600);
            }
            good!(cuMemcpyAsync(memory + 32, memory, 32, other));
            good!(cuStreamSynchronize(other));
        },
    );
}
