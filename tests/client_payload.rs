//! What one engine stores another one gets back, byte for byte; and what may not be touched is not.

mod client_support;

use client_support::*;
use kvasir::client::{ClientConfig, ClientError, LoadRequest, StoreOutcome, StoreRequest};
use kvasir::copy::CopyEngine;
use kvasir::object::{ClientKind, ObjectId};

/// Rows of one page per token: latent attention, single bytes, odd sizes, more than a page of memory.
#[test]
fn rows_of_any_size_come_back_in_other_blocks() {
    for (row, gap) in [(656, 0), (1, 0), (17, 5), (4097, 0), (4097, 4096), (64, 1)] {
        let place = Place::with_server();
        let shape = Shape::plain(row, gap);
        let (writer, reader) = (Engine::start(&place, &shape, 1), Engine::start(&place, &shape, 2));
        writer.fill(row);
        let chain = writer.chain(4 * CHUNK + 44, 1);
        let mut items: Vec<_> = (0..4)
            .map(|i| store_chunk(&chain, i, 0, four(1 + 4 * i as i64)))
            .collect();
        let (tail_tokens, tail_key) = chain.tail_keys(BLOCK as u32)[0];
        assert_eq!(tail_tokens, 32);
        items.push(StoreRequest {
            id: ObjectId {
                key: tail_key,
                group: 0,
            },
            parent: Some(chain.keys()[3]),
            part: 0,
            tokens: tail_tokens,
            blocks: Some(vec![vec![20, 21]]),
        });
        assert_published(&writer.client.store(&items, &[]).unwrap());

        let hit = reader.lookup(&chain, 7);
        assert_eq!((hit.hit_tokens, hit.loads.len()), (4 * 64 + 32, 5), "row {row}");
        reader.fill(999);
        let before = reader.everything();
        // Backwards, so that a block id that leaks from writer to reader shows.
        let loads = hit.loads.iter().enumerate().map(|(i, load)| LoadRequest {
            id: load.id,
            tokens: load.tokens,
            blocks: vec![
                (0..i64::from(load.tokens) / 16)
                    .map(|j| 60 - 4 * i as i64 - j)
                    .collect(),
            ],
        });
        let loads: Vec<_> = loads.collect();
        assert_eq!(reader.client.load(7, 0, &loads).unwrap(), [true; 5], "row {row}");
        let mut written = 0;
        for (item, load) in items.iter().zip(&loads) {
            let from = &item.blocks.as_ref().unwrap()[0];
            for (from, to) in from.iter().zip(&load.blocks[0]) {
                assert_eq!(
                    writer.block(0, 0, *from),
                    reader.block(0, 0, *to),
                    "row {row}, block {from} to {to}"
                );
                written += writer.block(0, 0, *from).len();
            }
        }
        let after = reader.everything();
        let changed = before
            .iter()
            .flatten()
            .zip(after.iter().flatten())
            .filter(|(a, b)| a != b)
            .count();
        assert!(
            changed <= written,
            "row {row}: {changed} bytes changed, {written} were to be written"
        );
        reader.client.release(&[hit.pin.unwrap()]).unwrap();
        let stats = reader.client.stats();
        assert_eq!((stats.loads, stats.failed_loads, stats.lookups), (5, 0, 1));
        assert_eq!(stats.loaded_bytes, written as u64);
        for client in place.status()["clients"].as_array().unwrap() {
            assert_eq!(
                client["payload_path"],
                payload_path(),
                "row {row}: one path for every size"
            );
            let registered = &client["registered"];
            let path = CopyEngine::detect().path().to_string();
            assert_eq!(registered["copy_path"], copy_path(&path));
            assert_eq!(
                registered["groups"][0]["chunk_bytes"],
                2 * row * CHUNK as u64,
                "two layers, as they are, whatever the size of a row"
            );
        }
    }
}

#[test]
fn null_blocks_are_neither_read_nor_written_and_fronts_are_enough() {
    let place = Place::with_server();
    let shape = Shape::plain(256, 0);
    let (writer, reader) = (Engine::start(&place, &shape, 1), Engine::start(&place, &shape, 2));
    writer.fill(1);
    let chain = writer.chain(CHUNK, 1);
    let error = writer
        .client
        .store(&[store_chunk(&chain, 0, 0, vec![vec![5, 0, 7, 8]])], &[])
        .unwrap_err();
    assert!(
        matches!(
            error,
            ClientError::NullBlocks {
                held_from: 32,
                tokens: 64,
                ..
            }
        ),
        "{error:?}"
    );
    let stored = store_chunk(&chain, 0, 0, vec![vec![5, 6, 7, 8]]);
    assert_published(&writer.client.store(&[stored], &[]).unwrap());

    reader.fill(2);
    let before = reader.everything();
    // A null block skips, a short list ends early: only the first block is written.
    let front = load_chunk(&chain, 0, vec![vec![9, 0, 0]]);
    assert_eq!(reader.client.load(1, 0, &[front]).unwrap(), [true]);
    assert_eq!(reader.block(0, 0, 9), writer.block(0, 0, 5));
    for block in (0..64).filter(|&block| block != 9) {
        let page = block as usize * 4096;
        assert_eq!(
            reader.everything()[1][page..page + 4096],
            before[1][page..page + 4096],
            "block {block}"
        );
    }
}

