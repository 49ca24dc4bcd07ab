//! What an engine registers of its device memory, and what is refused: by segment, device and numbers, with nothing left.

#![allow(unsafe_code)]

mod device_support;

use device_support::*;
use kvasir::copy::HostMemory;
use kvasir::device::*;

fn segment(name: &str, device: DeviceUuid, address: u64, bytes: u64) -> EngineSegment {
    EngineSegment {
        name: name.into(),
        device,
        address,
        bytes,
    }
}

fn open(segments: &[EngineSegment]) -> Result<EngineMemory, DeviceError> {
    // SAFETY: what is opened goes before the memory of the test; what is refused is not touched.
    unsafe { EngineMemory::open(segments, None) }
}

/// The refusal of the segment at a place, with all that it names.
fn refused(segments: &[EngineSegment], at: usize) -> DeviceError {
    let before = live();
    let error = open(segments).unwrap_err();
    assert_eq!(live(), before, "something is left after: {error}");
    let text = error.to_string();
    let DeviceError::Segment {
        segment,
        name,
        device,
        address,
        bytes,
        reason,
    } = error
    else {
        panic!("{text}");
    };
    let named = &segments[at];
    assert_eq!(
        (segment, &name, device, address, bytes),
        (at, &named.name, named.device, named.address, named.bytes)
    );
    for part in [
        format!("`{name}`"),
        format!("{bytes} bytes at {address:#x}"),
        device.to_string(),
    ] {
        assert!(text.contains(&part), "{part} is not in: {text}");
    }
    *reason
}

#[test]
fn segments_may_begin_anywhere_and_lie_in_several_allocations() {
    let name = "segments_may_begin_anywhere_and_lie_in_several_allocations";
    passes(name, &[], || {
        let (_, context) = context();
        let uuid = context.device().uuid;
        let plain = DeviceMemory::allocate(&context, 1 << 20).unwrap();
        let range = Virtual::new(&[GRANULE, 2 * GRANULE], true);
        let before = live();
        let opened = open(&[
            segment("layer.0", uuid, plain.address() + 17, 1000),
            segment("layer.1", uuid, range.address + GRANULE - 5, 10),
            segment("layer.2", uuid, plain.address() + 1017, 1),
        ])
        .unwrap();
        let bytes: Vec<u64> = opened.segments().iter().map(PlanMemory::bytes).collect();
        assert_eq!((bytes, opened.stream().is_none()), (vec![1000, 10, 1], true));
        assert!(
            opened.context().is_same(&context),
            "the primary one, as engines use"
        );
        assert_eq!(live(), before, "nothing is made or held by it");
    });
}

#[test]
fn what_is_no_memory_of_the_device_is_refused_by_name() {
    let name = "what_is_no_memory_of_the_device_is_refused_by_name";
    passes(name, &[("SOFTCUDA_DEVICES", "2")], || {
        let ((_, first), (_, second)) = (context_on(0), context_on(1));
        let (here, there) = (first.device().uuid, second.device().uuid);
        let mine = DeviceMemory::allocate(&first, 4096).unwrap();
        let other = DeviceMemory::allocate(&second, 4096).unwrap();
        let host = HostMemory::zeroed(4096);
        let host = PlanMemory::address(&host);
        let good = segment("good", here, mine.address(), 4096);
        let bad = |device, address, bytes| [good.clone(), segment("bad", device, address, bytes)];

        assert_eq!(
            refused(&bad(here, host, 64), 1),
            DeviceError::NotDeviceMemory { address: host }
        );
        assert_eq!(
            refused(&bad(here, u64::MAX - 1, 64), 1),
            DeviceError::NotDeviceMemory {
                address: u64::MAX - 1
            }
        );
        let outside = DeviceError::OutsideAllocation {
            offset: 0,
            bytes: 4096,
            allocation: 4095,
        };
        assert_eq!(
            refused(&[segment("bad", here, mine.address() + 1, 4096)], 0),
            outside
        );
        assert_eq!(refused(&bad(here, mine.address(), 0), 1), DeviceError::NoBytes);
        // On another device than it says, and on another than the first.
        assert!(matches!(
            refused(&bad(here, other.address(), 64), 1),
            DeviceError::OtherDevice { wanted, .. } if wanted == here
        ));
        assert!(matches!(
            refused(&bad(there, other.address(), 64), 1),
            DeviceError::OtherDevice { wanted, .. } if wanted == here
        ));
        let unknown = refused(&bad(DeviceUuid([7; 16]), mine.address(), 64), 1);
        assert!(
            matches!(&unknown, DeviceError::UnknownDevice { visible, .. } if *visible == [here, there]),
            "{unknown}"
        );
        // One byte in common, whichever is named first.
        let shared = DeviceError::SharedBytes {
            bytes: 1,
            other: 0,
            name: "low".into(),
        };
        let low = segment("low", here, mine.address(), 65);
        let high = segment("high", here, mine.address() + 64, 64);
        assert_eq!(refused(&[low.clone(), high.clone()], 1), shared);
        let DeviceError::SharedBytes { other: 1, .. } = refused(&[high, low], 0) else {
            panic!("the later bytes are refused, and the other place is named");
        };
        assert_eq!(open(&[]).unwrap_err(), DeviceError::NoSegments);
    });
}

#[test]
fn a_uuid_of_two_devices_names_no_segment() {
    let name = "a_uuid_of_two_devices_names_no_segment";
    let environment = [("SOFTCUDA_DEVICES", "2"), ("SOFTCUDA_SAME_UUID", "1")];
    passes(name, &environment, || {
        let (_, context) = context();
        let uuid = context.device().uuid;
        let memory = DeviceMemory::allocate(&context, 4096).unwrap();
        assert_eq!(
            refused(&[segment("kv", uuid, memory.address(), 64)], 0),
            DeviceError::AmbiguousDevice { uuid, count: 2 }
        );
    });
}

#[test]
fn the_stream_of_another_device_is_refused() {
    let name = "the_stream_of_another_device_is_refused";
    passes(name, &[("SOFTCUDA_DEVICES", "2")], || {
        let ((_, first), (_, second)) = (context_on(0), context_on(1));
        let memory = DeviceMemory::allocate(&first, 4096).unwrap();
        let stream = raw_stream(&second);
        let segments = [segment("kv", first.device().uuid, memory.address(), 64)];
        let before = live();
        // SAFETY: the stream lives to the end of the process.
        let error = unsafe { EngineMemory::open(&segments, Some(stream)) }.unwrap_err();
        assert!(
            matches!(&error, DeviceError::OtherDevice { what, wanted }
                if *wanted == first.device().uuid && what.contains(&format!("{stream:#x}"))),
            "{error}"
        );
        assert_eq!(live(), before);
        // SAFETY: as above; 0 is the legacy default stream.
        let opened = unsafe { EngineMemory::open(&segments, Some(0)) }.unwrap();
        assert!(opened.stream().is_some());
    });
}

#[test]
fn without_a_driver_there_are_no_segments() {
    passes_without("without_a_driver_there_are_no_segments", || {
        // SAFETY: only looks whether the library loads.
        if unsafe { cudarc::driver::sys::is_culib_present() } {
            return; // A machine with a real driver.
        }
        let segments = [segment("kv", DeviceUuid([7; 16]), 4096, 64)];
        assert_eq!(open(&segments).unwrap_err(), DeviceError::NoDriver);
    });
}
