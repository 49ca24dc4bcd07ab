//! Servers that are killed, stopped, late or replaced: an engine never notices more than a miss.

mod client_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client_support::*;
use kvasir::client::{ClientError, StoreOutcome};
use nix::sys::signal::Signal;
use rand::{RngExt, SeedableRng};

/// Short, so that waiting for it is; long enough that a busy machine answers within it.
const DEADLINE: Duration = Duration::from_secs(2);
const HEARTBEAT: Duration = Duration::from_millis(300);

fn engine(place: &Place) -> Engine {
    let shape = Shape::plain(64, 0);
    let engine = Engine::unregistered(place, &shape, 1, DEADLINE, HEARTBEAT);
    eventually("the first connection", || engine.client.is_healthy());
    engine.client.negotiate(shape.negotiation()).unwrap();
    engine.client.register(shape.registration()).unwrap();
    engine
}

/// Every call, as an engine makes them, with no server to answer. Whether lookups say so depends on what can be read without.
fn assert_degraded(engine: &Engine, lookups: bool) {
    let chain = engine.chain(CHUNK + 1, 9);
    let hit = engine.lookup(&chain, 1);
    assert!(
        hit.degraded == lookups && hit.hit_tokens == 0 && hit.pin.is_none(),
        "{hit:?}"
    );
    let dropped = engine.client.stats().dropped_stores;
    let stored = engine
        .client
        .store(&[store_chunk(&chain, 0, 0, four(1))], &[])
        .unwrap();
    assert_eq!(stored, [StoreOutcome::Unavailable]);
    assert_eq!(engine.client.stats().dropped_stores, dropped + 1);
    assert_eq!(
        engine
            .client
            .load(1, 0, &[load_chunk(&chain, 0, four(1))])
            .unwrap(),
        [false]
    );
    engine.client.release(&[]).unwrap();
    engine.client.release_label(1).unwrap();
    assert!(!engine.client.clear().unwrap());
    assert!(matches!(
        engine.client.status(),
        Err(ClientError::Unavailable { .. })
    ));
    assert!(!engine.client.is_healthy());
    assert!(
        engine.client.state_text().starts_with("degraded"),
        "{}",
        engine.client.state_text()
    );
}

/// A store and a load that have to work.
fn assert_serves(place: &Place, engine: &Engine, salt: u32) {
    place.wait_prefaulted();
    engine.fill(u64::from(salt));
    let chain = engine.chain(CHUNK + 1, salt);
    assert_published(
        &engine
            .client
            .store(&[store_chunk(&chain, 0, 0, four(1))], &[])
            .unwrap(),
    );
    let hit = engine.lookup(&chain, 2);
    assert_eq!((hit.hit_tokens, hit.degraded), (64, false));
    assert_eq!(
        engine
            .client
            .load(2, 0, &[load_chunk(&chain, 0, four(30))])
            .unwrap(),
        [true]
    );
    assert_eq!(engine.block(0, 0, 30), engine.block(0, 0, 1));
    engine.client.release_label(2).unwrap();
}

#[test]
fn a_killed_server_is_a_miss_and_its_successor_is_found() {
    let mut place = Place::with_server();
    let engine = engine(&place);
    assert_serves(&place, &engine, 1);
    let (seed, old) = (engine.seed(), engine.chain(CHUNK + 1, 1));
    let pin = engine.lookup(&old, 3).pin.unwrap();
    place.kill();
    eventually("the hang-up", || !engine.client.is_healthy());
    assert_degraded(&engine, false);
    assert_eq!(
        engine.lookup(&old, 3).hit_tokens,
        64,
        "tests/client_dead_servers.rs"
    );
    place.start();
    eventually("recovery", || engine.client.is_healthy());
    assert_eq!(engine.seed(), seed, "the same keys as before");
    assert_eq!(engine.client.chunk_size(), Some(64));
    // Nothing of the old server is left: no hit, and its pin is none of the new one's.
    assert_eq!(engine.lookup(&old, 3).hit_tokens, 0);
    engine.client.release(&[pin]).unwrap();
    assert_serves(&place, &engine, 2);
    let stats = engine.client.stats();
    assert_eq!(stats.reconnects, 1);
    assert!(stats.degraded_ms > 0);
    assert_eq!(stats.degraded_lookups, 0, "each was answered from memory");
}