#[test]
fn block_ids_out_of_range_are_refused_before_a_byte_moves() {
    let place = Place::with_server();
    let engine = Engine::start(&place, &Shape::plain(64, 0), 1);
    engine.fill(3);
    let chain = engine.chain(2 * CHUNK, 1);
    for bad in [-1, 64, i64::from(u32::MAX), i64::MIN] {
        let items = [
            store_chunk(&chain, 0, 0, four(1)),
            store_chunk(&chain, 1, 0, vec![vec![1, 2, 3, bad]]),
        ];
        let error = engine.client.store(&items, &[]).unwrap_err();
        assert!(
            matches!(error, ClientError::BlockOutOfRange { item: 1, id, blocks: 64 } if id == bad),
            "{error:?}"
        );
        assert_eq!(error.numbers(), [1, bad, 64]);
    }
    assert_eq!(
        engine.lookup(&chain, 1).hit_tokens,
        0,
        "the good item of a bad call is not stored"
    );
    assert_published(
        &engine
            .client
            .store(&[store_chunk(&chain, 0, 0, four(1))], &[])
            .unwrap(),
    );

    let before = engine.everything();
    let loads = [
        load_chunk(&chain, 0, four(10)),
        load_chunk(&chain, 0, vec![vec![1, 2, -3, 4]]),
    ];
    let error = engine.client.load(1, 0, &loads).unwrap_err();
    assert!(
        matches!(error, ClientError::BlockOutOfRange { item: 1, id: -3, .. }),
        "{error:?}"
    );
    let long = load_chunk(&chain, 0, vec![vec![1, 2, 3, 4, 5]]);
    let error = engine.client.load(1, 0, &[long]).unwrap_err();
    assert!(
        matches!(
            error,
            ClientError::BlockCount {
                given: 5,
                expected: 4,
                ..
            }
        ),
        "{error:?}"
    );
    let odd = LoadRequest {
        tokens: 63,
        ..load_chunk(&chain, 0, four(1))
    };
    assert!(engine.client.load(1, 0, &[odd]).is_err());
    assert_eq!(engine.everything(), before);
}

#[test]
fn outcomes_are_told_per_item() {
    let place = Place::with_server();
    let engine = Engine::start(&place, &Shape::plain(64, 0), 1);
    engine.fill(1);
    let chain = engine.chain(4 * CHUNK, 1);
    let item = |chunk| store_chunk(&chain, chunk, 0, four(1));
    assert_published(&engine.client.store(&[item(0)], &[]).unwrap());
    let outcomes = engine.client.store(&[item(0), item(1), item(3)], &[]).unwrap();
    use StoreOutcome::{Exists, NoParent, Published};
    assert_eq!(outcomes, [Exists, Published, NoParent]);
    assert_eq!(engine.lookup(&chain, 1).hit_tokens, 2 * 64);
    assert_eq!(engine.lookup(&chain, 1).present_tokens, [2 * 64]);
    // Space that was not needed is not lost: granted and used add up to what they were.
    let pool = &place.status()["pool"];
    let sum = ["free", "used", "granted", "quarantined"].map(|class| pool[class].as_u64().unwrap());
    assert_eq!(sum.iter().sum::<u64>(), pool["total"].as_u64().unwrap());
}

#[test]
fn what_is_there_can_be_asked_before_it_is_copied() {
    let mut place = Place::with_server();
    let engine = Engine::start(&place, &Shape::plain(64, 0), 1);
    engine.fill(1);
    let chain = engine.chain(4 * CHUNK, 1);
    let item = |chunk| store_chunk(&chain, chunk, 0, four(1));
    let ids = || [1, 3, 0].map(|chunk| item(chunk).id).to_vec();
    assert_eq!(engine.client.present(0, ids()).unwrap(), [false; 3]);
    assert_published(&engine.client.store(&[item(0), item(1)], &[]).unwrap());
    assert_eq!(engine.client.present(0, ids()).unwrap(), [true, false, true]);
    assert_eq!(engine.client.present(0, Vec::new()).unwrap(), [false; 0]);
    let refused = engine.client.present(1, ids()).unwrap_err();
    assert_eq!(refused.kind(), "InvalidArgument", "{refused}");
    let mut unknown = ids();
    unknown[1].group = 7;
    let refused = engine.client.present(0, unknown).unwrap_err();
    assert_eq!(refused.kind(), "UnknownGroup", "{refused}");
    // Nothing is held for it, and nothing counts as loaded. Asked on the connection that the pin was given back on.
    let status: serde_json::Value = serde_json::from_str(&engine.client.status().unwrap()).unwrap();
    assert_eq!(status["pool"]["pinned"], 0);
    let stats = engine.client.stats();
    assert_eq!((stats.stores, stats.loads, stats.failed_loads), (2, 0, 0));
    place.kill();
    eventually("the hang-up", || !engine.client.is_healthy());
    // As the dead server left it.
    assert_eq!(engine.client.present(0, ids()).unwrap(), [true, false, true]);
}

