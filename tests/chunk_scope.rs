//! `--chunk-scope model`: models whose alignments have no common chunk share a server, and nothing else.

mod client_support;
mod common;

use std::time::Duration;

use client_support::{Engine, Group, Place, Shape, eventually};
use common::{RawClient, ServerProcess};
use kvasir::client::{KvGroupPages, LayerPages, LoadRequest, ObjectGroupPages, StoreOutcome, StoreRequest};
use kvasir::control::ChunkWord;
use kvasir::geometry::ObjectKind;
use kvasir::keys::{Extras, KeyChain};
use kvasir::object::*;
use kvasir::wire::*;
use serde_json::json;

const MODEL_SCOPE: [&str; 4] = ["--pool-size", "32MiB", "--chunk-scope", "model"];

fn domain(number: u8) -> [u8; 32] {
    [number; 32]
}

fn negotiate(alignment: u64, binding_domain: Option<[u8; 32]>) -> Negotiate {
    Negotiate {
        required_alignment: alignment,
        binding_domain,
        ..Negotiate::default()
    }
}

/// One layer of full attention with blocks of `alignment` tokens. All models here differ in nothing else, so that
/// only the size keeps them apart.
fn shape(alignment: u64) -> Shape {
    let (page_bytes, blocks) = (alignment * 32, 16);
    Shape {
        alignment,
        groups: vec![Group {
            kind: ObjectKind::Full,
            pages: ObjectGroupPages {
                group: 0,
                kv_groups: vec![KvGroupPages {
                    tokens_per_block: alignment,
                    layers: vec![LayerPages {
                        region: 0,
                        offset: 0,
                        block_stride: page_bytes,
                        page_bytes,
                    }],
                }],
            },
        }],
        regions: vec![blocks * page_bytes],
        blocks,
        model: "test/model".into(),
        rank: 0,
        world: 1,
        parts: 1,
    }
}

fn engine(place: &Place, alignment: u64, binding_domain: [u8; 32], instance: u8) -> (Engine, u64) {
    let (patience, heartbeat) = (Duration::from_secs(20), Duration::from_millis(50));
    let engine = Engine::unregistered(place, &shape(alignment), instance, patience, heartbeat);
    let mut negotiation = engine.shape.negotiation();
    negotiation.binding_domain = Some(binding_domain);
    let size = engine.client.negotiate(negotiation).unwrap().chunk_size;
    engine.client.register(engine.shape.registration()).unwrap();
    (engine, size)
}

/// The same tokens for every model.
fn chain(engine: &Engine, chunk: u64) -> KeyChain {
    let mut chain = KeyChain::new(engine.seed(), chunk as u32, Extras::default()).unwrap();
    chain.extend(&(0..2 * chunk as u32 + 1).collect::<Vec<u32>>());
    chain
}

fn id(chain: &KeyChain, chunk: usize) -> ObjectId {
    ObjectId {
        key: chain.keys()[chunk],
        group: 0,
    }
}

fn store_two(engine: &Engine, chain: &KeyChain, chunk: u64) {
    let items: Vec<_> = (0..2)
        .map(|at| StoreRequest {
            id: id(chain, at),
            parent: at.checked_sub(1).map(|parent| chain.keys()[parent]),
            part: 0,
            tokens: chunk as u32,
            blocks: Some(vec![vec![1 + at as i64]]),
        })
        .collect();
    let outcomes = engine.client.store(&items, &[]).unwrap();
    assert_eq!(outcomes, [StoreOutcome::Published; 2]);
}

fn load_two(engine: &Engine, chain: &KeyChain, chunk: u64) -> [bool; 2] {
    let items: Vec<_> = (0..2)
        .map(|at| LoadRequest {
            id: id(chain, at),
            tokens: chunk as u32,
            blocks: vec![vec![9 - at as i64]],
        })
        .collect();
    engine.client.load(1, 0, &items).unwrap().try_into().unwrap()
}

