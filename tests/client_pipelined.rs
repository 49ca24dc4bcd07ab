//! Stores of more objects than one commit names: commits are sent before those ahead of them are answered, and each failure costs
//! what it has to.

mod client_support;
mod hostile_support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use client_support::*;
use hostile_support::*;
use kvasir::client::{Client, ClientError, Maps, StoreOutcome, StoreRequest};
use kvasir::keys::KeyChain;
use kvasir::object::*;
use kvasir::wire::*;
use nix::sys::signal::Signal;

/// Objects that a commit names, and commits that are under way at a time.
const AT_ONCE: usize = 128;
const UNDER_WAY: usize = 4;
const COMMITS: usize = 6;
const OBJECTS: usize = COMMITS * AT_ONCE;
/// Idle space is to stay the client's.
const NEVER: Duration = Duration::from_secs(600);

fn prompt(chain: &KeyChain, chunks: std::ops::Range<usize>) -> Vec<StoreRequest> {
    chunks
        .map(|chunk| store_chunk(chain, chunk, 0, four(1 + 4 * (chunk % 15) as i64)))
        .collect()
}

/// A client of a fake that grants what is asked for, each frame many times over: nobody reads them.
fn client_of(fake: &Fake, commit: impl Fn(&CommitRequest) -> Answer + Send + Sync + 'static) -> Client {
    let client = ready_with(&fake.socket(), &Shape::plain(64, 0), |config| {
        config.heartbeat = NEVER;
        config.grant_bytes = 0;
    });
    fake.set(move |request, _| match request {
        Request::Grant(request) => {
            let times = request.bytes.div_ceil(FRAMES * FRAME) as usize;
            let all = Extent {
                frame: 0,
                count: FRAMES as u32,
            };
            Some(plain(Reply::Grant {
                extents: vec![all; times],
            }))
        }
        Request::Commit(request) => Some(commit(request)),
        _ => None,
    });
    client
}

fn store(client: &Client) -> Result<Vec<StoreOutcome>, ClientError> {
    let chain = chain(client.domain_seed().unwrap(), OBJECTS * CHUNK + 1, 1);
    client.store(&prompt(&chain, 0..OBJECTS), &[])
}

/// All items published, but for the one at the commit's place, which is there already.
fn answer(commit: usize, request: &CommitRequest) -> Reply {
    let mut outcomes = vec![CommitOutcome::Published; request.items.len()];
    outcomes[commit] = CommitOutcome::Exists;
    let granted = Vec::new();
    Reply::Commit(CommitAnswer { outcomes, granted })
}

fn expected(commit: usize) -> Vec<StoreOutcome> {
    let mut outcomes = vec![StoreOutcome::Published; AT_ONCE];
    outcomes[commit] = StoreOutcome::Exists;
    outcomes
}

#[test]
fn commits_do_not_wait_for_each_other_and_their_outcomes_keep_their_order() {
    let fake = Fake::new(|_, _| None);
    let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
    let names = Arc::clone(&seen);
    let client = client_of(&fake, move |request| {
        let mut seen = names.lock().unwrap();
        seen.push(request.items.len());
        let reply = answer(seen.len() - 1, request);
        // The first answers come with that of the last commit that may be under way then.
        match seen.len() < UNDER_WAY {
            true => Answer::Held(reply),
            false => plain(reply),
        }
    });
    let outcomes = store(&client).unwrap();
    assert_eq!(*seen.lock().unwrap(), [AT_ONCE; COMMITS]);
    for (commit, outcomes) in outcomes.chunks(AT_ONCE).enumerate() {
        assert_eq!(outcomes, expected(commit), "of commit {commit}");
    }
    assert_eq!(client.stats().reconnects, 0);
}

#[test]
fn no_more_than_a_few_commits_are_under_way() {
    let fake = Fake::new(|_, _| None);
    let seen = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&seen);
    let client = ready_with(&fake.socket(), &Shape::plain(64, 0), |config| {
        config.deadline = Duration::from_millis(300);
        config.heartbeat = NEVER;
    });
    fake.set(move |request, _| match request {
        Request::Grant(_) => Some(plain(Reply::Grant {
            extents: vec![Extent { frame: 0, count: 16 }; OBJECTS / 16],
        })),
        Request::Commit(_) => {
            *counted.lock().unwrap() += 1;
            Some(Answer::Silence)
        }
        _ => None,
    });
    assert_eq!(store(&client).unwrap(), vec![StoreOutcome::Unavailable; OBJECTS]);
    assert_eq!(*seen.lock().unwrap(), UNDER_WAY);
    assert_eq!(client.stats().dropped_stores, OBJECTS as u64);
}

