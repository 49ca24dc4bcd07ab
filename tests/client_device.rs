//! Engines whose pages lie in device memory, against a real server, on the stand-in for `libcuda.so.1`. What goes right is in
//! the tests of the host's pages, which run over device memory too (`cargo xtask test --only device`).

#![allow(unsafe_code)]

mod client_support;
mod device_support;

use std::time::Duration;

use client_support::device::gpu;
use client_support::*;
use device_support::{Gate, count, faults, live, passes};
use kvasir::client::*;
use kvasir::keys::KeyChain;
use kvasir::object::ClientKind;
use serde_json::Value;

/// Time that a call has whose copy is never done in time.
const SHORT: Duration = Duration::from_secs(2);
/// Bytes of the pool that are registered at a time: 16 pieces of the pool.
const PIECE: u64 = 4 << 20;

fn on_stand_in(test: &str, environment: &[(&str, &str)], case: impl FnOnce()) {
    let mut all = vec![("KVASIR_TEST_PAGES", "device")];
    all.extend(environment);
    passes(test, &all, case);
}

fn engine(place: &Place, instance: u8, deadline: Duration) -> Engine {
    Engine::start_with(place, &Shape::plain(256, 0), instance, |config| {
        config.pin_piece_bytes = PIECE;
        config.deadline = deadline;
    })
}

fn stats(engine: &Engine) -> DeviceStats {
    engine.client.device_stats().unwrap()
}

fn is_settled(engine: &Engine) -> bool {
    !matches!(
        stats(engine).pool,
        PoolPinning::None | PoolPinning::UnderWay { .. }
    )
}

/// Stores chunks of a prompt from blocks 1 on.
fn store(engine: &Engine, chain: &KeyChain, chunks: usize) -> Vec<StoreOutcome> {
    let items: Vec<_> = (0..chunks)
        .map(|chunk| store_chunk(chain, chunk, 0, four(1 + 4 * chunk as i64)))
        .collect();
    engine.client.store(&items, &[]).unwrap()
}

/// Loads them into blocks 30 on.
fn load(engine: &Engine, chain: &KeyChain, chunks: usize) -> Vec<bool> {
    let items: Vec<_> = (0..chunks)
        .map(|chunk| load_chunk(chain, chunk, four(30 + 4 * chunk as i64)))
        .collect();
    engine.client.load(1, 0, &items).unwrap()
}

fn assert_same(from: &Engine, to: &Engine, chunks: usize) {
    for block in 0..4 * chunks as i64 {
        let (stored, loaded) = (from.block(0, 0, 1 + block), to.block(0, 0, 30 + block));
        assert!(stored == loaded, "block {block} came back as other bytes");
    }
}

/// Bytes of three chunks of two layers.
const THREE: u64 = 3 * 2 * 256 * 64;

fn row(status: &Value, path: &str) -> Value {
    let rows = status["clients"].as_array().unwrap();
    rows.iter()
        .find(|row| row["payload_path"] == path)
        .unwrap_or_else(|| panic!("no client on the path {path}: {status}"))
        .clone()
}

#[test]
fn once_the_pool_is_registered_copies_go_straight_and_status_says_so() {
    let name = "once_the_pool_is_registered_copies_go_straight_and_status_says_so";
    on_stand_in(name, &[], || {
        let place = Place::with_server();
        let before = live();
        let writer = engine(&place, 1, WATCHDOG);
        eventually("the registration", || is_settled(&writer));
        assert_eq!(stats(&writer).pool, PoolPinning::Pinned { pieces: 16 });
        assert_eq!(count(6), 16);
        writer.fill(7);
        let chain = writer.chain(3 * CHUNK + 1, 1);
        eventually("the writes of the engine", || {
            gpu().engine.quarantined_bytes() == 0
        });
        assert_eq!(count(6), 16);
        let calls = count(0);
        assert_published(&store(&writer, &chain, 3));
        assert_eq!(
            count(0) - calls,
            1,
            "one call of the driver for all pieces of a store"
        );
        let calls = count(0);
        assert_eq!(load(&writer, &chain, 3), [true; 3]);
        assert_eq!(count(0) - calls, 1, "and of a load");
        assert_same(&writer, &writer, 3);
        let now = stats(&writer);
        assert_eq!((now.direct_bytes, now.staged_bytes), (2 * THREE, 0));
        assert_eq!((now.late_copies, now.failed_copies, now.running), (0, 0, 0));
        assert_eq!((now.checksums, now.last_error), (ChecksumsAt::Host, None));
        let row = row(&place.status(), "pinned");
        let device = &row["reported"];
        assert_eq!(
            (&device["device_direct_bytes"], &device["device_pool_pins"]),
            (&(2 * THREE).into(), &1.into())
        );
        assert!(
            row["registered"]["copy_path"]
                .as_str()
                .unwrap()
                .contains("checksums on the host")
        );
        let out_of_order = count(10);
        let memory = writer.memory.len() as u64;
        drop(writer);
        eventually("the server to have its space back", || {
            let status = place.status();
            let left = status["clients"].as_array().unwrap().len();
            (left, &status["pool"]["granted"]) == (0, &0.into())
        });
        // The test's own context and stream stay.
        eventually("everything to be given back", || live() == [1, 0, 0, 0, 0, 1, 0]);
        assert_eq!((memory, before), (2, [0; 7]));
        assert_eq!(count(10), out_of_order, "the last piece was undone first");
    });
}

