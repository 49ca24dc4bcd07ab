//! Objects of more runs and frames than a turn has steps: they are checked, stored, published and freed piece by piece.

use super::*;
use crate::cache::turn::{TURN_STEPS, Turn};
use crate::cache::{Progress, Work};

/// An object of one part in these runs.
struct Big {
    rig: Rig,
    engine: Peer,
    runs: Vec<Extent>,
    item: StoreItem,
}

impl Big {
    /// An object of `runs` runs of `frames` frames each, in a pool that is twice as large and has one object already.
    fn new(runs: u32, frames: u32) -> Self {
        let all = u64::from(runs * frames);
        let mut rig = Rig::new(all * 2 + 64);
        let engine = rig.peer(1);
        let group = GroupRegistration {
            unit_bytes: all * FRAME_BYTES / 4,
            ..group(0, ObjectKind::Full, 1, 0)
        };
        rig.register(&engine, 0, 1, &[group]).unwrap();
        let granted = rig.core.grant(engine.id, all * FRAME_BYTES).unwrap();
        let first = granted[0].frame;
        assert_eq!(granted, [Extent::new(first, runs * frames)]);
        // Not in order, so that nothing can be taken for one run.
        let mut runs: Vec<Extent> = (0..runs)
            .map(|run| Extent::new(first + run * frames, frames))
            .collect();
        runs.reverse();
        let item = StoreItem {
            id: ObjectId {
                key: key(1, 0, CHUNK),
                group: 0,
            },
            parent: None,
            skipped: false,
            part: 0,
            tokens: CHUNK,
            held_from: 0,
            bytes: all * FRAME_BYTES,
            checksum: 7,
            first_extent: 0,
            extent_count: runs.len() as u32,
        };
        Self {
            rig,
            engine,
            runs,
            item,
        }
    }

    fn frames(&self) -> u64 {
        count_frames(&self.runs)
    }

    fn commit(&mut self) -> CommitAnswer {
        self.rig.commit(&self.engine, &[self.item], &self.runs).unwrap()
    }

    /// Commits in turns, with something between them.
    fn commit_slowly(&mut self, between: impl FnMut(&mut Core, u32)) -> (CommitOutcome, u32) {
        let request = CommitRequest {
            domain_seed: self.rig.seed,
            items: vec![self.item],
            extents: self.runs.clone(),
            supersedes: vec![],
            grant_bytes: 0,
        };
        let (answer, turns) = slowly(
            &mut self.rig.core,
            Committing::new(self.engine.id, &request),
            between,
        );
        (answer.outcomes[0], turns)
    }

    fn is_as_stored(&self) {
        let record = self.rig.record(self.item.id.key, 0).expect("the object");
        let (parts, _) = self.rig.core.pool.directory.body(record).unwrap();
        assert_eq!(parts.len(), 1);
        assert_eq!((parts[0].bytes, parts[0].checksum), (self.item.bytes, 7));
        assert!(parts[0].extents == self.runs);
    }
}

/// What of the core's own books a turn may have changed: frames and chain blocks.
fn books(core: &Core) -> [u64; 2] {
    let epochs = (0..core.pool.frames()).filter(|frame| core.pool.epochs.of(*frame) != 0);
    [
        core.pool.grantable() + epochs.count() as u64,
        core.chains.taken() as u64,
    ]
}

/// How many turns it takes. None changes more than a turn has steps, whatever it says that it has spent.
fn slowly<W: Work>(
    core: &mut Core,
    mut work: W,
    mut between: impl FnMut(&mut Core, u32),
) -> (W::Answer, u32) {
    for turns in 1.. {
        let (before, mut turn) = (books(core), Turn::new());
        let progress = work.step(core, &mut turn).unwrap();
        assert!(
            turn.spent() <= TURN_STEPS + 64,
            "a turn of {} steps",
            turn.spent()
        );
        let changed = books(core).iter().zip(before).map(|(a, b)| a.abs_diff(b)).max();
        assert!(
            changed <= Some(u64::from(TURN_STEPS) * 16 + 512),
            "{changed:?} frames or blocks changed in turn {turns}"
        );
        if let Progress::Done(answer) = progress {
            return (answer, turns);
        }
        between(core, turns);
    }
    unreachable!()
}

