use super::*;
use CommitOutcome::*;

const WINDOW: ObjectKind = ObjectKind::Window { tokens: 65 };

/// Full attention, a window of one chunk, a state.
const HYBRID: &[ObjectKind] = &[ObjectKind::Full, WINDOW, ObjectKind::Recurrent];

fn put(rig: &mut Rig, engine: &Peer, prompt: u32, chunk: u32, group: u16) -> CommitOutcome {
    let (key, parent) = chain(prompt, chunk);
    let bytes = if group == 2 { UNIT } else { 4 * UNIT };
    rig.try_put(engine, ObjectId { key, group }, parent, CHUNK, 0, bytes)
        .unwrap()
}

fn names(answer: &LookupAnswer) -> Vec<(u16, u32)> {
    answer.loads.iter().map(|l| (l.id.group, l.chunk)).collect()
}

#[test]
fn a_chunk_that_lacks_a_mandatory_group_is_never_a_hit() {
    let mut rig = Rig::new(128);
    let engine = rig.engine(1, HYBRID);
    for c in 0..4 {
        put(&mut rig, &engine, 1, c, 0);
    }
    assert_eq!(rig.lookup(&engine, 1, 4, &[]).hit_tokens, 0);
    put(&mut rig, &engine, 1, 1, 1);
    put(&mut rig, &engine, 1, 2, 1);
    assert_eq!(rig.lookup(&engine, 1, 4, &[]).hit_tokens, 0);
    put(&mut rig, &engine, 1, 1, 2);
    let answer = rig.lookup(&engine, 1, 4, &[]);
    assert_eq!(answer.hit_tokens, 128);
    assert_eq!(names(&answer), [(0, 0), (0, 1), (1, 1), (2, 1)]);
    assert_eq!(answer.present_tokens, [256, 0, 0]);
    put(&mut rig, &engine, 1, 2, 2);
    let answer = rig.lookup(&engine, 1, 4, &[]);
    assert_eq!(answer.hit_tokens, 192);
    assert_eq!(names(&answer), [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)]);
    // What the engine has is not named, but its own states do not reach this far.
    let answer = rig.lookup_at(&engine, 1, 4, &[], u64::MAX, 128);
    assert_eq!(names(&answer), [(0, 2), (1, 2), (2, 2)]);
    let answer = rig.lookup_at(&engine, 1, 4, &[], u64::MAX, 192);
    assert_eq!((answer.hit_tokens, answer.pin), (192, 0));
    rig.audit();
}

#[test]
fn a_group_that_was_evicted_shortens_the_hit() {
    let mut rig = Rig::new(128);
    let engine = rig.engine(1, HYBRID);
    for c in 0..3 {
        for g in 0..3 {
            assert_eq!(put(&mut rig, &engine, 1, c, g), Published);
        }
    }
    assert_eq!(rig.lookup(&engine, 1, 3, &[]).hit_tokens, 192);
    rig.core.release_label(engine.id, 1).unwrap();
    let window = rig.record(key(1, 2, CHUNK), 1).unwrap();
    let full = rig.record(key(1, 2, CHUNK), 0).unwrap();
    assert!(!rig.core.tree.may_go(full), "window and state hang under it");
    rig.core.evict_one(window).unwrap();
    assert_eq!(rig.lookup(&engine, 1, 3, &[]).hit_tokens, 128);
    rig.core.release_label(engine.id, 1).unwrap();
    rig.audit();
    // Stored again, it is a hit again.
    put(&mut rig, &engine, 1, 2, 1);
    assert_eq!(rig.lookup(&engine, 1, 3, &[]).hit_tokens, 192);
    rig.core.release_label(engine.id, 1).unwrap();
    assert_eq!(rig.core.clear().unwrap(), 9);
    rig.audit();
}

