use super::*;
use crate::shm::{Memfd, OwnerAccess};

const LANE: u64 = LANE_UNIT_BYTES;

fn ring() -> (RingLayout, RingMemory, Arc<Mapping<ReadWrite>>) {
    let layout = RingLayout::with_lanes(LANE).unwrap();
    let memfd = Memfd::create("test-ring", layout.region_bytes(), OwnerAccess::Read).unwrap();
    let mapping = Arc::new(memfd.map().unwrap());
    mapping.write_bytes(0, &layout.head()).unwrap();
    (layout, RingMemory::Mapped(Arc::clone(&mapping)), mapping)
}

#[test]
fn a_lane_is_whole_units_up_to_the_longest() {
    for (asked, got) in [(0, LANE), (1, LANE), (LANE, LANE), (LANE + 1, 2 * LANE)] {
        assert_eq!(RingLayout::with_lanes(asked).unwrap().lane_bytes(), got);
    }
    assert!(RingLayout::with_lanes(MAX_LANE_BYTES).is_some());
    for asked in [MAX_LANE_BYTES + 1, u64::MAX] {
        assert_eq!(RingLayout::with_lanes(asked), None);
    }
    assert_eq!(lane_bytes(1), 64);
    assert_eq!(lane_bytes(64), 64);
    assert_eq!(lane_bytes(u64::MAX), u64::MAX, "which no lane has room for");
}

#[test]
fn a_header_is_read_once_and_has_to_be_all_of_it() {
    let (layout, _, mapping) = ring();
    assert_eq!(RingLayout::read(&mapping).unwrap(), layout);
    for byte in 0..HEAD_BYTES {
        let mut head = layout.head();
        head[byte] ^= 0x80;
        mapping.write_bytes(0, &head).unwrap();
        assert!(
            matches!(RingLayout::read(&mapping), Err(RingError::Header { .. })),
            "byte {byte}"
        );
    }
}

#[test]
fn bytes_go_round_and_the_end_of_the_lane_splits_them() {
    let (layout, memory, _mapping) = ring();
    let (mut to, mut from) = (
        layout.producer(Lane::Store, &memory),
        layout.consumer(Lane::Store, &memory),
    );
    assert!(matches!(
        from.claim(64),
        Err(RingError::NotThere { there: 0, .. })
    ));
    for round in 0..5 {
        let bytes = LANE - 64;
        let at = to.claim(bytes).unwrap();
        assert_eq!(at, round * bytes);
        to.publish(bytes).unwrap();
        assert!(
            matches!(to.claim(128), Err(RingError::NotThere { there: 64, .. })),
            "full"
        );
        assert_eq!(from.claim(bytes).unwrap(), at);
        let [first, second] = layout.spans(Lane::Store, at, bytes);
        assert_eq!(first.bytes + second.bytes, bytes);
        assert_eq!(first.offset, RING_HEADER_BYTES + at % LANE);
        assert_eq!(second.offset, RING_HEADER_BYTES);
        from.release(bytes).unwrap();
    }
    let [first, second] = layout.spans(Lane::Load, LANE - 64, 128);
    assert_eq!(
        (first.offset, first.bytes),
        (RING_HEADER_BYTES + 2 * LANE - 64, 64)
    );
    assert_eq!((second.offset, second.bytes), (RING_HEADER_BYTES + LANE, 64));
}

#[test]
fn the_lanes_have_words_of_their_own() {
    let (layout, memory, _mapping) = ring();
    let (mut store, mut load) = (
        layout.producer(Lane::Store, &memory),
        layout.producer(Lane::Load, &memory),
    );
    store.publish(128).unwrap();
    load.publish(192).unwrap();
    assert_eq!(layout.consumer(Lane::Store, &memory).claim(128).unwrap(), 0);
    let mut from = layout.consumer(Lane::Load, &memory);
    assert!(matches!(
        from.claim(256),
        Err(RingError::NotThere { there: 192, .. })
    ));
}

#[test]
fn a_count_that_cannot_be_is_refused_whatever_it_is() {
    let (layout, memory, mapping) = ring();
    let mut from = layout.consumer(Lane::Store, &memory);
    let word = mapping.atomic_u64(STORE_WRITTEN as usize).unwrap();
    word.store(256, Ordering::Release);
    from.claim(256).unwrap();
    from.release(128).unwrap();
    // Back, beyond the lane's end, and between two places.
    for value in [
        0,
        128,
        192,
        257,
        320 + 7,
        128 + LANE + 64,
        u64::MAX,
        u64::MAX - 63,
        1 << 63,
    ] {
        word.store(value, Ordering::Release);
        assert!(
            matches!(from.claim(64), Err(RingError::Garbage { value: found, .. }) if found == value),
            "{value}"
        );
    }
    word.store(128 + LANE, Ordering::Release);
    assert_eq!(from.claim(LANE).unwrap(), 128, "all of the lane is fine");

    let mut to = layout.producer(Lane::Load, &memory);
    to.publish(LANE).unwrap();
    let word = mapping.atomic_u64(LOAD_READ as usize).unwrap();
    word.store(128, Ordering::Release);
    assert_eq!(to.free().unwrap(), 128);
    for value in [0, 64, 129, LANE + 64, u64::MAX] {
        word.store(value, Ordering::Release);
        assert!(
            matches!(to.claim(64), Err(RingError::Garbage { value: found, .. }) if found == value),
            "{value}"
        );
    }
}

#[test]
fn a_file_that_is_cut_short_is_an_error() {
    let layout = RingLayout::with_lanes(LANE).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(layout.region_bytes()).unwrap();
    let file = Arc::new(file);
    let memory = RingMemory::File(Arc::clone(&file));
    let mut to = layout.producer(Lane::Load, &memory);
    let mut from = layout.consumer(Lane::Load, &memory);
    assert_eq!(to.claim(64).unwrap(), 0);
    to.publish(64).unwrap();
    assert_eq!(from.claim(64).unwrap(), 0);
    file.set_len(100).unwrap();
    assert!(matches!(from.claim(64), Err(RingError::Shm(_))));
    assert!(matches!(to.claim(64), Err(RingError::Shm(_))));
}
