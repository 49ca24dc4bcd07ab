//! Reads that take several turns: how many steps, and what others do between them.

use super::*;
use crate::cache::turn::{TURN_STEPS, Turn};
use proptest::prelude::*;

/// Steps of each turn that some work takes. A turn may be overdrawn by what one movement costs.
fn steps<W: Work>(core: &mut Core, mut work: W, mut between: impl FnMut(&mut Core)) -> (Vec<u32>, W::Answer) {
    let mut turns = Vec::new();
    loop {
        let mut turn = Turn::new();
        let progress = work.step(core, &mut turn).unwrap();
        turns.push(turn.spent());
        if let Progress::Done(answer) = progress {
            return (turns, answer);
        }
        between(core);
    }
}

/// One frame per object, so that many fit.
fn small(number: u16, kind: ObjectKind) -> GroupRegistration {
    GroupRegistration {
        unit_bytes: 64,
        ..group(number, kind, 1, 0)
    }
}

fn member(rig: &mut Rig, instance: u8, kinds: &[ObjectKind]) -> Peer {
    let peer = rig.peer(instance);
    let groups: Vec<_> = (0..).zip(kinds).map(|(at, kind)| small(at, *kind)).collect();
    rig.register(&peer, 0, 1, &groups).unwrap();
    peer
}

/// Chunks `0..chunks` of a prompt in one group.
fn fill(rig: &mut Rig, peer: &Peer, prompt: u32, number: u16, kind: ObjectKind, chunks: u32) {
    let bytes = if kind == ObjectKind::Recurrent { 64 } else { 64 * 4 };
    for first in (0..chunks).step_by(1024) {
        let count = (chunks - first).min(1024);
        let granted = rig.core.grant(peer.id, u64::from(count) * FRAME_BYTES).unwrap();
        let extents: Vec<Extent> = granted
            .iter()
            .flat_map(|extent| extent.frames())
            .map(|frame| Extent::new(frame, 1))
            .collect();
        assert_eq!(extents.len(), count as usize);
        let items: Vec<StoreItem> = (0..count)
            .map(|at| StoreItem {
                first_extent: at,
                ..chunk_item(prompt, first + at, number, bytes)
            })
            .collect();
        let answer = rig.commit(peer, &items, &extents).unwrap();
        assert!(
            answer
                .outcomes
                .iter()
                .all(|outcome| *outcome == CommitOutcome::Published)
        );
    }
}

struct Asked {
    keys: Vec<ChunkKey>,
    tails: TailList,
}

impl Asked {
    fn new(prompt: u32, chunks: u32, tails: Vec<Tail>) -> Self {
        Self {
            keys: (0..chunks).map(|c| key(prompt, c, CHUNK)).collect(),
            tails: TailList::new(tails),
        }
    }

    fn request(&self, rig: &Rig, pin: bool) -> LookupRequest<'_> {
        LookupRequest {
            domain_seed: rig.seed,
            label: 1,
            keys: &self.keys,
            tails: &self.tails,
            max_tokens: u64::MAX,
            local_tokens: 0,
            pin,
            describe: false,
        }
    }
}

/// A movement that is made when the turn is almost over.
const OVERDRAWN: u32 = 48;

fn assert_turns(turns: &[u32], what: &str) {
    let longest = turns.iter().max().unwrap();
    assert!(
        *longest <= TURN_STEPS + OVERDRAWN,
        "{what}: a turn of {longest} steps"
    );
}

#[test]
fn a_lookup_of_an_ordinary_prompt_is_one_turn() {
    let mut rig = Rig::new(1024);
    let peer = member(&mut rig, 1, &[ObjectKind::Full]);
    fill(&mut rig, &peer, 1, 0, ObjectKind::Full, 128);
    let asked = Asked::new(1, 128, Vec::new());
    let request = asked.request(&rig, true);
    let mut turn = Turn::new();
    turn.spend(16); // what the message costs
    let mut work = Looking::new(peer.id, &request);
    let Progress::Done(answer) = work.step(&mut rig.core, &mut turn).unwrap() else {
        panic!("more than a turn");
    };
    assert_eq!(answer.hit_tokens, 128 * u64::from(CHUNK));
    let (turns, ()) = steps(&mut rig.core, Releasing::new(peer.id, &[answer.pin]), |_| {});
    assert_eq!(turns.len(), 1);
    rig.audit();
}

