//! Work that is cut into turns: how long each is, what it does in all, and what is there between two of them.

use super::*;
use crate::cache::turn::{TURN_STEPS, Turn};

/// What is done between two looks at the turn: the steps that a piece of work may be too long by.
const OVERRUN: u32 = 64;

/// Small objects: a part takes one frame, whatever its group.
fn small(number: u16, kind: ObjectKind, parts: u16, part: u16) -> GroupRegistration {
    GroupRegistration {
        unit_bytes: 1024,
        ..group(number, kind, parts, part)
    }
}

pub(super) fn full(parts: u16, part: u16) -> Vec<GroupRegistration> {
    vec![small(0, ObjectKind::Full, parts, part)]
}

/// Items of chunks `from..from + count` of a prompt, a frame for each.
pub(super) fn items(prompt: u32, from: u32, count: u32, chained: bool, part: u16) -> Vec<StoreItem> {
    let item = |at: u32| {
        let (key, parent) = chain(prompt, from + at);
        StoreItem {
            id: ObjectId { key, group: 0 },
            parent: parent.filter(|_| chained),
            skipped: false,
            part,
            tokens: CHUNK,
            held_from: 0,
            bytes: 4096,
            checksum: 0,
            first_extent: at,
            extent_count: 1,
        }
    };
    (0..count).map(item).collect()
}

pub(super) fn single_frames(extents: &[Extent]) -> Vec<Extent> {
    let frames = extents.iter().flat_map(|extent| extent.frames());
    frames.map(|frame| Extent::new(frame, 1)).collect()
}

impl Rig {
    pub(super) fn fill(&mut self, peer: &Peer, prompt: u32, count: u32, chained: bool, part: u16) {
        let mut from = 0;
        while from < count {
            let some = (count - from).min(2000);
            let extents = self.core.grant(peer.id, u64::from(some) * FRAME_BYTES).unwrap();
            let extents = single_frames(&extents);
            assert_eq!(extents.len() as u32, some);
            let answer = self
                .commit(peer, &items(prompt, from, some, chained, part), &extents)
                .unwrap();
            assert!(
                answer
                    .outcomes
                    .iter()
                    .all(|outcome| matches!(outcome, CommitOutcome::Published | CommitOutcome::PartAccepted)),
                "{:?}",
                answer.outcomes[0]
            );
            from += some;
        }
    }
}

/// What a piece of work took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    turns: u64,
    /// Steps in all, and in the longest turn.
    steps: u64,
    longest: u64,
}

/// Does a piece of work in turns and counts.
pub(super) fn drive<W: Work>(core: &mut Core, mut work: W) -> (W::Answer, Spent) {
    let mut spent = Spent {
        turns: 0,
        steps: 0,
        longest: 0,
    };
    loop {
        let mut turn = Turn::new();
        let progress = work.step(core, &mut turn).unwrap();
        spent.turns += 1;
        spent.steps += u64::from(turn.spent());
        spent.longest = spent.longest.max(turn.spent().into());
        assert!(spent.turns < 10_000_000, "it goes on for ever");
        match progress {
            Progress::Done(answer) => return (answer, spent),
            Progress::More => assert!(turn.is_over(), "it stopped before its turn was over"),
        }
    }
}

fn assert_short(what: &str, spent: Spent) {
    assert!(
        spent.longest <= u64::from(TURN_STEPS + OVERRUN),
        "{what}: a turn of {} steps",
        spent.longest
    );
}

/// Work that ends so much takes steps in proportion to it, and no more when others hold more.
fn assert_proportional(what: &str, few: (u64, Spent), many: (u64, Spent)) {
    assert_short(what, few.1);
    assert_short(what, many.1);
    let (few_each, many_each) = (
        few.1.steps as f64 / few.0 as f64,
        many.1.steps as f64 / many.0 as f64,
    );
    assert!(
        many_each <= 1.5 * few_each + 1.0,
        "{what}: {few_each:.1} steps for each of {}, {many_each:.1} for each of {}",
        few.0,
        many.0
    );
}

