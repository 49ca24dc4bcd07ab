//! Hits without a server: killed, told to stop, or followed by one that this client cannot use. What the last server shared is read
//! until there is another, and no byte is ever another object's.

mod client_support;

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client_support::*;
use kvasir::client::{ClientError, StoreOutcome, StoreRequest};
use kvasir::keys::KeyChain;
use nix::sys::signal::Signal;

/// Held by each test: one counts the pools that this process maps.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const DEADLINE: Duration = Duration::from_secs(2);
const HEARTBEAT: Duration = Duration::from_millis(300);
/// Chunks of a prompt here; the blocks from 1 on hold them.
const CHUNKS: usize = 4;
/// The first block that is loaded to.
const TARGET: i64 = 40;

fn engine(place: &Place, instance: u8) -> Engine {
    let shape = Shape::plain(64, 0);
    let engine = Engine::unregistered(place, &shape, instance, DEADLINE, HEARTBEAT);
    eventually("the first connection", || engine.client.is_healthy());
    engine.client.negotiate(shape.negotiation()).unwrap();
    engine.client.register(shape.registration()).unwrap();
    engine
}

fn prompt(engine: &Engine, salt: u32) -> KeyChain {
    engine.chain(CHUNKS * CHUNK + 1, salt)
}

fn items(chain: &KeyChain) -> Vec<StoreRequest> {
    (0..CHUNKS)
        .map(|chunk| store_chunk(chain, chunk, 0, four(1 + 4 * chunk as i64)))
        .collect()
}

/// Stores a prompt whose bytes follow from its salt, and returns them block by block.
fn store(engine: &Engine, salt: u32) -> Vec<Vec<u8>> {
    engine.fill(u64::from(salt));
    assert_published(&engine.client.store(&items(&prompt(engine, salt)), &[]).unwrap());
    (1..=4 * CHUNKS as i64)
        .map(|block| engine.block(0, 0, block))
        .collect()
}

/// Looks a prompt up and loads it. What was whole has the bytes that were stored; how many chunks were hit and loaded.
fn hit(engine: &Engine, salt: u32, bytes: &[Vec<u8>]) -> (u64, usize) {
    let chain = prompt(engine, salt);
    let answer = engine.lookup(&chain, 1);
    let loads: Vec<_> = (0..CHUNKS)
        .map(|chunk| load_chunk(&chain, chunk, four(TARGET + 4 * chunk as i64)))
        .collect();
    let loaded = engine.client.load(1, 0, &loads).unwrap();
    for (chunk, _) in loaded.iter().enumerate().filter(|(_, whole)| **whole) {
        for (block, stored) in bytes.iter().enumerate().skip(4 * chunk).take(4) {
            let found = engine.block(0, 0, TARGET + block as i64);
            assert!(found == *stored, "block {block} of prompt {salt} is another's");
        }
    }
    engine.client.release(answer.pin.as_slice()).unwrap();
    let whole = loaded.iter().filter(|whole| **whole).count();
    (answer.hit_tokens / CHUNK as u64, whole)
}

const ALL: (u64, usize) = (CHUNKS as u64, CHUNKS);

/// Pools that this process maps.
fn mapped_pools() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.matches("memfd:kvasir-pool").count()
}