/// A restart between two looks of a heartbeat: the client notices without anybody calling.
#[test]
fn a_quick_restart_is_seen_without_a_call() {
    let mut place = Place::with_server();
    let engine = engine(&place);
    for restart in 1..=3 {
        place.kill();
        place.start();
        eventually("reconnection", || {
            engine.client.stats().reconnects == restart && engine.client.is_healthy()
        });
        assert_serves(&place, &engine, restart as u32);
    }
}

/// Lookups, loads and releases are the client's own, so they go on; what has to be asked costs a deadline, once.
#[test]
fn a_stopped_server_is_not_missed_by_hits_and_comes_back() {
    let place = Place::with_server();
    let engine = engine(&place);
    assert_serves(&place, &engine, 1);
    place.signal(Signal::SIGSTOP);
    let chain = engine.chain(CHUNK + 1, 1);
    for label in 0..100 {
        let hit = engine.lookup(&chain, label % 2);
        assert_eq!((hit.hit_tokens, hit.degraded), (64, false));
        let (load, block) = ([load_chunk(&chain, 0, four(40))], engine.block(0, 0, 1));
        assert_eq!(engine.client.load(label % 2, 0, &load).unwrap(), [true]);
        assert_eq!(engine.block(0, 0, 40), block);
        if label % 2 == 0 {
            engine.client.release(&[hit.pin.unwrap()]).unwrap();
        }
    }
    engine.client.release_label(1).unwrap();
    assert!(engine.client.is_healthy(), "nobody has asked the server anything");
    let stopped = Instant::now();
    assert!(engine.client.status().is_err());
    assert!(stopped.elapsed() >= DEADLINE, "it could not know before");
    // From here on what needs the server fails at once, and what does not goes on, beside attempts to reconnect.
    assert!(!engine.client.is_healthy() && engine.client.is_readable());
    let state = engine.client.state_text();
    assert!(
        state.contains("in time") && state.contains("go on from memory"),
        "{state}"
    );
    let unknown = engine.chain(CHUNK + 1, 99);
    while stopped.elapsed() < Duration::from_secs(6) {
        let hit = engine.lookup(&chain, 1);
        assert_eq!((hit.hit_tokens, hit.degraded), (64, false));
        let (load, block) = ([load_chunk(&chain, 0, four(40))], engine.block(0, 0, 1));
        assert_eq!(engine.client.load(1, 0, &load).unwrap(), [true]);
        assert_eq!(engine.block(0, 0, 40), block);
        let stored = engine.client.store(&[store_chunk(&unknown, 0, 0, four(1))], &[]);
        assert_eq!(stored.unwrap(), [StoreOutcome::Unavailable]);
        engine.client.release(&[hit.pin.unwrap()]).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    let held = engine.lookup(&chain, 1).pin.unwrap();
    place.signal(Signal::SIGCONT);
    eventually("recovery", || engine.client.is_healthy());
    engine.client.release(&[held]).unwrap();
    assert_eq!(engine.lookup(&chain, 1).hit_tokens, 64, "nothing was lost");
    assert_eq!(engine.lookup(&unknown, 1).hit_tokens, 0);
    engine.client.release_label(1).unwrap();
    assert_serves(&place, &engine, 2);
    assert_eq!(engine.client.stats().failed_loads, 0);
    // What the connection of before held is free again.
    eventually("the pins of the old slab", || {
        place.status()["pool"]["pinned"] == 0
    });
    eventually("one client", || {
        place.status()["clients"].as_array().unwrap().len() == 1
    });
}

/// A store that misses its deadline ends nothing but stores, and neither does the end of the server, when it comes.
#[test]
fn a_store_that_times_out_leaves_hits_alone_and_so_does_the_death_of_its_server() {
    let mut place = Place::with_server();
    let engine = engine(&place);
    assert_serves(&place, &engine, 1);
    let chain = engine.chain(CHUNK + 1, 1);
    place.signal(Signal::SIGSTOP);
    let late = engine.chain(CHUNK + 1, 2);
    let stored = engine
        .client
        .store(&[store_chunk(&late, 0, 0, four(1))], &[])
        .unwrap();
    assert_eq!(stored, [StoreOutcome::Unavailable]);
    let hits = || {
        for _ in 0..20 {
            assert_eq!(engine.lookup(&chain, 1).hit_tokens, 64);
            let load = [load_chunk(&chain, 0, four(40))];
            assert_eq!(engine.client.load(1, 0, &load).unwrap(), [true]);
            assert_eq!(engine.block(0, 0, 40), engine.block(0, 0, 1));
        }
    };
    hits();
    place.kill();
    eventually("an attempt that finds nobody", || {
        engine.client.state_text().contains("cannot connect")
    });
    hits();
    assert_degraded(&engine, false);
    place.start();
    eventually("recovery", || engine.client.is_healthy());
    assert_eq!(
        engine.lookup(&chain, 1).hit_tokens,
        0,
        "nothing of the dead server"
    );
    assert_serves(&place, &engine, 3);
}

/// The connection that a late server is read over takes a place that the new one may need.
#[test]
fn a_server_that_was_late_and_is_full_takes_its_client_back() {
    let mut place = Place::empty(&["--pool-size", "64MiB", "--chunk-size", "64", "--max-clients", "1"]);
    place.start();
    place.wait_prefaulted();
    let shape = Shape::plain(64, 0);
    // A heartbeat that is too late to help.
    let engine = Engine::unregistered(&place, &shape, 1, DEADLINE, 100 * WATCHDOG);
    engine.client.negotiate(shape.negotiation()).unwrap();
    engine.client.register(shape.registration()).unwrap();
    place.signal(Signal::SIGSTOP);
    assert!(engine.client.status().is_err());
    assert!(engine.client.is_readable() && !engine.client.is_healthy());
    place.signal(Signal::SIGCONT);
    eventually("recovery", || engine.client.is_healthy());
    assert_serves(&place, &engine, 1);
}

/// A full server is one that is away: said with its numbers, and over as soon as there is room or another server.
#[test]
fn a_full_server_is_away_until_there_is_room() {
    let mut place = Place::empty(&["--pool-size", "64MiB", "--chunk-size", "64", "--max-clients", "1"]);
    place.start();
    place.wait_prefaulted();
    let shape = Shape::plain(64, 0);
    let first = Engine::unregistered(&place, &shape, 1, DEADLINE, HEARTBEAT);
    eventually("the first", || first.client.is_healthy());
    let second = Engine::unregistered(&place, &shape, 2, DEADLINE, HEARTBEAT);
    // And one whose heartbeat is too late to help.
    let patient = Engine::unregistered(&place, &shape, 3, DEADLINE, 100 * WATCHDOG);
    for engine in [&second, &patient] {
        for asked in [
            engine.client.negotiate(shape.negotiation()).map(drop),
            engine.client.register(shape.registration()).map(drop),
        ] {
            assert!(matches!(asked, Err(ClientError::Unavailable { .. })), "{asked:?}");
        }
        assert!(!engine.client.is_healthy());
        let state = engine.client.state_text();
        assert!(state.contains("LimitExceeded") && state.contains('1'), "{state}");
    }
    drop(first);
    eventually("the second's turn", || second.client.is_healthy());
    assert_serves(&place, &second, 1);
    // More connections than clients may have: refused before the first word.
    let idle: Vec<_> = (0..64)
        .map(|_| std::os::unix::net::UnixStream::connect(place.socket()).unwrap())
        .collect();
    let third = Engine::unregistered(&place, &shape, 4, DEADLINE, HEARTBEAT);
    let asked = third.client.negotiate(shape.negotiation());
    assert!(matches!(asked, Err(ClientError::Unavailable { .. })), "{asked:?}");
    let state = third.client.state_text();
    assert!(state.contains("LimitExceeded") && state.contains("65"), "{state}");
    drop((idle, third));

    place.kill();
    place.set_arguments(&["--pool-size", "64MiB", "--chunk-size", "64"]);
    place.start();
    eventually("the next server", || {
        patient.client.is_healthy() && second.client.is_healthy()
    });
    assert_eq!(patient.client.chunk_size(), Some(64));
    assert_serves(&place, &patient, 2);
}

#[test]
fn an_engine_may_start_before_its_server() {
    let mut place = Place::empty(&["--pool-size", "64MiB", "--chunk-size", "64"]);
    let shape = Shape::plain(64, 0);
    let engine = Engine::unregistered(&place, &shape, 1, DEADLINE, HEARTBEAT);
    assert!(!engine.client.is_healthy());
    for result in [
        engine.client.negotiate(shape.negotiation()).map(drop),
        engine.client.register(shape.registration()).map(drop),
    ] {
        assert!(
            matches!(result, Err(ClientError::Unavailable { .. })),
            "{result:?}"
        );
    }
    assert_eq!(
        (engine.client.chunk_size(), engine.client.domain_seed()),
        (None, None)
    );
    std::thread::sleep(2 * HEARTBEAT);
    place.start();
    eventually("the server", || engine.client.is_healthy());
    // What was asked for in vain has been done meanwhile.
    assert_eq!(engine.client.chunk_size(), Some(64));
    assert_serves(&place, &engine, 1);
}

/// Engines whose first words wait at a server when it is told to stop. It answers some, refuses some and cuts some off, as
/// the signal and the words are taken up; none of them is an error to the engine, and all use the next server.
#[test]
fn engines_that_start_while_a_server_stops_use_the_next_one() {
    const ENGINES: u8 = 6;
    let mut place = Place::with_server();
    let shape = Shape::plain(64, 0);
    for round in 0..5 {
        place.signal(Signal::SIGSTOP);
        let start = |number: u8| {
            // A heartbeat that is too late to help.
            let engine = Engine::unregistered(&place, &shape, 1 + number, DEADLINE, 100 * WATCHDOG);
            let asked = [
                engine.client.negotiate(shape.negotiation()).map(drop),
                engine.client.register(shape.registration()).map(drop),
            ];
            (engine, asked)
        };
        let started: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..ENGINES)
                .map(|number| scope.spawn(move || start(number)))
                .collect();
            // Most have said hello by then; the others find the server gone, which is as good a case.
            std::thread::sleep(Duration::from_millis(20 * round));
            place.signal(Signal::SIGTERM);
            place.signal(Signal::SIGCONT);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        place.wait_end();
        place.start();
        for (engine, asked) in &started {
            for result in asked {
                assert!(
                    matches!(result, Ok(()) | Err(ClientError::Unavailable { .. })),
                    "{result:?}"
                );
                if let Err(error) = result {
                    eprintln!("round {round}: {error}");
                }
            }
            eventually("the next server", || engine.client.is_healthy());
            assert_eq!(engine.client.chunk_size(), Some(64));
            assert!(engine.client.domain_seed().is_some());
        }
        assert_serves(&place, &started[0].0, round as u32 + 1);
    }
}