#[test]
fn an_object_of_thousands_of_runs_is_published_and_freed_in_turns() {
    for (runs, frames) in [(6000, 1), (3000, 3), (3, 10_000), (1, 20_000)] {
        let mut big = Big::new(runs, frames);
        let all = big.frames();
        let free = big.rig.core.pool.grantable();
        let (outcome, turns) = big.commit_slowly(|core, turns| {
            if turns % 16 == 1 {
                core.audit().unwrap();
            }
        });
        assert_eq!(outcome, CommitOutcome::Published);
        big.is_as_stored();
        big.rig.audit();
        let least = (u64::from(runs) * 2 + all / 8) / u64::from(TURN_STEPS);
        assert!(
            u64::from(turns) >= least,
            "{turns} turns for {runs} runs of {frames}"
        );
        let clear = Clear::new(&big.rig.core);
        let (cleared, turns) = slowly(&mut big.rig.core, clear, |core, turns| {
            if turns % 16 == 1 {
                core.audit().unwrap();
            }
        });
        assert_eq!((cleared, big.rig.core.pool.grantable()), (1, free + all));
        assert!(
            u64::from(turns) >= least,
            "{turns} turns for {runs} runs of {frames}"
        );
        assert_eq!(big.rig.core.chains.taken(), 0);
        big.rig.audit();
    }
}

#[test]
fn frames_lose_their_epochs_before_the_first_of_them_is_free() {
    let mut big = Big::new(3000, 1);
    big.commit();
    let free = big.rig.core.pool.grantable();
    let clear = Clear::new(&big.rig.core);
    let runs = big.runs.clone();
    let (mut some_without, mut some_free) = (0, 0);
    slowly(&mut big.rig.core, clear, |core, _| {
        let without = runs.iter().filter(|run| core.pool.epochs.of(run.frame) == 0);
        match without.count() {
            count if count == runs.len() => some_free += u32::from(core.pool.grantable() > free),
            count => {
                some_without += u32::from(count > 0);
                assert_eq!(
                    core.pool.grantable(),
                    free,
                    "a reader would take what is free for its object"
                );
            }
        }
    });
    assert!(
        some_without > 3 && some_free > 3,
        "{some_without} and {some_free} turns"
    );
}

/// Wherever a commit of such an object stops, its frames are somebody's, and go with their client.
#[test]
fn a_commit_that_stops_anywhere_in_such_an_object_leaves_everything_in_order() {
    for stop in 1.. {
        let mut big = Big::new(600, 2);
        let request = CommitRequest {
            domain_seed: big.rig.seed,
            items: vec![big.item],
            extents: big.runs.clone(),
            supersedes: vec![],
            grant_bytes: 0,
        };
        let mut work = Committing::new(big.engine.id, &request);
        let done = (0..stop).any(|_| {
            let progress = work.step(&mut big.rig.core, &mut Turn::new());
            matches!(progress, Ok(Progress::Done(_)))
        });
        drop(work);
        big.rig.audit();
        if done {
            assert!(stop > 10);
            break;
        }
        assert!(big.rig.record(big.item.id.key, 0).is_none());
        // Half of its end is left to others, too.
        let mut ending = ClientGone::new(big.engine.id);
        big.engine.die();
        for _ in 0..stop {
            if let Progress::Done(gone) = ending.step(&mut big.rig.core, &mut Turn::new()).unwrap() {
                assert!(gone);
                break;
            }
            big.rig.audit();
        }
        if big.rig.core.client(big.engine.id).is_ok() {
            assert!(big.rig.core.client_gone(big.engine.id).unwrap());
        }
        big.rig.audit();
        let status = big.rig.core.status();
        assert_eq!(
            (status.pool.free, status.incomplete),
            (status.pool.total, 0),
            "after {stop} turns"
        );
        assert_eq!(big.rig.core.chains.taken(), 0, "after {stop} turns");
    }
}

/// What ends between two turns of a commit does not become visible, and nothing of it is lost.
#[test]
fn an_object_that_ends_while_it_is_stored_is_dropped() {
    for at in 1.. {
        let mut big = Big::new(600, 2);
        let mut ended = false;
        let (outcome, turns) = big.commit_slowly(|core, turns| {
            if turns == at {
                ended = core.incomplete.len() > 0;
                core.clear().unwrap();
                core.audit().unwrap();
            }
        });
        big.rig.audit();
        if ended {
            assert_eq!(outcome, CommitOutcome::Dropped, "at turn {at}");
            let status = big.rig.core.status();
            assert_eq!(status.pool.free, status.pool.total, "at turn {at}");
            assert_eq!(
                (status.incomplete, big.rig.core.chains.taken()),
                (0, 0),
                "at turn {at}"
            );
        }
        if turns <= at {
            assert!(at > 10);
            break;
        }
    }
}

