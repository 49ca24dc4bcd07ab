//! Device memory and events of another process, on the stand-in for `libcuda.so.1`: two processes and a socket.

#![allow(unsafe_code)]

mod device_support;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use device_support::messages::*;
use device_support::*;
use kvasir::copy::{HostMemory, Span};
use kvasir::device::*;
use kvasir::shm::fdpass::{recv_with_fds, send_with_fds};
use kvasir::shm::{Mapping, Memfd, OwnerAccess, ReadWrite};

#[test]
fn an_allocation_is_opened_once_and_closed_with_its_last_memory() {
    let test = "an_allocation_is_opened_once_and_closed_with_its_last_memory";
    if let Some(mut socket) = peer() {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let imports = IpcImports::new(&context);
        let before = (live(), descriptors());
        let described = [receive_memory(&mut socket), receive_memory(&mut socket)];
        let [first, second] = described.map(|memory| imports.open(&memory).unwrap());
        assert_eq!((imports.allocations(), count(4)), (1, 1));
        // Not the allocation's first byte: the offset is the description's.
        assert!(read(&engine, &first, 0, 5000) == pattern(1, 20_000)[100..5100]);
        write(&engine, &second, 0, &pattern(2, 4096));
        // A place outside of the allocation is refused, and nothing more is open.
        for (offset, bytes) in [(20_000, 1), (0, 20_001), (19_000, u64::MAX), (5, 0)] {
            let error = imports
                .open(&IpcMemory {
                    offset,
                    bytes,
                    ..described[0]
                })
                .unwrap_err();
            assert_eq!(
                error,
                DeviceError::OutsideAllocation {
                    offset,
                    bytes,
                    allocation: 20_000
                }
            );
        }
        drop(first);
        assert_eq!((imports.allocations(), count(4)), (1, 1));
        drop(second);
        assert_eq!((imports.allocations(), (live(), descriptors())), (0, before));
        meet(&mut socket);
        return;
    }
    passes(test, &[], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let memory = DeviceMemory::allocate(&context, 20_000).unwrap();
        write(&engine, &memory, 0, &pattern(1, 20_000));
        let (child, mut socket) = with_peer(test, &[]);
        for (offset, bytes) in [(100, 5000), (8192, 4096)] {
            // SAFETY: the allocation lives until the other process has closed it.
            let tensor =
                unsafe { DeviceMemory::of_engine(&context, memory.address() + offset, bytes) }.unwrap();
            let described = IpcMemory::export(&tensor).unwrap();
            assert_eq!((described.offset, described.bytes), (offset, bytes));
            send_memory(&mut socket, &described);
        }
        meet(&mut socket);
        ends_well(child);
        assert!(read(&engine, &memory, 8192, 4096) == pattern(2, 4096));
        // Freed while it is open somewhere, the stand-in would end this process.
        drop(memory);
    });
}

#[test]
fn a_stream_waits_for_the_event_of_another_process() {
    let test = "a_stream_waits_for_the_event_of_another_process";
    if let Some(mut socket) = peer() {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let imports = IpcImports::new(&context);
        let memory = imports.open(&receive_memory(&mut socket)).unwrap();
        let event = Event::open(&context, &EventHandle(receive(&mut socket))).unwrap();
        let stream = Stream::new(&context).unwrap();
        let host = pinned(&context, 4096);
        // The other process's copy is held until this one was submitted: without the event it would be first.
        assert!(!event.is_done().unwrap());
        stream.wait_for(&event).unwrap();
        let copying = engine
            .submit(
                &whole(0, 0, 4096),
                &[&memory],
                &[&host],
                &stream,
                SourceOrder::Stream,
            )
            .unwrap();
        send(&mut socket, b"!");
        assert!(copying.wait(LONG).unwrap() && event.is_done().unwrap());
        assert!(contents(host.host()) == pattern(3, 4096));
        drop((copying, memory));
        meet(&mut socket);
        return;
    }
    passes(test, &[], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let (memory, host) = (
            DeviceMemory::allocate(&context, 4096).unwrap(),
            pinned(&context, 4096),
        );
        host.host().write(0, &pattern(3, 4096)).unwrap();
        let (stream, event) = (
            Stream::new(&context).unwrap(),
            Event::shareable(&context).unwrap(),
        );
        let described = IpcMemory::export(&memory).unwrap();
        let gate = Gate::new(&context);
        gate.hold(&stream);
        let copying = engine
            .submit(
                &whole(0, 0, 4096),
                &[&host],
                &[&memory],
                &stream,
                SourceOrder::Any,
            )
            .unwrap();
        event.record(&stream).unwrap();
        let (child, mut socket) = with_peer(test, &[]);
        send_memory(&mut socket, &described);
        send(&mut socket, &event.export().unwrap().0);
        assert_eq!(receive(&mut socket), *b"!");
        gate.open();
        assert!(copying.wait(LONG).unwrap());
        meet(&mut socket);
        ends_well(child);
    });
}