#[test]
fn a_server_with_another_chunk_size_is_not_used() {
    let mut place = Place::with_server();
    let shape = Shape::plain(64, 0);
    let engine = Engine::unregistered(&place, &shape, 1, DEADLINE, 100 * WATCHDOG);
    engine.client.negotiate(shape.negotiation()).unwrap();
    engine.client.register(shape.registration()).unwrap();
    place.kill();
    let other = [
        "--pool-size",
        "64MiB",
        "--chunk-size",
        "128",
        "--chunk-size-policy",
        "fixed",
    ];
    place.set_arguments(&other);
    place.start();
    eventually("the refusal", || engine.client.state_text().contains("128"));
    assert_degraded(&engine, true);
    // The operator sees who waits for what: in the status, of the doctor, and in the log.
    let shown = |text: &str| {
        text.contains("chunks of 64 tokens") && text.contains("128") && text.contains("--chunk-size 64")
    };
    eventually("the client in the status", || {
        let status = place.status();
        let clients = status["clients"].as_array().unwrap();
        let waits = clients.iter().find(|client| client["refused"].is_string());
        waits.is_some_and(|client| shown(client["refused"].as_str().unwrap()))
    });
    for (command, arguments) in [("status", &[][..]), ("doctor", &["--json"])] {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_kvasir"));
        let output = program
            .arg(command)
            .args(arguments)
            .arg("--socket")
            .arg(place.socket())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(shown(&text), "{text}");
    }
    assert!(shown(&place.log()), "{}", place.log());
    assert!(
        engine.client.state_text().contains("64"),
        "{}",
        engine.client.state_text()
    );
    // The right one comes back: found without a heartbeat.
    place.kill();
    place.set_arguments(&["--pool-size", "64MiB", "--chunk-size", "64"]);
    place.start();
    eventually("recovery", || engine.client.is_healthy());
    assert_serves(&place, &engine, 5);
}

