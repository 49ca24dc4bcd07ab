//! Device memory that cannot be exported or imported, on the stand-in for `libcuda.so.1`: an error, and nothing left.

mod device_support;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use device_support::messages::*;
use device_support::*;
use kvasir::device::*;
use kvasir::shm::{Memfd, OwnerAccess};

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
        // Memory of the host, whose number is that of the device: at the second chunk.
        faults("host-place@2");
        let error = refused(&|_| {});
        assert!(
            bad(&error)
                && error
                    .to_string()
                    .contains("type 3 (number 0), which is no device"),
            "{error}"
        );
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