/// Rank 1 of an engine is dead; rank 0 has stored so many parts in chains of that length, and dies.
fn death_beside(chains: u32, length: u32, others: u32) -> Spent {
    let mut rig = Rig::new(u64::from(chains * length + others) * 4 + 64);
    let mut rank = rig.peer(1);
    rig.register(&rank, 0, 2, &full(2, 0)).unwrap();
    let other = rig.peer(2);
    rig.register(&other, 0, 2, &full(2, 0)).unwrap();
    rig.fill(&other, 9999, others, true, 0);
    for prompt in 0..chains {
        rig.fill(&rank, prompt, length, true, 0);
    }
    rank.die();
    let (gone, spent) = drive(&mut rig.core, ClientGone::new(rank.id));
    assert!(gone);
    assert_eq!(rig.core.status().incomplete, u64::from(others));
    rig.audit();
    spent
}

#[test]
fn the_death_of_a_rank_takes_as_much_as_it_held() {
    let few = death_beside(1, 1000, 10);
    assert_proportional("one chain", (1000, few), (8000, death_beside(1, 8000, 10)));
    assert_proportional("chains of 100", (1000, few), (6000, death_beside(60, 100, 10)));
    assert_proportional("beside others", (1000, few), (1000, death_beside(1, 1000, 8000)));
}

#[test]
fn a_registration_that_begins_anew_ends_what_the_engine_has_begun_in_turns() {
    let spent = |count: u32| {
        let mut rig = Rig::new(u64::from(count) * 4);
        let rank = rig.peer(1);
        rig.register(&rank, 0, 2, &full(2, 0)).unwrap();
        rig.fill(&rank, 1, count, true, 0);
        // Parts that are turned away are remembered, and forgotten with it.
        let registration = Registration {
            domain_seed: rig.seed,
            rank: 0,
            world_size: 2,
            required_alignment: ALIGN,
            chunk_size: CHUNK,
            groups: full(2, 0),
            payload_path: PayloadPath::ShmDirect,
            stores: true,
        };
        let (_, spent) = drive(&mut rig.core, Register::new(rank.id, &registration));
        assert_eq!(rig.core.status().incomplete, 0);
        rig.audit();
        spent
    };
    assert_proportional("register", (1000, spent(1000)), (8000, spent(8000)));
}

/// A commit of so many items beside so many incomplete objects of another engine.
fn commit_beside(count: u32, incomplete_objects: u32) -> Spent {
    let mut rig = Rig::new(u64::from(count + incomplete_objects) * 4 + 64);
    let other = rig.peer(2);
    rig.register(&other, 0, 2, &full(2, 0)).unwrap();
    rig.fill(&other, 7, incomplete_objects, true, 0);
    rig.seed = ChunkKey::from_bytes([8; 32]);
    let engine = rig.peer(1);
    rig.register(&engine, 0, 1, &full(1, 0)).unwrap();
    let extents = rig.core.grant(engine.id, u64::from(count) * FRAME_BYTES).unwrap();
    let extents = single_frames(&extents);
    let items = items(1, 0, count, true, 0);
    let request = CommitRequest {
        domain_seed: rig.seed,
        items: items.to_vec(),
        extents: extents.to_vec(),
        supersedes: vec![],
        grant_bytes: 16 * FRAME_BYTES,
    };
    let (answer, spent) = drive(&mut rig.core, Committing::new(engine.id, &request));
    assert!(
        answer
            .outcomes
            .iter()
            .all(|outcome| *outcome == CommitOutcome::Published)
    );
    assert_eq!(crate::object::count_frames(&answer.granted), 16);
    rig.audit();
    spent
}

#[test]
fn a_commit_takes_as_much_as_it_stores() {
    let few = commit_beside(1000, 10);
    assert_proportional("a long commit", (1000, few), (8000, commit_beside(8000, 10)));
    assert_proportional(
        "beside incomplete objects",
        (1000, few),
        (1000, commit_beside(1000, 6000)),
    );
}

#[test]
fn space_for_much_is_made_in_turns_and_takes_as_much_as_it_makes() {
    let spent = |objects: u32, frames: u64| {
        let mut rig = Rig::new(objects.into());
        let engine = rig.peer(1);
        rig.register(&engine, 0, 1, &full(1, 0)).unwrap();
        for prompt in 0..objects / 500 {
            rig.fill(&engine, prompt, 500, true, 0);
        }
        let (granted, spent) = drive(&mut rig.core, Grant::new(engine.id, frames * FRAME_BYTES));
        assert_eq!(crate::object::count_frames(&granted), frames);
        rig.audit();
        spent
    };
    let few = spent(1000, 500);
    assert_proportional("half of the pool", (500, few), (5000, spent(10_000, 5000)));
    assert_proportional("of a larger pool", (500, few), (500, spent(10_000, 500)));
}

