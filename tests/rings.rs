//! Clients that map nothing of the pool, with real processes: what comes back through a ring, what they can see, and what is
//! left when one of them or the server is killed.

mod client_support;
mod rings_support;

use std::process::Command;
use std::time::Duration;

use client_support::*;
use kvasir::client::{
    Client, ClientConfig, Damage, KvGroupPages, LayerPages, Maps, ObjectGroupPages, StoreOutcome,
    corrupt_pool,
};
use kvasir::geometry::ObjectKind;
use kvasir::object::ClientKind;
use nix::sys::signal::Signal;
use rings_support::*;

#[test]
fn rows_of_any_size_come_back_between_rings_and_mapped_pools() {
    let place = Place::with_server();
    // Objects of 128 bytes, and of four windows of a short lane; pages that end anywhere.
    for (row, lane) in [
        (1, SHORT),
        (17, SHORT),
        (656, SHORT),
        (1024, SHORT),
        (656, 8 << 20),
    ] {
        let mut shape = Shape::plain(row, 5);
        shape.model = format!("test/rows-{row}-{lane}");
        let ring = ring_engine(&place, &shape, 1, lane);
        let mapped = Engine::start(&place, &shape, 2);
        for (salt, from, to) in [(1, &ring, &mapped), (2, &mapped, &ring), (3, &ring, &ring)] {
            from.fill(salt);
            let chain = from.chain(2 * CHUNK + 1, salt as u32 + row as u32);
            let stores = [
                store_chunk(&chain, 0, 0, four(1)),
                store_chunk(&chain, 1, 0, four(8)),
            ];
            assert_published(&from.client.store(&stores, &[]).unwrap());
            let stored = [pages(from, 1), pages(from, 8)];
            to.fill(99);
            let mut expected = to.everything();
            let found = to.lookup(&chain, 5);
            assert_eq!(
                found.hit_tokens,
                2 * CHUNK as u64,
                "row {row}, lane {lane}, salt {salt}"
            );
            let loads = [load_chunk(&chain, 0, four(20)), load_chunk(&chain, 1, four(31))];
            assert_eq!(to.client.load(5, 0, &loads).unwrap(), [true, true]);
            assert_eq!([pages(to, 20), pages(to, 31)], stored);
            // Nothing else was touched.
            let layers = &shape.groups[0].pages.kv_groups[0].layers;
            let now = to.everything();
            for layer in layers {
                for block in (20..24).chain(31..35) {
                    let at = (layer.offset + block * layer.block_stride) as usize;
                    let page = at..at + layer.page_bytes as usize;
                    let region = usize::from(layer.region);
                    expected[region][page.clone()].copy_from_slice(&now[region][page]);
                }
            }
            assert!(now == expected, "bytes beside the pages changed");
            to.client.release(&[found.pin.unwrap()]).unwrap();
        }
        for engine in [&ring, &mapped] {
            let stats = engine.client.stats();
            assert_eq!((stats.failed_loads, stats.dropped_stores), (0, 0));
            engine.client.give_back().unwrap();
        }
        assert_eq!(ring.client.stats().direct_lookups, 0, "it maps no index");
    }
}

