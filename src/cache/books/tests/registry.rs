use super::*;
use crate::object::PayloadPath;

fn group(group: u16, kind: ObjectKind) -> GroupRegistration {
    GroupRegistration {
        group,
        kind,
        parts: 2,
        part: 0,
        unit_bytes: 1000,
    }
}

fn registration() -> Registration {
    Registration {
        domain_seed: ChunkKey::from_bytes([1; 32]),
        rank: 0,
        world_size: 2,
        required_alignment: 16,
        chunk_size: 256,
        groups: vec![
            group(1, ObjectKind::Window { tokens: 100 }),
            group(0, ObjectKind::Full),
        ],
        payload_path: PayloadPath::ShmDirect,
        stores: true,
    }
}

fn with(change: impl FnOnce(&mut Registration)) -> Registration {
    let mut r = registration();
    change(&mut r);
    r
}

#[test]
fn ranks_make_a_domain_together() {
    let mut registry = Registry::default();
    let at = registry.register(&registration(), 1000).unwrap();
    let (_, domain) = registry.find(&registration().domain_seed).unwrap();
    assert!(!domain.is_complete());
    assert_eq!(domain.anchor, Some(0));
    assert_eq!(domain.group(0).unwrap().part_bytes(0, 256, 16), Some(16_000));
    assert_eq!(domain.group(0).unwrap().part_bytes(1, 256, 16), None);
    let other = with(|r| {
        r.rank = 1;
        r.groups[0].part = 1;
        r.groups[1].part = 1;
        r.groups[1].unit_bytes = 2000; // another rank may hold more layers
    });
    assert_eq!(registry.register(&other, 1000).unwrap(), at);
    let (_, domain) = registry.find(&registration().domain_seed).unwrap();
    assert!(domain.is_complete());
    assert_eq!(domain.group(0).unwrap().part_bytes(1, 32, 16), Some(4000));
}

