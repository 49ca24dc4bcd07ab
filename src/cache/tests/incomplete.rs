use super::*;
use CommitOutcome::*;

fn ranks(rig: &mut Rig, instance: u8, world: u32) -> Vec<Peer> {
    (0..world)
        .map(|rank| {
            let peer = rig.peer(instance);
            let groups = [group(0, ObjectKind::Full, world as u16, rank as u16)];
            rig.register(&peer, rank, world, &groups).unwrap();
            peer
        })
        .collect()
}

fn put(rig: &mut Rig, peers: &[Peer], rank: usize, chunk: u32) -> CommitOutcome {
    let (key, parent) = chain(1, chunk);
    let id = ObjectId { key, group: 0 };
    rig.try_put(&peers[rank], id, parent, CHUNK, rank as u16, 4 * UNIT)
        .unwrap()
}

/// Rank 0's part of the first chunk, in one run.
fn first_part() -> StoreItem {
    let (key, parent) = chain(1, 0);
    StoreItem {
        id: ObjectId { key, group: 0 },
        parent,
        skipped: false,
        part: 0,
        tokens: CHUNK,
        held_from: 0,
        bytes: 4 * UNIT,
        checksum: 0,
        first_extent: 0,
        extent_count: 1,
    }
}

fn skip(rig: &mut Rig, peers: &[Peer], rank: usize, chunk: u32) -> CommitOutcome {
    let (key, parent) = chain(1, chunk);
    let item = StoreItem {
        id: ObjectId { key, group: 0 },
        parent,
        skipped: true,
        part: rank as u16,
        tokens: CHUNK,
        held_from: 0,
        bytes: 0,
        checksum: 0,
        first_extent: 0,
        extent_count: 0,
    };
    rig.commit(&peers[rank], &[item], &[]).unwrap().outcomes[0]
}

#[test]
fn visible_with_the_last_part_and_counted_as_granted_until_then() {
    let mut rig = Rig::new(128);
    let r = ranks(&mut rig, 1, 2);
    // A step of two chunks: all of rank 0, then all of rank 1. The parent of chunk 1 is an incomplete object meanwhile.
    assert_eq!(put(&mut rig, &r, 0, 0), PartAccepted);
    assert_eq!(put(&mut rig, &r, 0, 1), PartAccepted);
    let status = rig.core.status();
    assert_eq!((status.objects, status.incomplete), (0, 2));
    assert_eq!(status.pool.granted, 8 * FRAME_BYTES);
    assert_eq!(status.clients[0].granted, 8 * FRAME_BYTES);
    assert_eq!(rig.lookup(&r[0], 1, 2, &[]).hit_tokens, 0);
    rig.audit();
    assert_eq!(put(&mut rig, &r, 1, 0), Published);
    assert_eq!(rig.lookup(&r[0], 1, 2, &[]).hit_tokens, 64);
    assert_eq!(put(&mut rig, &r, 1, 1), Published);
    assert_eq!(rig.lookup(&r[0], 1, 2, &[]).hit_tokens, 128);
    assert_eq!(put(&mut rig, &r, 1, 1), Exists);
    let status = rig.core.status();
    assert_eq!((status.pool.granted, status.pool.used), (0, 16 * FRAME_BYTES));
    rig.audit();
}

#[test]
fn a_part_sent_twice_is_a_retry_or_a_second_copy() {
    let mut rig = Rig::new(64);
    let r = ranks(&mut rig, 1, 2);
    let extents = rig.core.grant(r[0].id, 4 * UNIT).unwrap();
    let item = first_part();
    for _ in 0..2 {
        assert_eq!(
            rig.commit(&r[0], &[item], &extents).unwrap().outcomes,
            [PartAccepted]
        );
        rig.audit();
    }
    assert_eq!(put(&mut rig, &r, 0, 0), Exists);
    // The other rank cannot commit the frames of this one.
    let stolen = StoreItem { part: 1, ..item };
    assert_eq!(rig.commit(&r[1], &[stolen], &extents).unwrap_err().code(), 18);
    assert_eq!(put(&mut rig, &r, 1, 0), Published);
    assert_eq!(
        rig.commit(&r[0], &[item], &extents).unwrap().outcomes,
        [Published]
    );
    rig.audit();
}