#[test]
fn clear_takes_as_much_as_there_is() {
    let spent = |objects: u32| {
        let mut rig = Rig::new(objects.into());
        let engine = rig.peer(1);
        rig.register(&engine, 0, 1, &full(1, 0)).unwrap();
        for prompt in 0..objects / 500 {
            rig.fill(&engine, prompt, 500, prompt % 2 == 0, 0);
        }
        let clear = Clear::new(&rig.core);
        let (cleared, spent) = drive(&mut rig.core, clear);
        assert_eq!(cleared, u64::from(objects));
        rig.audit();
        spent
    };
    assert_proportional("clear", (1000, spent(1000)), (8000, spent(8000)));
}

/// Slabs pin everything that there is.
fn pin_all(rig: &mut Rig, objects: u32) -> Vec<Peer> {
    let count = objects.div_ceil(slab::PIN_WORDS as u32);
    let peers: Vec<Peer> = (0..count).map(|at| rig.peer(100 + at as u8)).collect();
    for (at, peer) in (0..).zip(&peers) {
        let first = at * slab::PIN_WORDS as u64;
        let words: Vec<u64> = (1..=slab::PIN_WORDS as u64).map(|word| first + word).collect();
        peer.slab
            .store_words(slab::SLAB_HIGH_WATER, &[words.len() as u64])
            .unwrap();
        peer.slab.store_words(slab::SLAB_PINS, &words).unwrap();
    }
    peers
}

#[test]
fn victims_that_are_pinned_are_met_once() {
    let objects = 12_000;
    let mut rig = Rig::new(objects.into());
    let engine = rig.peer(1);
    rig.register(&engine, 0, 1, &full(1, 0)).unwrap();
    rig.fill(&engine, 1, objects, false, 0);
    let readers = pin_all(&mut rig, objects);
    let grant = |rig: &mut Rig| {
        let (granted, spent) = drive(&mut rig.core, Grant::new(engine.id, FRAME_BYTES));
        assert_short("a grant beside pins", spent);
        rig.audit();
        (granted.len(), spent.steps)
    };
    let (none, first) = grant(&mut rig);
    let (still_none, second) = grant(&mut rig);
    assert_eq!((none, still_none), (0, 0));
    // The scan of the words is what is left, and the look at what they held the last time.
    assert!(second < first * 2 / 3, "{first} steps, then {second}");
    // What a reader lets go of may go at once.
    readers[2]
        .slab
        .store_words(slab::SLAB_PINS + 8 * 100, &[0])
        .unwrap();
    assert_eq!(grant(&mut rig).0, 1);
    let gone = 2 * slab::PIN_WORDS as u32 + 100;
    assert_eq!(rig.resident(1, objects).len() as u32, objects - 1);
    assert!(!rig.resident(1, objects).contains(&gone));
}

#[test]
fn limbo_is_left_in_turns_and_in_proportion() {
    let spent = |length: u32| {
        let mut rig = Rig::new(u64::from(length) * 2);
        let engine = rig.peer(1);
        rig.register(&engine, 0, 1, &full(1, 0)).unwrap();
        rig.fill(&engine, 1, length, true, 0);
        let deepest = rig.record(key(1, length - 1, CHUNK), 0);
        let (root, _) = chain(1, 0);
        let root = ObjectId { key: root, group: 0 };
        let incarnation = rig.core.index.reader().lookup(&root).unwrap().incarnation;
        engine.slab_pin(0, deepest);
        let named = [(root, incarnation)];
        let (_, discard) = drive(&mut rig.core, Discard::new(engine.id, rig.seed, &named));
        assert_eq!(
            (rig.core.status().objects, rig.core.status().limbo),
            (0, length.into())
        );
        rig.audit();
        engine.slab_pin(0, None);
        let clear = Clear::new(&rig.core);
        // Nothing is taken, so nobody scans.
        drive(&mut rig.core, clear);
        let (_, freed) = drive(
            &mut rig.core,
            Grant::new(engine.id, u64::from(length) * FRAME_BYTES),
        );
        assert_eq!(rig.core.status().limbo, 0);
        rig.audit();
        (discard, freed)
    };
    let (few, many) = (spent(1000), spent(8000));
    assert_proportional("discard of a chain", (1000, few.0), (8000, many.0));
    assert_proportional("limbo", (1000, few.1), (8000, many.1));
}