/// Where no events can be shared: a word of shared memory that both processes have registered.
#[test]
fn a_stream_waits_for_the_word_that_another_process_writes() {
    let test = "a_stream_waits_for_the_word_that_another_process_writes";
    let shared = |fd: OwnedFd, context: &Context| {
        let mapping = Mapping::<ReadWrite>::map_foreign(fd.as_fd(), 8192).unwrap();
        PinnedMemory::register(context, HostMemory::mapped(Arc::new(mapping)), PINNED_PIECE_BYTES).unwrap()
    };
    if let Some(mut socket) = peer() {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let mut byte = [0];
        let fd = recv_with_fds(&socket, &mut byte, 1).unwrap().fds.pop().unwrap();
        let pool = shared(fd, &context);
        let memory = DeviceMemory::allocate(&context, 4096).unwrap();
        let stream = Stream::new(&context).unwrap();
        // SAFETY: the memory lives until the copy behind the wait has ended.
        unsafe { stream.wait_for_flag(&pool, 4096, 7) }.unwrap();
        let load = engine
            .submit(
                &whole(0, 0, 4096),
                &[&pool],
                &[&memory],
                &stream,
                SourceOrder::Stream,
            )
            .unwrap();
        send(&mut socket, b"!");
        assert!(load.wait(LONG).unwrap());
        assert!(read(&engine, &memory, 0, 4096) == pattern(8, 4096));
        meet(&mut socket);
        return;
    }
    passes(test, &[], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let memfd = Memfd::create("flags", 8192, OwnerAccess::ReadWrite).unwrap();
        let memory = DeviceMemory::allocate(&context, 4096).unwrap();
        write(&engine, &memory, 0, &pattern(8, 4096));
        let stream = Stream::new(&context).unwrap();
        let (child, mut socket) = with_peer(test, &[]);
        send_with_fds(&socket, b"!", &[memfd.as_fd()]).unwrap();
        let pool = shared(memfd.into(), &context);
        assert_eq!(receive(&mut socket), *b"!");
        // The other stream waits by now, and this copy is late: without the word it would have been first.
        faults("late=100");
        let store = engine
            .submit(
                &whole(0, 0, 4096),
                &[&memory],
                &[&pool],
                &stream,
                SourceOrder::Stream,
            )
            .unwrap();
        // SAFETY: the memory lives until the stream has come to the end.
        unsafe { stream.set_flag(&pool, 4096, 7) }.unwrap();
        assert!(store.wait(LONG).unwrap());
        meet(&mut socket);
        ends_well(child);
    });
}

