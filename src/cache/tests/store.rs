use super::*;
use CommitOutcome::*;

const FULL: &[ObjectKind] = &[ObjectKind::Full];

fn item(id: ObjectId, parent: Option<ChunkKey>, first: u32, count: u32) -> StoreItem {
    StoreItem {
        id,
        parent,
        skipped: false,
        part: 0,
        tokens: CHUNK,
        held_from: 0,
        bytes: 4 * UNIT,
        checksum: 0,
        first_extent: first,
        extent_count: count,
    }
}

fn id(prompt: u32, chunk: u32) -> ObjectId {
    ObjectId {
        key: key(prompt, chunk, CHUNK),
        group: 0,
    }
}

#[test]
fn what_is_stored_is_found_retrieved_and_released() {
    let mut rig = Rig::new(64);
    let engine = rig.engine(1, FULL);
    rig.put_chain(&engine, 1, 3);
    let reader = rig.peer(2);
    let answer = rig.lookup(&reader, 1, 5, &[]);
    assert_eq!(answer.hit_tokens, 192);
    assert_eq!(
        answer.loads.iter().map(|l| l.id).collect::<Vec<_>>(),
        [id(1, 0), id(1, 1), id(1, 2)]
    );
    assert_eq!(answer.present_tokens, [192]);
    let ids: Vec<_> = (0..4).map(|c| id(1, c)).collect();
    let seed = rig.seed;
    let got = rig.core.retrieve(reader.id, &parts(seed, 7, 0, &ids)).unwrap();
    assert_eq!(got.locations.len(), 4);
    assert_eq!(got.locations[3], PartLocation::default());
    for location in &got.locations[..3] {
        let from = location.first_extent as usize;
        let extents = &got.extents[from..from + location.extent_count as usize];
        assert_eq!(crate::object::count_frames(extents), 4);
        assert_eq!((location.bytes, location.tokens), (4 * UNIT, CHUNK));
        assert_eq!(rig.core.pool.epochs.of(extents[0].frame), location.incarnation);
    }
    let status = rig.core.status();
    assert_eq!(status.pool.pinned, 12 * FRAME_BYTES);
    let counters = status.counters;
    assert_eq!((counters.requested, counters.hit, counters.miss), (20, 12, 8));
    rig.audit();
    assert!(matches!(
        rig.core.release(engine.id, &[got.pin]),
        Err(CoreError::UnknownPin { pin }) if pin == got.pin
    ));
    rig.core.release(reader.id, &[got.pin, answer.pin]).unwrap();
    assert!(rig.core.release(reader.id, &[got.pin]).is_err());
    assert_eq!(rig.core.status().pool.pinned, 0);
    rig.audit();
}

#[test]
fn sessions_and_connections_end_with_their_pins() {
    let mut rig = Rig::new(64);
    let engine = rig.engine(1, FULL);
    rig.put_chain(&engine, 1, 2);
    let reader = rig.peer(2);
    let first = rig.lookup(&reader, 1, 2, &[]);
    rig.lookup(&reader, 1, 1, &[]);
    rig.core.release_label(reader.id, 1).unwrap();
    assert!(rig.core.release(reader.id, &[first.pin]).is_err());
    assert_eq!(rig.core.status().pool.pinned, 0);
    rig.lookup(&reader, 1, 2, &[]);
    assert_eq!(rig.core.status().pool.pinned, 8 * FRAME_BYTES);
    rig.core.disconnected(reader.id).unwrap();
    assert_eq!(rig.core.status().pool.pinned, 0);
    rig.audit();
}

#[test]
fn only_granted_frames_can_be_committed_and_nothing_changes_otherwise() {
    let mut rig = Rig::new(64);
    let engine = rig.engine(1, FULL);
    let other = rig.engine(2, FULL);
    rig.put_chain(&engine, 1, 1);
    let mine = rig.core.grant(engine.id, 8 * FRAME_BYTES).unwrap();
    let theirs = rig.core.grant(other.id, 4 * FRAME_BYTES).unwrap();
    let before = rig.core.status();
    let good = Extent::new(mine[0].frame, 4);
    let live = rig.core.pool.directory.body(0).unwrap().0[0].extents[0];
    let cases = [
        theirs[0],                         // another client's
        live,                              // an object's
        Extent::new(63, 1),                // free
        Extent::new(mine[0].frame + 6, 4), // partly
        Extent::new(64, 4),                // outside
        Extent::new(u32::MAX, 4),          // far outside
        good,                              // twice
        Extent::new(good.frame + 3, 4),    // overlapping
    ];
    for bad in cases {
        let mut items = [
            item(id(2, 0), None, 0, 1),
            item(id(2, 1), Some(key(2, 0, CHUNK)), 1, 1),
        ];
        if bad.count != 4 {
            items[1].bytes = u64::from(bad.count) * UNIT;
            items[1].tokens = bad.count * 16;
        }
        let error = rig.commit(&engine, &items, &[good, bad]).unwrap_err();
        assert!(
            matches!(
                error,
                CoreError::ExtentNotGranted { .. } | CoreError::InvalidExtent { .. }
            ),
            "{error}"
        );
        assert_eq!(rig.core.status(), before);
        assert!(rig.core.abort(engine.id, &[bad, good]).is_err());
        assert_eq!(rig.core.status(), before);
    }
    rig.audit();
    rig.core.abort(engine.id, &mine).unwrap();
    assert!(matches!(
        rig.core.abort(engine.id, &mine),
        Err(CoreError::ExtentNotGranted { .. })
    ));
    rig.audit();
}