#[test]
fn windows_and_states_need_the_attention_object_of_their_chunk() {
    let mut rig = Rig::new(128);
    let engine = rig.engine(1, HYBRID);
    assert_eq!(put(&mut rig, &engine, 1, 0, 1), NoParent);
    put(&mut rig, &engine, 1, 0, 0);
    assert_eq!(put(&mut rig, &engine, 1, 0, 1), Published);
    assert_eq!(put(&mut rig, &engine, 1, 1, 2), NoParent);
    // The state at a boundary inside chunk 1 needs no attention object of its own: the full chunk will have
    // the bytes. It hangs under the chunk before.
    let state = ObjectId {
        key: key(1, 1, 16),
        group: 2,
    };
    let parent = Some(key(1, 0, CHUNK));
    assert_eq!(rig.try_put(&engine, state, parent, 16, 0, UNIT), Some(Published));
    let first = ObjectId {
        key: key(2, 0, 16),
        group: 2,
    };
    assert_eq!(
        rig.try_put(&engine, first, None, 16, 0, UNIT),
        Some(Published),
        "a root"
    );
    rig.audit();
    put(&mut rig, &engine, 1, 1, 0);
    put(&mut rig, &engine, 1, 1, 1);
    let answer = rig.lookup(&engine, 1, 2, &[tail(1, 1, 16)]);
    assert_eq!(answer.hit_tokens, 80);
    assert_eq!(names(&answer), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1)]);
    assert_eq!(answer.loads[4].tokens, 16);
    rig.audit();
}

#[test]
fn a_model_without_full_attention_has_roots_only() {
    let mut rig = Rig::new(128);
    let engine = rig.peer(1);
    let groups = [group(1, WINDOW, 1, 0), group(2, ObjectKind::Recurrent, 1, 0)];
    rig.register(&engine, 0, 1, &groups).unwrap();
    for c in [3, 4] {
        assert_eq!(put(&mut rig, &engine, 1, c, 1), Published);
        assert_eq!(put(&mut rig, &engine, 1, c, 2), Published);
    }
    let answer = rig.lookup(&engine, 1, 6, &[]);
    assert_eq!(answer.hit_tokens, 320);
    assert_eq!(names(&answer), [(1, 4), (2, 4)]);
    rig.core.release_label(engine.id, 1).unwrap();
    assert_eq!(rig.core.clear().unwrap(), 4);
    rig.audit();
}

#[test]
fn two_full_groups_both_bound_the_prefix() {
    let mut rig = Rig::new(128);
    let engine = rig.engine(1, &[ObjectKind::Full, ObjectKind::Full]);
    for c in 0..3 {
        assert_eq!(put(&mut rig, &engine, 1, c, 0), Published);
    }
    assert_eq!(
        put(&mut rig, &engine, 1, 1, 1),
        NoParent,
        "each group is a chain of its own"
    );
    assert_eq!(put(&mut rig, &engine, 1, 0, 1), Published);
    assert_eq!(put(&mut rig, &engine, 1, 1, 1), Published);
    let answer = rig.lookup(&engine, 1, 3, &[]);
    assert_eq!((answer.hit_tokens, answer.present_tokens), (128, vec![192, 128]));
    rig.audit();
}

#[test]
fn a_tail_hits_as_finely_as_it_was_stored() {
    let mut rig = Rig::new(64);
    let engine = rig.engine(1, &[ObjectKind::Full]);
    rig.put_chain(&engine, 1, 2);
    rig.put(&engine, key(1, 2, 48), 0, Some(key(1, 1, CHUNK)), 48);
    let tails: Vec<Tail> = [48, 32, 16].map(|t| tail(1, 2, t)).to_vec();
    // At most prompt - 1: the boundary at 32 is served by the front of the tail of 48.
    let answer = rig.lookup_at(&engine, 1, 2, &tails, 175, 0);
    assert_eq!(answer.hit_tokens, 160);
    assert_eq!(
        (answer.loads[2].tokens, answer.loads[2].id.key),
        (48, key(1, 2, 48))
    );
    assert_eq!(answer.present_tokens, [176]);
    // A prompt that shares only 16 tokens of it names other longer tails, and gets nothing of this one.
    let other = [tail(7, 2, 48), tail(1, 2, 16)];
    assert_eq!(rig.lookup_at(&engine, 1, 2, &other, 175, 0).hit_tokens, 128);
    let bad = Tail {
        tokens: 40,
        ..tails[0]
    };
    let keys = [key(1, 0, CHUNK)];
    for bad in [
        bad,
        Tail { tokens: 64, ..bad },
        Tail { tokens: 0, ..bad },
        Tail {
            tokens: 16,
            chunk: 2,
            ..bad
        },
    ] {
        let request = LookupRequest {
            domain_seed: rig.seed,
            label: 0,
            keys: &keys,
            tails: &TailList::new(vec![bad]),
            max_tokens: 1000,
            local_tokens: 0,
            pin: true,
            describe: false,
        };
        let error = rig.core.lookup(engine.id, &request).unwrap_err();
        assert_eq!(error.code(), 24, "{error}");
    }
    rig.audit();
}