#[test]
fn a_discard_takes_as_much_as_it_names() {
    let spent = |others: u32| {
        let mut rig = Rig::new(u64::from(others) * 2 + 4096);
        let engine = rig.peer(1);
        rig.register(&engine, 0, 1, &full(1, 0)).unwrap();
        rig.fill(&engine, 1, others, false, 0);
        let (key, _) = chain(1, 5);
        let id = ObjectId { key, group: 0 };
        let incarnation = rig.core.index.reader().lookup(&id).unwrap().incarnation;
        let named = [(id, incarnation)];
        let (_, spent) = drive(&mut rig.core, Discard::new(engine.id, rig.seed, &named));
        assert_eq!(rig.core.status().objects, u64::from(others) - 1);
        rig.audit();
        spent
    };
    let (few, many) = (spent(1000), spent(16_000));
    assert_eq!(few.steps, many.steps);
    assert_short("discard", many);
}

#[test]
fn full_logs_of_many_are_read_a_little_at_a_time() {
    let mut rig = Rig::new(4096);
    let engine = rig.peer(1);
    rig.register(&engine, 0, 1, &full(1, 0)).unwrap();
    rig.fill(&engine, 1, 2048, false, 0);
    rig.fill(&engine, 2, 2048, false, 0);
    let loggers: Vec<Peer> = (0..100).map(|at| rig.peer(50 + at)).collect();
    for peer in &loggers {
        let words: Vec<u64> = (0..slab::TOUCHED_WORDS as u64).map(|word| word + 1).collect();
        peer.slab.store_words(slab::SLAB_TOUCHED, &words).unwrap();
        peer.slab
            .store_words(slab::SLAB_CURSOR, &[words.len() as u64])
            .unwrap();
    }
    let mut grants = 0;
    loop {
        // One more than is free: space has to be made.
        let wanted = rig.core.pool.grantable() + 1;
        let (granted, spent) = drive(&mut rig.core, Grant::new(engine.id, wanted * FRAME_BYTES));
        assert_eq!(crate::object::count_frames(&granted), wanted);
        assert_short("a grant beside full logs", spent);
        assert!(spent.steps < 10_000, "{} steps for one frame", spent.steps);
        rig.core.abort(engine.id, &granted).unwrap();
        grants += 1;
        let free = rig.core.pool.grantable() as u32;
        rig.fill(&engine, 100 + grants, free, false, 0);
        // Nobody's log is left out.
        let left = |peer: &Peer| rig.core.slabs.unread(peer.id.slab().into());
        let longest = loggers.iter().map(left).max().unwrap();
        if longest == 0 {
            break;
        }
    }
    assert!(grants < 200);
}

#[test]
fn what_a_client_holds_goes_in_turns() {
    let mut rig = Rig::new(20_000);
    let mut holder = rig.engine(1, &[ObjectKind::Full]);
    let all = rig.core.grant(holder.id, 8000 * FRAME_BYTES).unwrap();
    // Every other frame comes back, so that what is left is as many runs.
    let odd: Vec<Extent> = single_frames(&all)
        .into_iter()
        .filter(|run| run.frame % 2 == 1)
        .collect();
    let (_, abort) = drive(&mut rig.core, Abort::new(holder.id, &odd));
    assert_short("abort", abort);
    rig.audit();
    holder.die();
    let (gone, spent) = drive(&mut rig.core, ClientGone::new(holder.id));
    assert!(gone);
    assert_short("granted space of the dead", spent);
    rig.audit();
    assert_eq!(rig.core.status().pool.granted, 0);
}