#[test]
fn steps_grow_with_what_is_named_for_every_kind_of_model() {
    const FULL: ObjectKind = ObjectKind::Full;
    let endless = ObjectKind::Window { tokens: u64::MAX };
    let window = ObjectKind::Window { tokens: 1 << 18 };
    let local = ObjectKind::ChunkedLocal { tokens: 1 << 30 };
    for kinds in [
        &[FULL][..],
        &[endless],
        &[window],
        &[local],
        &[FULL, window],
        &[ObjectKind::Recurrent],
        &[endless, window, local],
    ] {
        let mut sums = Vec::new();
        for chunks in [1024_u32, 4096] {
            let mut rig = Rig::new(u64::from(chunks) * kinds.len() as u64 * 2);
            let peer = member(&mut rig, 1, kinds);
            for (number, kind) in (0..).zip(kinds) {
                fill(&mut rig, &peer, 1, number, *kind, chunks);
            }
            // The last half is not there; of a window's model all boundaries behind have to be looked at.
            let asked = Asked::new(1, chunks * 2, Vec::new());
            let request = asked.request(&rig, true);
            let (turns, answer) = steps(&mut rig.core, Looking::new(peer.id, &request), |_| {});
            assert_eq!(answer.hit_tokens, u64::from(chunks * CHUNK), "{kinds:?}");
            assert_turns(&turns, "lookup");
            let (ended, ()) = steps(&mut rig.core, ReleasingLabel::new(peer.id, 1), |_| {});
            assert_turns(&ended, "end of a session");
            sums.push(turns.iter().sum::<u32>() + ended.iter().sum::<u32>());
            rig.audit();
        }
        let per_chunk = sums[0] / 1024;
        assert!(
            per_chunk <= 4 * kinds.len() as u32 + 4,
            "{kinds:?}: {per_chunk} steps for a chunk"
        );
        assert!(
            sums[1] < sums[0] * 5,
            "{kinds:?}: {sums:?} steps for four times as much"
        );
    }
}

/// A prompt of which too much would be pinned is cut by halving, each time the whole plan.
#[test]
fn a_lookup_beyond_its_share_takes_turns_too() {
    let mut sums = Vec::new();
    for chunks in [1024_u32, 4096] {
        let mut rig = Rig::with_pins_of(u64::from(chunks) * 3, 10);
        let kinds = [ObjectKind::Full, ObjectKind::Window { tokens: 1 << 30 }];
        let peer = member(&mut rig, 1, &kinds);
        for (number, kind) in (0..).zip(&kinds) {
            fill(&mut rig, &peer, 1, number, *kind, chunks);
        }
        let asked = Asked::new(1, chunks, Vec::new());
        let request = asked.request(&rig, true);
        let (turns, answer) = steps(&mut rig.core, Looking::new(peer.id, &request), |_| {});
        let fits = u64::from(chunks) * 3 / 10 / 2;
        assert_eq!(answer.hit_tokens, fits * u64::from(CHUNK));
        assert_turns(&turns, "a cut lookup");
        sums.push(turns.iter().sum::<u32>());
        rig.audit();
        rig.core.release_label(peer.id, 1).unwrap();
        assert_eq!(rig.core.pins.kept_frames(peer.id), 0);
        rig.audit();
    }
    assert!(sums[1] < sums[0] * 6, "{sums:?}");
}

#[test]
fn many_tails_are_looked_at_in_turns() {
    let mut rig = Rig::new(4096);
    let kinds = [ObjectKind::Full, ObjectKind::Recurrent];
    let peer = member(&mut rig, 1, &kinds);
    fill(&mut rig, &peer, 1, 0, ObjectKind::Full, 1024);
    // One chunk with very many of them, all of one length or another.
    let tails: Vec<Tail> = (0..30_000_u32)
        .map(|at| Tail {
            key: key(3, at, 0),
            chunk: 1024,
            tokens: (at % 3 + 1) * 16,
        })
        .chain((0..1024).flat_map(|chunk| [16, 32, 48].map(|tokens| tail(1, chunk, tokens))))
        .collect();
    let asked = Asked::new(1, 1024, tails);
    let request = asked.request(&rig, true);
    let (turns, answer) = steps(&mut rig.core, Looking::new(peer.id, &request), |_| {});
    assert_eq!(answer.hit_tokens, 0, "no state anywhere");
    assert_turns(&turns, "tails");
    assert!(
        turns.iter().sum::<u32>() < 20_000,
        "{}",
        turns.iter().sum::<u32>()
    );
}

