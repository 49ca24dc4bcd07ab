//! Two domains in one core whose clients send each other's keys: nothing of one becomes the other's.

use super::*;
use CommitOutcome::*;
use proptest::prelude::*;

/// The model of group 0 with so many parts, in the domain of a seed.
fn join(rig: &mut Rig, seed: u8, rank: u32, parts: u16) -> Peer {
    rig.seed = ChunkKey::from_bytes([seed; 32]);
    let peer = rig.peer(1);
    let groups = [group(0, ObjectKind::Full, parts, rank as u16)];
    rig.register(&peer, rank, parts.into(), &groups).unwrap();
    peer
}

fn object(chunk: u32) -> (ObjectId, Option<ChunkKey>) {
    let (key, parent) = chain(1, chunk);
    (ObjectId { key, group: 0 }, parent)
}

fn put(rig: &mut Rig, seed: u8, peer: &Peer, part: u16, chunk: u32) -> CommitOutcome {
    rig.seed = ChunkKey::from_bytes([seed; 32]);
    let (id, parent) = object(chunk);
    rig.try_put(peer, id, parent, CHUNK, part, 4 * UNIT).unwrap()
}

fn skip(rig: &mut Rig, seed: u8, peer: &Peer, part: u16, chunk: u32) -> CommitOutcome {
    rig.seed = ChunkKey::from_bytes([seed; 32]);
    let (id, parent) = object(chunk);
    let item = StoreItem {
        id,
        parent,
        skipped: true,
        part,
        tokens: CHUNK,
        held_from: 0,
        bytes: 0,
        checksum: 0,
        first_extent: 0,
        extent_count: 0,
    };
    rig.commit(peer, &[item], &[]).unwrap().outcomes[0]
}

fn incomplete_objects(rig: &Rig) -> u64 {
    rig.core.status().incomplete
}

#[test]
fn a_skip_in_another_domain_of_the_same_engine_ends_nothing() {
    let mut rig = Rig::new(512);
    let a = join(&mut rig, 1, 0, 2);
    let a1 = join(&mut rig, 1, 1, 2);
    let b = join(&mut rig, 2, 99, 100);
    assert_eq!(put(&mut rig, 1, &a, 0, 0), PartAccepted);
    assert_eq!(skip(&mut rig, 2, &b, 99, 0), Skipped);
    assert_eq!(incomplete_objects(&rig), 1);
    rig.audit();
    assert_eq!(put(&mut rig, 1, &a1, 1, 0), Published);
    rig.audit();
}

#[test]
fn a_part_of_another_domain_completes_nothing() {
    let mut rig = Rig::new(128);
    let (a, a1) = (join(&mut rig, 1, 0, 2), join(&mut rig, 1, 1, 2));
    let b1 = join(&mut rig, 2, 1, 2);
    assert_eq!(put(&mut rig, 1, &a, 0, 0), PartAccepted);
    assert_eq!(put(&mut rig, 2, &b1, 1, 0), PartAccepted);
    assert_eq!((incomplete_objects(&rig), rig.core.status().objects), (2, 0));
    // Nor does what follows hang under the other's.
    assert_eq!(put(&mut rig, 2, &b1, 1, 1), PartAccepted);
    rig.audit();
    // The name is given to the one that is complete first; the other's can never be, nor what hangs under it.
    assert_eq!(put(&mut rig, 1, &a1, 1, 0), Published);
    assert_eq!((incomplete_objects(&rig), rig.core.status().objects), (0, 1));
    rig.audit();
}