#[test]
fn a_piece_that_cannot_be_registered_undoes_the_others_and_copies_are_staged() {
    let name = "a_piece_that_cannot_be_registered_undoes_the_others_and_copies_are_staged";
    on_stand_in(name, &[("SOFTCUDA_FAULTS", "register-fails@5")], || {
        let place = Place::with_server();
        let engine = engine(&place, 1, WATCHDOG);
        eventually("the registration", || is_settled(&engine));
        let PoolPinning::Failed(error) = stats(&engine).pool else {
            panic!("{:?}", stats(&engine).pool);
        };
        let text = error.to_string();
        assert!(
            text.contains("piece 5 of 16")
                && text.contains("4 earlier pieces are undone")
                && text.contains("ulimit"),
            "{text}"
        );
        assert_eq!((count(6), count(10)), (0, 0), "undone, the last one first");
        engine.fill(7);
        let chain = engine.chain(3 * CHUNK + 1, 1);
        assert_published(&store(&engine, &chain, 3));
        assert_eq!(load(&engine, &chain, 3), [true; 3]);
        assert_same(&engine, &engine, 3);
        let now = stats(&engine);
        assert_eq!(
            (now.direct_bytes, now.staged_bytes, now.pageable_bytes),
            (0, 2 * THREE, 0)
        );
        let device = row(&place.status(), "pinned")["reported"].clone();
        assert_eq!(
            (&device["device_pool_pins"], &device["device_pool_pin_failures"]),
            (&0.into(), &1.into())
        );
        assert_eq!(device["device_staged_bytes"], 2 * THREE);
    });
}

#[test]
fn where_nothing_can_be_registered_copies_go_through_pageable_memory() {
    let name = "where_nothing_can_be_registered_copies_go_through_pageable_memory";
    on_stand_in(name, &[], || {
        let place = Place::with_server();
        // Of the engine itself nothing is registered meanwhile.
        let bytes: Vec<u8> = (0..2 * 256 * 16 * 64_u32)
            .map(|at| (at * 7 + at / 4096) as u8)
            .collect();
        let engine = engine(&place, 1, WATCHDOG);
        eventually("the registration", || is_settled(&engine));
        drop(engine);
        faults("register-fails");
        let engine = self::engine(&place, 2, WATCHDOG);
        eventually("the registration", || is_settled(&engine));
        assert!(matches!(stats(&engine).pool, PoolPinning::Failed(_)));
        faults("");
        for region in &engine.memory {
            region.write_bytes(0, &bytes[..region.len()]);
        }
        faults("register-fails");
        let chain = engine.chain(3 * CHUNK + 1, 1);
        assert_published(&store(&engine, &chain, 3));
        assert_eq!(load(&engine, &chain, 3), [true; 3]);
        assert_same(&engine, &engine, 3);
        let now = stats(&engine);
        assert_eq!((now.staged_bytes, now.pageable_bytes), (2 * THREE, 2 * THREE));
    });
}

/// The bytes are written by work of the engine's stream that has not run yet.
#[test]
fn a_store_waits_for_the_compute_that_makes_its_bytes() {
    let name = "a_store_waits_for_the_compute_that_makes_its_bytes";
    on_stand_in(name, &[("SOFTCUDA_FAULTS", "late=60")], || {
        let place = Place::with_server();
        let engine = engine(&place, 1, WATCHDOG);
        eventually("the registration", || is_settled(&engine));
        for (round, salt) in [(1, 11), (2, 22), (3, 33)] {
            engine.fill(salt);
            let chain = engine.chain(CHUNK + 1, round);
            assert_published(&store(&engine, &chain, 1));
            // What the blocks hold later is no matter of the store.
            engine.fill(0);
            assert_eq!(load(&engine, &chain, 1), [true]);
            let loaded: Vec<_> = (30..34).map(|block| engine.block(0, 0, block)).collect();
            engine.fill(salt);
            for (block, loaded) in (1..5).zip(loaded) {
                assert!(
                    engine.block(0, 0, block) == loaded,
                    "round {round}, block {block}"
                );
            }
        }
    });
}

