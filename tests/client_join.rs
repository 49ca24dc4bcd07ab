//! Joining in one call says what the calls one by one say.

mod client_support;

use std::time::Duration;

use client_support::*;
use kvasir::client::{
    Client, ClientConfig, ClientError, ClientKind, Joined, LoadRequest, Rank, StoreRequest,
};
use kvasir::object::ObjectId;

/// What an engine's shape is to a call of `join`.
fn rank(engine: &Engine) -> Rank {
    let shape = &engine.shape;
    let memory = engine.memory.iter();
    let groups = shape.groups.iter();
    Rank {
        domain: shape.registration().domain,
        rank: shape.rank as u16,
        world_size: shape.world as u16,
        preferred_chunk: 0,
        memory: memory.map(EngineRegion::host).collect(),
        groups: groups.map(|group| (group.kind, group.pages.clone())).collect(),
        blocks: shape.blocks,
    }
}

fn unjoined(place: &Place, shape: &Shape, instance: u8) -> Engine {
    Engine::unregistered(place, shape, instance, WATCHDOG, Duration::from_millis(50))
}

/// A registration that differed in kind, parts or bytes would be refused, as both are of one domain.
#[test]
fn who_joins_is_the_same_as_who_registers() {
    let place = Place::with_server();
    let mut shape = Shape::hybrid();
    // A state is one block, however many tokens that spans.
    shape.groups[2].pages.kv_groups[0].tokens_per_block = 16;
    let writer = Engine::start(&place, &shape, 1);
    let reader = unjoined(&place, &shape, 2);
    let joined = reader.client.join(rank(&reader)).unwrap();
    assert_eq!(
        joined,
        Joined {
            chunk_tokens: CHUNK as u64,
            seed: writer.seed()
        }
    );
    assert_eq!(
        reader.client.join(rank(&reader)).unwrap(),
        joined,
        "once more is the same"
    );

    // And the other way round: what who joined stores is found by who did not.
    reader.fill(5);
    writer.fill(6);
    let chain = reader.chain(CHUNK + 1, 1);
    let id = |group| ObjectId {
        key: chain.keys()[0],
        group,
    };
    let stored = [
        vec![vec![1, 2, 3, 4], vec![5, 6]],
        vec![vec![7, 8, 9, 10]],
        vec![vec![11]],
    ];
    let stores: Vec<StoreRequest> = (0..3)
        .map(|group| StoreRequest {
            id: id(group),
            ..store_chunk(&chain, 0, 0, stored[usize::from(group)].clone())
        })
        .collect();
    assert_published(&reader.client.store(&stores, &[]).unwrap());
    assert_eq!(writer.lookup(&chain, 1).hit_tokens, CHUNK as u64);
    let loads: Vec<LoadRequest> = (0..3)
        .map(|group| LoadRequest {
            id: id(group),
            tokens: CHUNK as u32,
            blocks: stored[usize::from(group)].clone(),
        })
        .collect();
    assert_eq!(writer.client.load(1, 0, &loads).unwrap(), [true; 3]);
    for (group, lists) in stored.iter().enumerate() {
        for (kv_group, list) in lists.iter().enumerate() {
            for &block in list {
                let (from, to) = (
                    reader.block(group, kv_group, block),
                    writer.block(group, kv_group, block),
                );
                assert_eq!(from, to, "group {group}.{kv_group}, block {block}");
            }
        }
    }
}

#[test]
fn each_rank_that_joins_holds_a_part_of_its_own() {
    let place = Place::with_server();
    let shape = |rank| Shape {
        rank,
        world: 2,
        parts: 2,
        ..Shape::plain(64, 0)
    };
    let engines = [0, 1].map(|rank| unjoined(&place, &shape(rank), 1));
    let seeds = engines
        .each_ref()
        .map(|engine| engine.client.join(rank(engine)).unwrap().seed);
    assert_eq!(seeds[0], seeds[1]);
    let chain = engines[0].chain(CHUNK + 1, 1);
    let hits = [0, 1].map(|part| {
        let engine = &engines[usize::from(part)];
        engine
            .client
            .store(&[store_chunk(&chain, 0, part, four(1))], &[])
            .unwrap();
        engine.lookup(&chain, 1).hit_tokens
    });
    assert_eq!(hits, [0, CHUNK as u64], "there with the second part");
}

#[test]
fn without_a_server_it_joins_once_there_is_one() {
    let mut place = Place::empty(&["--pool-size", "64MiB", "--chunk-size", "64"]);
    let engine = Engine::unregistered(
        &place,
        &Shape::plain(64, 0),
        1,
        Duration::from_millis(300),
        Duration::from_millis(50),
    );
    let join = || engine.client.join(rank(&engine));
    assert!(matches!(join(), Err(ClientError::Unavailable { .. })));
    place.start();
    eventually("the connection", || engine.client.is_healthy());
    let joined = join().unwrap();
    // What was joined is done again with the server to come.
    place.kill();
    place.start();
    eventually("the next server", || engine.client.is_healthy());
    assert_eq!(engine.client.domain_seed(), Some(joined.seed));
}

#[test]
fn a_rank_that_cannot_be_is_refused_before_anything_is_sent() {
    let place = Place::with_server();
    let engine = unjoined(&place, &Shape::hybrid(), 1);
    let refused = |change: &dyn Fn(&mut Rank), why: &str| {
        let mut rank = rank(&engine);
        change(&mut rank);
        let error = engine.client.join(rank).unwrap_err();
        assert_eq!(error.kind(), "InvalidLayout", "{error}");
        assert!(error.to_string().contains(why), "{error}");
    };
    refused(
        &|rank| rank.groups[1].1.kv_groups[0].tokens_per_block = 0,
        "object group 1: KV cache group 0 has 0 tokens per block",
    );
    refused(&|rank| rank.groups.clear(), "no cacheable group");
    refused(
        &|rank| rank.groups[0].1.kv_groups[0].layers[0].page_bytes = u64::MAX,
        "object group 0: ",
    );
    refused(&|rank| rank.blocks = 0, "at least one is needed");
    assert_eq!(engine.client.chunk_size(), None, "nothing was negotiated");
}

#[test]
fn a_client_without_a_way_for_payload_cannot_join() {
    let place = Place::with_server();
    let engine = unjoined(&place, &Shape::hybrid(), 1);
    for (kind, maps) in [(ClientKind::Scheduler, "Index"), (ClientKind::Tool, "Nothing")] {
        let client = Client::new(ClientConfig::new(place.socket(), kind, "no payload", [9; 16])).unwrap();
        let error = client.join(rank(&engine)).unwrap_err();
        assert_eq!(error.kind(), "InvalidArgument", "{error}");
        assert!(
            error.to_string().contains(&format!("maps {maps} can neither")),
            "{error}"
        );
        assert_eq!(client.chunk_size(), None, "nothing was negotiated");
    }
}
