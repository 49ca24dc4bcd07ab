use super::*;
use CommitOutcome::*;

const FULL: &[ObjectKind] = &[ObjectKind::Full];

#[test]
fn the_least_recently_used_leaf_goes_first_and_chains_shrink_from_the_end() {
    // Four chains of two chunks fill the pool; a batch is one object here (1/32 of 32 frames).
    let mut rig = Rig::new(32);
    let engine = rig.engine(1, FULL);
    for prompt in 0..4 {
        rig.put_chain(&engine, prompt, 2);
    }
    let used = rig.lookup(&engine, 0, 2, &[]);
    rig.release(&engine, used.pin);
    rig.put_chain(&engine, 9, 1);
    assert_eq!(
        rig.resident(1, 2),
        [0],
        "the end of the oldest chain went, not its start"
    );
    rig.put(&engine, key(9, 1, CHUNK), 0, Some(key(9, 0, CHUNK)), CHUNK);
    assert_eq!(
        rig.resident(1, 2),
        [] as [u32; 0],
        "its start is a leaf now, and older than all others"
    );
    for prompt in [0, 2, 3] {
        assert_eq!(rig.resident(prompt, 2), [0, 1]);
    }
    rig.audit();
}

#[test]
fn a_batch_takes_a_chain_from_its_end() {
    let mut rig = Rig::new(256);
    let engine = rig.engine(1, FULL);
    rig.put_chain(&engine, 1, 32);
    rig.put_chain(&engine, 2, 32);
    let got = rig.core.grant(engine.id, 40 * FRAME_BYTES).unwrap();
    assert_eq!(crate::object::count_frames(&got), 40);
    assert_eq!(rig.resident(1, 32), (0..22).collect::<Vec<_>>());
    assert_eq!(rig.resident(2, 32).len(), 32);
    rig.audit();
}

#[test]
fn pinned_objects_stay_and_what_they_hang_under() {
    let mut rig = Rig::new(32);
    let engine = rig.engine(1, FULL);
    rig.put_chain(&engine, 1, 4);
    rig.put_chain(&engine, 2, 4);
    let seed = rig.seed;
    let deep = ObjectId {
        key: key(1, 2, CHUNK),
        group: 0,
    };
    // A pin on chunk 2 alone protects 0 and 1 too.
    let held = rig.core.retrieve(engine.id, &parts(seed, 0, 0, &[deep])).unwrap();
    rig.core.clear().unwrap();
    assert_eq!(rig.resident(1, 4), [0, 1, 2]);
    assert_eq!(rig.resident(2, 4), [] as [u32; 0]);
    // Nothing more can be had than what is unpinned.
    let got = rig.core.grant(engine.id, 32 * FRAME_BYTES).unwrap();
    assert_eq!(crate::object::count_frames(&got), 16);
    rig.core.abort(engine.id, &got).unwrap();
    rig.release(&engine, held.pin);
    assert_eq!(rig.core.clear().unwrap(), 3);
    rig.audit();
}

#[test]
fn a_full_pinned_pool_drops_stores_and_still_answers() {
    let mut rig = Rig::new(16);
    let engine = rig.engine(1, FULL);
    rig.put_chain(&engine, 1, 4);
    let held = rig.lookup(&engine, 1, 4, &[]);
    let (key, parent) = chain(2, 0);
    let id = ObjectId { key, group: 0 };
    assert_eq!(rig.try_put(&engine, id, parent, CHUNK, 0, 4 * UNIT), None);
    assert_eq!(rig.core.status().counters.dropped_stores, 1);
    assert_eq!(rig.lookup(&engine, 1, 4, &[]).hit_tokens, 256);
    rig.core.release_label(engine.id, 1).unwrap();
    assert!(rig.core.release(engine.id, &[held.pin]).is_err());
    assert_eq!(
        rig.try_put(&engine, id, parent, CHUNK, 0, 4 * UNIT),
        Some(Published)
    );
    rig.audit();
}

