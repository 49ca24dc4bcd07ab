//! Device memory and events of another process, on the stand-in for `libcuda.so.1`: two processes and a socket.

#![allow(unsafe_code)]

mod device_support;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use device_support::*;
use kvasir::copy::{HostMemory, Span};
use kvasir::device::*;
use kvasir::shm::fdpass::{recv_with_fds, send_with_fds};
use kvasir::shm::{Mapping, Memfd, OwnerAccess, ReadWrite};

fn send(socket: &mut UnixStream, bytes: &[u8]) {
    socket.write_all(bytes).unwrap();
}

fn receive<const N: usize>(socket: &mut UnixStream) -> [u8; N] {
    let mut bytes = [0; N];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

/// Each side says so when it has come to a place, and waits for the other.
fn meet(socket: &mut UnixStream) {
    send(socket, b"!");
    assert_eq!(receive(socket), *b"!");
}

fn send_memory(socket: &mut UnixStream, memory: &IpcMemory) {
    send(socket, &memory.handle);
    send(socket, &memory.offset.to_le_bytes());
    send(socket, &memory.bytes.to_le_bytes());
}

fn receive_memory(socket: &mut UnixStream) -> IpcMemory {
    let handle = receive(socket);
    let offset = u64::from_le_bytes(receive(socket));
    IpcMemory {
        handle,
        offset,
        bytes: u64::from_le_bytes(receive(socket)),
    }
}

fn send_chunks(socket: &mut UnixStream, memory: &VmmMemory) {
    let mut bytes = Vec::new();
    for word in [memory.lead, memory.bytes, memory.chunks.len() as u64] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(memory.chunks.iter().flat_map(|chunk| chunk.bytes.to_le_bytes()));
    let fds: Vec<_> = memory.chunks.iter().map(|chunk| chunk.fd.as_fd()).collect();
    assert_eq!(send_with_fds(&*socket, &bytes, &fds).unwrap(), bytes.len());
}

fn receive_chunks(socket: &UnixStream) -> VmmMemory {
    let mut bytes = [0; 256];
    let received = recv_with_fds(socket, &mut bytes, 4).unwrap();
    let word = |index: usize| u64::from_le_bytes(bytes[8 * index..8 * index + 8].try_into().unwrap());
    assert_eq!(word(2), received.fds.len() as u64);
    let chunks = received.fds.into_iter().enumerate();
    let chunks = chunks
        .map(|(index, fd)| VmmChunk {
            bytes: word(3 + index),
            fd,
        })
        .collect();
    VmmMemory {
        lead: word(0),
        bytes: word(1),
        chunks,
    }
}

/// Descriptors that this process has open.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

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
fn a_handle_of_a_process_that_has_died_opens_nothing() {
    let test = "a_handle_of_a_process_that_has_died_opens_nothing";
    if let Some(mut socket) = peer() {
        let (_, context) = context();
        let memory = DeviceMemory::allocate(&context, 4096).unwrap();
        send_memory(&mut socket, &IpcMemory::export(&memory).unwrap());
        let event = Event::shareable(&context).unwrap();
        send(&mut socket, &event.export().unwrap().0);
        std::process::abort();
    }
    passes(test, &[], || {
        let (_, context) = context();
        let (mut child, mut socket) = with_peer(test, &[]);
        let (memory, event) = (receive_memory(&mut socket), EventHandle(receive(&mut socket)));
        assert!(!child.wait().unwrap().success());
        let before = (live(), descriptors());
        let imports = IpcImports::new(&context);
        let garbage = IpcMemory {
            handle: [0xEE; 64],
            ..memory
        };
        for memory in [memory, garbage] {
            let error = imports.open(&memory).unwrap_err();
            assert!(
                matches!(
                    &error,
                    DeviceError::Driver {
                        call: "cuIpcOpenMemHandle_v2",
                        ..
                    }
                ),
                "{error}"
            );
            assert!(
                error.to_string().contains(&context.device().uuid.to_string()),
                "{error}"
            );
        }
        assert!(Event::open(&context, &event).is_err());
        assert_eq!((imports.allocations(), (live(), descriptors())), (0, before));
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

#[test]
fn what_cannot_be_exported_one_way_says_which_way_is_left() {
    passes(
        "what_cannot_be_exported_one_way_says_which_way_is_left",
        &[],
        || {
            let (_, context) = context();
            let plain = DeviceMemory::allocate(&context, 4096).unwrap();
            let (range, private) = (Virtual::new(&[GRANULE], true), Virtual::new(&[GRANULE], false));
            let before = (live(), descriptors());
            let error = VmmMemory::export(&plain).unwrap_err();
            assert!(
                matches!(
                    &error,
                    DeviceError::NotExportable {
                        way: "descriptors",
                        ..
                    }
                ),
                "{error}"
            );
            assert!(error.to_string().contains("legacy handle"), "{error}");
            let error = IpcMemory::export(&range.memory(&context, 0, 64)).unwrap_err();
            assert!(
                matches!(
                    &error,
                    DeviceError::NotExportable {
                        way: "a legacy handle",
                        ..
                    }
                ),
                "{error}"
            );
            assert!(error.to_string().contains("needs descriptors"), "{error}");
            let error = VmmMemory::export(&private.memory(&context, 0, 64)).unwrap_err();
            assert!(
                error.to_string().contains("did not ask for descriptors"),
                "{error}"
            );
            faults("export-not-offered");
            assert!(VmmMemory::export(&range.memory(&context, 0, 64)).is_err());
            assert!(IpcMemory::export(&plain).is_err());
            assert!(Event::shareable(&context).unwrap().export().is_err());
            assert_eq!((live(), descriptors()), before);
        },
    );
}

#[test]
fn chunks_that_cannot_be_true_map_nothing() {
    passes("chunks_that_cannot_be_true_map_nothing", &[], || {
        let (_, context) = context();
        let range = Virtual::new(&[GRANULE, GRANULE], true);
        let tensor = range.memory(&context, 0, 2 * GRANULE);
        let export = || VmmMemory::export(&tensor).unwrap();
        let before = (live(), descriptors());
        let refused = |change: &dyn Fn(&mut VmmMemory)| {
            let mut memory = export();
            change(&mut memory);
            let error = memory.map(&context).unwrap_err();
            assert_eq!((live(), descriptors()), before, "{error}");
            error
        };
        let bad = |error: &DeviceError| matches!(error, DeviceError::BadImport { .. });
        let error = refused(&|memory| memory.chunks[1].bytes = 4096);
        assert!(
            bad(&error) && error.to_string().contains("4096 bytes is no multiple of 2097152"),
            "{error}"
        );
        assert!(bad(&refused(&|memory| memory.chunks[1].bytes = 0)));
        assert!(bad(&refused(&|memory| memory.chunks.clear())));
        let error = refused(&|memory| memory.chunks[0].bytes = 1 << 40);
        assert!(
            bad(&error) && error.to_string().contains("1099513724928"),
            "{error}"
        );
        assert!(bad(&refused(&|memory| memory
            .chunks
            .iter_mut()
            .for_each(|c| c.bytes = !(GRANULE - 1)))));
        for (lead, bytes) in [(2 * GRANULE, 1), (1, 2 * GRANULE), (u64::MAX, 2), (0, 0)] {
            let error = refused(&|memory| (memory.lead, memory.bytes) = (lead, bytes));
            assert!(matches!(&error, DeviceError::OutsideAllocation { .. }), "{error}");
        }
        // More than the allocation has: the driver says so, at the second chunk, and the first is unmapped.
        let error = refused(&|memory| memory.chunks[1].bytes = 2 * GRANULE);
        assert!(
            error.to_string().contains("cuMemMap") && error.to_string().contains("allocation 1"),
            "{error}"
        );
        // Descriptors that are no memory of a device.
        let others: [fn() -> OwnedFd; 3] = [
            || fs::File::open("/dev/null").unwrap().into(),
            || UnixStream::pair().unwrap().0.into(),
            || {
                Memfd::create("test", 4 << 20, OwnerAccess::ReadWrite)
                    .unwrap()
                    .into()
            },
        ];
        for other in others {
            let error = refused(&|memory| memory.chunks[1].fd = other());
            assert!(
                error.to_string().contains("cuMemImportFromShareableHandle"),
                "{error}"
            );
        }
        assert!(export().map(&context).is_ok());
    });
}

#[test]
fn an_import_that_is_refused_leaves_nothing() {
    let test = "an_import_that_is_refused_leaves_nothing";
    if let Some(mut socket) = peer() {
        let (_, context) = context();
        let before = (live(), descriptors());
        let imports = IpcImports::new(&context);
        faults("import-refused");
        let (memory, event) = (receive_memory(&mut socket), EventHandle(receive(&mut socket)));
        let error = imports.open(&memory).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_NOT_PERMITTED"), "{error}");
        assert!(Event::open(&context, &event).is_err());
        // At the second chunk: the first one is given back too.
        faults("import-refused@2");
        send(&mut socket, b"!");
        let error = receive_chunks(&socket).map(&context).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_NOT_PERMITTED"), "{error}");
        assert_eq!((imports.allocations(), (live(), descriptors())), (0, before));
        // Nothing of it stays: the next try succeeds.
        assert!(imports.open(&memory).is_ok());
        meet(&mut socket);
        return;
    }
    passes(test, &[], || {
        let (_, context) = context();
        let memory = DeviceMemory::allocate(&context, 4096).unwrap();
        let event = Event::shareable(&context).unwrap();
        let range = Virtual::new(&[GRANULE, GRANULE], true);
        let (child, mut socket) = with_peer(test, &[]);
        send_memory(&mut socket, &IpcMemory::export(&memory).unwrap());
        send(&mut socket, &event.export().unwrap().0);
        assert_eq!(receive(&mut socket), *b"!");
        send_chunks(
            &mut socket,
            &VmmMemory::export(&range.memory(&context, 0, 2 * GRANULE)).unwrap(),
        );
        meet(&mut socket);
        ends_well(child);
    });
}

#[test]
fn memory_of_another_device_is_not_imported_here() {
    let test = "memory_of_another_device_is_not_imported_here";
    if let Some(mut socket) = peer() {
        let (_, second) = context_on(1);
        let before = (live(), descriptors());
        let memory = receive_memory(&mut socket);
        assert!(IpcImports::new(&second).open(&memory).is_err());
        send(&mut socket, b"!");
        let error = receive_chunks(&socket).map(&second).unwrap_err();
        assert!(matches!(&error, DeviceError::OtherDevice { .. }), "{error}");
        assert_eq!((live(), descriptors()), before);
        meet(&mut socket);
        return;
    }
    passes(test, &[("SOFTCUDA_DEVICES", "2")], || {
        let (_, context) = context();
        let memory = DeviceMemory::allocate(&context, 4096).unwrap();
        let range = Virtual::new(&[GRANULE], true);
        let (child, mut socket) = with_peer(test, &[]);
        send_memory(&mut socket, &IpcMemory::export(&memory).unwrap());
        assert_eq!(receive(&mut socket), *b"!");
        send_chunks(
            &mut socket,
            &VmmMemory::export(&range.memory(&context, 0, GRANULE)).unwrap(),
        );
        meet(&mut socket);
        ends_well(child);
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