#[test]
fn such_an_object_that_is_sent_a_second_time_is_found_in_turns() {
    let mut big = Big::new(5000, 1);
    assert_eq!(big.commit().outcomes, [CommitOutcome::Published]);
    let (again, turns) = big.commit_slowly(|_, _| {});
    assert_eq!(again, CommitOutcome::Published);
    assert!(turns > 10, "{turns} turns");
    // Other runs of it are not the part.
    big.runs.swap(17, 4000);
    let refused = big.rig.commit(&big.engine, &[big.item], &big.runs);
    assert!(
        matches!(refused, Err(CoreError::ExtentNotGranted { .. })),
        "{refused:?}"
    );
    big.runs.swap(17, 4000);
    big.is_as_stored();
    big.rig.audit();
}

/// What a retrieve answers, turn by turn, and how many chain blocks it has read in the longest.
fn retrieved(
    core: &mut Core,
    client: ClientId,
    request: &RetrieveRequest,
    meanwhile: impl FnMut(&mut Core, u32),
) -> (RetrieveAnswer, u32) {
    slowly(core, Retrieving::new(client, request), meanwhile)
}

#[test]
fn the_body_of_an_object_of_thousands_of_runs_is_read_in_turns() {
    let mut big = Big::new(20_000, 1);
    big.commit();
    let request = parts(big.rig.seed, 7, 0, &[big.item.id]);
    let (answer, turns) = retrieved(&mut big.rig.core, big.engine.id, &request, |_, _| {});
    // A turn reads 1,024 blocks of seven runs.
    assert!((3..10).contains(&turns), "{turns} turns");
    let [location] = answer.locations[..] else {
        panic!("{} locations", answer.locations.len());
    };
    assert_eq!((location.bytes, location.checksum), (big.item.bytes, 7));
    assert!(answer.extents == big.runs);
    big.rig.core.release(big.engine.id, &[answer.pin]).unwrap();
    big.rig.audit();
}

#[test]
fn an_object_that_goes_while_its_body_is_read_is_not_there() {
    let mut big = Big::new(20_000, 1);
    big.commit();
    let (seed, id) = (big.rig.seed, big.item.id);
    let incarnation = big.rig.core.index.reader().lookup(&id).unwrap().incarnation;
    let engine = big.engine.id;
    let discard = |core: &mut Core, turn: u32| {
        if turn == 2 {
            core.discard(engine, seed, &[(id, incarnation)]).unwrap();
        }
    };
    let (answer, turns) = retrieved(&mut big.rig.core, engine, &parts(seed, 7, 0, &[id]), discard);
    assert!(turns > 2);
    assert_eq!(answer.locations, [PartLocation::default()]);
    assert!(answer.extents.is_empty());
    // Nor is it kept by a pin that names nothing.
    if answer.pin != 0 {
        big.rig.core.release(engine, &[answer.pin]).unwrap();
    }
    big.rig.core.sweep_now().unwrap();
    assert_eq!(big.rig.core.status().limbo, 0);
    big.rig.audit();
}

#[test]
fn an_answer_names_no_more_runs_than_a_reply_can() {
    let mut big = Big::new(40_000, 1);
    big.commit();
    let request = parts(big.rig.seed, 7, 0, &[big.item.id; 5]);
    let (answer, _) = retrieved(&mut big.rig.core, big.engine.id, &request, |_, _| {});
    let there: Vec<bool> = answer
        .locations
        .iter()
        .map(|location| location.incarnation != 0)
        .collect();
    assert_eq!(there, [true, true, true, false, false]);
    assert_eq!(answer.extents.len(), 120_000);
    assert_eq!(answer.extents.capacity(), crate::wire::MAX_EXTENTS);
    let mut encoder = crate::wire::Encoder::new();
    let frame = encoder.reply(1, &crate::wire::Reply::Retrieve(answer)).unwrap();
    assert!(crate::wire::decode_reply(frame).is_ok());
    assert_eq!(big.rig.core.counters.shortened, 1);
}
