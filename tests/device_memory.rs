//! The driver, its devices, and memory that a copy plan may name, on the stand-in for `libcuda.so.1`.

#![allow(unsafe_code)]

mod device_support;

use std::time::Instant;

use device_support::*;
use kvasir::copy::{CopyError, HostMemory, Side, Span};
use kvasir::device::*;

#[test]
fn without_a_driver_the_error_says_so_and_nothing_else_happens() {
    passes_without(
        "without_a_driver_the_error_says_so_and_nothing_else_happens",
        || {
            let error = Driver::load().unwrap_err();
            assert_eq!(error, DeviceError::NoDriver);
            assert!(error.to_string().contains("libcuda.so.1"), "{error}");
        },
    );
}

#[test]
fn a_child_forked_after_the_driver_was_loaded_is_told_so_and_waits_for_nobody() {
    passes(
        "a_child_forked_after_the_driver_was_loaded_is_told_so_and_waits_for_nobody",
        &[],
        || {
            Driver::load().unwrap();
            let loader = std::process::id();
            // SAFETY: the child asks a word and ends by `_exit`.
            let child = unsafe { nix::libc::fork() };
            if child == 0 {
                let forked = Driver::load().err() == Some(DeviceError::Forked { loader });
                // SAFETY: as above.
                unsafe { nix::libc::_exit(i32::from(!forked)) };
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            assert_eq!(unsafe { nix::libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
            assert!(Driver::load().is_ok());
        },
    );
}

#[test]
fn nothing_makes_a_context_before_one_is_retained() {
    passes(
        "nothing_makes_a_context_before_one_is_retained",
        &[("SOFTCUDA_DEVICES", "2")],
        || {
            let driver = Driver::load().unwrap();
            let devices = visible(driver).unwrap();
            assert_eq!(devices.len(), 2);
            assert_eq!(find(driver, devices[1].uuid).unwrap(), devices[1]);
            assert_eq!((devices[1].memory_bytes, devices[1].descriptors), (1 << 30, true));
            assert_eq!((count(2), live()), (0, [0; 7]));
            let first = Context::retain(&devices[1]).unwrap();
            let second = Context::retain(&devices[1]).unwrap();
            assert!(first.is_same(&second));
            assert_eq!((count(2), count(3)), (1, 1));
            drop((first, second));
            assert_eq!(live(), [0; 7]);
        },
    );
}

#[test]
fn an_unknown_uuid_lists_those_that_are_visible() {
    passes(
        "an_unknown_uuid_lists_those_that_are_visible",
        &[("SOFTCUDA_DEVICES", "2")],
        || {
            let driver = Driver::load().unwrap();
            let error = find(driver, DeviceUuid([7; 16])).unwrap_err().to_string();
            for device in visible(driver).unwrap() {
                assert!(error.contains(&device.uuid.to_string()), "{error}");
            }
            assert!(
                error.contains("GPU-07070707-0707-0707-0707-070707070707"),
                "{error}"
            );
        },
    );
}

#[test]
fn a_uuid_of_two_devices_names_none() {
    passes(
        "a_uuid_of_two_devices_names_none",
        &[("SOFTCUDA_DEVICES", "3"), ("SOFTCUDA_SAME_UUID", "1")],
        || {
            let driver = Driver::load().unwrap();
            let uuid = visible(driver).unwrap()[0].uuid;
            assert_eq!(
                find(driver, uuid),
                Err(DeviceError::AmbiguousDevice { uuid, count: 3 })
            );
        },
    );
}

#[test]
fn a_driver_without_devices_says_so() {
    passes(
        "a_driver_without_devices_says_so",
        &[("SOFTCUDA_DEVICES", "0")],
        || {
            let error = Driver::load().unwrap_err().to_string();
            assert!(
                error.contains("cuInit") && error.contains("CUDA_ERROR_NO_DEVICE"),
                "{error}"
            );
        },
    );
}

#[test]
fn a_driver_that_is_too_old_is_refused_with_its_version() {
    passes(
        "a_driver_that_is_too_old_is_refused_with_its_version",
        &[("SOFTCUDA_VERSION", "11040")],
        || {
            let error = Driver::load().unwrap_err();
            assert!(
                matches!(
                    error,
                    DeviceError::DriverTooOld {
                        version: 11_040,
                        needed: 12_000,
                        ..
                    }
                ),
                "{error}"
            );
        },
    );
}

/// One kind of memory of 3 granules, and how its bytes are written and read without a plan that names it.
struct Kind<'a> {
    name: &'a str,
    memory: &'a dyn PlanMemory,
}

/// What holds for everything that a plan may name.
fn conforms(engine: &DeviceCopyEngine, context: &Context, kind: &Kind<'_>, seed: u64) {
    let Kind { name, memory } = kind;
    let bytes = memory.bytes();
    assert_eq!(bytes, 3 * GRANULE, "{name}");

    // A range inside of it, up to its end, and of no bytes at its end is taken; one past it is refused with the numbers.
    for (offset, len) in [(0, bytes), (bytes - 1, 1), (bytes, 0), (17, 4097)] {
        assert_eq!(
            memory.check(Side::Source, 3, Span::new(1, offset), len),
            Ok(()),
            "{name}"
        );
    }
    for (offset, len) in [(0, bytes + 1), (bytes, 1), (u64::MAX, 2), (1, u64::MAX)] {
        let (piece, side, region, region_len) = (3, Side::Source, 1, bytes);
        let wanted = CopyError::OutOfBounds {
            piece,
            side,
            region,
            offset,
            len,
            region_len,
        };
        assert_eq!(
            memory.check(side, piece, Span::new(1, offset), len),
            Err(wanted),
            "{name}"
        );
    }
    let write_check = memory.check(Side::Destination, 2, Span::new(0, 0), 1);
    match memory.is_writable() {
        true => assert_eq!(write_check, Ok(()), "{name}"),
        false => assert_eq!(
            write_check,
            Err(CopyError::ReadOnly { piece: 2, region: 0 }),
            "{name}"
        ),
    }

    // Runs are not empty before the end, end with it, and one follows the other.
    let mut at = 0;
    while at < bytes {
        let run = memory.run(at);
        assert!(run > 0 && at + run <= bytes, "{name}: {run} at {at}");
        if run > 1 {
            assert_eq!(memory.run(at + 1), run - 1, "{name}");
        }
        at += run;
    }
    assert_eq!(memory.run(bytes), 0, "{name}");

    // A plan moves exactly its bytes, also over the ends of runs, whichever the size of the pieces.
    if !memory.is_writable() {
        let plan = whole(0, 0, 1);
        let stream = Stream::new(context).unwrap();
        let host = HostMemory::zeroed(8);
        let refused = engine
            .submit(&plan, &[&host], &[*memory], &stream, SourceOrder::Any)
            .unwrap_err();
        assert_eq!(
            refused,
            DeviceError::Plan(CopyError::ReadOnly { piece: 0, region: 0 }),
            "{name}"
        );
        return;
    }
    let mut expected = pattern(seed, bytes as usize);
    write(engine, *memory, 0, &expected);
    for (index, (offset, len)) in [
        (0, 1),
        (GRANULE - 5, 17),
        (2 * GRANULE - 300, 656),
        (bytes - 4097, 4097),
    ]
    .into_iter()
    .enumerate()
    {
        let piece = pattern(seed + 1 + index as u64, len as usize);
        write(engine, *memory, offset, &piece);
        expected[offset as usize..(offset + len) as usize].copy_from_slice(&piece);
        assert_eq!(read(engine, *memory, offset, len as usize), piece, "{name}");
    }
    assert!(read(engine, *memory, 0, bytes as usize) == expected, "{name}");

    // What is kept outlives the handle that it came from: `kept_memory_outlives_its_handles` looks at that.
    drop(memory.keep());
}

#[test]
fn all_memory_that_a_plan_may_name_conforms() {
    passes("all_memory_that_a_plan_may_name_conforms", &[], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let bytes = 3 * GRANULE;
        let host = || HostMemory::zeroed(bytes as usize);
        let register = |host, piece| PinnedMemory::register(&context, host, piece).unwrap();
        {
            let allocated = DeviceMemory::allocate(&context, bytes).unwrap();
            let range = Virtual::new(&[GRANULE, 2 * GRANULE, GRANULE], true);
            let (one, many) = (register(host(), PINNED_PIECE_BYTES), register(host(), GRANULE));
            assert_eq!((one.pieces(), many.pieces()), (1, 3));
            let (plain, tensor) = (host(), range.memory(&context, 100, bytes));
            let frozen = (
                host().read_only(),
                allocated.clone().read_only(),
                register(host().read_only(), GRANULE),
            );
            let all: [(&str, &dyn PlanMemory); 8] = [
                ("host", &plain),
                ("registered", &one),
                ("registered in pieces", &many),
                ("device", &allocated),
                ("device, virtual, in pieces", &tensor),
                ("host, read-only", &frozen.0),
                ("device, read-only", &frozen.1),
                ("registered, read-only", &frozen.2),
            ];
            for (seed, (name, memory)) in all.into_iter().enumerate() {
                conforms(&engine, &context, &Kind { name, memory }, 1000 * seed as u64);
            }
        }
        drop(engine);
        assert_eq!(live(), [1, 0, 0, 0, 0, 0, 0]);
    });
}

#[test]
fn kept_memory_outlives_its_handles() {
    passes("kept_memory_outlives_its_handles", &[], || {
        let (_, context) = context();
        let device = DeviceMemory::allocate(&context, 64).unwrap();
        let pinned = pinned(&context, 4096);
        let kept = [PlanMemory::keep(&device), PlanMemory::keep(&pinned)];
        drop((device, pinned));
        assert_eq!((count(4), count(6)), (1, 1));
        drop(kept);
        assert_eq!((count(4), count(6)), (0, 0));
    });
}

#[test]
fn a_pointer_is_checked_before_it_is_memory() {
    passes(
        "a_pointer_is_checked_before_it_is_memory",
        &[("SOFTCUDA_DEVICES", "2")],
        || {
            let ((_, first), (_, second)) = (context_on(0), context_on(1));
            // SAFETY: what it is given is refused, and not used else.
            let of_engine = |context: &Context, address, bytes| unsafe {
                DeviceMemory::of_engine(context, address, bytes)
            };
            let host = HostMemory::zeroed(4096);
            let address = PlanMemory::address(&host);
            let refused = |result: Result<DeviceMemory, DeviceError>| result.unwrap_err();
            assert_eq!(
                refused(of_engine(&first, address, 16)),
                DeviceError::NotDeviceMemory { address }
            );
            let memory = DeviceMemory::allocate(&first, 8192).unwrap();
            let address = memory.address();
            assert!(of_engine(&first, address + 4096, 4096).is_ok());
            let (offset, bytes, allocation) = (0, 8193, 8192);
            let wanted = DeviceError::OutsideAllocation {
                offset,
                bytes,
                allocation,
            };
            assert_eq!(refused(of_engine(&first, address, 8193)), wanted);
            assert!(matches!(
                refused(of_engine(&first, address, u64::MAX)),
                DeviceError::NotDeviceMemory { .. }
            ));
            let error = refused(of_engine(&second, address, 16));
            assert!(matches!(&error, DeviceError::OtherDevice { .. }), "{error}");
            assert!(
                error.to_string().contains(&second.device().uuid.to_string()),
                "{error}"
            );
        },
    );
}

#[test]
fn no_memory_left_is_an_error_with_the_numbers() {
    passes(
        "no_memory_left_is_an_error_with_the_numbers",
        &[("SOFTCUDA_MEMORY", "65536")],
        || {
            let (_, context) = context();
            let held = DeviceMemory::allocate(&context, 65536).unwrap();
            let error = DeviceMemory::allocate(&context, 1).unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains("CUDA_ERROR_OUT_OF_MEMORY (2) for 1 bytes"),
                "{error}"
            );
            assert!(!error.is_lost());
            drop(held);
            assert!(DeviceMemory::allocate(&context, 1).is_ok());
        },
    );
}