#[test]
fn a_commit_must_have_the_registered_sizes() {
    let mut rig = Rig::new(64);
    let engine = rig.engine(1, FULL);
    let extents = rig.core.grant(engine.id, 8 * FRAME_BYTES).unwrap();
    let whole = [Extent::new(extents[0].frame, 4)];
    let more = [Extent::new(extents[0].frame, 5)];
    let good = item(id(1, 0), None, 0, 1);
    type Case<'a> = (StoreItem, &'a [Extent], u16);
    let cases: [Case<'_>; 8] = [
        (
            StoreItem {
                bytes: 4 * UNIT - 1,
                ..good
            },
            &whole,
            17,
        ),
        (StoreItem { tokens: 48, ..good }, &whole, 17),
        (good, &more, 17),
        (StoreItem { tokens: 63, ..good }, &whole, 25),
        (StoreItem { tokens: 128, ..good }, &whole, 25),
        (
            StoreItem {
                extent_count: 2,
                ..good
            },
            &whole,
            25,
        ),
        (StoreItem { part: 1, ..good }, &whole, 16),
        (
            StoreItem {
                id: ObjectId { group: 1, ..good.id },
                ..good
            },
            &whole,
            16,
        ),
    ];
    for (bad, extents, code) in cases {
        let error = rig.commit(&engine, &[bad], extents).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
    assert_eq!(
        rig.commit(&engine, &[good], &whole).unwrap().outcomes,
        [Published]
    );
    rig.audit();
}

#[test]
fn nothing_works_before_its_time() {
    let mut core = Core::create(CoreConfig {
        pool_bytes: 16 * FRAME_BYTES,
        ..CoreConfig::default()
    })
    .unwrap();
    let client = core.open_client(ClientInfo::default()).unwrap();
    assert!(matches!(
        core.attach(client),
        Err(CoreError::NotAttached { slab: 0 })
    ));
    assert_eq!(core.grant(client, 1).unwrap_err().code(), 9);
    core.set_chunk_size(CHUNK).unwrap();
    core.set_chunk_size(CHUNK).unwrap();
    assert_eq!(core.set_chunk_size(CHUNK * 2).unwrap_err().code(), 25);
    assert_eq!(core.grant(client, 1).unwrap_err().code(), 22);
    let seed = ChunkKey::from_bytes([0; 32]);
    assert_eq!(
        core.retrieve(client, &parts(seed, 0, 0, &[])).unwrap_err().code(),
        14
    );
    // Too small for one object.
    let mut rig = Rig::new(3);
    let peer = rig.peer(1);
    let error = rig
        .register(&peer, 0, 1, &[group(0, ObjectKind::Full, 1, 0)])
        .unwrap_err();
    assert_eq!(error.code(), 21);
    assert_eq!(error.numbers(), [0, 4 * FRAME_BYTES, 3 * FRAME_BYTES]);
    let too_small = Core::create(CoreConfig {
        pool_bytes: 1,
        ..CoreConfig::default()
    });
    assert!(too_small.is_err());
}

#[test]
fn only_what_is_prefaulted_is_granted_and_nothing_is_evicted_for_the_rest() {
    let mut rig = Rig::new(64);
    rig.core = Core::create(CoreConfig {
        pool_bytes: 64 * FRAME_BYTES,
        ..CoreConfig::default()
    })
    .unwrap();
    rig.core.set_chunk_size(CHUNK).unwrap();
    let engine = rig.engine(1, FULL);
    assert!(rig.core.grant(engine.id, FRAME_BYTES).unwrap().is_empty());
    rig.core.prefaulted(4 * FRAME_BYTES).unwrap();
    rig.put_chain(&engine, 1, 1);
    assert!(rig.core.grant(engine.id, FRAME_BYTES).unwrap().is_empty());
    assert_eq!(rig.resident(1, 1), [0]);
    // The prefault has failed for good: now space is made.
    rig.core.prefault_ended();
    assert_eq!(
        crate::object::count_frames(&rig.core.grant(engine.id, FRAME_BYTES).unwrap()),
        1
    );
    assert!(rig.resident(1, 1).is_empty());
    rig.audit();
}