#[test]
fn the_name_of_another_domains_object_is_taken_and_says_so() {
    let mut rig = Rig::new(128);
    let a = join(&mut rig, 1, 0, 1);
    let b = join(&mut rig, 2, 0, 1);
    assert_eq!(put(&mut rig, 1, &a, 0, 0), Published);
    let free = rig.core.status().pool.free;
    assert_eq!(put(&mut rig, 2, &b, 0, 0), Dropped, "it does not exist there");
    assert_eq!(skip(&mut rig, 2, &b, 0, 0), Skipped);
    assert_eq!(put(&mut rig, 2, &b, 0, 1), NoParent);
    assert_eq!(rig.core.status().pool.free, free, "the space went back");
    assert_eq!(rig.lookup(&b, 1, 1, &[]).hit_tokens, 0);
    rig.seed = ChunkKey::from_bytes([1; 32]);
    assert_eq!(rig.lookup(&a, 1, 1, &[]).hit_tokens, 64);
    rig.audit();
}

#[test]
fn what_ended_or_was_not_needed_is_of_one_domain() {
    let mut rig = Rig::new(128);
    let (a, a1) = (join(&mut rig, 1, 0, 2), join(&mut rig, 1, 1, 2));
    let (b, b1) = (join(&mut rig, 2, 0, 2), join(&mut rig, 2, 1, 2));
    assert_eq!(skip(&mut rig, 2, &b, 0, 0), Skipped);
    // Rank 1's part of domain 2 is turned away, that of domain 1 is not.
    assert_eq!(put(&mut rig, 1, &a1, 1, 0), PartAccepted);
    assert_eq!(put(&mut rig, 2, &b1, 1, 0), Skipped);
    assert_eq!(put(&mut rig, 1, &a, 0, 0), Published);
    rig.audit();
}

#[test]
fn a_rank_that_registers_again_ends_only_what_is_of_its_domain() {
    let mut rig = Rig::new(128);
    let a = join(&mut rig, 1, 0, 2);
    let _a1 = join(&mut rig, 1, 1, 2);
    assert_eq!(put(&mut rig, 1, &a, 0, 0), PartAccepted);
    let _other = join(&mut rig, 2, 0, 2);
    assert_eq!(incomplete_objects(&rig), 1, "rank 0 of another domain");
    let mut gone = join(&mut rig, 2, 1, 2);
    gone.die();
    assert!(rig.core.client_gone(gone.id).unwrap());
    assert_eq!(incomplete_objects(&rig), 1);
    let again = join(&mut rig, 1, 0, 2);
    assert_eq!(incomplete_objects(&rig), 0);
    // A client that goes to another domain leaves what it began behind.
    assert_eq!(put(&mut rig, 1, &again, 0, 0), PartAccepted);
    rig.seed = ChunkKey::from_bytes([3; 32]);
    rig.register(&again, 0, 1, &[group(0, ObjectKind::Full, 1, 0)])
        .unwrap();
    assert_eq!(incomplete_objects(&rig), 0);
    rig.audit();
}

/// Any number, but often one that means something.
fn number(of: u16) -> impl Strategy<Value = u16> {
    prop_oneof![4 => 0..of, 1 => any::<u16>()]
}

fn word() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0..3_u32, 2 => (0..6_u32).prop_map(|n| n * 16), 1 => any::<u32>()]
}

/// An item as a hostile client may send it, its extents by the place in what it was granted.
fn item() -> impl Strategy<Value = (StoreItem, Option<usize>)> {
    let names = (0..4_u32, number(3), prop::option::of(0..4_u32), any::<bool>());
    let numbers = (
        number(4),
        prop_oneof![5 => Just(CHUNK), 2 => (0..5_u32).prop_map(|n| n * 16), 1 => any::<u32>()],
        prop_oneof![6 => Just(0), 1 => word()],
        prop_oneof![6 => Just(0_u64), 1 => any::<u64>()],
        (word(), word()),
        prop::option::weighted(0.9, any::<usize>()),
    );
    (names, numbers).prop_map(
        |((chunk, group, parent, skipped), (part, tokens, held_from, odd_bytes, extents, own))| {
            let bytes = u64::from(tokens) / ALIGN * UNIT;
            let item = StoreItem {
                id: ObjectId {
                    key: key(1, chunk, CHUNK),
                    group,
                },
                parent: parent.map(|chunk| key(1, chunk, CHUNK)),
                skipped,
                part,
                tokens,
                held_from,
                bytes: bytes.wrapping_add(odd_bytes),
                checksum: 0,
                first_extent: extents.0,
                extent_count: extents.1,
            };
            (item, own)
        },
    )
}