#[test]
fn a_piece_that_fails_undoes_the_ones_before_it() {
    passes("a_piece_that_fails_undoes_the_ones_before_it", &[], || {
        let (_, context) = context();
        let pieces = 5;
        for failing in 1..=pieces {
            faults(&format!("register-fails@{failing}"));
            let host = HostMemory::zeroed(pieces * 4096 - 1);
            let error = PinnedMemory::register(&context, host.clone(), 4096).unwrap_err();
            let DeviceError::Registration {
                piece,
                pieces: all,
                offset,
                bytes,
                undone,
                ..
            } = &error
            else {
                panic!("{error}");
            };
            assert_eq!(
                (*piece, *all, *offset, *undone),
                (failing, pieces, 4096 * (failing as u64 - 1), failing - 1)
            );
            assert_eq!(*bytes, if failing == pieces { 4095 } else { 4096 });
            assert!(error.to_string().contains("ulimit -l"), "{error}");
            assert_eq!(count(6), 0);
            // The last one first, each time.
            assert_eq!(count(10), 0);
            // Nothing of it is in the way of another try.
            assert_eq!(
                PinnedMemory::register(&context, host, 4096).unwrap().pieces(),
                pieces
            );
            assert_eq!(count(6), 0);
        }
    });
}

#[test]
fn the_drivers_limit_is_an_error_and_not_a_half() {
    passes(
        "the_drivers_limit_is_an_error_and_not_a_half",
        &[("SOFTCUDA_REGISTER_LIMIT", "8192")],
        || {
            let (_, context) = context();
            let error = PinnedMemory::register(&context, HostMemory::zeroed(3 * 4096), 4096).unwrap_err();
            assert!(
                matches!(
                    error,
                    DeviceError::Registration {
                        piece: 3,
                        undone: 2,
                        ..
                    }
                ),
                "{error}"
            );
            assert_eq!(count(6), 0);
            let uneven = PinnedMemory::register(&context, HostMemory::zeroed(4096), 1000).unwrap_err();
            assert!(
                matches!(
                    uneven,
                    DeviceError::NotAligned {
                        value: 1000,
                        unit: 4096,
                        ..
                    }
                ),
                "{uneven}"
            );
        },
    );
}

