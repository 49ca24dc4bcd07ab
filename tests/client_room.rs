//! Room for stores: in a pool that others hold idle, in one that is not there yet, and in one that is too small.

mod client_support;

use std::time::{Duration, Instant};

use client_support::*;
use kvasir::client::StoreOutcome;
use kvasir::keys::KeyChain;
use serde_json::Value;

/// Short, so that waiting for it is; long enough that a busy machine answers within it.
const DEADLINE: Duration = Duration::from_secs(2);
const HEARTBEAT: Duration = Duration::from_millis(300);
/// Bytes of a chunk of [`shape`].
const CHUNK_BYTES: u64 = 2 << 20;

/// Objects of 2 MiB.
fn shape() -> Shape {
    Shape::plain(16384, 0)
}

fn started(arguments: &[&str]) -> Place {
    let mut place = Place::empty(&[arguments, &["--chunk-size", "64"]].concat());
    place.start();
    place.wait_prefaulted();
    place
}

/// Stores chunks of a prompt, each from blocks whose bytes are its own.
fn store(engine: &Engine, chain: &KeyChain, chunks: std::ops::Range<usize>) -> Vec<StoreOutcome> {
    let items: Vec<_> = chunks
        .map(|chunk| store_chunk(chain, chunk, 0, four(1 + 4 * (chunk as i64 % 15))))
        .collect();
    engine.client.store(&items, &[]).unwrap()
}

fn number(status: &Value, path: &[&str]) -> u64 {
    let found = path.iter().fold(status, |value, name| &value[name]);
    found.as_u64().unwrap_or_else(|| panic!("{path:?}: {found}"))
}

#[test]
fn idle_engines_hold_little_give_it_back_and_the_next_stores_at_full_speed() {
    let place = started(&["--pool-size", "128MiB"]);
    let idle_with = |instance, heartbeat| {
        Engine::start_with(&place, &shape(), instance, |config| {
            config.heartbeat = heartbeat;
            config.grant_bytes = 64 << 20;
        })
    };
    let total = number(&place.status(), &["pool", "total"]);
    // Clients that never look again, and clients that do.
    let deaf: Vec<_> = (1..=8).map(|n| idle_with(n, Duration::from_secs(3600))).collect();
    let granted = number(&place.status(), &["pool", "granted"]);
    assert!(0 < granted && granted <= total / 8, "{granted} of {total}");

    let ninth = Engine::start(&place, &shape(), 9);
    ninth.fill(9);
    let chain = ninth.chain(15 * CHUNK, 9);
    assert_published(&store(&ninth, &chain, 0..15));
    // Half of the pool in one call: nothing was given up, and nobody's space was taken.
    assert_eq!(ninth.client.stats().dropped_stores, 0);
    drop(deaf);

    eventually("their ends", || {
        number(&place.status(), &["pool", "granted"]) <= total / 8 / 2
    });
    ninth.client.give_back().unwrap();
    let idle: Vec<_> = (11..=18)
        .map(|n| idle_with(n, Duration::from_millis(20)))
        .collect();
    eventually("idle space to come back", || {
        number(&place.status(), &["pool", "granted"]) == 0
    });
    // An engine that has given everything back stores like any other, and does not keep what it gets.
    idle[3].fill(3);
    let chain = idle[3].chain(4 * CHUNK, 3);
    assert_published(&store(&idle[3], &chain, 0..4));
    assert_eq!(idle[3].lookup(&chain, 1).hit_tokens, 3 * 64);
    eventually("it to come back again", || {
        number(&place.status(), &["pool", "granted"]) == 0
    });
    assert!(idle.iter().all(|engine| engine.client.is_healthy()));
}

#[test]
fn stores_from_the_first_millisecond_wait_for_the_pool_and_are_not_dropped() {
    let mut place = Place::empty(&["--pool-size", "1GiB", "--chunk-size", "64"]);
    place.start();
    let engines: Vec<_> = (1..=8)
        .map(|instance| {
            let engine = Engine::start_with(&place, &shape(), instance, |config| config.deadline = WATCHDOG);
            engine.fill(instance.into());
            engine
        })
        .collect();
    for restart in 1..=2 {
        place.kill();
        place.start();
        // All at once, as soon as each is back: 240 MiB, and the prefault brings 16 MiB at a time.
        std::thread::scope(|threads| {
            for (engine, number) in engines.iter().zip(0..) {
                threads.spawn(move || {
                    eventually("the connection", || {
                        engine.client.is_healthy() && engine.client.stats().reconnects >= restart
                    });
                    let chain = engine.chain(15 * CHUNK, 100 * restart as u32 + number);
                    assert_published(&store(engine, &chain, 0..15));
                });
            }
        });
        let counters = &place.status()["counters"];
        assert_eq!(number(counters, &["dropped_stores"]), 0);
        assert_eq!(number(counters, &["evicted"]), 0);
        assert_eq!(number(counters, &["stored"]), 8 * 15);
    }
    for engine in &engines {
        assert_eq!(engine.client.stats().dropped_stores, 0);
    }
}