/// A front of a window's object, with holes, longer than what goes through the ring at a time.
#[test]
fn holes_and_fronts_of_long_parts_are_left_alone() {
    let place = Place::with_server();
    let mut shape = Shape::plain(4096, 0);
    let layer = |offset| LayerPages {
        region: 0,
        offset,
        block_stride: 2 * 65536 + 13,
        page_bytes: 65536,
    };
    shape.regions = vec![64 * (2 * 65536 + 13)];
    shape.groups = vec![Group {
        kind: ObjectKind::Window { tokens: 33 },
        pages: ObjectGroupPages {
            group: 0,
            kv_groups: vec![KvGroupPages {
                tokens_per_block: BLOCK,
                layers: vec![layer(0), layer(65536)],
            }],
        },
    }];
    let engine = ring_engine(&place, &shape, 1, SHORT);
    engine.fill(4);
    let chain = engine.chain(CHUNK + 1, 1);
    let outcomes = engine
        .client
        .store(&[store_chunk(&chain, 0, 0, vec![vec![0, 2, 3, 4]])], &[]);
    assert_published(&outcomes.unwrap());
    let stored: Vec<_> = (2..5).map(|block| engine.block(0, 0, block)).collect();
    let others = [engine.block(0, 0, 41), engine.block(0, 0, 45)];
    let loads = [load_chunk(&chain, 0, vec![vec![0, 42, 0, 44]])];
    assert_eq!(engine.client.load(1, 0, &loads).unwrap(), [true]);
    assert_eq!(engine.block(0, 0, 42), stored[0]);
    assert_eq!(engine.block(0, 0, 44), stored[2]);
    let loads = [load_chunk(&chain, 0, vec![vec![0, 46, 43]])];
    assert_eq!(engine.client.load(1, 0, &loads).unwrap(), [true], "a front");
    assert_eq!(engine.block(0, 0, 43), stored[1]);
    assert_eq!([engine.block(0, 0, 41), engine.block(0, 0, 45)], others);
}

#[test]
fn damage_is_noticed_through_a_ring_too_and_discarded() {
    let place = Place::with_server();
    for (row, lane) in [(64, 8 << 20), (4096, SHORT)] {
        let mut shape = Shape::plain(row, 0);
        shape.model = format!("test/damage-{row}");
        let engine = ring_engine(&place, &shape, 1, lane);
        engine.fill(row);
        let chain = engine.chain(CHUNK + 1, 1);
        let store = [store_chunk(&chain, 0, 0, four(1))];
        assert_published(&engine.client.store(&store, &[]).unwrap());
        let config = ClientConfig::new(place.socket(), ClientKind::Worker, "damage", [9; 16]);
        let first = engine.block(0, 0, 1);
        let changed = corrupt_pool(config, Damage::OneBit, |frame| frame[..64] == first[..64]);
        assert!(changed.unwrap() > 0);
        let load = [load_chunk(&chain, 0, four(20))];
        assert_eq!(engine.client.load(1, 0, &load).unwrap(), [false]);
        assert_eq!(engine.client.stats().corrupt_loads, 1);
        assert_eq!(engine.lookup(&chain, 1).hit_tokens, 0, "it is out of the cache");
        assert!(engine.client.is_healthy());
        assert_published(&engine.client.store(&store, &[]).unwrap());
        assert_eq!(engine.client.load(1, 0, &load).unwrap(), [true]);
    }
}

/// What a store has to know of the cache it asks: nothing is copied for what is there, and what hangs under nothing is told so.
#[test]
fn stores_know_what_is_there_without_an_index() {
    let place = Place::with_server();
    let shape = Shape::plain(64, 0);
    let ring = ring_engine(&place, &shape, 1, SHORT);
    let other = Engine::start(&place, &shape, 2);
    ring.fill(1);
    other.fill(1);
    let chain = ring.chain(3 * CHUNK + 1, 1);
    let chunk = |chunk: usize| store_chunk(&chain, chunk, 0, four(1 + 4 * chunk as i64));
    let store = |engine: &Engine, chunks: &[usize]| {
        let requests: Vec<_> = chunks.iter().map(|at| chunk(*at)).collect();
        engine.client.store(&requests, &[]).unwrap()
    };
    assert_eq!(store(&ring, &[1]), [StoreOutcome::NoParent]);
    assert_eq!(store(&ring, &[2]), [StoreOutcome::NoParent]);
    // Somebody else stores what was missing.
    assert_published(&store(&other, &[0, 1]));
    assert_published(&store(&ring, &[2]));
    let stored = ring.client.stats().stored_bytes;
    assert_eq!(store(&ring, &[0, 1, 2]), [StoreOutcome::Exists; 3]);
    assert_eq!(
        ring.client.stats().stored_bytes,
        stored,
        "nothing was copied for it"
    );
    let ids = (0..3).map(|at| chunk(at).id).collect();
    assert_eq!(ring.client.present(0, ids).unwrap(), [true; 3]);
}