#[derive(Clone, Debug)]
enum Hostile {
    Commit {
        peer: usize,
        other: bool,
        items: Vec<(StoreItem, Option<usize>)>,
        supersedes: Vec<(u32, u16)>,
    },
    Register {
        peer: usize,
        seed: u8,
        rank: u32,
        world: u32,
        parts: u16,
        part: u16,
        group: u16,
    },
    Lookup {
        peer: usize,
        other: bool,
        tails: Vec<(u32, u32)>,
        max: u64,
        local: u64,
    },
    Retrieve {
        peer: usize,
        other: bool,
        part: u16,
        ids: Vec<(u32, u16)>,
    },
    Discard {
        peer: usize,
        other: bool,
        ids: Vec<(u32, u16)>,
    },
    Die {
        peer: usize,
    },
}

fn hostile() -> impl Strategy<Value = Hostile> {
    let ids = || prop::collection::vec((0..4_u32, number(3)), 0..4);
    let peer = 0..4_usize;
    let big = || prop_oneof![3 => 0..300_u64, 1 => any::<u64>()];
    prop_oneof![
        12 => (peer.clone(), prop::bool::weighted(0.2), prop::collection::vec(item(), 1..5), ids())
            .prop_map(|(peer, other, items, supersedes)| Hostile::Commit { peer, other, items, supersedes }),
        2 => (peer.clone(), 1..4_u8, word(), word(), number(4), number(4), number(3))
            .prop_map(|(peer, seed, rank, world, parts, part, group)|
                Hostile::Register { peer, seed, rank, world, parts, part, group }),
        3 => (peer.clone(), any::<bool>(), prop::collection::vec((word(), word()), 0..4), big(), big())
            .prop_map(|(peer, other, tails, max, local)| Hostile::Lookup { peer, other, tails, max, local }),
        2 => (peer.clone(), any::<bool>(), number(3), ids())
            .prop_map(|(peer, other, part, ids)| Hostile::Retrieve { peer, other, part, ids }),
        1 => (peer.clone(), any::<bool>(), ids()).prop_map(|(peer, other, ids)| Hostile::Discard { peer, other, ids }),
        1 => peer.prop_map(|peer| Hostile::Die { peer }),
    ]
}

/// Ranks 0 and 1 of an engine in domain 1 with two parts, and in domain 2 with three parts and one more group.
fn member(rig: &mut Rig, at: usize) -> (Peer, u8) {
    let (seed, rank) = (at as u8 / 2 + 1, at as u32 % 2);
    rig.seed = ChunkKey::from_bytes([seed; 32]);
    let peer = rig.peer(1);
    let parts = u16::from(seed) + 1;
    let mut groups = vec![group(0, ObjectKind::Full, parts, rank as u16)];
    if seed == 2 {
        groups.push(group(1, ObjectKind::Window { tokens: 40 }, 1, 0));
    }
    // What it may have become in a domain of odd numbers is left as it is.
    let _ = rig.register(&peer, rank, parts.into(), &groups);
    (peer, seed)
}

