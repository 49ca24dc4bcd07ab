//! What is loaded is what was stored: bytes that changed in the pool are noticed, and holes are never read.

mod client_support;

use client_support::*;
use kvasir::client::{ClientConfig, Damage, LoadRequest, LookupAnswer, StoreRequest, corrupt_pool};
use kvasir::copy::CopyEngine;
use kvasir::geometry::ObjectKind;
use kvasir::keys::KeyChain;
use kvasir::object::{ClientKind, Lookup, ObjectId, Tail};

fn damage(place: &Place, damage: Damage) -> u64 {
    let config = ClientConfig::new(place.socket(), ClientKind::Tool, "corrupt", [0; 16]);
    corrupt_pool(config, damage, |_| true).unwrap()
}

/// Three chunks of a prompt in blocks 1 to 12.
fn stored(engine: &Engine, salt: u32) -> KeyChain {
    engine.fill(salt.into());
    let chain = engine.chain(3 * CHUNK + 1, salt);
    let items: Vec<_> = (0..3)
        .map(|chunk| store_chunk(&chain, chunk, 0, four(1 + 4 * chunk as i64)))
        .collect();
    assert_published(&engine.client.store(&items, &[]).unwrap());
    chain
}

/// The negative control of every test that compares bytes: with other bytes in the pool, other bytes come back to a
/// client that does not check them.
#[test]
fn without_checksums_corrupted_objects_come_back_corrupted() {
    let place = Place::with_server();
    let shape = Shape::plain(256, 0);
    let engine = Engine::start_with(&place, &shape, 1, |config| config.checksums = false);
    let chain = stored(&engine, 1);
    let changed = damage(&place, Damage::Noise(42));
    assert!(changed > 3 * 30_000, "{changed} of 3 x 32768 bytes and more");
    assert_eq!(
        damage(&place, Damage::Noise(42)),
        0,
        "the same seed changes nothing the second time"
    );
    let load = load_chunk(&chain, 0, four(30));
    assert_eq!(engine.client.load(1, 0, &[load]).unwrap(), [true]);
    assert_ne!(engine.block(0, 0, 30), engine.block(0, 0, 1));
    assert_eq!(engine.client.stats().corrupt_loads, 0);
}

/// Objects whose writer gave no checksum are loaded as they are, also by a client that would check.
#[test]
fn objects_without_a_checksum_are_loaded_unchecked() {
    let place = Place::with_server();
    let shape = Shape::plain(256, 0);
    let writer = Engine::start_with(&place, &shape, 1, |config| config.checksums = false);
    let reader = Engine::start(&place, &shape, 2);
    let chain = stored(&writer, 1);
    let load = load_chunk(&chain, 0, four(30));
    assert_eq!(reader.client.load(1, 0, &[load]).unwrap(), [true]);
    assert_eq!(reader.block(0, 0, 30), writer.block(0, 0, 1));
}

/// What several threads copy has the sums of one and comes back whole, damage is noticed, and status says how many there are.
#[test]
fn what_several_threads_copy_is_summed_and_checked_as_by_one() {
    let place = Place::with_server();
    let shape = Shape::plain(16 << 10, 0);
    let engine = |instance, threads| {
        Engine::start_with(&place, &shape, instance, |config| config.copy_threads = threads)
    };
    let (writer, reader) = (engine(1, 3), engine(2, 1));
    let chain = stored(&writer, 1);
    let loads: Vec<_> = (0..3)
        .map(|chunk| load_chunk(&chain, chunk, four(30 + 4 * chunk as i64)))
        .collect();
    for engine in [&reader, &writer] {
        assert_eq!(engine.client.load(1, 0, &loads).unwrap(), [true; 3]);
        for block in 0..12 {
            assert_eq!(engine.block(0, 0, 30 + block), writer.block(0, 0, 1 + block));
        }
    }
    let status = place.status();
    let clients = status["clients"].as_array().unwrap().iter();
    let mut paths: Vec<String> = clients
        .filter_map(|client| client["registered"]["copy_path"].as_str().map(str::to_owned))
        .collect();
    paths.sort();
    let path = CopyEngine::detect().path().to_string();
    let mut expected = [copy_path(&path), copy_path(&format!("{path}, 3 threads"))];
    expected.sort();
    assert_eq!(paths, expected);

    assert!(damage(&place, Damage::OneBit) >= 3);
    assert_eq!(writer.client.load(1, 0, &loads).unwrap(), [false; 3]);
    assert_eq!(writer.client.stats().corrupt_loads, 3);
}