#[test]
fn a_pin_in_a_slab_keeps_an_object_and_all_above_it() {
    let mut rig = Rig::new(32);
    let engine = rig.engine(1, FULL);
    let reader = rig.peer(2);
    rig.put_chain(&engine, 1, 4);
    reader.slab_pin(5, rig.record(key(1, 3, CHUNK), 0));
    assert_eq!(
        rig.core.clear().unwrap(),
        0,
        "seen before the batch: it stays visible"
    );
    assert_eq!(rig.resident(1, 4), [0, 1, 2, 3]);
    assert_eq!(rig.core.status().pool.pinned, 4 * FRAME_BYTES);
    reader.slab_pin(5, None);
    assert_eq!(rig.core.clear().unwrap(), 4);
    rig.audit();
}

#[test]
fn a_pin_seen_too_late_puts_the_object_into_limbo_until_it_is_gone() {
    let mut rig = Rig::new(32);
    let engine = rig.engine(1, FULL);
    let mut reader = rig.peer(2);
    rig.put_chain(&engine, 1, 3);
    let record = rig.record(key(1, 2, CHUNK), 0).unwrap();
    // `evict_one` has no scan before: as if the pin came between the two.
    reader.slab_pin(0, Some(record));
    rig.core.evict_one(record).unwrap();
    assert_eq!(rig.resident(1, 3), [0, 1], "out of the index");
    let status = rig.core.status();
    assert_eq!((status.limbo, status.objects), (1, 2));
    assert_eq!(status.pool.used, 12 * FRAME_BYTES, "its frames are kept");
    rig.audit();
    // What it hangs under is protected by it, and the same key can be stored again meanwhile.
    assert_eq!(rig.core.clear().unwrap(), 0);
    rig.put(&engine, key(1, 2, CHUNK), 0, Some(key(1, 1, CHUNK)), CHUNK);
    assert_ne!(rig.record(key(1, 2, CHUNK), 0).unwrap(), record);
    rig.audit();
    reader.die();
    assert!(rig.core.client_gone(reader.id).unwrap());
    assert_eq!(rig.core.clear().unwrap(), 3);
    assert_eq!((rig.core.status().limbo, rig.core.status().pool.used), (0, 0));
    rig.audit();
}

#[test]
fn superseded_tails_go_before_anything_older() {
    let mut rig = Rig::new(32);
    let engine = rig.engine(1, FULL);
    rig.put_chain(&engine, 1, 7); // 28 frames, older
    assert_eq!(rig.put(&engine, key(2, 0, 48), 0, None, 48), Published);
    let seed = rig.seed;
    let tail = ObjectId {
        key: key(2, 0, 48),
        group: 0,
    };
    let whole = ObjectId {
        key: key(1, 6, CHUNK),
        group: 0,
    };
    rig.core
        .commit(
            engine.id,
            &CommitRequest {
                domain_seed: seed,
                items: vec![],
                extents: vec![],
                supersedes: vec![tail, whole],
                grant_bytes: 0,
            },
        )
        .unwrap();
    let got = rig.core.grant(engine.id, 2 * FRAME_BYTES).unwrap();
    assert_eq!(crate::object::count_frames(&got), 2);
    assert_eq!(rig.record(tail.key, 0), None);
    assert_eq!(rig.resident(1, 7).len(), 7, "a full chunk is never superseded");
    rig.audit();
}