#[test]
fn memory_is_registered_in_the_background_and_given_up_whole() {
    passes(
        "memory_is_registered_in_the_background_and_given_up_whole",
        &[],
        || {
            let (_, context) = context();
            let start = |bytes| {
                PinnedMemory::register_in_background(&context, HostMemory::zeroed(bytes), 4096).unwrap()
            };
            let finish = |registering: &mut Registering| {
                let started = Instant::now();
                loop {
                    if let Some(result) = registering.take() {
                        return result;
                    }
                    assert!(started.elapsed() < LONG);
                    std::thread::yield_now();
                }
            };
            let mut registering = start(16 * 4096);
            let memory = finish(&mut registering).unwrap();
            assert_eq!((memory.pieces(), registering.pieces(), count(6)), (16, 16, 16));
            assert!(registering.take().is_none());
            drop(memory);
            assert_eq!(count(6), 0);
            // Given up at some piece, or done before that: whole either way.
            let mut registering = start(20_000 * 4096);
            while registering.pieces() == 0 {
                std::thread::yield_now();
            }
            registering.stop();
            match finish(&mut registering) {
                Err(DeviceError::GivenUp { pieces }) => assert!((1..20_000).contains(&pieces)),
                other => drop(other.unwrap()),
            }
            assert_eq!(count(6), 0);
        },
    );
}

#[test]
fn a_lost_device_is_told_from_other_failures() {
    passes("a_lost_device_is_told_from_other_failures", &[], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let (device, host) = (
            DeviceMemory::allocate(&context, 4096).unwrap(),
            pinned(&context, 4096),
        );
        let stream = Stream::new(&context).unwrap();
        let copying = engine
            .submit(
                &whole(0, 0, 4096),
                &[&host],
                &[&device],
                &stream,
                SourceOrder::Any,
            )
            .unwrap();
        faults("lost");
        assert!(copying.is_done().unwrap_err().is_lost());
        let error = engine
            .submit(&whole(0, 0, 1), &[&host], &[&device], &stream, SourceOrder::Any)
            .unwrap_err();
        assert!(error.is_lost(), "{error}");
        assert!(DeviceMemory::allocate(&context, 1).unwrap_err().is_lost());
        // Whether the copies have ended cannot be known: their memory stays.
        drop(copying);
        assert!(engine.quarantined_bytes() >= 4096);
    });
}