#[test]
fn a_skip_ends_it_whichever_rank_comes_first() {
    let mut rig = Rig::new(128);
    let r = ranks(&mut rig, 1, 3);
    // After another part.
    put(&mut rig, &r, 0, 0);
    put(&mut rig, &r, 0, 1);
    assert_eq!(skip(&mut rig, &r, 1, 0), Skipped);
    let status = rig.core.status();
    assert_eq!(
        (status.incomplete, status.pool.granted),
        (0, 0),
        "and what hung under it"
    );
    assert_eq!(put(&mut rig, &r, 2, 0), Skipped);
    rig.audit();
    // All three have come: the next store is a new one.
    assert_eq!(put(&mut rig, &r, 0, 0), PartAccepted);
    assert_eq!(put(&mut rig, &r, 1, 0), PartAccepted);
    assert_eq!(put(&mut rig, &r, 2, 0), Published);
    // Before any other part.
    assert_eq!(skip(&mut rig, &r, 1, 2), Skipped);
    assert_eq!(put(&mut rig, &r, 0, 2), Skipped);
    assert_eq!(put(&mut rig, &r, 2, 2), Skipped);
    assert_eq!(rig.core.status().pool.granted, 0);
    assert_eq!(skip(&mut rig, &r, 1, 0), Exists);
    rig.audit();
}

/// As a rank does that has space for its part and cannot fill it. Space is given back by itself; what ends the
/// incomplete object is that the part will not come.
#[test]
fn space_given_back_ends_no_incomplete_object_and_the_skip_that_follows_does() {
    let mut rig = Rig::new(128);
    let r = ranks(&mut rig, 1, 2);
    let before = rig.core.status().pool;
    let extents = rig.core.grant(r[0].id, 4 * UNIT).unwrap();
    let item = first_part();
    let outcomes = rig.commit(&r[0], &[item], &extents).unwrap().outcomes;
    assert_eq!(outcomes, [PartAccepted]);
    let half = rig.core.status().pool;
    assert_eq!(half.granted, before.granted + 4 * FRAME_BYTES);

    let unfilled = rig.core.grant(r[1].id, 4 * UNIT).unwrap();
    assert_eq!(rig.core.status().pool.granted, half.granted + 4 * FRAME_BYTES);
    rig.core.abort(r[1].id, &unfilled).unwrap();
    // A part that was taken is nobody's to give back.
    for rank in &r {
        assert!(rig.core.abort(rank.id, &extents).is_err());
    }
    assert_eq!((rig.core.status().pool, rig.core.status().incomplete), (half, 1));
    for rank in &r {
        assert_eq!(rig.lookup(rank, 1, 1, &[]).hit_tokens, 0);
    }
    rig.audit();

    assert_eq!(skip(&mut rig, &r, 1, 0), Skipped);
    let status = rig.core.status();
    assert_eq!((status.pool, status.incomplete, status.objects), (before, 0, 0));
    assert_eq!(
        (status.counters.ended_incomplete, status.counters.dropped_stores),
        (1, 0)
    );
    for rank in &r {
        assert_eq!(rig.lookup(rank, 1, 1, &[]).hit_tokens, 0);
    }
    rig.audit();
}