/// The server goes at each message of the store, with each number of answers unsent.
#[test]
fn what_got_no_answer_is_unknown_and_nothing_else_is() {
    for last in 0..=COMMITS {
        for unsent in 0..UNDER_WAY.min(last + 1) {
            let fake = Fake::new(|_, _| None);
            let seen = Mutex::new(0);
            let client = client_of(&fake, move |request| {
                let mut seen = seen.lock().unwrap();
                *seen += 1;
                match *seen - 1 {
                    at if at >= last => Answer::Close,
                    at if at + unsent >= last => Answer::Held(answer(at, request)),
                    at => plain(answer(at, request)),
                }
            });
            // Where the server stays to the end, answers that it holds are not there: it is as good as stopped.
            if last == COMMITS && unsent > 0 {
                continue;
            }
            let outcomes = store(&client).unwrap();
            let mut known = true;
            for (commit, outcomes) in outcomes.chunks(AT_ONCE).enumerate() {
                // The end of a connection may be noticed before the answers that came ahead of it are read.
                known &= outcomes == expected(commit);
                assert!(
                    known || outcomes == [StoreOutcome::Unavailable; AT_ONCE],
                    "commit {commit} of {last} with {unsent} unsent: {outcomes:?}"
                );
                assert!(!known || commit < last - unsent, "commit {commit} of {last}");
            }
            assert!(known == (last == COMMITS));
            let stats = client.stats();
            let unknown = outcomes.iter().filter(|&&of| of == StoreOutcome::Unavailable);
            assert_eq!(stats.dropped_stores, unknown.count() as u64);
            assert_eq!(stats.stores + stats.dropped_stores, OBJECTS as u64);
            eventually("recovery", || client.is_healthy());
        }
    }
}

#[test]
fn a_commit_that_is_refused_as_a_whole_costs_the_others_nothing_and_its_space_is_used_again() {
    for refused in 0..COMMITS {
        let fake = Fake::new(|_, _| None);
        let seen = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&seen);
        let client = client_of(&fake, move |request| {
            let mut seen = counted.lock().unwrap();
            *seen += 1;
            match *seen - 1 == refused {
                true => plain(Reply::Error(WireError::new(ErrorCode::SizeMismatch, "no", []))),
                false => plain(answer(*seen - 1, request)),
            }
        });
        let error = store(&client).unwrap_err();
        assert!(matches!(error, ClientError::Refused(_)), "{error}");
        assert!(client.is_healthy());
        let sent = *seen.lock().unwrap();
        assert_eq!(
            sent,
            COMMITS.min(refused + UNDER_WAY),
            "those that were under way"
        );
        // Of what was sent only the refused commit's frames are this client's.
        let held = (COMMITS - sent + 1) * AT_ONCE;
        assert_eq!(
            client.stats().granted_bytes,
            held as u64 * FRAME,
            "refused {refused}"
        );
        let before = client.stats().dropped_stores;
        assert_eq!(before, OBJECTS as u64);
        let chain = chain(client.domain_seed().unwrap(), CHUNK + 1, 2);
        fake.set(|request, _| match request {
            Request::Commit(request) => Some(plain(answer(0, request))),
            _ => None,
        });
        assert_eq!(
            client.store(&prompt(&chain, 0..1), &[]).unwrap(),
            [StoreOutcome::Exists]
        );
        assert_eq!(client.stats().reconnects, 0);
    }
}

/// Frames of a commit that may have been done hold objects: those of all that were under way are given up with it.
#[test]
fn a_commit_that_may_have_been_done_ends_the_connection_and_the_space_with_it() {
    for failed in 0..COMMITS {
        let fake = Fake::new(|_, _| None);
        let seen = Mutex::new(0);
        let client = client_of(&fake, move |request| {
            let mut seen = seen.lock().unwrap();
            *seen += 1;
            match *seen - 1 == failed {
                true => plain(Reply::Error(WireError::new(ErrorCode::Internal, "half", []))),
                false => plain(answer(*seen - 1, request)),
            }
        });
        let outcomes = store(&client).unwrap();
        for (commit, outcomes) in outcomes.chunks(AT_ONCE).enumerate() {
            match commit < failed {
                true => assert_eq!(outcomes, expected(commit), "{commit} before {failed}"),
                false => assert_eq!(outcomes, [StoreOutcome::Unavailable; AT_ONCE], "{commit}"),
            }
        }
        eventually("recovery", || client.is_healthy());
        let stats = client.stats();
        assert_eq!((stats.reconnects, stats.granted_bytes), (1, 0));
    }
}