#[test]
fn a_superseded_tail_leaves_its_state_behind() {
    let mut rig = Rig::new(64);
    let engine = rig.engine(1, &[ObjectKind::Full, ObjectKind::Recurrent]);
    rig.put_chain(&engine, 1, 1);
    let parent = Some(key(1, 0, CHUNK));
    let tail_key = key(1, 1, 32);
    rig.put(&engine, tail_key, 0, parent, 32);
    let state = ObjectId {
        key: tail_key,
        group: 1,
    };
    assert_eq!(rig.try_put(&engine, state, parent, 32, 0, UNIT), Some(Published));
    rig.put(&engine, key(1, 1, CHUNK), 0, parent, CHUNK);
    let tails = [tail(1, 1, 32)];
    assert_eq!(rig.lookup(&engine, 1, 2, &tails).hit_tokens, 96);
    rig.core.release_label(engine.id, 1).unwrap();
    let record = rig.record(tail_key, 0).unwrap();
    assert!(!rig.core.tree.may_go(record), "a state hangs under it");
    let seed = rig.seed;
    let supersedes = [ObjectId {
        key: tail_key,
        group: 0,
    }];
    rig.core
        .commit(
            engine.id,
            &CommitRequest {
                domain_seed: seed,
                items: vec![],
                extents: vec![],
                supersedes: supersedes.to_vec(),
                grant_bytes: 0,
            },
        )
        .unwrap();
    assert!(rig.core.tree.may_go(record));
    rig.core.evict_one(record).unwrap();
    rig.audit();
    // The same boundary: attention from the front of the full chunk, the state from the tail.
    let answer = rig.lookup(&engine, 1, 2, &tails);
    assert_eq!(answer.hit_tokens, 96);
    assert_eq!(answer.loads[1].id.key, key(1, 1, CHUNK));
    assert_eq!(answer.loads[2].id, state);
    rig.audit();
}

#[test]
fn full_buckets_evict_within_and_drop_when_all_is_pinned() {
    // Find 17 objects that share both buckets of an index for 64 frames: 16 buckets.
    let mut rig = Rig::new(64);
    let engine = rig.engine(1, FULL);
    let place = |n: u32| {
        let bytes = *key(n, 0, 16).as_bytes();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) % 16;
        let (a, b) = (word(0), word(8));
        let b = if a == b { a ^ 1 } else { b };
        (a.min(b), a.max(b))
    };
    let mut seen = std::collections::HashMap::<(u64, u64), Vec<u32>>::new();
    let crowd = (0..)
        .find_map(|n| {
            let here = seen.entry(place(n)).or_default();
            here.push(n);
            (here.len() == 18).then(|| here.clone())
        })
        .unwrap();
    for &n in &crowd[..16] {
        assert_eq!(rig.put(&engine, key(n, 0, 16), 0, None, 16), Published);
    }
    let used = rig.lookup(&engine, crowd[0], 0, &[tail(crowd[0], 0, 16)]);
    rig.release(&engine, used.pin);
    // Room in the pool, none in the buckets: the oldest of the sixteen goes.
    assert_eq!(rig.put(&engine, key(crowd[16], 0, 16), 0, None, 16), Published);
    assert_eq!(rig.record(key(crowd[1], 0, 16), 0), None);
    assert_eq!(rig.core.status().objects, 16);
    rig.audit();
    for &n in &crowd[..17] {
        rig.lookup(&engine, n, 0, &[tail(n, 0, 16)]);
    }
    assert_eq!(rig.put(&engine, key(crowd[17], 0, 16), 0, None, 16), Dropped);
    assert_eq!(rig.core.status().counters.dropped_stores, 1);
    assert_eq!(rig.core.status().pool.granted, 0);
    rig.audit();
}

#[test]
fn an_object_that_fits_in_the_free_space_can_always_be_stored() {
    let mut rig = Rig::new(32);
    let engine = rig.engine(1, FULL);
    for prompt in 0..32 {
        rig.put(&engine, key(prompt, 0, 16), 0, None, 16);
    }
    for prompt in (0..32).step_by(4) {
        let record = rig.record(key(prompt, 0, 16), 0).unwrap();
        rig.core.evict_one(record).unwrap();
    }
    let evicted = rig.core.status().counters.evicted_objects;
    rig.put_chain(&engine, 100, 2);
    assert_eq!(
        rig.core.status().counters.evicted_objects,
        evicted,
        "eight single frames were enough"
    );
    rig.audit();
}