#[test]
fn a_full_pool_is_not_waited_for() {
    let place = started(&["--pool-size", "8MiB"]);
    let engine = Engine::start_with(&place, &shape(), 1, |config| config.deadline = WATCHDOG);
    engine.fill(1);
    let chain = engine.chain(10 * CHUNK, 1);
    let begin = Instant::now();
    let outcomes = store(&engine, &chain, 0..10);
    assert_eq!(outcomes[9], StoreOutcome::Dropped);
    assert!(begin.elapsed() < WATCHDOG / 2, "it waited for its deadline");
}

#[test]
fn of_a_prompt_that_does_not_fit_the_head_is_stored_once_and_hits() {
    let place = started(&["--pool-size", "16MiB"]);
    let engine = Engine::start_with(&place, &shape(), 1, |config| config.grant_bytes = 64 << 20);
    engine.fill(1);
    // 48 MiB, stored in steps as a prompt is computed.
    let chain = engine.chain(24 * CHUNK, 1);
    let mut hits = Vec::new();
    for session in 0..6 {
        let hit = engine.lookup(&chain, session);
        let found = hit.hit_tokens as usize / CHUNK;
        if let Some(pin) = hit.pin {
            let loads: Vec<_> = (0..found)
                .map(|chunk| load_chunk(&chain, chunk, four(1 + 4 * (chunk as i64 % 15))))
                .collect();
            assert!(
                engine
                    .client
                    .load(session, 0, &loads)
                    .unwrap()
                    .iter()
                    .all(|fine| *fine)
            );
            engine.client.release(&[pin]).unwrap();
        }
        hits.push(found);
        for first in (found..24).step_by(6) {
            store(&engine, &chain, first..(first + 6).min(24));
        }
    }
    assert_eq!(hits[0], 0);
    // One client's pins may keep a quarter of the pool, which is what it can hit of a prompt.
    assert_eq!(hits[1..], [2; 5]);
    let status = place.status();
    let stored = number(&status, &["counters", "stored_bytes"]);
    assert!((6 * CHUNK_BYTES..=16 << 20).contains(&stored), "{stored}");
    assert_eq!(number(&status, &["counters", "evicted"]), 0);
    assert_eq!(number(&status, &["objects"]), stored / CHUNK_BYTES);
    // What hangs under what was not stored is not even copied.
    assert_eq!(engine.client.stats().stored_bytes, stored);
    // Another prompt takes its place from the end.
    let other = engine.chain(2 * CHUNK, 2);
    assert_published(&store(&engine, &other, 0..2));
    assert_eq!(engine.lookup(&chain, 9).hit_tokens, 2 * 64);
}

#[test]
fn engines_that_store_the_same_prompt_copy_it_once_and_keep_its_head() {
    let place = started(&["--pool-size", "16MiB"]);
    let engines = [1, 2].map(|instance| Engine::start(&place, &shape(), instance));
    let chain = engines[0].chain(24 * CHUNK, 1);
    for engine in &engines {
        engine.fill(7);
    }
    for first in (0..24).step_by(4) {
        for engine in &engines {
            store(engine, &chain, first..first + 4);
        }
    }
    let status = place.status();
    let stored = number(&status, &["counters", "stored_bytes"]);
    assert_eq!(number(&status, &["counters", "evicted"]), 0);
    assert!(stored >= 6 * CHUNK_BYTES, "{stored}");
    let copied: u64 = engines
        .iter()
        .map(|engine| engine.client.stats().stored_bytes)
        .sum();
    assert_eq!(
        copied, stored,
        "what the first has stored the second does not copy"
    );
    assert_eq!(engines[1].lookup(&chain, 1).hit_tokens, 2 * 64);
}