#[test]
fn status_is_told_in_turns() {
    let mut rig = Rig::new(16_000);
    let engine = rig.peer(1);
    rig.register(&engine, 0, 1, &full(1, 0)).unwrap();
    rig.fill(&engine, 1, 8000, true, 0);
    let readers: Vec<Peer> = (0..100).map(|at| rig.peer(50 + at)).collect();
    for peer in &readers {
        let words: Vec<u64> = (0..4096).map(|word| word % 8000 + 1).collect();
        peer.slab.store_words(slab::SLAB_HIGH_WATER, &[4096]).unwrap();
        peer.slab.store_words(slab::SLAB_PINS, &words).unwrap();
    }
    let reporting = Reporting::new(&rig.core);
    let (status, spent) = drive(&mut rig.core, reporting);
    assert_short("status", spent);
    assert_eq!(status, rig.core.status());
    assert_eq!(status.clients[5].pin_words, 4096);
    assert_eq!(status.clients[5].kept, 4096 * FRAME_BYTES);
}

/// A pool of which every other frame is free gives no more runs than a reply can name.
#[test]
fn a_pool_in_small_pieces_gives_no_more_runs_than_a_reply_names() {
    let most = crate::wire::MAX_EXTENTS as u64;
    // Of the whole only what two clients may hold is ever present: three quarters, in which no run is free.
    let frames = (most + 1000) * 8 / 3 / 8 * 8;
    let mut core = Core::create(CoreConfig {
        pool_bytes: frames * FRAME_BYTES,
        ..CoreConfig::default()
    })
    .unwrap();
    core.set_chunk_size(CHUNK).unwrap();
    core.prefaulted(frames * 3 / 4 * FRAME_BYTES).unwrap();
    core.prefault_ended();
    let mut rig = Rig {
        core,
        seed: ChunkKey::from_bytes([9; 32]),
        held_from: 0,
    };
    let holders = [
        rig.engine(1, &[ObjectKind::Full]),
        rig.engine(2, &[ObjectKind::Full]),
    ];
    let asker = rig.engine(3, &[ObjectKind::Full]);
    let held = holders
        .each_ref()
        .map(|holder| rig.core.grant(holder.id, frames * FRAME_BYTES).unwrap());
    assert_eq!(rig.core.pool.grantable(), 0);
    for (holder, extents) in holders.iter().zip(&held) {
        let odd: Vec<Extent> = single_frames(extents)
            .into_iter()
            .filter(|run| run.frame % 2 == 1)
            .collect();
        let (_, spent) = drive(&mut rig.core, Abort::new(holder.id, &odd));
        assert_short("abort", spent);
    }
    assert!(rig.core.pool.grantable() > most);
    let (granted, spent) = drive(&mut rig.core, Grant::new(asker.id, frames * FRAME_BYTES));
    assert_short("grant", spent);
    assert_eq!(granted.len() as u64, most, "one run for each frame, and no more");
    rig.audit();
    let mut encoder = crate::wire::Encoder::new();
    let extents = granted.iter().map(|run| crate::object::Extent {
        frame: run.frame,
        count: run.count,
    });
    let extents = extents.collect();
    let frame = encoder.reply(1, &crate::wire::Reply::Grant { extents }).unwrap();
    assert!(crate::wire::decode_reply(frame).is_ok());
}

#[test]
fn items_that_name_the_same_runs_are_refused_before_anything_is_done_for_each() {
    let mut rig = Rig::new(8192);
    let engine = rig.peer(1);
    let many = GroupRegistration {
        unit_bytes: 1000 * FRAME_BYTES,
        ..group(0, ObjectKind::Full, 1, 0)
    };
    rig.register(&engine, 0, 1, &[many]).unwrap();
    let runs = rig.core.grant(engine.id, 4000 * FRAME_BYTES).unwrap();
    let runs = single_frames(&runs);
    let mut all = items(1, 0, 16_000, false, 0);
    for item in &mut all {
        (item.bytes, item.first_extent, item.extent_count) = (4000 * FRAME_BYTES, 0, 4000);
    }
    let request = CommitRequest {
        domain_seed: rig.seed,
        items: all.to_vec(),
        extents: runs.to_vec(),
        supersedes: vec![],
        grant_bytes: 0,
    };
    let mut turn = Turn::endless();
    let refused = Committing::new(engine.id, &request).step(&mut rig.core, &mut turn);
    assert_eq!(refused.unwrap_err().code(), 19);
    assert!(turn.spent() < 1000, "{} steps", turn.spent());
    rig.audit();
}