fn apply(rig: &mut Rig, peers: &mut [(Peer, u8)], op: &Hostile) {
    let seed = |peers: &[(Peer, u8)], peer: usize, other: bool| {
        let own = peers[peer].1;
        ChunkKey::from_bytes([if other { 3 - own.min(2) } else { own }; 32])
    };
    let object = |(chunk, group): &(u32, u16)| ObjectId {
        key: key(1, *chunk, CHUNK),
        group: *group,
    };
    match op {
        Hostile::Commit {
            peer,
            other,
            items,
            supersedes,
        } => {
            let id = peers[*peer].0.id;
            let granted = rig.core.grant(id, 16 * UNIT).unwrap();
            let mut frames = granted.iter().flat_map(|extent| extent.frames());
            let mut extents = Vec::new();
            let mut sent = Vec::new();
            for (item, own) in items {
                let mut item = *item;
                if own.is_some() {
                    item.first_extent = extents.len() as u32;
                    let needed = if item.skipped {
                        0
                    } else {
                        frames_for(item.bytes.min(1 << 20))
                    };
                    extents.extend(
                        (0..needed)
                            .map_while(|_| frames.next())
                            .map(|f| Extent::new(f, 1)),
                    );
                    item.extent_count = extents.len() as u32 - item.first_extent;
                }
                sent.push(item);
            }
            let ids: Vec<ObjectId> = supersedes.iter().map(object).collect();
            let _ = rig.core.commit(
                id,
                &CommitRequest {
                    domain_seed: seed(peers, *peer, *other),
                    items: sent.to_vec(),
                    extents: extents.to_vec(),
                    supersedes: ids.to_vec(),
                    grant_bytes: 0,
                },
            );
        }
        Hostile::Register {
            peer,
            seed,
            rank,
            world,
            parts,
            part,
            group: number,
        } => {
            rig.seed = ChunkKey::from_bytes([*seed; 32]);
            let groups = [group(*number, ObjectKind::Full, *parts, *part)];
            if rig.register(&peers[*peer].0, *rank, *world, &groups).is_ok() {
                peers[*peer].1 = *seed;
            }
        }
        Hostile::Lookup {
            peer,
            other,
            tails,
            max,
            local,
        } => {
            let keys: Vec<_> = (0..4).map(|c| key(1, c, CHUNK)).collect();
            let tails = tails
                .iter()
                .map(|(chunk, tokens)| tail(1, *chunk, *tokens))
                .collect();
            let request = LookupRequest {
                domain_seed: seed(peers, *peer, *other),
                label: 1,
                keys: &keys,
                tails: &TailList::new(tails),
                max_tokens: *max,
                local_tokens: *local,
                pin: true,
                describe: true,
            };
            let id = peers[*peer].0.id;
            if let Ok(found) = rig.core.lookup(id, &request) {
                assert!(found.hit_tokens == 0 || found.hit_tokens <= *local || !found.loads.is_empty());
                if found.pin != 0 {
                    rig.core.release(id, &[found.pin]).unwrap();
                }
            }
        }
        Hostile::Retrieve {
            peer,
            other,
            part,
            ids,
        } => {
            let ids: Vec<ObjectId> = ids.iter().map(object).collect();
            let id = peers[*peer].0.id;
            let _ = rig
                .core
                .retrieve(id, &parts(seed(peers, *peer, *other), 1, *part, &ids));
            rig.core.release_label(id, 1).unwrap();
        }
        Hostile::Discard { peer, other, ids } => {
            let reader = rig.core.index.reader();
            let read = |id: &(u32, u16)| {
                let id = object(id);
                (id, reader.lookup(&id).map_or(7, |view| view.incarnation))
            };
            let objects: Vec<_> = ids.iter().map(read).collect();
            let _ = rig
                .core
                .discard(peers[*peer].0.id, seed(peers, *peer, *other), &objects);
        }
        Hostile::Die { peer } => {
            peers[*peer].0.die();
            assert!(rig.core.client_gone(peers[*peer].0.id).unwrap());
            peers[*peer] = member(rig, *peer);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// Whatever numbers the clients of two domains send, nothing panics, the books hold, and nobody is given the
    /// other's.
    #[test]
    fn hostile_numbers_of_two_domains(ops in prop::collection::vec(hostile(), 1..60)) {
        let mut rig = Rig::new(96);
        let mut peers: Vec<(Peer, u8)> = (0..4).map(|at| member(&mut rig, at)).collect();
        for op in &ops {
            apply(&mut rig, &mut peers, op);
            rig.core.audit().unwrap();
        }
    }
}