#[test]
fn three_alignments_share_a_server_without_cross_talk() {
    let mut place = Place::empty(&MODEL_SCOPE);
    place.start();
    place.wait_prefaulted();
    // The last pair is a model of its own that happens to have the size of another.
    let models = [(544, 1), (640, 2), (256, 3), (256, 4)];
    let mut writers = Vec::new();
    for (alignment, number) in models {
        let (writer, chunk) = engine(&place, alignment, domain(number), number);
        assert_eq!(chunk, alignment, "each has the smallest chunk that suits it");
        writers.push(writer);
    }
    // Nobody has stored, so nobody may hit: not even the model with the same keys.
    for (at, (chunk, number)) in models.into_iter().enumerate().take(3) {
        let writer = &writers[at];
        let keys = chain(writer, chunk);
        assert_eq!(writer.lookup(&keys, 1).hit_tokens, 0, "{chunk} tokens");
        writer.fill(u64::from(number));
        store_two(writer, &keys, chunk);
    }
    for (at, (chunk, number)) in models.into_iter().enumerate().take(3) {
        let (reader, same) = engine(&place, chunk, domain(number), 100 + number);
        assert_eq!(same, chunk);
        reader.fill(99);
        let keys = chain(&reader, chunk);
        let hit = reader.lookup(&keys, 1);
        assert_eq!((hit.hit_tokens, hit.loads.len()), (2 * chunk, 2));
        assert_eq!(load_two(&reader, &keys, chunk), [true; 2]);
        for (from, to) in [(1, 9), (2, 8)] {
            assert_eq!(
                writers[at].block(0, 0, from),
                reader.block(0, 0, to),
                "{chunk} tokens"
            );
        }
        // Keys of another size's chain are nobody's here.
        let other = chain(&writers[(at + 1) % 3], models[(at + 1) % 3].0);
        assert_eq!(reader.lookup(&other, 1).hit_tokens, 0);
    }
    let status = place.status();
    assert_eq!(status["objects"], 6);
    common::assert_balanced(&status);
    let binding = &status["binding"];
    assert_eq!(
        (&binding["scope"], &binding["state"], &binding["chunk_size"]),
        (&json!("model"), &json!("unbound"), &json!(null))
    );
    let expected = models.map(|(chunk, number)| {
        json!({ "id": format!("{number:02x}").repeat(32), "state": "bound", "chunk_size": chunk })
    });
    assert_eq!(binding["domains"], json!(expected));
    let seen = writers[0]
        .client
        .read_control(|control| control.domain_word(&domain(2)));
    assert_eq!(seen, Some(Ok(ChunkWord::Bound(640))));
}

#[test]
fn a_restarted_server_gives_each_model_its_size_again() {
    let mut place = Place::empty(&MODEL_SCOPE);
    place.start();
    place.wait_prefaulted();
    let engines =
        [(640, 2), (544, 1)].map(|(alignment, number)| engine(&place, alignment, domain(number), number));
    place.kill();
    place.start();
    for (engine, chunk) in &engines {
        eventually("recovery", || engine.client.is_healthy());
        assert_eq!(engine.client.chunk_size(), Some(*chunk));
    }
    place.wait_prefaulted();
    for (engine, chunk) in &engines {
        let keys = chain(engine, *chunk);
        store_two(engine, &keys, *chunk);
        assert_eq!(load_two(engine, &keys, *chunk), [true; 2]);
    }
}