/// Every hit goes on, nothing is stored, and the next server begins with nothing of the last.
fn goes_on(end: impl FnOnce(&mut Place)) {
    let mut place = Place::with_server();
    let engine = engine(&place, 1);
    let bytes = store(&engine, 1);
    assert_eq!(hit(&engine, 1, &bytes), ALL);
    let old = engine.lookup(&prompt(&engine, 1), 9).pin.unwrap();
    let before = engine.client.stats();
    end(&mut place);
    eventually("the hang-up", || !engine.client.is_healthy());
    for _ in 0..200 {
        assert_eq!(hit(&engine, 1, &bytes), ALL);
    }
    assert!(engine.client.is_readable() && !engine.client.is_healthy());
    let state = engine.client.state_text();
    assert!(
        state.starts_with("degraded") && state.contains("lookups and loads go on from memory"),
        "{state}"
    );
    // What is not there is a miss like any other, and what needs a server fails at once.
    let unknown = engine.lookup(&prompt(&engine, 2), 1);
    assert_eq!((unknown.hit_tokens, unknown.degraded), (0, false));
    let stored = engine.client.store(&items(&prompt(&engine, 2)), &[]).unwrap();
    assert!(
        stored.iter().all(|outcome| *outcome == StoreOutcome::Unavailable),
        "{stored:?}"
    );
    assert_eq!(engine.lookup(&prompt(&engine, 2), 1).hit_tokens, 0);
    assert!(matches!(
        engine.client.status(),
        Err(ClientError::Unavailable { .. })
    ));
    let stats = engine.client.stats();
    assert_eq!(stats.dropped_stores, before.dropped_stores + CHUNKS as u64);
    assert_eq!((stats.failed_loads, stats.degraded_lookups), (0, 0));
    assert_eq!(stats.direct_lookups, before.direct_lookups + 202);

    place.start();
    place.wait_prefaulted();
    eventually("recovery", || engine.client.is_healthy());
    // Other objects are now where those of the last server were. Its pins are worth nothing, and nothing of it is read.
    let other = store(&engine, 3);
    assert_eq!(hit(&engine, 1, &bytes), (0, 0));
    assert_eq!(hit(&engine, 3, &other), ALL);
    engine.client.release(&[old]).unwrap();
    assert_eq!(engine.client.stats().reconnects, 1);
    // What was counted meanwhile is told to the new server.
    eventually("the lookups of the outage", || {
        let reported = &place.status()["reported"];
        reported["lookups"].as_u64() >= Some(202)
            && reported["dropped_stores"].as_u64() >= Some(CHUNKS as u64)
    });
}

#[test]
fn hits_go_on_when_the_server_is_killed_and_the_old_pool_goes_with_the_next_one() {
    let _alone = alone();
    goes_on(Place::kill);
    goes_on(|place| {
        place.signal(Signal::SIGTERM);
        place.wait_end();
    });
    eventually("no pool of a client that has gone", || mapped_pools() == 0);
    let mut place = Place::with_server();
    let engine = engine(&place, 1);
    let bytes = store(&engine, 1);
    for _ in 0..3 {
        // The domain's shape is asked for once over each connection.
        assert_eq!(hit(&engine, 1, &bytes), ALL);
        place.kill();
        eventually("the hang-up", || !engine.client.is_healthy());
        assert_eq!((hit(&engine, 1, &bytes), mapped_pools()), (ALL, 1));
        place.start();
        place.wait_prefaulted();
        eventually("recovery", || engine.client.is_healthy());
        eventually("the end of the old pool", || mapped_pools() == 1);
        assert_eq!(hit(&engine, 1, &bytes), (0, 0));
        store(&engine, 1);
    }
    engine.client.close();
    eventually("the end of the last", || mapped_pools() == 0);
    assert!(!engine.client.is_readable());
    assert_eq!(hit(&engine, 1, &bytes), (0, 0));
}