/// Commits one chunk of a prompt and asks for the space of the next. The frames granted.
fn put_and_renew(rig: &mut Rig, engine: &Peer, prompt: u32, chunk: u32) -> u64 {
    let (key, parent) = chain(prompt, chunk);
    let extents = rig.core.grant(engine.id, 4 * UNIT).unwrap();
    let item = StoreItem {
        id: ObjectId { key, group: 0 },
        parent,
        skipped: false,
        part: 0,
        tokens: CHUNK,
        held_from: 0,
        bytes: 4 * UNIT,
        checksum: 0,
        first_extent: 0,
        extent_count: extents.len() as u32,
    };
    let request = CommitRequest {
        domain_seed: rig.seed,
        items: vec![item],
        extents: extents.to_vec(),
        supersedes: vec![],
        grant_bytes: 4 * UNIT,
    };
    let answer = rig.core.commit(engine.id, &request).unwrap();
    assert_eq!(answer.outcomes, [Published]);
    rig.audit();
    let granted = crate::object::count_frames(&answer.granted);
    rig.core.abort(engine.id, &answer.granted).unwrap();
    granted
}

#[test]
fn space_for_stores_to_come_does_not_take_what_was_just_stored() {
    let mut rig = Rig::new(32);
    let engine = rig.engine(1, FULL);
    rig.put_chain(&engine, 1, 7);
    // The eighth chunk fills the pool, and is the only one that nothing hangs under.
    assert_eq!(put_and_renew(&mut rig, &engine, 1, 7), 0);
    assert_eq!(rig.resident(1, 8).len(), 8);
    let dropped = rig.core.status().counters.dropped_stores;
    assert_eq!(dropped, 0, "nothing was to be stored");
    // A store that waits for space gets it.
    let got = rig.core.grant(engine.id, 4 * UNIT).unwrap();
    assert_eq!(crate::object::count_frames(&got), 4);
    assert_eq!(rig.resident(1, 8).len(), 7);
    rig.core.abort(engine.id, &got).unwrap();
    // Where there is something else to take, it is taken: the end of the first chain, then what comes before.
    assert_eq!(put_and_renew(&mut rig, &engine, 2, 0), 4);
    assert_eq!(rig.resident(2, 1), [0]);
    assert_eq!(rig.resident(1, 8).len(), 6);
}

#[test]
fn space_for_stores_to_come_does_not_end_an_incomplete_object_that_may_be_completed() {
    let mut rig = Rig::new(32);
    let engine = rig.engine(1, FULL);
    rig.put_chain(&engine, 1, 6);
    let held = rig.lookup(&engine, 1, 6, &[]);
    let rank = rig.peer(2);
    rig.seed = ChunkKey::from_bytes([8; 32]);
    rig.register(&rank, 0, 2, &[group(0, ObjectKind::Full, 2, 0)])
        .unwrap();
    let extents = rig.core.grant(rank.id, 8 * UNIT).unwrap();
    assert_eq!(extents.len(), 1);
    let run = [Extent::new(extents[0].frame, 4)];
    let item = StoreItem {
        id: ObjectId {
            key: key(2, 0, CHUNK),
            group: 0,
        },
        parent: None,
        skipped: false,
        part: 0,
        tokens: CHUNK,
        held_from: 0,
        bytes: 4 * UNIT,
        checksum: 0,
        first_extent: 0,
        extent_count: 1,
    };
    let request = CommitRequest {
        domain_seed: rig.seed,
        items: vec![item],
        extents: run.to_vec(),
        supersedes: vec![],
        grant_bytes: 16 * UNIT,
    };
    let answer = rig.core.commit(rank.id, &request).unwrap();
    assert_eq!((answer.outcomes, answer.granted), (vec![PartAccepted], vec![]));
    assert_eq!(rig.core.status().incomplete, 1);
    rig.audit();
    rig.release(&engine, held.pin);
}

#[test]
fn touches_of_clients_that_read_by_themselves_count() {
    let mut rig = Rig::new(32);
    let engine = rig.engine(1, FULL);
    for prompt in 0..8 {
        rig.put_chain(&engine, prompt, 1);
    }
    let record = rig.record(key(0, 0, CHUNK), 0).unwrap();
    engine
        .slab
        .store_words(slab::SLAB_TOUCHED, &[u64::from(record) + 1])
        .unwrap();
    engine.slab.store_words(slab::SLAB_CURSOR, &[1]).unwrap();
    rig.put_chain(&engine, 9, 1);
    assert_eq!(rig.resident(0, 1), [0]);
    assert_eq!(rig.resident(1, 1), [] as [u32; 0]);
    rig.audit();
}