#[test]
fn what_is_there_is_not_copied_and_its_chain_goes_on() {
    let place = started(&["--pool-size", "64MiB"]);
    let (first, second) = (
        Engine::start(&place, &shape(), 1),
        Engine::start(&place, &shape(), 2),
    );
    first.fill(1);
    second.fill(1);
    let chain = first.chain(8 * CHUNK, 1);
    assert_published(&store(&first, &chain, 0..4));
    let outcomes = store(&second, &chain, 0..6);
    use StoreOutcome::{Exists, Published};
    assert_eq!(outcomes, [Exists, Exists, Exists, Exists, Published, Published]);
    let stats = second.client.stats();
    assert_eq!((stats.stores, stats.stored_bytes), (2, 2 * CHUNK_BYTES));
    assert_eq!(first.lookup(&chain, 1).present_tokens, [6 * 64]);
    // Nothing but what exists: no space is asked for, and none is copied into.
    assert_eq!(store(&second, &chain, 0..6), [Exists; 6]);
    assert_eq!(second.client.stats().stored_bytes, 2 * CHUNK_BYTES);
    // What a client says of new KV is beside it in the status.
    second.client.count_new_kv(CHUNK_BYTES);
    let status = place.status();
    assert_eq!(number(&status, &["reported", "new_bytes"]), CHUNK_BYTES);
    assert_eq!(status["store_amplification"], 6.0);
}

/// Neither at its first server nor at the next one.
#[test]
fn a_rank_that_stores_nothing_holds_no_space() {
    let mut place = Place::with_server();
    let shape = Shape::plain(64, 0);
    let reader = Engine::unregistered(&place, &shape, 1, DEADLINE, HEARTBEAT);
    eventually("the first connection", || reader.client.is_healthy());
    reader.client.negotiate(shape.negotiation()).unwrap();
    let mut registration = shape.registration();
    registration.stores = false;
    reader.client.register(registration).unwrap();
    let writer = Engine::unregistered(&place, &shape, 1, DEADLINE, HEARTBEAT);
    eventually("the second connection", || writer.client.is_healthy());
    writer.client.negotiate(shape.negotiation()).unwrap();
    writer.client.register(shape.registration()).unwrap();
    let held = |place: &Place| {
        let status = place.status();
        let clients = status["clients"].as_array().unwrap();
        let held = clients.iter().map(|client| {
            let stores = client["registered"]["stores"].as_bool().unwrap();
            (stores, client["granted"].as_u64().unwrap() > 0)
        });
        held.collect::<std::collections::BTreeSet<_>>()
    };
    let expected = std::collections::BTreeSet::from([(false, false), (true, true)]);
    assert_eq!(held(&place), expected);
    place.kill();
    place.start();
    place.wait_prefaulted();
    eventually("recovery", || {
        reader.client.is_healthy() && writer.client.is_healthy()
    });
    // A server that has nothing prefaulted yet grants nothing; the writer asks when it stores.
    writer.fill(1);
    let chain = writer.chain(CHUNK + 1, 1);
    let stored = writer.client.store(&[store_chunk(&chain, 0, 0, four(1))], &[]);
    assert_published(&stored.unwrap());
    assert_eq!(held(&place), expected);
    let stats = reader.client.stats();
    assert_eq!((stats.granted_bytes, stats.reconnects), (0, 1));
}

/// Granted space is the client's until it is gone, and comes back then: also when nothing was ever committed.
#[test]
fn space_of_a_client_that_left_comes_back() {
    let place = Place::with_server();
    place.wait_prefaulted();
    let shape = Shape::plain(64, 0);
    let granted = || place.status()["pool"]["granted"].as_u64().unwrap();
    let before = granted();
    for _ in 0..4 {
        let engine = Engine::start(&place, &shape, 1);
        let held = engine.client.reserve(1 << 20).unwrap();
        assert!(held > 0 && granted() >= before + held);
        // A key that was never committed blocks nobody.
        let chain = engine.chain(CHUNK + 1, 4);
        drop(engine);
        eventually("the space", || granted() == before);
        let other = Engine::start(&place, &shape, 2);
        let outcome = other
            .client
            .store(&[store_chunk(&chain, 0, 0, four(1))], &[])
            .unwrap();
        assert!(
            matches!(outcome[0], StoreOutcome::Published | StoreOutcome::Exists),
            "{outcome:?}"
        );
        other.client.give_back().unwrap();
        assert_eq!(other.client.stats().granted_bytes, 0);
    }
}
