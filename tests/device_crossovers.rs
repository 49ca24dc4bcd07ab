//! Which way a piece is copied by its size, on the stand-in for `libcuda.so.1`: it says nothing about the times of a card.

mod device_support;

use device_support::*;
use kvasir::copy::Span;
use kvasir::device::*;

#[test]
fn each_direction_has_its_own_crossover() {
    passes("each_direction_has_its_own_crossover", &[], || {
        let (driver, context) = context();
        let crossovers = Crossovers {
            to_device: 100,
            to_host: 10_000,
        };
        let engine = DeviceCopyEngine::with_crossovers(driver, &context, crossovers);
        let (device, host) = (
            DeviceMemory::allocate(&context, 1 << 16).unwrap(),
            pinned(&context, 1 << 16),
        );
        let stream = Stream::new(&context).unwrap();
        let mut plan = whole(0, 0, 1000);
        plan.push(Span::new(0, 5000), Span::new(0, 8000), 1000);
        let copy = |src: &dyn PlanMemory, dst: &dyn PlanMemory| {
            let copying = engine
                .submit(&plan, &[src], &[dst], &stream, SourceOrder::Stream)
                .unwrap();
            assert!(copying.wait(LONG).unwrap());
            (engine.counts().batched_calls, engine.counts().plain_calls)
        };
        assert_eq!(copy(&host, &device), (0, 2));
        assert_eq!(copy(&device, &host), (1, 2));
    });
}

#[test]
fn crossovers_are_measured_in_bounded_memory_and_leave_nothing() {
    passes(
        "crossovers_are_measured_in_bounded_memory_and_leave_nothing",
        &[],
        || {
            let (driver, context) = context();
            let before = live();
            let found = measure(driver, &context).unwrap();
            for size in [found.to_device, found.to_host] {
                assert!((8 << 10..=2 << 20).contains(&size), "{found:?}");
            }
            assert_eq!(live(), before);
            // At least one size of either direction was tried in both ways, and none more often than three times.
            assert!(
                (2 * 3 * (1 + 4)..=2 * 6 * 3 * (1 + 128)).contains(&count(0)),
                "{}",
                count(0)
            );
            // No room: an error, and nothing is left.
            faults("out-of-memory");
            assert!(measure(driver, &context).is_err());
            faults("register-fails");
            assert!(measure(driver, &context).is_err());
            assert_eq!(live(), before);
        },
    );
}

#[test]
fn a_driver_without_batches_has_nothing_to_measure() {
    passes(
        "a_driver_without_batches_has_nothing_to_measure",
        &[("SOFTCUDA_VERSION", "12020")],
        || {
            let (driver, context) = context();
            assert_eq!(measure(driver, &context), Ok(Crossovers::both(0)));
            assert_eq!((count(0), count(4)), (0, 0));
        },
    );
}