/// A server that this client cannot use is no reason to give up what the last one shared.
#[test]
fn hits_go_on_while_another_server_refuses() {
    let _alone = alone();
    let mut place = Place::with_server();
    let engine = engine(&place, 1);
    let bytes = store(&engine, 1);
    assert_eq!(hit(&engine, 1, &bytes), ALL);
    place.kill();
    place.set_arguments(&[
        "--pool-size",
        "64MiB",
        "--chunk-size",
        "128",
        "--chunk-size-policy",
        "fixed",
    ]);
    place.start();
    eventually("the refusal", || engine.client.state_text().contains("128"));
    for _ in 0..20 {
        assert_eq!(hit(&engine, 1, &bytes), ALL);
    }
    // A full one: another engine has its only place. Both try to get it, so that it takes some rounds until the other one does.
    place.set_arguments(&["--pool-size", "64MiB", "--chunk-size", "64", "--max-clients", "1"]);
    let shape = Shape::plain(64, 0);
    for round in 0.. {
        assert!(round < 50, "the other engine never gets the place");
        place.kill();
        let first = Engine::unregistered(&place, &shape, 2, DEADLINE, HEARTBEAT);
        place.start();
        eventually("one of the two", || {
            first.client.is_healthy() || engine.client.is_healthy()
        });
        if first.client.is_healthy() {
            eventually("the refusal", || {
                engine.client.state_text().contains("LimitExceeded")
            });
            for _ in 0..20 {
                assert_eq!(hit(&engine, 1, &bytes), ALL);
            }
            drop(first);
            eventually("its turn", || engine.client.is_healthy());
            break;
        }
        // What it stores now is what it hits in the next round. The domain's shape is asked for once over each connection.
        drop(first);
        place.wait_prefaulted();
        assert_eq!(store(&engine, 1), bytes);
        assert_eq!(hit(&engine, 1, &bytes), ALL);
    }
    assert_eq!(hit(&engine, 1, &bytes), (0, 0));
}

/// Two threads of an engine go on hitting while servers die and come back. Between a death and the next server's session every load
/// has to be whole; around it a load may fail, and no byte may be wrong.
#[test]
fn loads_across_deaths_and_restarts_are_right_or_fail() {
    let _alone = alone();
    let mut place = Place::with_server();
    let reader = Arc::new(engine(&place, 1));
    let writer = engine(&place, 2);
    let (end, dead) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let hits = Arc::new(AtomicU64::new(0));
    // The same key has the same bytes in every life, and each life holds other prompts beside it, at other places.
    let bytes = store(&writer, 7);
    let bytes = Arc::new(bytes);
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            let (reader, bytes) = (Arc::clone(&reader), Arc::clone(&bytes));
            let (end, dead, hits) = (Arc::clone(&end), Arc::clone(&dead), Arc::clone(&hits));
            std::thread::spawn(move || {
                // Blocks of its own.
                let target = TARGET + 4 * (CHUNKS as i64 + thread);
                for chunk in (0..CHUNKS).cycle() {
                    if end.load(Ordering::Relaxed) {
                        break;
                    }
                    // Dead before and after: no other session came in between.
                    let before = dead.load(Ordering::SeqCst);
                    let chain = prompt(&reader, 7);
                    let answer = reader.lookup(&chain, 3);
                    let load = [load_chunk(&chain, chunk, four(target))];
                    let loaded = reader.client.load(3, 0, &load).unwrap();
                    reader.client.release(answer.pin.as_slice()).unwrap();
                    if loaded == [true] {
                        for (at, stored) in bytes[4 * chunk..][..4].iter().enumerate() {
                            let found = reader.block(0, 0, target + at as i64);
                            assert!(found == *stored, "block {at} of chunk {chunk} is another's");
                        }
                    }
                    if before && dead.load(Ordering::SeqCst) {
                        assert_eq!((answer.hit_tokens, loaded), ((CHUNKS * CHUNK) as u64, vec![true]));
                        hits.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for round in 0..12 {
        eventually("hits", || reader.lookup(&prompt(&reader, 7), 2).hit_tokens > 0);
        reader.client.release_label(2).unwrap();
        place.kill();
        let before = hits.load(Ordering::Relaxed);
        dead.store(true, Ordering::SeqCst);
        eventually("hits of a dead server", || {
            hits.load(Ordering::Relaxed) > before + 20
        });
        assert_eq!(hit(&reader, 7, &bytes), ALL);
        dead.store(false, Ordering::SeqCst);
        place.start();
        // Loads beside the new session's coming, and beside stores of others into the new pool.
        place.wait_prefaulted();
        eventually("the writer", || writer.client.is_healthy());
        for other in 0..8 {
            store(&writer, 100 + round * 8 + other);
            hit(&reader, 7, &bytes);
        }
        assert_eq!(store(&writer, 7), *bytes);
        eventually("the reader", || reader.client.is_healthy());
        assert_eq!(hit(&reader, 7, &bytes), ALL);
    }
    end.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