#[test]
fn a_retry_is_published_and_a_second_copy_gives_its_space_back() {
    let mut rig = Rig::new(64);
    let engine = rig.engine(1, FULL);
    let first = rig.core.grant(engine.id, 4 * UNIT).unwrap();
    let one = item(id(1, 0), None, 0, 1);
    assert_eq!(rig.commit(&engine, &[one], &first).unwrap().outcomes, [Published]);
    assert_eq!(rig.commit(&engine, &[one], &first).unwrap().outcomes, [Published]);
    rig.audit();
    let second = rig.core.grant(engine.id, 4 * UNIT).unwrap();
    assert_eq!(rig.commit(&engine, &[one], &second).unwrap().outcomes, [Exists]);
    assert_eq!(rig.core.status().pool.granted, 0);
    // The second copy's frames are free now; to name them again is an error.
    assert_eq!(rig.commit(&engine, &[one], &second).unwrap_err().code(), 18);
    rig.audit();
}

#[test]
fn one_commit_stores_a_step_and_renews_the_grant() {
    let mut rig = Rig::new(128);
    let engine = rig.engine(1, FULL);
    let granted = rig.core.grant(engine.id, 20 * FRAME_BYTES).unwrap();
    let start = granted[0].frame;
    let extents: Vec<_> = (0..4).map(|i| Extent::new(start + i * 4, 4)).collect();
    let items = [
        item(id(1, 0), None, 0, 1),
        item(id(1, 1), Some(key(1, 0, CHUNK)), 1, 1),
        item(id(1, 3), Some(key(1, 2, CHUNK)), 2, 1), // its parent was never stored
        item(id(1, 2), Some(key(1, 1, CHUNK)), 3, 1),
    ];
    let seed = rig.seed;
    let answer = rig
        .core
        .commit(
            engine.id,
            &CommitRequest {
                domain_seed: seed,
                items: items.to_vec(),
                extents: extents.to_vec(),
                supersedes: vec![],
                grant_bytes: 16 * FRAME_BYTES,
            },
        )
        .unwrap();
    assert_eq!(answer.outcomes, [Published, Published, NoParent, Published]);
    assert_eq!(crate::object::count_frames(&answer.granted), 12);
    let status = rig.core.status();
    assert_eq!(status.pool.granted, 16 * FRAME_BYTES);
    assert_eq!(status.clients[0].granted, 16 * FRAME_BYTES);
    assert_eq!(status.objects, 3);
    rig.audit();
}

#[test]
fn space_is_bounded_but_never_less_than_one_object() {
    let mut rig = Rig::new(64);
    let (a, b) = (rig.engine(1, FULL), rig.engine(2, FULL));
    let frames = |e: &[Extent]| crate::object::count_frames(e);
    assert_eq!(frames(&rig.core.grant(a.id, u64::MAX).unwrap()), 32);
    assert_eq!(frames(&rig.core.grant(b.id, u64::MAX).unwrap()), 16);
    assert!(rig.core.grant(b.id, 1).unwrap().is_empty());
    let c = rig.engine(3, FULL);
    assert_eq!(frames(&rig.core.grant(c.id, u64::MAX).unwrap()), 4);
    rig.audit();
}

#[test]
fn a_dead_client_gives_everything_back_and_a_living_one_nothing() {
    let mut rig = Rig::new(64);
    let engine = rig.engine(1, FULL);
    rig.put_chain(&engine, 1, 1);
    let before = rig.core.status().pool;
    for _ in 0..100 {
        let mut victim = rig.engine(2, FULL);
        rig.core.grant(victim.id, 8 * FRAME_BYTES).unwrap();
        let found = rig.lookup(&victim, 1, 1, &[]);
        assert_ne!(found.pin, 0);
        victim.slab_pin(3, Some(0));
        rig.core.disconnected(victim.id).unwrap();
        // Its connection is gone, its process lives: it may still write its grant.
        assert!(!rig.core.client_gone(victim.id).unwrap());
        assert_eq!(rig.core.status().pool.granted, 8 * FRAME_BYTES);
        assert_eq!(rig.core.status().pool.pinned, 4 * FRAME_BYTES, "the slab's pin");
        victim.die();
        assert!(rig.core.client_gone(victim.id).unwrap());
        assert_eq!(rig.core.status().pool, before);
        assert!(matches!(
            rig.core.client_gone(victim.id),
            Err(CoreError::UnknownClient { .. })
        ));
        rig.audit();
    }
}