#[test]
fn a_connection_has_the_size_of_the_domain_it_negotiated_in() {
    let server = ServerProcess::with_args(&MODEL_SCOPE);
    let (mut one, mut two) = (server.connect(), server.connect());
    let mut tool = server.tool();
    for client in [&mut one, &mut two] {
        client.hello(true);
        client.attach();
    }
    assert!(matches!(
        one.call(&Request::Negotiate(negotiate(544, Some(domain(1))))),
        Reply::Negotiate(NegotiateReply { chunk_size: 544, .. })
    ));
    // Another connection's size is not this one's.
    let mut registration = common::registration();
    let code = |client: &mut RawClient, request: Request| client.refused(&request).code;
    assert_eq!(
        code(&mut two, Request::RegisterKvCache(registration.clone())),
        ErrorCode::NotNegotiated
    );
    assert_eq!(
        code(&mut two, Request::Grant(GrantRequest::of(1))),
        ErrorCode::NotNegotiated
    );
    assert_eq!(code(&mut two, Request::GetChunkSize), ErrorCode::NotNegotiated);
    assert_eq!(code(&mut tool, Request::GetChunkSize), ErrorCode::NotNegotiated);
    let unnamed = Request::Negotiate(negotiate(544, None));
    let refusal = two.refused(&unnamed);
    assert_eq!(
        (refusal.code, refusal.numbers),
        (ErrorCode::InvalidArgument, vec![0])
    );
    assert!(
        refusal.message.contains("--chunk-scope server"),
        "{}",
        refusal.message
    );
    assert!(matches!(
        two.call(&Request::Negotiate(negotiate(64, Some(domain(2))))),
        Reply::Negotiate(NegotiateReply { chunk_size: 256, .. })
    ));
    assert!(matches!(
        two.call(&Request::RegisterKvCache(registration.clone())),
        Reply::Register(_)
    ));
    assert!(matches!(
        two.call(&Request::GetChunkSize),
        Reply::Negotiate(NegotiateReply { chunk_size: 256, .. })
    ));
    // Within a domain everything is as on a server with one size.
    let refusal = two.refused(&Request::Negotiate(negotiate(640, Some(domain(2)))));
    assert_eq!(
        (refusal.code, refusal.numbers),
        (ErrorCode::IncompatibleChunkSize, vec![256, 640])
    );
    registration.spans[0].tokens = 640;
    registration.required_alignment = 640;
    assert_eq!(
        code(&mut one, Request::RegisterKvCache(registration)),
        ErrorCode::InvalidSpans
    );
    let text = common::run(&["status", "--socket", server.socket().to_str().unwrap()], |_| {}).1;
    for line in ["scope model", "544 tokens, bound for domain 0101010101010101"] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn the_sixty_fifth_domain_is_refused() {
    let server = ServerProcess::with_args(&MODEL_SCOPE);
    let mut client = server.tool();
    for number in 0..64 {
        // Refused negotiations take no place.
        client.refused(&Request::Negotiate(negotiate(0, Some(domain(200 - number)))));
        let request = Request::Negotiate(negotiate(u64::from(number) + 1, Some(domain(number))));
        assert!(matches!(client.call(&request), Reply::Negotiate(_)), "{number}");
    }
    let refusal = client.refused(&Request::Negotiate(negotiate(16, Some(domain(64)))));
    assert_eq!(
        (refusal.code, refusal.numbers),
        (ErrorCode::LimitExceeded, vec![65, 64])
    );
    for number in [0, 63] {
        let request = Request::Negotiate(negotiate(u64::from(number) + 1, Some(domain(number))));
        assert!(matches!(client.call(&request), Reply::Negotiate(_)));
    }
    assert_eq!(
        server.status()["binding"]["domains"].as_array().unwrap().len(),
        64
    );
    assert_eq!(client.control().domain_words().unwrap().len(), 64);
}

#[test]
fn a_server_with_one_size_takes_no_notice_of_domains() {
    let server = ServerProcess::start();
    let mut client = server.tool();
    let mut ask = |alignment, domain| client.call(&Request::Negotiate(negotiate(alignment, domain)));
    for binding_domain in [Some(domain(1)), Some(domain(2)), None] {
        assert!(matches!(
            ask(544, binding_domain),
            Reply::Negotiate(NegotiateReply { chunk_size: 544, .. })
        ));
    }
    match ask(640, Some(domain(3))) {
        Reply::Error(error) => assert_eq!(error.code, ErrorCode::IncompatibleChunkSize),
        other => panic!("{other:?}"),
    }
    assert_eq!(client.control().chunk_word(), Ok(ChunkWord::Bound(544)));
    assert_eq!(client.control().domain_words(), Ok(vec![]));
    let binding = &server.status()["binding"];
    assert_eq!(
        (
            &binding["scope"],
            &binding["state"],
            &binding["chunk_size"],
            &binding["domains"]
        ),
        (&json!("server"), &json!("bound"), &json!(544), &json!([]))
    );
}