#[test]
fn the_death_of_a_rank_leaves_no_half_object() {
    let mut rig = Rig::new(128);
    let mut r = ranks(&mut rig, 1, 2);
    let before = rig.core.status().pool;
    put(&mut rig, &r, 0, 0);
    put(&mut rig, &r, 0, 1);
    r[1].die();
    assert!(rig.core.client_gone(r[1].id).unwrap());
    assert_eq!(rig.core.status().pool, before);
    assert_eq!(rig.core.status().incomplete, 0);
    rig.audit();
    // Another engine is not affected by it.
    let mut other = ranks(&mut rig, 2, 2);
    put(&mut rig, &other, 0, 0);
    r[0].die();
    assert!(rig.core.client_gone(r[0].id).unwrap());
    assert_eq!(put(&mut rig, &other, 1, 0), Published);
    // Nor does a tool of the same engine end anything.
    put(&mut rig, &other, 0, 1);
    let mut tool = rig.peer(2);
    tool.die();
    assert!(rig.core.client_gone(tool.id).unwrap());
    assert_eq!(rig.core.status().incomplete, 1);
    // A rank that registers again does.
    let groups = [group(0, ObjectKind::Full, 2, 0)];
    rig.register(&other[0], 0, 2, &groups).unwrap();
    assert_eq!(rig.core.status().incomplete, 0);
    other[1].die();
    rig.audit();
}

#[test]
fn of_two_engines_the_first_complete_object_wins() {
    let mut rig = Rig::new(128);
    let (a, b) = (ranks(&mut rig, 1, 2), ranks(&mut rig, 2, 2));
    for chunk in 0..2 {
        put(&mut rig, &a, 0, chunk);
        put(&mut rig, &b, 0, chunk);
    }
    assert_eq!(rig.core.status().incomplete, 4);
    assert_eq!(put(&mut rig, &a, 1, 0), Published);
    // The space of b's copy is back, and b's chunk 1 hangs under a's chunk 0 now.
    assert_eq!(rig.core.status().pool.granted, 8 * FRAME_BYTES);
    rig.audit();
    assert_eq!(put(&mut rig, &b, 1, 0), Exists);
    assert_eq!(put(&mut rig, &b, 1, 1), Published);
    assert_eq!(put(&mut rig, &a, 1, 1), Exists);
    let status = rig.core.status();
    assert_eq!(
        (status.objects, status.incomplete, status.pool.granted),
        (2, 0, 0)
    );
    rig.audit();
}

#[test]
fn stale_incomplete_objects_are_the_first_victims_and_fresh_ones_the_last() {
    let mut rig = Rig::new(32);
    let r = ranks(&mut rig, 1, 2);
    put(&mut rig, &r, 0, 0); // never completed
    let single = rig.engine_of(2);
    for prompt in 10..17 {
        rig.put_chain_in(&single, prompt);
    }
    assert_eq!(rig.core.status().pool.free, 0);
    // Fresh: an object goes first.
    rig.put_chain_in(&single, 20);
    assert_eq!(rig.core.status().incomplete, 1);
    for _ in 0..8 {
        rig.commit(&r[0], &[], &[]).unwrap();
    }
    // Its engine has moved on: it goes before any object.
    let objects = rig.core.status().objects;
    rig.put_chain_in(&single, 21);
    assert_eq!(rig.core.status().incomplete, 0);
    assert_eq!(rig.core.status().objects, objects + 1);
    // The part that comes too late is one of its own, and goes at last without need.
    assert_eq!(put(&mut rig, &r, 1, 0), PartAccepted);
    for commits in 1..64 {
        assert_eq!(
            rig.core.status().incomplete,
            1,
            "after {commits} commits, that of the part included"
        );
        rig.commit(&r[1], &[], &[]).unwrap();
    }
    assert_eq!(rig.core.status().incomplete, 0);
    rig.audit();
    // With nothing else left, a fresh one goes too.
    put(&mut rig, &r, 0, 1);
    let (key, _) = chain(1, 0);
    let id = ObjectId { key, group: 0 };
    rig.try_put(&r[0], id, None, CHUNK, 0, 4 * UNIT).unwrap();
    rig.core.clear().unwrap();
    assert_eq!(rig.core.status().incomplete, 0);
    rig.audit();
}

