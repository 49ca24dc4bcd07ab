use super::*;
use crate::keys::ChunkKey;

fn key(n: u8, instance: u8) -> IncompleteKey {
    IncompleteKey {
        instance: [instance; 16],
        domain: 4,
        id: ObjectId {
            key: ChunkKey::from_bytes([n; 32]),
            group: 0,
        },
    }
}

const CLIENT: ClientId = ClientId { slab: 1, nonce: 1 };

#[test]
fn completes_with_the_last_part() {
    let mut incomplete_objects = IncompleteObjects::default();
    incomplete_objects.open(key(1, 1), 5, 256, 3, (CLIENT, 0));
    for (part, held_from) in [(2, 0), (0, 96)] {
        assert!(!incomplete_objects.add_part(&key(1, 1), part, PartBody::default(), held_from, CLIENT));
    }
    assert!(incomplete_objects.add_part(&key(1, 1), 1, PartBody::default(), 32, CLIENT));
    let complete = incomplete_objects.take(&key(1, 1)).unwrap();
    assert!(complete.is_complete());
    assert_eq!(complete.held_from, 96, "what every part holds");
    assert_eq!(incomplete_objects.len(), 0);
    assert!(incomplete_objects.rival_of(&key(1, 2)).is_none());
}

#[test]
fn parts_that_are_missing_take_no_memory() {
    let mut incomplete_objects = IncompleteObjects::default();
    incomplete_objects.open(key(1, 1), 5, 256, 1024, (CLIENT, 0));
    incomplete_objects.add_part(&key(1, 1), 1000, PartBody::default(), 0, CLIENT);
    let incomplete = incomplete_objects.get(&key(1, 1)).unwrap();
    assert_eq!((incomplete.parts.capacity(), incomplete.parts().len()), (1, 1));
    assert!(incomplete.part(1000).is_some() && incomplete.part(0).is_none());
    for part in (0..1024).filter(|part| *part != 1000) {
        let complete = incomplete_objects.add_part(&key(1, 1), part, PartBody::default(), 0, CLIENT);
        assert_eq!(complete, part == 1023, "part {part}");
    }
    let numbers = incomplete_objects
        .get(&key(1, 1))
        .unwrap()
        .parts()
        .iter()
        .map(|p| p.number);
    assert!(numbers.eq(0..1024));
}

#[test]
fn parts_that_have_come_are_noted_by_their_bits() {
    for of in [1, 63, 64, 65, 1024] {
        let mut seen = Seen::none(of);
        assert!(
            !seen.note(of) && !seen.note(u16::MAX),
            "none of {of} has that number"
        );
        for part in 0..of {
            assert!(!seen.is_all());
            assert!(!seen.note(part));
            assert!(seen.note(part));
        }
        assert!(seen.is_all());
    }
}

#[test]
fn found_by_object_by_engine_and_by_age() {
    let mut incomplete_objects = IncompleteObjects::default();
    for (record, (n, instance)) in [(3, 1), (1, 2), (1, 1)].into_iter().enumerate() {
        let record = 3 - record as u32;
        incomplete_objects.open(key(n, instance), record, 256, 2, (CLIENT, 0));
    }
    assert_eq!(incomplete_objects.rival_of(&key(1, 0)), Some(&key(1, 2)));
    assert_eq!(incomplete_objects.rival_of(&key(1, 2)), Some(&key(1, 1)));
    assert_eq!(incomplete_objects.rival_of(&key(3, 1)), None);
    let youngest = |engine, seq| incomplete_objects.youngest_of(engine, seq).map(|(key, _)| *key);
    assert_eq!(youngest(([1; 16], 4), 3), Some(key(1, 1)));
    assert_eq!(youngest(([1; 16], 4), 2), Some(key(3, 1)));
    assert_eq!(youngest(([1; 16], 5), 3), None, "another domain");
    assert_eq!(youngest(([2; 16], 4), 1), None, "that one is younger");
    assert_eq!(incomplete_objects.oldest_of(CLIENT).unwrap().0, &key(3, 1));
    assert_eq!(incomplete_objects.next_of_clients(None).unwrap().0, &key(3, 1));
    assert!(
        incomplete_objects
            .next_of_clients(Some((CLIENT, u64::MAX)))
            .is_none()
    );
    assert_eq!(incomplete_objects.youngest(2).unwrap().0, &key(1, 2));
    assert_eq!(incomplete_objects.of_record(1).unwrap().0, &key(1, 1));
    incomplete_objects.take(&key(3, 1));
    assert_eq!(incomplete_objects.oldest_of(CLIENT).unwrap().0, &key(1, 2));
    assert_eq!(incomplete_objects.iter().next().unwrap().0, &key(1, 2));
}

#[test]
fn parts_of_an_ended_object_are_turned_away_once_each() {
    let mut incomplete_objects = IncompleteObjects::default();
    incomplete_objects.mark_ended(key(1, 1), Seen::only(0, 3));
    assert!(!incomplete_objects.turned_away(&key(1, 2), 1));
    assert!(incomplete_objects.turned_away(&key(1, 1), 1));
    assert!(incomplete_objects.turned_away(&key(1, 1), 2));
    assert!(
        !incomplete_objects.turned_away(&key(1, 1), 0),
        "all parts have come: the next store is a new one"
    );
    incomplete_objects.mark_ended(key(1, 1), Seen::only(1, 2));
    assert!(
        !incomplete_objects.turned_away(&key(1, 1), 1),
        "a part of the next computation"
    );
    assert!(!incomplete_objects.turned_away(&key(1, 1), 0));
    incomplete_objects.mark_ended(key(1, 1), Seen::only(1, 2));
    let forget_ended = |incomplete_objects: &mut IncompleteObjects, domain| {
        let youngest = incomplete_objects.last_seq();
        while incomplete_objects.forget_one(([1; 16], domain), youngest) {}
    };
    forget_ended(&mut incomplete_objects, 5);
    assert!(
        incomplete_objects.turned_away(&key(1, 1), 0),
        "that was another domain"
    );
    incomplete_objects.mark_ended(key(1, 1), Seen::only(1, 2));
    forget_ended(&mut incomplete_objects, 4);
    assert!(!incomplete_objects.turned_away(&key(1, 1), 0));
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut incomplete_objects = IncompleteObjects::default();
    for n in 0..MAX_ENDED + 10 {
        let mut key = key(1, 1);
        key.id.key = ChunkKey::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes());
        incomplete_objects.mark_ended(key, Seen::none(1));
    }
    let indexed = (
        incomplete_objects.ended_order.len(),
        incomplete_objects.ended_of.len(),
    );
    assert_eq!(
        (incomplete_objects.ended.len(), indexed),
        (MAX_ENDED, (MAX_ENDED, MAX_ENDED))
    );
}