#[test]
fn an_object_of_another_length_than_named_is_not_taken() {
    let mut rig = Rig::new(64);
    let engine = rig.engine(1, &[ObjectKind::Full]);
    // A client that stores 32 tokens under the key of 48.
    rig.put(&engine, key(1, 0, 48), 0, None, 32);
    assert_eq!(rig.lookup(&engine, 1, 0, &[tail(1, 0, 48)]).hit_tokens, 0);
    rig.put(&engine, key(1, 0, CHUNK), 0, None, 32);
    assert_eq!(rig.lookup(&engine, 1, 1, &[]).hit_tokens, 0);
}

#[test]
fn counts_add_up_over_hits_and_misses() {
    let mut rig = Rig::new(64);
    let engine = rig.engine(1, &[ObjectKind::Full]);
    rig.put_chain(&engine, 1, 2);
    rig.lookup_at(&engine, 1, 4, &[tail(1, 4, 32)], 270, 0); // 16 of 16 + 2 units, 8 of them hit
    rig.lookup_at(&engine, 2, 1, &[], 1000, 0); // 4 units, no hit
    let c = rig.core.status().counters;
    assert_eq!((c.lookups, c.requested, c.hit, c.miss), (2, 16 + 4, 8, 12));
}

/// Where a model needs nothing of what was before, there is nothing that tells a prompt from any other.
#[test]
fn a_hit_never_names_nothing() {
    let local = |tokens| ObjectKind::ChunkedLocal { tokens };
    let one = ObjectKind::Window { tokens: 1 };
    for kinds in [
        &[one][..],
        &[local(16)],
        &[local(64)],
        &[local(16), one, local(32)],
        &[local(16), local(64), one],
    ] {
        let mut rig = Rig::new(64);
        let mut engine = rig.engine(1, kinds);
        let tails: Vec<Tail> = [16, 32, 48].map(|tokens| tail(7, 2, tokens)).into();
        let unknown = rig.lookup(&engine, 7, 2, &tails);
        assert_eq!((unknown.hit_tokens, unknown.pin), (0, 0), "{kinds:?}");
        let held = rig.lookup_at(&engine, 7, 2, &tails, u64::MAX, 128);
        assert_eq!(held.hit_tokens, 0, "{kinds:?} with tokens of its own");
        let own = rig.look_up_direct(&mut engine, 7, 2, &tails, u64::MAX);
        assert_eq!((own.hit_tokens, own.pin), (0, 0), "{kinds:?} by itself");
    }
    // Where one group needs something, that is named.
    let mut rig = Rig::new(64);
    let engine = rig.engine(1, &[ObjectKind::Full, local(64)]);
    rig.put_chain(&engine, 1, 2);
    let found = rig.lookup(&engine, 1, 2, &[]);
    assert_eq!((found.hit_tokens, found.loads.len()), (128, 2));
    rig.audit();
}

#[test]
fn a_question_about_far_tails_costs_what_it_names() {
    let mut rig = Rig::new(64);
    for kinds in [&[ObjectKind::Window { tokens: 40 }][..], &[ObjectKind::Full]] {
        rig.seed = ChunkKey::from_bytes([u8::from(kinds[0] == ObjectKind::Full) + 3; 32]);
        let mut engine = rig.engine(1, kinds);
        let tails = [0, 1, u32::MAX - 1, u32::MAX].map(|chunk| tail(1, chunk, 16));
        // The server says what is wrong, the client's own question finds nothing there.
        let keys = [key(1, 0, CHUNK)];
        let request = LookupRequest {
            domain_seed: rig.seed,
            label: 0,
            keys: &keys,
            tails: &TailList::new(tails.to_vec()),
            max_tokens: u64::MAX,
            local_tokens: u64::MAX,
            pin: true,
            describe: false,
        };
        assert_eq!(rig.core.lookup(engine.id, &request).unwrap_err().code(), 24);
        assert_eq!(
            rig.look_up_direct(&mut engine, 1, 1, &tails, u64::MAX).hit_tokens,
            0
        );
    }
}