#[test]
fn until_all_ranks_have_registered_nothing_is_a_hit() {
    let mut rig = Rig::new(64);
    let first = rig.peer(1);
    rig.register(&first, 0, 2, &[group(0, ObjectKind::Full, 1, 0)])
        .unwrap();
    rig.put_chain(&first, 1, 1);
    assert_eq!(rig.lookup(&first, 1, 1, &[]).hit_tokens, 0);
    // A pipeline rank brings a group of its own, which chunk 0 lacks.
    let second = rig.peer(1);
    rig.register(&second, 1, 2, &[group(1, ObjectKind::Full, 1, 0)])
        .unwrap();
    assert_eq!(rig.lookup(&first, 1, 1, &[]).hit_tokens, 0);
    assert_eq!(rig.put(&second, key(1, 0, CHUNK), 1, None, CHUNK), Published);
    assert_eq!(rig.lookup(&first, 1, 1, &[]).hit_tokens, 64);
    rig.audit();
}

impl Rig {
    /// An engine of one rank in a domain of its own.
    fn engine_of(&mut self, instance: u8) -> Peer {
        let seed = std::mem::replace(&mut self.seed, ChunkKey::from_bytes([instance; 32]));
        let peer = self.engine(instance, &[ObjectKind::Full]);
        self.seed = seed;
        peer
    }

    /// Stores one chunk of a prompt in that domain.
    fn put_chain_in(&mut self, peer: &Peer, prompt: u32) {
        let seed = std::mem::replace(&mut self.seed, ChunkKey::from_bytes([2; 32]));
        self.put_chain(peer, prompt, 1);
        self.seed = seed;
    }
}

/// Two ranks of a model with full attention, which is the same on both and stored by the first, and states of each.
fn ranks_with_states(rig: &mut Rig) -> Vec<Peer> {
    (0..2)
        .map(|rank| {
            let peer = rig.peer(1);
            let groups = [
                group(0, ObjectKind::Full, 1, 0),
                group(1, ObjectKind::Recurrent, 2, rank),
            ];
            rig.register(&peer, rank.into(), 2, &groups).unwrap();
            peer
        })
        .collect()
}

fn put_state(rig: &mut Rig, peers: &[Peer], rank: usize, chunk: u32, tokens: u32) -> CommitOutcome {
    let (_, parent) = chain(1, chunk);
    let id = ObjectId {
        key: key(1, chunk, tokens),
        group: 1,
    };
    rig.try_put(&peers[rank], id, parent, tokens, rank as u16, UNIT)
        .unwrap()
}

#[test]
fn parts_of_a_rank_that_stores_no_attention_may_come_before_it() {
    for first in [0, 1] {
        let mut rig = Rig::new(128);
        let r = ranks_with_states(&mut rig);
        if first == 1 {
            // Neither chunk 1 nor the one before it is known yet.
            assert_eq!(put_state(&mut rig, &r, 1, 1, CHUNK), PartAccepted);
            assert_eq!(put_state(&mut rig, &r, 1, 2, 32), PartAccepted);
            rig.audit();
        }
        rig.put_chain(&r[0], 1, 2);
        assert_eq!(rig.put(&r[0], key(1, 2, 32), 0, chain(1, 2).1, 32), Published);
        let last = 1 - first;
        if first == 0 {
            assert_eq!(put_state(&mut rig, &r, 0, 1, CHUNK), PartAccepted);
            assert_eq!(put_state(&mut rig, &r, 0, 2, 32), PartAccepted);
        }
        assert_eq!(rig.lookup(&r[0], 1, 2, &[]).hit_tokens, 0);
        assert_eq!(put_state(&mut rig, &r, last, 1, CHUNK), Published);
        assert_eq!(rig.lookup(&r[0], 1, 2, &[tail(1, 2, 32)]).hit_tokens, 128);
        assert_eq!(put_state(&mut rig, &r, last, 2, 32), Published);
        assert_eq!(rig.lookup(&r[0], 1, 2, &[tail(1, 2, 32)]).hit_tokens, 160);
        assert_eq!(rig.core.status().incomplete, 0);
        rig.audit();
        rig.core.release_label(r[0].id, 1).unwrap();
        let full = rig.record(key(1, 1, CHUNK), 0).unwrap();
        assert!(!rig.core.tree.may_go(full), "the state hangs under it");
        assert_eq!(rig.core.clear().unwrap(), 5);
        rig.audit();
    }
}