#[test]
fn a_late_store_is_dropped_and_its_extents_are_not_used_before_it_has_ended() {
    let name = "a_late_store_is_dropped_and_its_extents_are_not_used_before_it_has_ended";
    on_stand_in(name, &[], || {
        let place = Place::with_server();
        let engine = engine(&place, 1, SHORT);
        eventually("the registration", || is_settled(&engine));
        engine.fill(1);
        let chain = engine.chain(3 * CHUNK + 1, 1);
        let held = engine.client.stats().granted_bytes;
        let gate = Gate::new(&gpu().context);
        gate.hold(&gpu().compute);
        assert_eq!(store(&engine, &chain, 3), [StoreOutcome::Dropped; 3]);
        let now = stats(&engine);
        assert_eq!((now.late_copies, now.failed_copies, now.running), (1, 0, 1));
        let after = engine.client.stats();
        assert_eq!(
            after.granted_bytes,
            held - 3 * 65536,
            "three frames may still be written"
        );
        assert_eq!((after.stores, after.dropped_stores), (0, 3));
        // What would wait behind it is not begun.
        let other = engine.chain(3 * CHUNK + 1, 2);
        assert_eq!(store(&engine, &other, 3), [StoreOutcome::Dropped; 3]);
        let now = stats(&engine);
        assert_eq!((now.late_copies, now.failed_copies, now.running), (1, 1, 1));
        assert_eq!(engine.client.stats().granted_bytes, held - 3 * 65536);
        assert!(!engine.client.release_memory(Duration::from_millis(20)).unwrap());
        assert_eq!(engine.lookup(&chain, 1).hit_tokens, 0);
        let balanced = |status: &Value| {
            let pool = &status["pool"];
            let sum = ["free", "used", "granted", "quarantined"].map(|class| pool[class].as_u64().unwrap());
            assert_eq!(sum.iter().sum::<u64>(), pool["total"].as_u64().unwrap());
        };
        balanced(&place.status());
        gate.open();
        eventually("the late copy", || stats(&engine).running == 0);
        assert_eq!(engine.client.stats().granted_bytes, held);
        assert_published(&store(&engine, &chain, 3));
        assert_eq!(load(&engine, &chain, 3), [true; 3]);
        assert_same(&engine, &engine, 3);
        assert!(engine.client.release_memory(WATCHDOG).unwrap());
        assert!(engine.client.device_stats().is_none());
    });
}

#[test]
fn a_late_load_keeps_its_pin_and_never_overwrites_later_compute() {
    let name = "a_late_load_keeps_its_pin_and_never_overwrites_later_compute";
    on_stand_in(name, &[], || {
        let place = Place::with_server();
        let engine = engine(&place, 1, SHORT);
        eventually("the registration", || is_settled(&engine));
        engine.fill(1);
        let chain = engine.chain(3 * CHUNK + 1, 1);
        assert_published(&store(&engine, &chain, 3));
        let pins = || row(&place.status(), "pinned")["pin_words"].as_u64().unwrap();
        assert_eq!(pins(), 0);
        let gate = Gate::new(&gpu().context);
        gate.hold(&gpu().compute);
        faults("late=100");
        assert_eq!(load(&engine, &chain, 3), [false; 3]);
        let now = stats(&engine);
        assert_eq!((now.late_copies, now.running), (1, 1));
        assert!(pins() > 0, "the pool is still read");
        assert_eq!(engine.client.stats().failed_loads, 3);
        // The engine gives the blocks to another request, whose bytes are computed from here on.
        engine.fill(2);
        gate.open();
        eventually("the late copy", || stats(&engine).running == 0);
        assert_eq!(pins(), 0);
        let found = engine.everything();
        engine.fill(2);
        assert!(
            found == engine.everything(),
            "the late load came after later compute"
        );
        faults("");
        engine.fill(1);
        assert_eq!(load(&engine, &chain, 3), [true; 3]);
        assert_same(&engine, &engine, 3);
    });
}

#[test]
fn a_copy_that_is_refused_drops_its_parts_and_the_next_goes_on() {
    let name = "a_copy_that_is_refused_drops_its_parts_and_the_next_goes_on";
    on_stand_in(name, &[], || {
        let place = Place::with_server();
        let engine = engine(&place, 1, WATCHDOG);
        eventually("the registration", || is_settled(&engine));
        engine.fill(1);
        let chain = engine.chain(3 * CHUNK + 1, 1);
        let held = engine.client.stats().granted_bytes;
        // No device memory is asked for by a client.
        faults("submit-error@1,out-of-memory");
        assert_eq!(store(&engine, &chain, 3), [StoreOutcome::Dropped; 3]);
        let now = stats(&engine);
        assert_eq!((now.late_copies, now.failed_copies, now.running), (0, 1, 0));
        let error = now.last_error.unwrap().to_string();
        assert!(error.contains("CUDA_ERROR_INVALID_VALUE"), "{error}");
        assert_eq!(engine.client.stats().granted_bytes, held);
        assert_published(&store(&engine, &chain, 3));
        faults("submit-error@1,out-of-memory");
        assert_eq!(load(&engine, &chain, 3), [false; 3]);
        assert_eq!(row(&place.status(), "pinned")["pin_words"], 0);
        assert_eq!(load(&engine, &chain, 3), [true; 3]);
        assert_same(&engine, &engine, 3);
        assert_eq!(stats(&engine).failed_copies, 2);
    });
}