/// The size that the first model of a server led to is asked for again, though the restarted server's minimum alone
/// would lead to another.
#[test]
fn the_size_of_before_is_asked_for() {
    let mut place = Place::empty(&["--pool-size", "64MiB", "--chunk-size", "48"]);
    place.start();
    let shape = Shape::plain(64, 0);
    let first = Engine::unregistered(&place, &shape, 1, DEADLINE, HEARTBEAT);
    let mut negotiation = shape.negotiation();
    negotiation.previous_size = 192;
    assert_eq!(first.client.negotiate(negotiation).unwrap().chunk_size, 192);
    let second = Engine::unregistered(&place, &shape, 2, DEADLINE, HEARTBEAT);
    assert_eq!(
        second.client.negotiate(shape.negotiation()).unwrap().chunk_size,
        192
    );
    place.kill();
    drop(first);
    place.start();
    eventually("recovery", || second.client.is_healthy());
    assert_eq!(second.client.chunk_size(), Some(192));
}

/// Stores, lookups and loads while the server dies at random points, again and again.
#[test]
fn kill_at_random_points_leaves_the_engine_alive_and_its_bytes_right() {
    let mut place = Place::with_server();
    let engine = Arc::new(engine(&place));
    engine.fill(1);
    let end = Arc::new(AtomicBool::new(false));
    let loaded = Arc::new(AtomicU64::new(0));
    let seed = rand::random::<u64>();
    eprintln!("seed {seed}");
    let workers: Vec<_> = (0..2_i64)
        .map(|worker| {
            let (engine, end, loaded) = (Arc::clone(&engine), Arc::clone(&end), Arc::clone(&loaded));
            std::thread::spawn(move || {
                let target = 40 + 8 * worker;
                let mut salt = worker as u32 + 1;
                while !end.load(Ordering::Relaxed) {
                    salt += 2;
                    let chain = engine.chain(2 * CHUNK + 1, salt);
                    let items = [
                        store_chunk(&chain, 0, 0, four(1)),
                        store_chunk(&chain, 1, 0, four(5)),
                    ];
                    engine.client.store(&items, &[]).unwrap();
                    let hit = engine.lookup(&chain, salt.into());
                    let loads = [
                        load_chunk(&chain, 0, four(target)),
                        load_chunk(&chain, 1, four(target + 4)),
                    ];
                    for (chunk, ok) in engine
                        .client
                        .load(salt.into(), 0, &loads)
                        .unwrap()
                        .into_iter()
                        .enumerate()
                    {
                        for block in 0..if ok { 4 } else { 0 } {
                            let (from, to) =
                                (1 + 4 * chunk as i64 + block, target + 4 * chunk as i64 + block);
                            assert_eq!(engine.block(0, 0, from), engine.block(0, 0, to));
                            loaded.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    engine
                        .client
                        .release(&hit.pin.into_iter().collect::<Vec<_>>())
                        .unwrap();
                }
            })
        })
        .collect();
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let begin = Instant::now();
    let mut kills = 0;
    while kills < 100 && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_micros(random.random_range(0..80_000)));
        place.kill();
        kills += 1;
        place.start();
        if kills % 4 == 0 {
            let before = loaded.load(Ordering::Relaxed);
            eventually("loads to work again", || loaded.load(Ordering::Relaxed) > before);
        }
    }
    end.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.join().unwrap();
    }
    eventually("recovery", || engine.client.is_healthy());
    assert_serves(&place, &engine, 1_000_000);
    eprintln!("{kills} kills, {} blocks loaded", loaded.load(Ordering::Relaxed));
}

#[test]
fn a_closed_client_is_a_client_without_a_server() {
    let place = Place::with_server();
    let engine = engine(&place);
    let ticket = engine
        .client
        .lookup_start(&lookup(engine.seed(), &engine.chain(100, 1), 1, 16).as_request())
        .unwrap();
    engine.client.close();
    assert!(engine.client.lookup_poll(ticket, WATCHDOG).unwrap().is_some());
    let chain = engine.chain(CHUNK + 1, 1);
    assert!(engine.lookup(&chain, 1).degraded);
    let late = engine
        .client
        .lookup_start(&lookup(engine.seed(), &chain, 1, 16).as_request())
        .unwrap();
    assert!(
        engine
            .client
            .lookup_poll(late, Duration::ZERO)
            .unwrap()
            .unwrap()
            .degraded
    );
    let stored = engine
        .client
        .store(&[store_chunk(&chain, 0, 0, four(1))], &[])
        .unwrap();
    assert_eq!(stored, [StoreOutcome::Unavailable]);
    assert_eq!(engine.client.state_text(), "closed");
}