#[test]
fn without_attention_a_complete_state_goes() {
    let mut rig = Rig::new(128);
    let mut r = ranks_with_states(&mut rig);
    let before = rig.core.status().pool;
    assert_eq!(put_state(&mut rig, &r, 1, 0, CHUNK), PartAccepted);
    assert_eq!(put_state(&mut rig, &r, 0, 0, CHUNK), NoParent);
    assert_eq!(
        (rig.core.status().pool, rig.core.status().incomplete),
        (before, 0)
    );
    // Nothing is remembered of it.
    assert_eq!(put_state(&mut rig, &r, 1, 0, CHUNK), PartAccepted);
    rig.put_chain(&r[0], 1, 1);
    assert_eq!(put_state(&mut rig, &r, 0, 0, CHUNK), Published);
    // The rank that would have brought the attention dies.
    assert_eq!(put_state(&mut rig, &r, 1, 1, CHUNK), PartAccepted);
    r[0].die();
    assert!(rig.core.client_gone(r[0].id).unwrap());
    assert_eq!(rig.core.status().incomplete, 0);
    rig.audit();
}

#[test]
fn an_object_is_never_made_of_the_parts_of_two_computations() {
    let mut rig = Rig::new(128);
    let one = ranks(&mut rig, 1, 2);
    let two = ranks(&mut rig, 2, 2);
    let publish = |rig: &mut Rig| {
        assert_eq!(put(rig, &one, 0, 0), PartAccepted);
        assert_eq!(put(rig, &one, 1, 0), Published);
    };
    for first in 0..2 {
        let then = 1 - first;
        // It is there for one rank and gone for the other.
        for skips in [false, true] {
            publish(&mut rig);
            let outcome = match skips {
                true => skip(&mut rig, &two, first, 0),
                false => put(&mut rig, &two, first, 0),
            };
            assert_eq!(outcome, Exists);
            rig.core.clear().unwrap();
            assert_eq!(put(&mut rig, &two, then, 0), Skipped);
            assert_eq!(rig.core.status().incomplete, 0);
        }
        // A part of an incomplete object that another engine's object has ended, and the object is gone.
        assert_eq!(put(&mut rig, &two, first, 0), PartAccepted);
        publish(&mut rig);
        rig.core.clear().unwrap();
        assert_eq!(put(&mut rig, &two, then, 0), Skipped);
        // The other rank's part never comes: the next computation is one by itself.
        publish(&mut rig);
        assert_eq!(put(&mut rig, &two, first, 0), Exists);
        rig.core.clear().unwrap();
        assert_eq!(put(&mut rig, &two, first, 0), PartAccepted);
        assert_eq!(put(&mut rig, &two, then, 0), Published);
        rig.core.clear().unwrap();
        rig.audit();
    }
    assert_eq!(rig.core.status().pool.granted, 0);
}

#[test]
fn a_rank_belongs_to_the_client_that_registered_it_last() {
    let mut rig = Rig::new(128);
    let r = ranks(&mut rig, 1, 2);
    let again = rig.peer(1);
    rig.register(&again, 0, 2, &[group(0, ObjectKind::Full, 2, 0)])
        .unwrap();
    // The first one lives, and computes something that rank 1's parts do not belong to.
    let extents = rig.core.grant(r[0].id, 4 * UNIT).unwrap();
    let refused = rig.commit(&r[0], &[first_part()], &extents);
    assert_eq!(refused.unwrap_err().code(), 14);
    rig.core.abort(r[0].id, &extents).unwrap();
    let peers = [again, rig.peer(9)];
    assert_eq!(put(&mut rig, &peers, 0, 0), PartAccepted);
    assert_eq!(put(&mut rig, &r, 1, 0), Published);
    // Until it registers again itself.
    rig.register(&r[0], 0, 2, &[group(0, ObjectKind::Full, 2, 0)])
        .unwrap();
    assert_eq!(put(&mut rig, &r, 0, 1), PartAccepted);
    rig.audit();
}