#[test]
fn a_retrieve_of_very_many_takes_turns_whatever_it_names() {
    let mut rig = Rig::with_pins_of(16_384, 25);
    let peer = member(&mut rig, 1, &[ObjectKind::Full]);
    fill(&mut rig, &peer, 1, 0, ObjectKind::Full, 4200);
    let object = |chunk| ObjectId {
        key: key(1, chunk, CHUNK),
        group: 0,
    };
    let seed = rig.seed;
    // Deeper than the share, deep, and each once.
    for (ids, there) in [
        (vec![object(4199); 16_384], 0),
        (vec![object(4000); 16_384], 16_384),
        ((0..4200).map(object).collect(), 4096),
    ] {
        let (turns, answer) = steps(
            &mut rig.core,
            Retrieving::new(peer.id, &parts(seed, 3, 0, &ids)),
            |_| {},
        );
        let found = answer
            .locations
            .iter()
            .filter(|location| location.incarnation != 0)
            .count();
        assert_eq!(found, there);
        assert_turns(&turns, "retrieve");
        let sum = turns.iter().sum::<u32>();
        assert!(sum as usize <= 4 * ids.len(), "{sum} steps for {}", ids.len());
        rig.audit();
        if answer.pin != 0 {
            let (turns, ()) = steps(&mut rig.core, Releasing::new(peer.id, &[answer.pin]), |_| {});
            assert_turns(&turns, "release");
        }
        assert_eq!(
            (rig.core.pins.kept_frames(peer.id), rig.core.pins.count(peer.id)),
            (0, 0)
        );
    }
    rig.audit();
}

#[test]
fn a_pin_takes_memory_for_what_it_names() {
    let mut rig = Rig::new(8192);
    let peer = member(&mut rig, 1, &[ObjectKind::Full]);
    fill(&mut rig, &peer, 1, 0, ObjectKind::Full, 4096);
    let deepest = [ObjectId {
        key: key(1, 4095, CHUNK),
        group: 0,
    }];
    let seed = rig.seed;
    let mut steps_of = Vec::new();
    for _ in 0..100 {
        let (turns, answer) = steps(
            &mut rig.core,
            Retrieving::new(peer.id, &parts(seed, 3, 0, &deepest)),
            |_| {},
        );
        assert_ne!(answer.pin, 0);
        steps_of.push(turns.iter().sum::<u32>());
    }
    assert!(steps_of.iter().all(|steps| *steps < 8), "{steps_of:?}");
    assert_eq!(rig.core.pins.kept_frames(peer.id), 4096);
    assert_eq!(rig.core.pins.memory(peer.id), (100, 100, 0, 1));
    rig.core.release_label(peer.id, 3).unwrap();
    assert_eq!(rig.core.pins.memory(peer.id), (0, 0, 0, 0));
    rig.audit();
}

/// What others do between the turns of a read.
#[derive(Clone, Copy, Debug)]
enum Between {
    Nothing,
    Discard(u32, u16),
    Grant(u64),
    Store(u32),
    Clear,
}