#[test]
fn a_store_larger_than_its_grant_takes_several_commits() {
    // Loads of one call may pin a quarter of the pool.
    let mut place = Place::empty(&["--pool-size", "128MiB", "--chunk-size", "64"]);
    place.start();
    place.wait_prefaulted();
    // 2 layers x 16 KiB rows x 64 tokens = 2 MiB an object, with 1 MiB granted.
    let shape = Shape::plain(16384, 0);
    let (writer, reader) = (Engine::start(&place, &shape, 1), Engine::start(&place, &shape, 2));
    writer.fill(5);
    let chain = writer.chain(12 * CHUNK, 1);
    let items: Vec<_> = (0..12)
        .map(|i| store_chunk(&chain, i, 0, four(1 + 4 * i as i64)))
        .collect();
    assert_published(&writer.client.store(&items, &[]).unwrap());
    reader.fill(6);
    let loads: Vec<_> = (0..12)
        .map(|i| load_chunk(&chain, i, four(1 + 4 * i as i64)))
        .collect();
    assert_eq!(reader.client.load(1, 0, &loads).unwrap(), [true; 12]);
    for block in 1..49 {
        assert_eq!(writer.block(0, 0, block), reader.block(0, 0, block));
    }
}

#[test]
fn a_pool_without_room_drops_stores_and_counts_them() {
    let mut place = Place::empty(&["--pool-size", "8MiB", "--chunk-size", "64"]);
    place.start();
    place.wait_prefaulted();
    // Objects of 2 MiB in a pool of 8 MiB: three are pinned, each by a reader of its own since one may pin a quarter,
    // and the first engine holds the space of the fourth.
    let shape = Shape::plain(16384, 0);
    let (first, second) = (Engine::start(&place, &shape, 1), Engine::start(&place, &shape, 2));
    second.client.give_back().unwrap();
    let readers = [3, 4, 5].map(|seed| Engine::start(&place, &shape, seed));
    for (prompt, reader) in (0..).zip(&readers) {
        reader.client.give_back().unwrap();
        let chain = first.chain(CHUNK + 1, prompt);
        assert_published(
            &first
                .client
                .store(&[store_chunk(&chain, 0, 0, four(1))], &[])
                .unwrap(),
        );
        assert_eq!(reader.lookup(&chain, 1).hit_tokens, 64);
    }
    let item = || store_chunk(&second.chain(2 * CHUNK, 9), 0, 0, four(1));
    let child = store_chunk(&second.chain(2 * CHUNK, 9), 1, 0, four(1));
    let outcomes = second.client.store(&[item(), child], &[]).unwrap();
    assert_eq!(outcomes, [StoreOutcome::Dropped; 2]);
    assert_eq!(second.client.stats().dropped_stores, 2);
    assert!(second.client.is_healthy());
    let loads = [load_chunk(&second.chain(CHUNK + 1, 0), 0, four(20))];
    assert_eq!(
        second.client.load(1, 0, &loads).unwrap(),
        [true],
        "lookups and loads go on"
    );
    for reader in &readers {
        reader.client.release_label(1).unwrap();
    }
    assert_published(&second.client.store(&[item()], &[]).unwrap());
}