#[test]
fn calls_from_many_threads_share_one_ring() {
    let place = Place::with_server();
    let shape = Shape::plain(656, 0);
    let engine = ring_engine(&place, &shape, 1, SHORT);
    engine.fill(7);
    std::thread::scope(|scope| {
        for thread in 0..4_i64 {
            let engine = &engine;
            scope.spawn(move || {
                let (from, to) = (1 + 4 * thread, 24 + 4 * thread);
                for round in 0..20 {
                    let chain = engine.chain(CHUNK + 1, (thread * 1000 + round) as u32);
                    let store = [store_chunk(&chain, 0, 0, four(from))];
                    assert_published(&engine.client.store(&store, &[]).unwrap());
                    let load = [load_chunk(&chain, 0, four(to))];
                    assert_eq!(engine.client.load(thread as u64, 0, &load).unwrap(), [true]);
                    assert_eq!(pages(engine, to), pages(engine, from));
                }
            });
        }
    });
}

#[test]
fn a_long_call_lets_short_ones_have_the_ring() {
    let place = Place::with_server();
    let engine = ring_engine(&place, &Shape::plain(4096, 0), 1, SHORT);
    engine.fill(3);
    let chain = engine.chain(8 * CHUNK + 1, 1);
    let stores: Vec<_> = (0..8).map(|at| store_chunk(&chain, at, 0, four(1))).collect();
    assert_published(&engine.client.store(&stores, &[]).unwrap());
    // 2,048 windows, which the short ones do not wait for.
    let long: Vec<_> = (0..128).map(|at| load_chunk(&chain, at % 8, four(5))).collect();
    let short = [load_chunk(&chain, 7, four(9))];
    let moves = || clients(&place)[0]["ring"]["moves"].as_u64().unwrap();
    let overtaken = std::thread::scope(|scope| {
        let before = moves();
        let works = scope.spawn(|| engine.client.load(1, 0, &long).unwrap());
        eventually("the long call to be at work", || {
            moves() > before + 32 || works.is_finished()
        });
        let mut overtaken = 0;
        while !works.is_finished() {
            assert_eq!(engine.client.load(2, 0, &short).unwrap(), [true]);
            overtaken += u32::from(!works.is_finished());
        }
        assert_eq!(works.join().unwrap(), [true; 128]);
        overtaken
    });
    assert_eq!(pages(&engine, 5), pages(&engine, 1));
    assert_eq!(pages(&engine, 9), pages(&engine, 1));
    assert!(overtaken > 1, "short calls waited for all of the long one");
}

#[test]
fn status_shows_the_ring_and_gives_its_memory_back() {
    let place = Place::with_server();
    let shape = Shape::plain(64, 0);
    let engine = ring_engine(&place, &shape, 1, SHORT);
    engine.fill(1);
    let chain = engine.chain(CHUNK + 1, 1);
    assert_published(
        &engine
            .client
            .store(&[store_chunk(&chain, 0, 0, four(1))], &[])
            .unwrap(),
    );
    assert_eq!(
        engine
            .client
            .load(1, 0, &[load_chunk(&chain, 0, four(9))])
            .unwrap(),
        [true]
    );
    let row = &clients(&place)[0];
    assert_eq!(row["payload_path"], "shm-ring");
    let bytes = 64 * 2 * CHUNK;
    assert_eq!(
        row["ring"],
        serde_json::json!({
            "lane_bytes": SHORT, "named": false, "stored_bytes": bytes, "loaded_bytes": bytes, "moves": 2
        })
    );
    assert_eq!(place.status()["rings"]["bytes"], (64 << 10) + 2 * SHORT);
    let table = Command::new(env!("CARGO_BIN_EXE_kvasir"))
        .args(["status", "--socket"])
        .arg(place.socket())
        .output()
        .unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    let line = "ring of two lanes of 64.0 KiB: 8.0 KiB stored, 8.0 KiB loaded in 2 moves";
    assert!(table.contains(line), "{table}");
    engine.client.close();
    eventually("the ring to go", || place.status()["rings"]["bytes"] == 0);
    let pool = &place.status()["pool"];
    assert_eq!(
        (&pool["granted"], &pool["pinned"]),
        (&0.into(), &0.into()),
        "with it all it held"
    );
}

