use std::collections::HashMap;
use std::os::fd::AsFd;

use super::*;
use crate::index::body::blocks_for;
use crate::keys::ChunkKey;
use crate::object::Extent;
use crate::pool::body::{self, PartBody};
use crate::pool::record::{Holding, incarnation};
use crate::shm::ReadOnly;

fn id(n: u64, group: u16) -> ObjectId {
    ObjectId {
        key: ChunkKey::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes()),
        group,
    }
}

fn body(n: u32) -> Vec<PartBody> {
    vec![PartBody {
        bytes: 65536,
        checksum: u64::from(n) + 1,
        extents: vec![Extent::new(n, 1)],
    }]
}

fn publish(index: &Index, record: u32, id: &ObjectId, parts: &[PartBody]) -> bool {
    let Ok(slot) = index.free_slot(id) else {
        return false;
    };
    let blocks: Vec<u32> = (0..blocks_for(body::encode(parts).len()) as u32).collect();
    let words = RecordWords::encode(
        id,
        Holding {
            domain: 0,
            tokens: 256,
            held_from: 0,
        },
        incarnation(1, u64::from(record) + 1).unwrap(),
        parts,
        &blocks,
    );
    let mut called = false;
    index
        .publish(record, &words, &blocks, slot, || called = true)
        .unwrap();
    called
}

#[test]
fn twenty_thousand_objects_are_found_and_forgotten() {
    const N: u32 = 20_000;
    let index = Index::create(N).unwrap();
    for n in 0..N {
        assert!(
            publish(&index, n, &id(n.into(), (n % 3) as u16), &body(n)),
            "object {n}"
        );
    }
    assert_eq!(index.used_slots(), u64::from(N));

    // A client's view: its own read-only mapping.
    let fd = index.read_only().unwrap();
    let mapping = Mapping::<ReadOnly>::map_foreign(fd.as_fd(), index.bytes() as usize).unwrap();
    let layout = IndexLayout::read(&mapping).unwrap();
    let reader = IndexReader::new(&mapping, layout);
    let mut words = Vec::new();
    for n in 0..N {
        let view = reader.lookup(&id(n.into(), (n % 3) as u16)).unwrap();
        assert_eq!((view.record, view.tokens, view.parts), (n, 256, 1));
        reader.body(&view, &mut words).unwrap();
        assert_eq!(body::decode(&words, 1).unwrap(), body(n));
        assert!(
            reader.lookup(&id(n.into(), (n % 3 + 1) as u16)).is_none(),
            "the group is compared"
        );
        assert!(reader.lookup(&id(u64::from(n) + 1_000_000, 0)).is_none());
    }
    for n in 0..N {
        index.kill(n, &id(n.into(), (n % 3) as u16));
        assert!(reader.lookup(&id(n.into(), (n % 3) as u16)).is_none());
    }
    assert_eq!(index.used_slots(), 0);
}

#[test]
fn the_same_key_in_many_groups_is_many_objects() {
    let index = Index::create(1000).unwrap();
    for group in 0..100 {
        assert!(publish(&index, group.into(), &id(1, group), &body(group.into())));
    }
    for group in 0..100 {
        assert_eq!(index.reader().probe(&id(1, group)), Some(group.into()));
    }
}

#[test]
fn two_full_buckets_name_their_records() {
    // Two buckets of eight: the seventeenth object has no slot.
    let index = Index::create(4).unwrap();
    let layout = IndexLayout::new(4);
    assert_eq!(layout.buckets, 2);
    let big = Index::create(64).unwrap();
    let mut by_pair: HashMap<[u64; 2], Vec<u64>> = HashMap::new();
    let mut n = 0;
    let crowd = loop {
        let ([a, b], _) = IndexLayout::new(64).spots(&id(n, 0));
        let pair = by_pair.entry([a.min(b), a.max(b)]).or_default();
        pair.push(n);
        if pair.len() == 17 {
            break pair.clone();
        }
        n += 1;
    };
    for (record, &n) in crowd[..16].iter().enumerate() {
        assert!(publish(&big, record as u32, &id(n, 0), &body(0)));
    }
    let mut full = big.free_slot(&id(crowd[16], 0)).unwrap_err();
    full.sort_unstable();
    assert_eq!(full, (0..16).collect::<Vec<_>>());
    big.kill(5, &id(crowd[5], 0));
    assert!(publish(&big, 5, &id(crowd[16], 0), &body(0)));
    assert_eq!(index.used_slots(), 0);
}

#[test]
fn insertion_takes_the_emptier_bucket_and_the_first_on_a_tie() {
    let index = Index::create(64).unwrap();
    let layout = IndexLayout::new(64);
    for n in 0..40 {
        let (buckets, _) = layout.spots(&id(n, 0));
        let used = buckets.map(|b| index.line(b).iter().filter(|s| **s != 0).count());
        let expected = if used[1] < used[0] { buckets[1] } else { buckets[0] };
        let before = index.line(expected);
        assert!(publish(&index, n as u32, &id(n, 0), &body(0)));
        assert_ne!(index.line(expected), before);
    }
}

#[test]
fn equal_hashes_give_two_different_buckets() {
    let layout = IndexLayout::new(64);
    let key = ChunkKey::from_bytes([0; 32]);
    let ([a, b], _) = layout.spots(&ObjectId { key, group: 0 });
    assert_eq!((a, b), (0, 1));
}

#[test]
fn a_changed_record_is_a_miss() {
    let index = Index::create(64).unwrap();
    let parts: Vec<PartBody> = (0..20).flat_map(body).collect();
    assert!(publish(&index, 0, &id(1, 0), &parts));
    let view = index.reader().lookup(&id(1, 0)).unwrap();
    let mut words = Vec::new();
    index.reader().body(&view, &mut words).unwrap();
    assert_eq!(body::decode(&words, 20).unwrap(), parts);
    index.kill(0, &id(1, 0));
    assert!(
        index.reader().body(&view, &mut words).is_none(),
        "a chain of a dead record"
    );
    assert!(publish(&index, 0, &id(2, 0), &body(3)));
    assert!(
        index.reader().view(0, &id(1, 0)).is_none(),
        "another object's record"
    );
    assert!(index.reader().view(64, &id(1, 0)).is_none(), "no such record");
}

#[test]
fn other_regions_are_not_an_index() {
    let memfd = Memfd::create("other", 1 << 16, OwnerAccess::Read).unwrap();
    let mapping = memfd.map().unwrap();
    assert!(IndexLayout::read(&mapping).is_none());
    // The right header in a region that is too short for it.
    mapping
        .store_words(0, &IndexLayout::new(1 << 20).header())
        .unwrap();
    assert!(IndexLayout::read(&mapping).is_none());
    mapping.store_words(0, &IndexLayout::new(64).header()).unwrap();
    assert!(IndexLayout::read(&mapping).is_some());
}