#[test]
fn what_was_damaged_in_the_pool_never_comes_to_the_device() {
    let name = "what_was_damaged_in_the_pool_never_comes_to_the_device";
    on_stand_in(name, &[], || {
        let place = Place::with_server();
        let engine = engine(&place, 1, WATCHDOG);
        eventually("the registration", || is_settled(&engine));
        engine.fill(1);
        let (chain, sound) = (engine.chain(3 * CHUNK + 1, 1), engine.chain(3 * CHUNK + 1, 2));
        assert_published(&store(&engine, &chain, 3));
        let config = ClientConfig::new(place.socket(), ClientKind::Tool, "corrupt", [0; 16]);
        assert!(corrupt_pool(config, Damage::OneBit, |_| true).unwrap() >= 3);
        assert_published(&store(&engine, &sound, 3));
        let before = engine.everything();
        assert_eq!(load(&engine, &chain, 3), [false; 3]);
        assert!(
            before == engine.everything(),
            "bytes that were not right were loaded"
        );
        assert_eq!(engine.client.stats().corrupt_loads, 3);
        assert_eq!(load(&engine, &sound, 3), [true; 3]);
        assert_same(&engine, &engine, 3);
    });
}

#[test]
fn the_pool_of_the_next_server_is_registered_and_that_of_the_last_is_not() {
    let name = "the_pool_of_the_next_server_is_registered_and_that_of_the_last_is_not";
    on_stand_in(name, &[], || {
        let mut place = Place::with_server();
        let engine = engine(&place, 1, WATCHDOG);
        eventually("the registration", || is_settled(&engine));
        engine.fill(1);
        let chain = engine.chain(3 * CHUNK + 1, 1);
        assert_published(&store(&engine, &chain, 3));
        place.kill();
        eventually("the end of the server", || !engine.client.is_healthy());
        assert_eq!(
            load(&engine, &chain, 3),
            [true; 3],
            "what the dead server shared is read on"
        );
        assert_same(&engine, &engine, 3);
        place.start();
        eventually("the next server", || engine.client.is_healthy());
        eventually("its registration", || {
            stats(&engine).pool == PoolPinning::Pinned { pieces: 16 }
        });
        eventually("the end of the other", || {
            gpu().engine.sweep();
            count(6) == 16
        });
        engine.fill(3);
        let chain = engine.chain(3 * CHUNK + 1, 3);
        eventually("a store", || {
            store(&engine, &chain, 3)[2] != StoreOutcome::Dropped
        });
        assert_eq!(load(&engine, &chain, 3), [true; 3]);
        assert_same(&engine, &engine, 3);
    });
}

#[test]
fn a_client_that_cannot_serve_device_memory_is_told_so() {
    let name = "a_client_that_cannot_serve_device_memory_is_told_so";
    on_stand_in(name, &[], || {
        let place = Place::with_server();
        let shape = Shape::plain(256, 0);
        let memory = || {
            let regions = pages::regions(&shape.regions);
            let groups = shape.groups.iter().map(|group| group.pages.clone());
            let memory = pages::kv_memory(&regions, groups.collect(), shape.blocks).unwrap();
            (regions, memory)
        };
        let mut config = ClientConfig::new(place.socket(), ClientKind::Worker, "ring", [1; 16]);
        config.maps = Maps::Ring;
        let client = Client::new(config.clone()).unwrap();
        client.negotiate(shape.negotiation()).unwrap();
        let (_regions, device) = memory();
        client.set_memory(device);
        let refused = client.register(shape.registration()).unwrap_err();
        assert!(refused.to_string().contains("Ring"), "{refused}");
        // Named after the registration, the server does not know of it.
        config.maps = Maps::Pool;
        let client = Client::new(config).unwrap();
        client.negotiate(shape.negotiation()).unwrap();
        client.register(shape.registration()).unwrap();
        let (_regions, device) = memory();
        client.set_memory(device);
        let chain = chain(client.domain_seed().unwrap(), CHUNK, 1);
        let refused = client
            .store(&[store_chunk(&chain, 0, 0, four(1))], &[])
            .unwrap_err();
        assert!(refused.to_string().contains("call register again"), "{refused}");
        client.register(shape.registration()).unwrap();
        assert_published(&client.store(&[store_chunk(&chain, 0, 0, four(1))], &[]).unwrap());
    });
}