#[test]
fn rings_are_bounded_together() {
    let place = Place::with_server();
    let mut config = ClientConfig::new(place.socket(), ClientKind::Worker, "large", [1; 16]);
    config.maps = Maps::Ring;
    config.ring_bytes = 60 << 20;
    let fit = [(); 2].map(|()| Client::new(config.clone()).unwrap());
    assert!(fit.iter().all(Client::is_healthy));
    let second = Client::new(config.clone()).unwrap();
    assert!(!second.is_healthy());
    assert!(
        second.state_text().contains("that rings may have"),
        "{}",
        second.state_text()
    );
    config.ring_bytes = (64 << 20) + 1;
    let third = Client::new(config).unwrap();
    assert!(
        third.state_text().contains("ask for 1 to 67108864"),
        "{}",
        third.state_text()
    );
}

#[test]
fn a_killed_server_fails_loads_drops_stores_and_is_found_again() {
    let mut place = Place::with_server();
    let shape = Shape::plain(4096, 0);
    let engine = Engine::start_with(&place, &shape, 1, |config| {
        config.maps = Maps::Ring;
        config.ring_bytes = SHORT;
        config.heartbeat = Duration::from_millis(100);
    });
    engine.fill(1);
    let chain = engine.chain(CHUNK + 1, 1);
    let store = [store_chunk(&chain, 0, 0, four(1))];
    let load = [load_chunk(&chain, 0, four(9))];
    for _ in 0..3 {
        let killed = std::thread::scope(|scope| {
            let works = scope.spawn(|| {
                // Until the server is gone, in whatever it is doing.
                loop {
                    let stored = engine.client.store(&store, &[]).unwrap();
                    if stored == [StoreOutcome::Unavailable] {
                        return engine.client.load(1, 0, &load).unwrap();
                    }
                    if engine.client.load(1, 0, &load).unwrap() == [true] {
                        assert_eq!(pages(&engine, 9), pages(&engine, 1));
                    }
                    engine.client.clear().unwrap();
                }
            });
            std::thread::sleep(Duration::from_millis(40));
            place.kill();
            works.join().unwrap()
        });
        assert_eq!(killed, [false]);
        assert!(!engine.client.is_readable(), "nothing is read without the server");
        assert!(engine.lookup(&chain, 1).degraded);
        place.start();
        place.wait_prefaulted();
        eventually("the client to be back", || engine.client.is_healthy());
        assert_published(&engine.client.store(&store, &[]).unwrap());
        assert_eq!(engine.client.load(1, 0, &load).unwrap(), [true]);
        assert_eq!(pages(&engine, 9), pages(&engine, 1));
    }
}

#[test]
fn a_server_that_stands_still_ends_calls_at_their_deadline() {
    let place = Place::with_server();
    let shape = Shape::plain(4096, 0);
    let engine = Engine::start_with(&place, &shape, 1, |config| {
        config.maps = Maps::Ring;
        config.ring_bytes = SHORT;
        config.deadline = Duration::from_millis(1500);
        config.heartbeat = Duration::from_millis(100);
    });
    engine.fill(1);
    let chain = engine.chain(CHUNK + 1, 1);
    let store = [store_chunk(&chain, 0, 0, four(1))];
    assert_published(&engine.client.store(&store, &[]).unwrap());
    place.signal(Signal::SIGSTOP);
    let load = [load_chunk(&chain, 0, four(9))];
    assert_eq!(engine.client.load(1, 0, &load).unwrap(), [false]);
    assert_eq!(
        engine.client.store(&store, &[]).unwrap(),
        [StoreOutcome::Unavailable]
    );
    assert!(
        engine.client.state_text().contains("lookups miss"),
        "{}",
        engine.client.state_text()
    );
    place.signal(Signal::SIGCONT);
    eventually("the client to be back", || engine.client.is_healthy());
    assert_eq!(engine.client.load(1, 0, &load).unwrap(), [true]);
    assert_eq!(pages(&engine, 9), pages(&engine, 1));
}