#[test]
fn a_word_outside_of_what_the_device_reaches_is_refused() {
    passes(
        "a_word_outside_of_what_the_device_reaches_is_refused",
        &[],
        || {
            let (_, context) = context();
            let stream = Stream::new(&context).unwrap();
            let (host, pool) = (HostMemory::zeroed(4096), pinned(&context, 4096));
            // SAFETY: nothing is submitted.
            let refused =
                |memory: &dyn PlanMemory, at| unsafe { stream.wait_for_flag(memory, at, 1) }.unwrap_err();
            assert!(matches!(refused(&pool, 4093), DeviceError::Plan(_)));
            assert!(matches!(
                refused(&pool, 2),
                DeviceError::NotAligned { unit: 4, .. }
            ));
            assert!(matches!(refused(&host, 0), DeviceError::NotDeviceMemory { .. }));
            let frozen =
                PinnedMemory::register(&context, HostMemory::zeroed(4096).read_only(), 4096).unwrap();
            // SAFETY: as above.
            let written = unsafe { stream.set_flag(&frozen, 0, 1) };
            assert!(matches!(written, Err(DeviceError::Plan(_))));
        },
    );
}

#[test]
fn virtual_memory_in_several_chunks_is_mapped_as_one_range() {
    let test = "virtual_memory_in_several_chunks_is_mapped_as_one_range";
    let (offset, bytes) = (GRANULE + 4096, 2 * GRANULE + 77);
    if let Some(mut socket) = peer() {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let before = (live(), descriptors());
        let memory = receive_chunks(&socket).map(&context).unwrap();
        assert_eq!(memory.bytes(), bytes);
        assert_eq!((live()[1], live()[2], live()[4]), (3, 0, 1));
        // The handles are given back, and the descriptors are closed.
        assert!(read(&engine, &memory, 0, bytes as usize) == pattern(4, bytes as usize));
        write(&engine, &memory, GRANULE - 5, &pattern(5, 4097));
        drop(memory);
        assert_eq!((live(), descriptors()), before);
        meet(&mut socket);
        return;
    }
    passes(test, &[], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let before = (live(), descriptors());
        {
            // The first chunk is not the tensor's.
            let range = Virtual::new(&[GRANULE, GRANULE, GRANULE, GRANULE], true);
            let tensor = range.memory(&context, offset, bytes);
            write(&engine, &tensor, 0, &pattern(4, bytes as usize));
            let (child, mut socket) = with_peer(test, &[]);
            let exported = VmmMemory::export(&tensor).unwrap();
            assert_eq!(
                (exported.lead, exported.bytes, exported.chunks.len()),
                (4096, bytes, 3)
            );
            send_chunks(&mut socket, &exported);
            drop(exported);
            meet(&mut socket);
            ends_well(child);
            assert!(read(&engine, &tensor, GRANULE - 5, 4097) == pattern(5, 4097));
        }
        assert_eq!((live(), descriptors()), before);
    });
}

/// The client is killed while the server copies out of its memory: the bytes stay until the copy has ended.
#[test]
fn a_process_killed_under_a_copy_harms_nobody() {
    let test = "a_process_killed_under_a_copy_harms_nobody";
    if let Some(mut socket) = peer() {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let memory = DeviceMemory::allocate(&context, 65_536).unwrap();
        write(&engine, &memory, 0, &pattern(6, 65_536));
        send_memory(&mut socket, &IpcMemory::export(&memory).unwrap());
        let _ = receive::<1>(&mut socket);
        return;
    }
    passes(test, &[], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let imports = IpcImports::new(&context);
        let (mut child, mut socket) = with_peer(test, &[]);
        let memory = imports.open(&receive_memory(&mut socket)).unwrap();
        let host = HostMemory::zeroed(65_536);
        let pool = PinnedMemory::register(&context, host, PINNED_PIECE_BYTES).unwrap();
        let stream = Stream::new(&context).unwrap();
        faults("late=200");
        let mut plan = whole(0, 0, 4096);
        plan.push(Span::new(0, 8192), Span::new(0, 8192), 4096);
        let copying = engine
            .submit(&plan, &[&memory], &[&pool], &stream, SourceOrder::Stream)
            .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        drop(memory);
        assert_eq!(imports.allocations(), 1);
        assert!(copying.wait(LONG).unwrap());
        assert!(contents(pool.host())[..4096] == pattern(6, 65_536)[..4096]);
        drop(copying);
        assert_eq!(imports.allocations(), 0);
    });
}