#[test]
fn one_flipped_bit_is_a_failed_load_and_the_object_is_gone() {
    let place = Place::with_server();
    let shape = Shape::plain(256, 0);
    let (writer, reader) = (Engine::start(&place, &shape, 1), Engine::start(&place, &shape, 2));
    let chain = stored(&writer, 1);
    assert!(damage(&place, Damage::OneBit) >= 3);

    let hit = reader.lookup(&chain, 7);
    assert_eq!(hit.hit_tokens, 192, "nobody has read them yet");
    // Only the last block of the middle object is wanted, which is sound. Its checksum covers all of it.
    let load = load_chunk(&chain, 1, vec![vec![0, 0, 0, 30]]);
    assert_eq!(reader.client.load(7, 0, &[load]).unwrap(), [false]);
    let stats = reader.client.stats();
    assert_eq!((stats.loads, stats.failed_loads, stats.corrupt_loads), (0, 1, 1));

    // Gone for everybody, with the chunk that hangs under it, although the lookup still pins both.
    assert_eq!(reader.lookup(&chain, 8).hit_tokens, 64);
    reader.client.release_label(8).unwrap();
    let status = place.status();
    assert_eq!(status["counters"]["discarded"], 1);
    assert_eq!((&status["objects"], &status["limbo"]), (&1.into(), &2.into()));
    let corrupt = status["clients"].as_array().unwrap().iter();
    let corrupt: u64 = corrupt
        .filter_map(|c| c["reported"]["corrupt_loads"].as_u64())
        .sum();
    assert_eq!(corrupt, 1);

    // What was pinned keeps its space until it is released and space is asked for again; then all of it is free.
    reader.client.release(&[hit.pin.unwrap()]).unwrap();
    let tool = place.tool();
    assert!(tool.clear().unwrap());
    let status = place.status();
    assert_eq!((&status["objects"], &status["limbo"]), (&0.into(), &0.into()));
    assert_eq!(status["pool"]["used"], 0);

    // And can be stored again, whole.
    assert_published(&stored_again(&writer, &chain));
    let load = load_chunk(&chain, 2, four(40));
    assert_eq!(reader.client.load(9, 0, &[load]).unwrap(), [true]);
    assert_eq!(reader.block(0, 0, 40), writer.block(0, 0, 9));

    // What a client has reported stays in the sums when it goes.
    drop(reader);
    eventually("the reader to be gone", || {
        place.status()["clients"].as_array().unwrap().len() == 2
    });
    let reported = &place.status()["reported"];
    let counts = (
        &reported["loads"],
        &reported["failed_loads"],
        &reported["corrupt_loads"],
    );
    assert_eq!(counts, (&1.into(), &1.into(), &1.into()));
    assert_eq!(reported["stores"], 6);
}

fn stored_again(engine: &Engine, chain: &KeyChain) -> Vec<kvasir::client::StoreOutcome> {
    let items: Vec<_> = (0..3)
        .map(|chunk| store_chunk(chain, chunk, 0, four(1 + 4 * chunk as i64)))
        .collect();
    engine.client.store(&items, &[]).unwrap()
}

#[test]
fn a_sound_object_beside_a_corrupt_one_is_loaded() {
    let place = Place::with_server();
    let shape = Shape::plain(256, 0);
    let (writer, reader) = (Engine::start(&place, &shape, 1), Engine::start(&place, &shape, 2));
    let bad = stored(&writer, 1);
    damage(&place, Damage::OneBit);
    let good = stored(&writer, 2);
    let loads = [
        load_chunk(&good, 0, four(20)),
        load_chunk(&bad, 2, four(30)),
        load_chunk(&good, 2, four(40)),
    ];
    assert_eq!(reader.client.load(1, 0, &loads).unwrap(), [true, false, true]);
    assert_eq!(reader.block(0, 0, 20), writer.block(0, 0, 1));
    assert_eq!(reader.block(0, 0, 43), writer.block(0, 0, 12));
    assert_eq!(reader.lookup(&good, 2).hit_tokens, 192);
    assert_eq!(reader.lookup(&bad, 2).hit_tokens, 128, "its last chunk only");
}