#[test]
fn many_parts_in_a_fragmented_pool_use_chains() {
    // 200 frames, every other one taken by a one-frame tail: whatever comes next is in single frames.
    let mut rig = Rig::new(200);
    let engine = rig.engine(1, FULL);
    for prompt in 0..200 {
        assert_eq!(rig.put(&engine, key(prompt, 0, 16), 0, None, 16), Published);
    }
    // Evict every other one by hand.
    for prompt in (0..200).step_by(2) {
        let record = rig.record(key(prompt, 0, 16), 0).unwrap();
        rig.core.evict_one(record).unwrap();
    }
    rig.audit();
    let ranks: Vec<Peer> = (0..8).map(|_| rig.peer(3)).collect();
    rig.seed = ChunkKey::from_bytes([5; 32]);
    for (rank, peer) in ranks.iter().enumerate() {
        let groups = [group(0, ObjectKind::Full, 8, rank as u16)];
        rig.register(peer, rank as u32, 8, &groups).unwrap();
    }
    let target = ObjectId {
        key: key(1000, 0, CHUNK),
        group: 0,
    };
    let mut outcomes = Vec::new();
    for (rank, peer) in ranks.iter().enumerate() {
        outcomes.push(
            rig.try_put(peer, target, None, CHUNK, rank as u16, 4 * UNIT)
                .unwrap(),
        );
    }
    assert_eq!(outcomes[..7], [PartAccepted; 7]);
    assert_eq!(outcomes[7], Published);
    assert!(rig.core.chains.taken() >= 4);
    rig.audit();
    let seed = rig.seed;
    let mut all = Vec::new();
    for part in 0..8 {
        let got = rig
            .core
            .retrieve(ranks[0].id, &parts(seed, 0, part, &[target]))
            .unwrap();
        assert_eq!(crate::object::count_frames(&got.extents), 4);
        all.extend(got.extents);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 32, "no two parts share a frame");
    rig.core.disconnected(ranks[0].id).unwrap();
    rig.core.clear().unwrap();
    assert_eq!(rig.core.chains.taken(), 0);
    assert_eq!(rig.core.status().pool.used, 0);
    rig.audit();
}

#[test]
fn too_many_clients_are_refused() {
    let mut rig = Rig::new(4);
    let all: Vec<_> = (0..256)
        .map(|_| rig.core.open_client(ClientInfo::default()).unwrap())
        .collect();
    let error = rig.core.open_client(ClientInfo::default()).unwrap_err();
    assert_eq!((error.code(), error.numbers()), (8, vec![257, 256]));
    assert!(rig.core.client_gone(all[9]).unwrap());
    assert_eq!(rig.core.open_client(ClientInfo::default()).unwrap().slab(), 9);
}

/// A fault injected where a client's frames are taken back: none is lost from the books, whichever way it held them.
#[test]
fn frames_that_cannot_be_freed_are_quarantined_and_the_rest_comes_back() {
    let mut rig = Rig::new(64);
    let mut engine = rig.engine(1, FULL);
    let mut rank = rig.peer(2);
    let seed = rig.seed;
    rig.seed = ChunkKey::from_bytes([8; 32]);
    rig.register(&rank, 0, 2, &[group(0, ObjectKind::Full, 2, 0)])
        .unwrap();
    let (half, _) = chain(2, 0);
    let id = ObjectId { key: half, group: 0 };
    let held = rig.core.grant(rank.id, 4 * FRAME_BYTES).unwrap();
    rig.core.abort(rank.id, &held).unwrap();
    let of_incomplete = held[0].frame + 1;
    let put = rig.try_put(&rank, id, None, CHUNK, 0, 4 * UNIT);
    assert_eq!(put, Some(PartAccepted));
    rig.seed = seed;
    rig.put_chain(&engine, 1, 2);
    let object = rig.record(key(1, 1, CHUNK), 0).unwrap();
    let (parts, _) = rig.core.pool.directory.body(object).unwrap();
    let granted = rig.core.grant(engine.id, 20 * FRAME_BYTES).unwrap();
    let classes = |rig: &Rig| {
        rig.audit();
        let pool = rig.core.status().pool;
        [pool.free, pool.used, pool.granted, pool.quarantined].map(|bytes| bytes / FRAME_BYTES)
    };
    assert_eq!(classes(&rig), [32, 8, 24, 0]);
    // An incomplete object.
    rig.core.pool.refuse_release(of_incomplete);
    rank.die();
    assert!(rig.core.client_gone(rank.id).unwrap());
    assert_eq!(classes(&rig), [32, 8, 20, 4]);
    // Granted space, of which a part has been given back, so that what is left is several runs.
    let (first, count) = (granted[0].frame, granted[0].count);
    assert_eq!(count, 20);
    rig.core.abort(engine.id, &[Extent::new(first + 4, 8)]).unwrap();
    rig.core.pool.refuse_release(first + 1);
    engine.die();
    assert!(rig.core.client_gone(engine.id).unwrap());
    assert_eq!(classes(&rig), [48, 8, 0, 8]);
    assert!(rig.core.status().clients.is_empty());
    // An object.
    rig.core.pool.refuse_release(parts[0].extents[0].frame);
    assert_eq!(rig.core.clear().unwrap(), 2);
    assert_eq!(classes(&rig), [52, 0, 0, 12]);
    // The slabs and all other frames are good for others.
    let next = rig.engine(3, FULL);
    let granted = rig.core.grant(next.id, 64 * FRAME_BYTES).unwrap();
    assert_eq!(
        crate::object::count_frames(&granted),
        32,
        "half of the pool, as ever"
    );
    rig.audit();
}

