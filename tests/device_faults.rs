//! Copies of device memory that are late, refused, lost or never end, on the stand-in for `libcuda.so.1`.

mod device_support;

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use device_support::*;
use kvasir::copy::{HostMemory, Span};
use kvasir::device::*;

#[test]
fn a_copy_that_is_late_keeps_its_memory_until_it_has_ended() {
    passes(
        "a_copy_that_is_late_keeps_its_memory_until_it_has_ended",
        &[("SOFTCUDA_FAULTS", "late=20")],
        || {
            let (driver, context) = context();
            let engine = DeviceCopyEngine::new(driver, &context);
            let stream = Stream::new(&context).unwrap();
            let (device, host) = (
                DeviceMemory::allocate(&context, 4096).unwrap(),
                pinned(&context, 4096),
            );
            let gate = Gate::new(&context);
            gate.hold(&stream);
            let copying = engine
                .submit(
                    &whole(0, 0, 4096),
                    &[&host],
                    &[&device],
                    &stream,
                    SourceOrder::Stream,
                )
                .unwrap();
            assert!(!copying.wait(Duration::from_millis(5)).unwrap());
            // The engine gives up on it, and on its memory. Freed now, the stand-in would end the process at the copy.
            drop((copying, device, host));
            assert_eq!((engine.quarantined_bytes(), count(4), count(6)), (4096, 1, 2));
            gate.open();
            while engine.quarantined_bytes() > 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!((count(4), count(6)), (0, 1));
        },
    );
}

#[test]
fn a_copy_that_never_ends_keeps_its_memory_and_stops_nobody() {
    passes(
        "a_copy_that_never_ends_keeps_its_memory_and_stops_nobody",
        &[("SOFTCUDA_FAULTS", "never@1")],
        || {
            let (driver, context) = context();
            let engine = DeviceCopyEngine::new(driver, &context);
            let (stuck, free) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
            let (device, host) = (
                DeviceMemory::allocate(&context, 64).unwrap(),
                pinned(&context, 4096),
            );
            let copying = engine
                .submit(
                    &whole(0, 0, 64),
                    &[&host],
                    &[&device],
                    &stuck,
                    SourceOrder::Stream,
                )
                .unwrap();
            drop((copying, device, host));
            let (device, host) = (
                DeviceMemory::allocate(&context, 64).unwrap(),
                pinned(&context, 4096),
            );
            host.host().write(0, &pattern(9, 64)).unwrap();
            let other = engine
                .submit(&whole(0, 0, 64), &[&host], &[&device], &free, SourceOrder::Any)
                .unwrap();
            assert!(other.wait(LONG).unwrap());
            drop(other);
            assert_eq!((engine.quarantined_bytes(), count(4), count(6)), (64, 2, 2));
            // Also when the engine goes: the copy could still write.
            drop(engine);
            assert_eq!((count(4), count(6)), (2, 2));
        },
    );
}

#[test]
fn a_copy_that_fails_is_an_error_and_not_bytes() {
    passes(
        "a_copy_that_fails_is_an_error_and_not_bytes",
        &[("SOFTCUDA_FAULTS", "copy-error@1")],
        || {
            let (driver, context) = context();
            let engine = DeviceCopyEngine::new(driver, &context);
            let stream = Stream::new(&context).unwrap();
            let (device, host) = (
                DeviceMemory::allocate(&context, 64).unwrap(),
                pinned(&context, 4096),
            );
            let gate = Gate::new(&context);
            gate.hold(&stream);
            let copying = engine
                .submit(
                    &whole(0, 0, 64),
                    &[&device],
                    &[&host],
                    &stream,
                    SourceOrder::Stream,
                )
                .unwrap();
            gate.open();
            let error = copying.wait(LONG).unwrap_err();
            assert!(
                error.is_lost() && error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"),
                "{error}"
            );
            drop(copying);
            assert_eq!(engine.quarantined_bytes(), 64);
        },
    );
}

#[test]
fn a_copy_that_is_refused_holds_nothing() {
    passes(
        "a_copy_that_is_refused_holds_nothing",
        &[("SOFTCUDA_FAULTS", "submit-error@1")],
        || {
            let (driver, context) = context();
            let engine = DeviceCopyEngine::new(driver, &context);
            let stream = Stream::new(&context).unwrap();
            let (device, host) = (
                DeviceMemory::allocate(&context, 64).unwrap(),
                pinned(&context, 4096),
            );
            let plan = whole(0, 0, 64);
            let submit = || engine.submit(&plan, &[&host], &[&device], &stream, SourceOrder::Any);
            let error = submit().unwrap_err();
            assert!(
                error.to_string().contains("CUDA_ERROR_INVALID_VALUE") && !error.is_lost(),
                "{error}"
            );
            while engine.quarantined_bytes() > 0 {
                std::thread::yield_now();
            }
            assert_eq!(engine.counts().bytes, 0);
            assert!(submit().unwrap().wait(LONG).unwrap());
        },
    );
}

#[test]
fn a_plan_that_is_half_submitted_keeps_its_memory_until_that_has_ended() {
    let name = "a_plan_that_is_half_submitted_keeps_its_memory_until_that_has_ended";
    passes(name, &[("SOFTCUDA_FAULTS", "submit-error@2")], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::with_crossovers(driver, &context, Crossovers::both(1));
        let stream = Stream::new(&context).unwrap();
        let (device, host) = (
            DeviceMemory::allocate(&context, 64).unwrap(),
            pinned(&context, 4096),
        );
        let gate = Gate::new(&context);
        gate.hold(&stream);
        let mut plan = whole(0, 0, 8);
        plan.push(Span::new(0, 16), Span::new(0, 32), 8);
        assert!(
            engine
                .submit(&plan, &[&host], &[&device], &stream, SourceOrder::Any)
                .is_err()
        );
        drop((device, host));
        assert_eq!((engine.quarantined_bytes(), count(4), count(6)), (16, 1, 2));
        gate.open();
        while engine.quarantined_bytes() > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!((count(4), count(6)), (0, 1));
    });
}

/// Memory whose end asks the engine that kept it.
struct Asks(DeviceCopyEngine, mpsc::Sender<u64>);

impl Drop for Asks {
    fn drop(&mut self) {
        let _ = self.1.send(self.0.quarantined_bytes());
    }
}

#[test]
fn what_an_ended_copy_kept_goes_while_the_engine_can_be_asked() {
    passes(
        "what_an_ended_copy_kept_goes_while_the_engine_can_be_asked",
        &[],
        || {
            let (driver, context) = context();
            let engine = DeviceCopyEngine::new(driver, &context);
            let (stream, gate) = (Stream::new(&context).unwrap(), Gate::new(&context));
            let device = DeviceMemory::allocate(&context, 4096).unwrap();
            let (ask, asked) = mpsc::channel();
            let host = HostMemory::zeroed(4096).keeping(Arc::new(Asks(engine.clone(), ask)));
            let host = PinnedMemory::register(&context, host, PINNED_PIECE_BYTES).unwrap();
            gate.hold(&stream);
            let copying = engine
                .submit(
                    &whole(0, 0, 4096),
                    &[&host],
                    &[&device],
                    &stream,
                    SourceOrder::Any,
                )
                .unwrap();
            drop((copying, host));
            assert_eq!(engine.quarantined_bytes(), 4096);
            gate.open();
            let sweeper = thread::spawn(move || {
                while engine.quarantined_bytes() != 0 {
                    thread::yield_now();
                }
            });
            assert_eq!(asked.recv_timeout(LONG), Ok(0), "whoever asks waits for itself");
            sweeper.join().unwrap();
        },
    );
}