/// A full-attention group and one with a window of 40 tokens, both of 16 tokens per block.
fn windowed() -> Shape {
    let mut shape = Shape::plain(256, 0);
    let mut window = shape.groups[0].clone();
    window.kind = ObjectKind::Window { tokens: 40 };
    window.pages.group = 1;
    for layer in &mut window.pages.kv_groups[0].layers {
        layer.region += 2;
    }
    shape.groups.push(window);
    shape.regions.extend(shape.regions.clone());
    shape
}

fn window(store: StoreRequest, blocks: Vec<i64>) -> StoreRequest {
    StoreRequest {
        id: ObjectId { group: 1, ..store.id },
        blocks: Some(vec![blocks]),
        ..store
    }
}

/// Looks up `tokens` tokens of the prompt, every boundary of its second chunk named.
fn lookup_in_second_chunk(engine: &Engine, salt: u32, tokens: u64) -> LookupAnswer {
    let chain = engine.chain(2 * CHUNK, salt);
    let short = engine.chain(2 * CHUNK - 1, salt);
    let tails = short.tail_keys(BLOCK as u32).into_iter();
    let request = Lookup {
        max_tokens: tokens,
        tails: tails
            .map(|(tokens, key)| Tail {
                key,
                chunk: 1,
                tokens,
            })
            .collect(),
        ..lookup(engine.seed(), &chain, 5, BLOCK as u32)
    };
    engine.client.lookup(&request.as_request()).unwrap()
}

/// A window's object that was stored after the window had moved on begins with holes. It serves the end of its chunk and
/// no boundary whose window reaches into the holes; those are served by another object or not at all.
#[test]
fn the_holes_of_a_window_are_never_read() {
    let place = Place::with_server();
    let engine = Engine::start(&place, &windowed(), 1);
    engine.fill(3);
    let chain = engine.chain(2 * CHUNK, 9);
    let chunks: Vec<_> = (0..2)
        .map(|chunk| store_chunk(&chain, chunk, 0, four(1 + 4 * chunk as i64)))
        .collect();
    let items = [
        chunks[0].clone(),
        chunks[1].clone(),
        window(chunks[0].clone(), vec![11, 12, 13, 14]),
        window(chunks[1].clone(), vec![0, 16, 17, 18]),
    ];
    assert_published(&engine.client.store(&items, &[]).unwrap());

    // 128 needs tokens from 89 on, hence 25 of the second chunk: held.
    assert_eq!(lookup_in_second_chunk(&engine, 9, 128).hit_tokens, 128);
    // 112 needs 73, hence 9 of the second chunk: a hole. So does every boundary down to the end of the first chunk.
    assert_eq!(lookup_in_second_chunk(&engine, 9, 127).hit_tokens, 64);

    // A tail that was stored while the window still held its blocks serves what lies in it.
    let short = engine.chain(CHUNK + 32, 9);
    let (tokens, key) = short.tail_keys(BLOCK as u32)[0];
    assert_eq!(tokens, 32);
    let tail = |group, blocks| StoreRequest {
        id: ObjectId { key, group },
        tokens,
        blocks: Some(vec![blocks]),
        ..chunks[1].clone()
    };
    let items = [tail(0, vec![5, 6]), tail(1, vec![15, 16])];
    assert_published(&engine.client.store(&items, &[]).unwrap());
    let hit = lookup_in_second_chunk(&engine, 9, 127);
    assert_eq!(hit.hit_tokens, 96);
    let named = hit
        .loads
        .iter()
        .map(|load| (load.id.group, load.chunk, load.tokens));
    assert_eq!(
        named.collect::<Vec<_>>(),
        [(0, 0, 64), (0, 1, 64), (1, 0, 64), (1, 1, 32)]
    );

    // Whoever asks for a hole all the same, against what the lookup said, does not get it.
    let hole = LoadRequest {
        id: items_of_window(&chain),
        tokens: 64,
        blocks: vec![vec![40, 41]],
    };
    let before = engine.everything();
    assert_eq!(
        engine.client.load(1, 0, std::slice::from_ref(&hole)).unwrap(),
        [false]
    );
    assert_eq!(engine.everything(), before, "nothing was written");
    let held = LoadRequest {
        blocks: vec![vec![0, 41, 42, 43]],
        ..hole
    };
    assert_eq!(engine.client.load(1, 0, &[held]).unwrap(), [true]);
    assert_eq!(engine.block(1, 0, 42), engine.block(1, 0, 17));
}

fn items_of_window(chain: &KeyChain) -> ObjectId {
    ObjectId {
        key: chain.keys()[1],
        group: 1,
    }
}