#[test]
fn twenty_thousand_objects() {
    let mut rig = Rig::new(20_000);
    let engine = rig.engine(1, FULL);
    for prompt in 0..20_000 {
        assert_eq!(rig.put(&engine, key(prompt, 0, 16), 0, None, 16), Published);
    }
    assert_eq!(rig.core.status().objects, 20_000);
    for prompt in (0..20_000).step_by(97) {
        let answer = rig.lookup(&engine, prompt, 0, &[tail(prompt, 0, 16)]);
        assert_eq!(answer.hit_tokens, 16);
    }
    rig.audit();
}

#[test]
fn domains_of_several_sizes_share_a_pool() {
    let mut core = Core::create(CoreConfig {
        pool_bytes: 64 * FRAME_BYTES,
        ..CoreConfig::default()
    })
    .unwrap();
    core.add_chunk_size(CHUNK).unwrap();
    core.add_chunk_size(CHUNK * 3).unwrap();
    core.prefaulted(64 * FRAME_BYTES).unwrap();
    core.prefault_ended();
    let mut rig = Rig {
        core,
        seed: ChunkKey::from_bytes([9; 32]),
        held_from: 0,
    };
    let peers = [rig.peer(1), rig.peer(2)];
    let register = |rig: &mut Rig, peer: &Peer, seed: u8, chunk_size: u32| {
        let registration = Registration {
            domain_seed: ChunkKey::from_bytes([seed; 32]),
            rank: 0,
            world_size: 1,
            required_alignment: ALIGN,
            chunk_size,
            groups: vec![group(0, ObjectKind::Full, 1, 0)],
            payload_path: PayloadPath::ShmDirect,
            stores: true,
        };
        rig.core.register(peer.id, &registration)
    };
    register(&mut rig, &peers[0], 9, CHUNK).unwrap();
    register(&mut rig, &peers[1], 8, CHUNK * 3).unwrap();
    let error = register(&mut rig, &peers[1], 7, CHUNK * 2).unwrap_err();
    assert_eq!((error.code(), error.numbers()), (25, vec![u64::from(CHUNK) * 2]));
    // A tail of one domain may be longer than a chunk of the other.
    let tail = [Tail {
        key: ChunkKey::from_bytes([1; 32]),
        chunk: 0,
        tokens: CHUNK * 2,
    }];
    let mut ask = |seed: u8| {
        let request = LookupRequest {
            domain_seed: ChunkKey::from_bytes([seed; 32]),
            label: 1,
            keys: &[],
            tails: &TailList::new(tail.to_vec()),
            max_tokens: u64::MAX,
            local_tokens: 0,
            pin: false,
            describe: false,
        };
        rig.core
            .lookup(peers[0].id, &request)
            .map(|answer| answer.hit_tokens)
    };
    assert_eq!(ask(8).unwrap(), 0);
    assert_eq!(ask(9).unwrap_err().code(), 24);
    rig.put_chain(&peers[0], 1, 2);
    assert_eq!(rig.resident(1, 2), [0, 1]);
    assert_eq!(rig.core.set_chunk_size(CHUNK).unwrap_err().code(), 25);
}