#[test]
fn hybrid_objects_keep_their_groups_apart() {
    let place = Place::with_server();
    let shape = Shape::hybrid();
    let (writer, reader) = (Engine::start(&place, &shape, 1), Engine::start(&place, &shape, 2));
    writer.fill(11);
    let chain = writer.chain(2 * CHUNK + 1, 1);
    let item = |chunk: usize, group, blocks: Vec<Vec<i64>>| StoreRequest {
        id: ObjectId {
            key: chain.keys()[chunk],
            group,
        },
        blocks: Some(blocks),
        ..store_chunk(&chain, chunk, 0, vec![])
    };
    let items = [
        item(0, 0, vec![vec![1, 2, 3, 4], vec![5, 6]]),
        item(1, 0, vec![vec![7, 8, 9, 10], vec![11, 12]]),
        item(1, 1, vec![vec![0, 13, 14, 15]]), // the block before the window is null
        item(1, 2, vec![vec![16]]),
    ];
    assert_published(&writer.client.store(&items, &[]).unwrap());
    let hit = reader.lookup(&chain, 3);
    assert_eq!(hit.hit_tokens, 128);
    let named: Vec<_> = hit.loads.iter().map(|load| (load.id.group, load.chunk)).collect();
    assert_eq!(named, [(0, 0), (0, 1), (1, 1), (2, 1)]);

    reader.fill(12);
    let load = |at: usize, blocks: Vec<Vec<i64>>| LoadRequest {
        id: hit.loads[at].id,
        tokens: hit.loads[at].tokens,
        blocks,
    };
    let loads = [
        load(0, vec![vec![31, 32, 33, 34], vec![35, 36]]),
        load(1, vec![vec![37, 38, 39, 40], vec![41, 42]]),
        load(2, vec![vec![0, 43, 44, 45]]),
        load(3, vec![vec![46]]),
    ];
    assert_eq!(reader.client.load(3, 0, &loads).unwrap(), [true; 4]);
    for (item, load) in items.iter().zip(&loads) {
        let group = usize::from(item.id.group);
        for (kv_group, list) in item.blocks.as_ref().unwrap().iter().enumerate() {
            for (from, to) in list
                .iter()
                .zip(&load.blocks[kv_group])
                .filter(|(from, _)| **from != 0)
            {
                let (stored, loaded) = (
                    writer.block(group, kv_group, *from),
                    reader.block(group, kv_group, *to),
                );
                assert_eq!(stored, loaded, "group {group}.{kv_group}, block {from} to {to}");
            }
        }
    }
    // A state is one block, and only its own end serves.
    let wrong = LoadRequest {
        tokens: 32,
        ..load(3, vec![vec![47]])
    };
    assert_eq!(reader.client.load(3, 0, &[wrong]).unwrap(), [false]);
}

#[test]
fn an_object_of_two_ranks_is_visible_when_both_parts_are_there() {
    let place = Place::with_server();
    let rank = |rank| Shape {
        rank,
        world: 2,
        parts: 2,
        ..Shape::plain(64, 0)
    };
    let workers = [
        Engine::start(&place, &rank(0), 1),
        Engine::start(&place, &rank(1), 1),
    ];
    workers[0].fill(100);
    workers[1].fill(200);
    let chain = workers[0].chain(CHUNK + 1, 1);
    let part = |part| [store_chunk(&chain, 0, part, four(1))];
    let scheduler = ClientConfig::new(place.socket(), ClientKind::Scheduler, "scheduler", [1; 16]);
    let scheduler = kvasir::client::Client::new(scheduler).unwrap();
    scheduler.negotiate(workers[0].shape.negotiation()).unwrap();
    let ask = || {
        scheduler
            .lookup(&lookup(workers[0].seed(), &chain, 1, 16).as_request())
            .unwrap()
    };

    assert_eq!(
        workers[0].client.store(&part(0), &[]).unwrap(),
        [StoreOutcome::PartAccepted]
    );
    assert_eq!(ask().hit_tokens, 0, "half an object is none");
    assert_published(&workers[1].client.store(&part(1), &[]).unwrap());
    let hit = ask();
    assert_eq!(hit.hit_tokens, 64);
    for (rank, worker) in workers.iter().enumerate() {
        let before = worker.block(0, 0, 1);
        assert_eq!(
            worker
                .client
                .load(1, rank as u16, &[load_chunk(&chain, 0, four(30))])
                .unwrap(),
            [true]
        );
        assert_eq!(worker.block(0, 0, 30), before, "each rank gets its own part");
    }
    assert_ne!(workers[0].block(0, 0, 30), workers[1].block(0, 0, 30));
    scheduler.release(&[hit.pin.unwrap()]).unwrap();

    // One rank cannot store the second chunk: the other is told, and nothing is visible.
    let second = writer_chain(&workers[0]);
    let skip = StoreRequest {
        blocks: None,
        ..store_chunk(&second, 0, 1, vec![])
    };
    let first = workers[0]
        .client
        .store(&[store_chunk(&second, 0, 0, four(1))], &[])
        .unwrap();
    assert_eq!(first, [StoreOutcome::PartAccepted]);
    let outcome = workers[1].client.store(&[skip], &[]).unwrap();
    assert_eq!(outcome, [StoreOutcome::Skipped]);
    assert_eq!(
        scheduler
            .lookup(&lookup(workers[0].seed(), &second, 1, 16).as_request())
            .unwrap()
            .hit_tokens,
        0
    );
}

fn writer_chain(engine: &Engine) -> kvasir::keys::KeyChain {
    engine.chain(CHUNK + 1, 77)
}