#[test]
fn conflicts_name_the_field_and_change_nothing() {
    let mut registry = Registry::default();
    registry.register(&registration(), 1000).unwrap();
    let before = registry.get(0).cloned();
    let cases: [(&str, Registration); 7] = [
        ("required alignment", with(|r| r.required_alignment = 32)),
        ("chunk size", with(|r| r.chunk_size = 512)),
        ("number of ranks", with(|r| r.world_size = 3)),
        ("unit bytes", with(|r| r.groups[0].unit_bytes = 1001)),
        (
            "window",
            with(|r| r.groups[0].kind = ObjectKind::Window { tokens: 99 }),
        ),
        ("kind", with(|r| r.groups[1].kind = ObjectKind::Recurrent)),
        ("number of parts", with(|r| r.groups[0].parts = 1)),
    ];
    for (expected, bad) in cases {
        match registry.register(&bad, 1000) {
            Err(CoreError::RegistrationConflict { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
        assert_eq!(registry.get(0).cloned(), before);
    }
}

#[test]
fn senseless_numbers_are_refused() {
    let mut registry = Registry::default();
    let cases = [
        with(|r| r.required_alignment = 0),
        with(|r| r.required_alignment = 48),
        with(|r| r.world_size = 0),
        with(|r| r.world_size = 1025),
        with(|r| r.world_size = u32::MAX),
        with(|r| r.rank = 2),
        with(|r| r.rank = 4_000_000_000),
        with(|r| r.groups.clear()),
        with(|r| r.groups[0].parts = 3),
        with(|r| r.groups[0].parts = 0),
        with(|r| r.groups[0].part = 2),
        with(|r| r.groups[0].unit_bytes = 0),
        with(|r| r.groups[0].unit_bytes = u64::MAX),
        with(|r| r.groups[0].kind = ObjectKind::Window { tokens: 0 }),
        with(|r| r.groups[1].group = 1),
        with(|r| r.groups = (0..65).map(|g| group(g, ObjectKind::Full)).collect()),
    ];
    for bad in cases {
        assert!(registry.register(&bad, 1000).is_err(), "{bad:?}");
        assert_eq!(registry.len(), 0);
    }
    // 16 units of 5000 bytes take two frames, and the part that nobody has registered yet as many.
    let large = with(|r| r.groups[1].unit_bytes = 5000);
    assert!(matches!(
        registry.register(&large, 2),
        Err(CoreError::ObjectTooLarge {
            group: 0,
            bytes: 262_144,
            pool: 131_072
        })
    ));
}

#[test]
fn a_layout_stays_while_its_objects_may_exist() {
    let mut registry = Registry::default();
    let at = registry.register(&registration(), 1000).unwrap();
    registry.record_opened(at);
    registry.unregister(at);
    assert!(
        registry
            .register(&with(|r| r.groups[0].unit_bytes = 7), 1000)
            .is_err()
    );
    registry.record_closed(at);
    assert!(matches!(
        registry.find(&registration().domain_seed),
        Err(CoreError::NotRegistered { .. })
    ));
    registry
        .register(&with(|r| r.groups[0].unit_bytes = 7), 1000)
        .unwrap();
}

#[test]
fn ranks_outside_of_the_world_complete_nothing() {
    let mut registry = Registry::default();
    for rank in [7, 8, 2] {
        let refused = registry.register(&with(|r| r.rank = rank), 1000);
        assert!(
            matches!(refused, Err(CoreError::InvalidArgument { field: "rank", value, .. }) if value == u64::from(rank)),
            "{refused:?}"
        );
    }
    assert_eq!(registry.len(), 0);
}

#[test]
fn a_part_that_is_no_ranks_is_refused_with_the_last_rank() {
    let mut registry = Registry::default();
    registry.register(&registration(), 1000).unwrap();
    // Rank 1 holds the same parts as rank 0, so nobody holds part 1.
    let same = with(|r| r.rank = 1);
    let refused = registry.register(&same, 1000);
    assert!(
        matches!(
            refused,
            Err(CoreError::InvalidGroup {
                group: 0,
                value: 1,
                ..
            })
        ),
        "{refused:?}"
    );
    let (_, domain) = registry.find(&same.domain_seed).unwrap();
    assert!(!domain.is_complete());
}

#[test]
fn a_complete_domain_does_not_change() {
    let mut registry = Registry::default();
    registry.register(&registration(), 1000).unwrap();
    let other = with(|r| {
        r.rank = 1;
        r.groups.iter_mut().for_each(|g| g.part = 1);
    });
    registry.register(&other, 1000).unwrap();
    let before = registry.get(0).cloned();
    let more = with(|r| r.groups.push(group(2, ObjectKind::Recurrent)));
    let refused = registry.register(&more, 1000);
    assert!(
        matches!(
            refused,
            Err(CoreError::RegistrationConflict {
                field: "number of object groups",
                registered: 2,
                offered: 3,
                ..
            })
        ),
        "{refused:?}"
    );
    assert_eq!(registry.get(0).cloned(), before);
}

#[test]
fn registered_parts_are_bounded_and_come_back_with_their_domain() {
    let mut registry = Registry::default();
    let domain = |number: u8, rank: u32| {
        with(|r| {
            (r.domain_seed, r.rank, r.world_size) = (ChunkKey::from_bytes([number; 32]), rank, 1024);
            r.groups = (0..32).map(|g| group(g, ObjectKind::Full)).collect();
            for group in &mut r.groups {
                (group.parts, group.part, group.unit_bytes) = (1024, rank as u16, 1);
            }
        })
    };
    let mut at = Vec::new();
    for number in 0..2 {
        for rank in 0..1024 {
            at.push(registry.register(&domain(number, rank), 2048).unwrap());
        }
    }
    let refused = registry.register(&domain(2, 0), 2048);
    assert!(
        matches!(
            refused,
            Err(CoreError::LimitExceeded {
                asked: 65_568,
                limit: 65_536,
                ..
            })
        ),
        "{refused:?}"
    );
    // Who registers what is there already needs none.
    at.push(registry.register(&domain(1, 7), 2048).unwrap());
    let pieces: Vec<u32> = at
        .into_iter()
        .map(|at| registry.unregister(at))
        .filter(|pieces| *pieces > 0)
        .collect();
    // Each of them ends with its last rank, and 32,768 parts are as many pieces as there are groups, and two.
    assert_eq!(pieces, [34, 34]);
    assert_eq!((registry.len(), registry.parts), (0, 0));
    registry.register(&domain(2, 0), 2048).unwrap();
}