fn place() -> Place {
    let mut place = Place::empty(&["--pool-size", "256MiB", "--chunk-size", "64"]);
    place.start();
    place.wait_prefaulted();
    place
}

/// A real server that stops for a while in the middle of a store is slow, and nothing else.
#[test]
fn a_slow_server_is_waited_for() {
    let place = place();
    let engine = Engine::start(&place, &Shape::plain(16, 0), 1);
    for round in 0..5 {
        let chain = engine.chain(OBJECTS * CHUNK + 1, round);
        let outcomes = std::thread::scope(|scope| {
            let store = scope.spawn(|| engine.client.store(&prompt(&chain, 0..OBJECTS), &[]).unwrap());
            std::thread::sleep(Duration::from_millis(u64::from(round)));
            place.signal(Signal::SIGSTOP);
            std::thread::sleep(Duration::from_millis(100));
            place.signal(Signal::SIGCONT);
            store.join().unwrap()
        });
        assert_published(&outcomes);
        assert_eq!(engine.lookup(&chain, 1).hit_tokens, (OBJECTS * CHUNK) as u64);
        engine.client.release_label(1).unwrap();
        assert!(engine.client.clear().unwrap());
    }
    assert_eq!(engine.client.stats().reconnects, 0);
}

/// A server that is killed in the middle of a store: what was published before is a beginning of it, and the next server has the rest.
#[test]
fn a_killed_server_leaves_a_beginning_of_the_store() {
    let mut place = place();
    let engine = Engine::start(&place, &Shape::plain(16, 0), 1);
    for round in 0..6 {
        let chain = engine.chain(OBJECTS * CHUNK + 1, round);
        let requests = prompt(&chain, 0..OBJECTS);
        let outcomes = std::thread::scope(|scope| {
            let store = scope.spawn(|| engine.client.store(&requests, &[]).unwrap());
            std::thread::sleep(Duration::from_micros(700 * u64::from(round)));
            place.kill();
            store.join().unwrap()
        });
        let published = outcomes.iter().take_while(|&&of| of == StoreOutcome::Published);
        let rest = &outcomes[published.count()..];
        assert!(rest.iter().all(|&of| of == StoreOutcome::Unavailable), "{rest:?}");
        assert_eq!(rest.len() % AT_ONCE, 0, "commits are answered whole");
        place.start();
        place.wait_prefaulted();
        eventually("recovery", || engine.client.is_healthy());
        assert_published(&engine.client.store(&requests, &[]).unwrap());
    }
}

/// The moves of a ring and the commits of its store share a connection.
#[test]
fn stores_through_a_ring_are_pipelined_too() {
    let place = place();
    let engine = Engine::start_with(&place, &Shape::plain(16, 0), 1, |config| {
        config.maps = Maps::Ring;
        config.ring_bytes = 1 << 20;
    });
    engine.fill(7);
    let chain = engine.chain(OBJECTS * CHUNK + 1, 1);
    assert_published(&engine.client.store(&prompt(&chain, 0..OBJECTS), &[]).unwrap());
    let before = engine.everything();
    engine.fill(8);
    // Each of the fifteen places of the prompt's blocks.
    let loads: Vec<_> = (OBJECTS - 15..OBJECTS)
        .map(|chunk| load_chunk(&chain, chunk, four(1 + 4 * (chunk % 15) as i64)))
        .collect();
    assert_eq!(engine.client.load(1, 0, &loads).unwrap(), [true; 15]);
    engine.client.release_label(1).unwrap();
    let block = |first: i64| {
        (first..first + 4)
            .map(|block| engine.block(0, 0, block))
            .collect::<Vec<_>>()
    };
    let loaded: Vec<_> = (0..15).map(|at| block(1 + 4 * at)).collect();
    engine.fill(7);
    assert_eq!(engine.everything(), before);
    let stored: Vec<_> = (0..15).map(|at| block(1 + 4 * at)).collect();
    assert_eq!(loaded, stored);
    assert_eq!(engine.client.stats().reconnects, 0);
}