fn between() -> impl Strategy<Value = Between> {
    prop_oneof![
        4 => Just(Between::Nothing),
        2 => (0..300_u32, 0..2_u16).prop_map(|(chunk, group)| Between::Discard(chunk, group)),
        3 => (1..200_u64).prop_map(Between::Grant),
        2 => (0..300_u32).prop_map(Between::Store),
        1 => Just(Between::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever happens between the turns, a hit names what is there and stays until the pin ends.
    #[test]
    fn what_others_do_between_turns_never_makes_a_wrong_promise(
        shape in 0..4_usize,
        acts in prop::collection::vec(between(), 1..40),
        retrieves in any::<bool>(),
        percent in prop_oneof![Just(100_u32), Just(20)],
    ) {
        let window = ObjectKind::Window { tokens: 64 * 150 };
        let kinds: &[ObjectKind] = match shape {
            0 => &[ObjectKind::Full],
            1 => &[ObjectKind::Full, window],
            2 => &[window],
            _ => &[ObjectKind::Full, ObjectKind::Recurrent],
        };
        let mut rig = Rig::with_pins_of(1000, percent);
        let peer = member(&mut rig, 1, kinds);
        let other = member(&mut rig, 2, kinds);
        for (number, kind) in (0..).zip(kinds) {
            fill(&mut rig, &peer, 1, number, *kind, 300);
        }
        let seed = rig.seed;
        let act = |core: &mut Core, act: Between| match act {
            Between::Nothing => {}
            Between::Discard(chunk, group) => {
                let id = ObjectId { key: key(1, chunk, CHUNK), group };
                let found = core.index.reader().lookup(&id);
                if let Some(view) = found {
                    core.discard(other.id, seed, &[(id, view.incarnation)]).unwrap();
                }
            }
            Between::Grant(frames) => {
                let granted = core.grant(other.id, frames * FRAME_BYTES).unwrap();
                core.abort(other.id, &granted).unwrap();
            }
            Between::Store(chunk) => {
                // Anew, where it was evicted or discarded.
                let granted = core.grant(other.id, FRAME_BYTES).unwrap();
                let Some(extent) = granted.first() else { return };
                let (key, parent) = chain(1, chunk);
                let item = StoreItem {
                    id: ObjectId { key, group: 0 },
                    parent,
                    skipped: false,
                    part: 0,
                    tokens: CHUNK,
                    held_from: 0,
                    bytes: 256,
                    checksum: 0,
                    first_extent: 0,
                    extent_count: 1,
                };
                let request = CommitRequest {
                    domain_seed: seed,
                    items: vec![item],
                    extents: vec![Extent::new(extent.frame, 1)],
                    supersedes: vec![],
                    grant_bytes: 0,
                };
                core.commit(other.id, &request).unwrap();
            }
            Between::Clear => {
                core.clear().unwrap();
            }
        };
        let mut acts = acts.into_iter().cycle();
        if retrieves {
            let ids: Vec<ObjectId> = (0..300).map(|c| ObjectId { key: key(1, c, CHUNK), group: 0 }).collect();
            let request = parts(seed, 1, 0, &ids);
            let work = Retrieving::new(peer.id, &request);
            let (turns, answer) = steps(&mut rig.core, work, |core| act(core, acts.next().unwrap()));
            assert_turns(&turns, "retrieve");
            for (id, location) in ids.iter().zip(&answer.locations).filter(|(_, location)| location.incarnation != 0) {
                let now = rig.core.index.reader().lookup(id).map(|view| view.incarnation);
                prop_assert_eq!(now, Some(location.incarnation));
            }
        } else {
            let asked = Asked::new(1, 300, Vec::new());
            let request = asked.request(&rig, true);
            let work = Looking::new(peer.id, &request);
            let (turns, answer) = steps(&mut rig.core, work, |core| act(core, acts.next().unwrap()));
            assert_turns(&turns, "lookup");
            prop_assert!(answer.hit_tokens == 0 || !answer.loads.is_empty());
            for load in &answer.loads {
                let now = rig.core.index.reader().lookup(&load.id);
                prop_assert!(now.is_some_and(|view| view.tokens == load.tokens), "{:?} is named and not there", load);
            }
            // They stay whatever is stored.
            let granted = rig.core.grant(other.id, 500 * FRAME_BYTES).unwrap();
            rig.core.abort(other.id, &granted).unwrap();
            for load in &answer.loads {
                prop_assert!(rig.core.index.reader().probe(&load.id).is_some());
            }
        }
        rig.audit();
        rig.core.disconnected(peer.id).unwrap();
        prop_assert_eq!(rig.core.pins.kept_frames(peer.id), 0);
        rig.audit();
    }
}

/// A client whose pins end with it, in turns.
#[test]
fn the_pins_of_a_client_end_in_turns() {
    let mut rig = Rig::new(8192);
    let peer = member(&mut rig, 1, &[ObjectKind::Full]);
    fill(&mut rig, &peer, 1, 0, ObjectKind::Full, 2000);
    for label in 0..40 {
        let keys: Vec<_> = (0..500 + label as u32).map(|c| key(1, c, CHUNK)).collect();
        let nothing = Asked::new(1, 0, Vec::new());
        let request = LookupRequest {
            label,
            keys: &keys,
            ..nothing.request(&rig, true)
        };
        assert_ne!(rig.core.lookup(peer.id, &request).unwrap().pin, 0);
    }
    let mut turns = Vec::new();
    loop {
        let mut turn = Turn::new();
        let done = rig.core.end_pins(peer.id, &mut turn);
        turns.push(turn.spent());
        rig.audit();
        if done {
            break;
        }
    }
    assert_turns(&turns, "the end of a client");
    assert!(
        turns.len() > 20,
        "{} turns for 20,000 pinned objects",
        turns.len()
    );
    assert_eq!(rig.core.pins.count(peer.id), 0);
}

/// A connection that was given up leaves long after its successor has begun to store, also in the midst of a commit.
#[test]
fn who_leaves_after_its_successor_takes_nothing_of_it_along() {
    for turns in 1.. {
        let mut rig = Rig::new(2048);
        let mut old = member(&mut rig, 1, &[ObjectKind::Full]);
        // What the old one was in the midst of when its connection ended.
        let begun = rig.core.grant(old.id, 64 * FRAME_BYTES).unwrap();
        let request = commit_of_frames(&rig, 2, &begun);
        let mut half = Committing::new(old.id, &request);
        half.step(&mut rig.core, &mut Turn::new()).unwrap();
        drop(half);
        let new = member(&mut rig, 1, &[ObjectKind::Full]);
        let granted = rig.core.grant(new.id, 300 * FRAME_BYTES).unwrap();
        let request = commit_of_frames(&rig, 1, &granted);
        let mut after = 0;
        let (taken, answer) = steps(&mut rig.core, Committing::new(new.id, &request), |core| {
            after += 1;
            if after == turns {
                old.die();
                assert!(core.client_gone(old.id).unwrap());
            }
        });
        rig.audit();
        let published = |outcome: &CommitOutcome| *outcome == CommitOutcome::Published;
        assert!(
            answer.outcomes.iter().all(published),
            "after {turns} turns: {answer:?}"
        );
        if turns > taken.len() {
            assert!(turns > 3, "a commit of several turns");
            break;
        }
        assert_eq!(rig.core.status().incomplete, 0);
    }
}

/// Every frame an object, each under the one before.
fn commit_of_frames(rig: &Rig, prompt: u32, granted: &[Extent]) -> CommitRequest {
    let frames = granted.iter().flat_map(|extent| extent.frames());
    let extents: Vec<Extent> = frames.map(|frame| Extent::new(frame, 1)).collect();
    let items = (0..extents.len() as u32).map(|at| chunk_item(prompt, at, 0, 64 * 4));
    CommitRequest {
        domain_seed: rig.seed,
        items: items.collect(),
        extents,
        supersedes: Vec::new(),
        grant_bytes: 0,
    }
}

/// A chunk of a prompt in one run, which is the one of its number.
fn chunk_item(prompt: u32, at: u32, group: u16, bytes: u64) -> StoreItem {
    let (key, parent) = chain(prompt, at);
    StoreItem {
        id: ObjectId { key, group },
        parent,
        skipped: false,
        part: 0,
        tokens: CHUNK,
        held_from: 0,
        bytes,
        checksum: 0,
        first_extent: at,
        extent_count: 1,
    }
}

/// A pin of more objects than a client may name leaves nothing behind.
#[test]
fn a_lookup_beyond_the_objects_that_one_client_may_name_holds_nothing() {
    let mut rig = Rig::new(2048);
    let peer = member(&mut rig, 1, &[ObjectKind::Full]);
    fill(&mut rig, &peer, 1, 0, ObjectKind::Full, 1000);
    rig.core.pins = crate::cache::books::pins::PinTable::new(10, 700);
    let asked = Asked::new(1, 1000, Vec::new());
    let request = asked.request(&rig, true);
    let refused = rig.core.lookup(peer.id, &request);
    assert!(
        matches!(refused, Err(CoreError::LimitExceeded { limit: 700, .. })),
        "{refused:?}"
    );
    assert_eq!(
        (rig.core.pins.count(peer.id), rig.core.pins.kept_frames(peer.id)),
        (0, 0)
    );
    rig.audit();
    assert_eq!(rig.lookup(&peer, 1, 600, &[]).hit_tokens, 600 * u64::from(CHUNK));
    rig.audit();
}

#[test]
fn what_two_discard_at_a_time_is_discarded_once() {
    let mut rig = Rig::new(4096);
    let peers = [1, 2].map(|instance| member(&mut rig, instance, &[ObjectKind::Full]));
    fill(&mut rig, &peers[0], 1, 0, ObjectKind::Full, 500);
    let id = ObjectId {
        key: key(1, 0, CHUNK),
        group: 0,
    };
    let named = [(id, rig.core.index.reader().lookup(&id).unwrap().incarnation)];
    let mut works = peers
        .each_ref()
        .map(|peer| Discard::new(peer.id, rig.seed, &named));
    let mut done = [false; 2];
    let mut turns = 0;
    while done != [true; 2] {
        for (work, done) in works.iter_mut().zip(&mut done) {
            if !*done {
                let progress = work.step(&mut rig.core, &mut Turn::new()).unwrap();
                *done = matches!(progress, Progress::Done(()));
                turns += 1;
            }
        }
    }
    assert!(turns > 10, "both were under way");
    let status = rig.core.status();
    assert_eq!((status.objects, status.counters.discarded_objects), (0, 1));
    rig.audit();
}
