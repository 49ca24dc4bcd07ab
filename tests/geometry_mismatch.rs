//! Engines whose geometry differs from what a server is bound to, or from what is stored: typed refusals with the
//! numbers, misses, and never a byte of the other's.

mod client_support;

use client_support::*;
use kvasir::client::{
    ClientError, KvGroupPages, LayerPages, LoadRequest, ObjectGroupPages, StoreOutcome, StoreRequest,
};
use kvasir::geometry::ObjectKind;
use kvasir::geometry::fingerprint::{FingerprintInput, GroupFingerprint, LayerFingerprint, fingerprint};
use kvasir::object::ObjectId;
use kvasir::wire::{ErrorCode, RegisterKvCache, WireError};
use serde_json::json;

/// Bytes of a block of each of three groups.
const SIZES: [u64; 3] = [1000, 512, 4097];

fn group(number: u16, kind: ObjectKind, page_bytes: u64) -> Group {
    let layer = LayerPages {
        region: number,
        offset: 0,
        block_stride: page_bytes,
        page_bytes,
    };
    Group {
        kind,
        pages: ObjectGroupPages {
            group: number,
            kv_groups: vec![KvGroupPages {
                tokens_per_block: BLOCK,
                layers: vec![layer],
            }],
        },
    }
}

fn shape(groups: Vec<Group>) -> Shape {
    let blocks = 64;
    let page = |group: &Group| group.pages.kv_groups[0].layers[0].page_bytes;
    Shape {
        regions: groups.iter().map(|group| blocks * page(group)).collect(),
        groups,
        blocks,
        ..Shape::plain(1, 0)
    }
}

/// Full attention, a window of two blocks, and full attention again: all of a chunk is needed to resume.
fn three_groups() -> Shape {
    shape(vec![
        group(0, ObjectKind::Full, SIZES[0]),
        group(1, ObjectKind::Window { tokens: 32 }, SIZES[1]),
        group(2, ObjectKind::Full, SIZES[2]),
    ])
}

/// A worker that has negotiated and not registered.
fn newcomer(place: &Place, shape: &Shape, instance: u8) -> Engine {
    let patience = std::time::Duration::from_secs(20);
    let engine = Engine::unregistered(place, shape, instance, patience, patience);
    engine.client.negotiate(shape.negotiation()).unwrap();
    engine
}

fn refused(result: Result<kvasir::keys::ChunkKey, ClientError>) -> WireError {
    match result {
        Err(ClientError::Refused(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn store_groups(engine: &Engine, groups: &[u16]) {
    let chain = engine.chain(CHUNK + 1, 1);
    let items = groups.iter().map(|&group| StoreRequest {
        id: ObjectId {
            key: chain.keys()[0],
            group,
        },
        ..store_chunk(&chain, 0, 0, four(1))
    });
    let outcomes = engine.client.store(&items.collect::<Vec<_>>(), &[]).unwrap();
    assert_eq!(outcomes, vec![StoreOutcome::Published; groups.len()]);
}

#[test]
fn an_unbound_server_takes_its_size_from_the_first_model_and_refuses_one_that_does_not_fit() {
    let mut place = Place::empty(&["--pool-size", "32MiB"]);
    place.start();
    assert_eq!(place.status()["binding"]["state"], "unbound");
    let of = |alignment: u64, spans: &[u64]| {
        let mut request = Shape::plain(1, 0).negotiation();
        request.required_alignment = alignment;
        request.spans = spans
            .iter()
            .enumerate()
            .map(|(group, &tokens)| kvasir::object::GroupSpan {
                group: group as u32,
                tokens,
            })
            .collect();
        request
    };
    // The middle group is scratch: no tokens stand behind its blocks.
    assert_eq!(
        place
            .tool()
            .negotiate(of(640, &[640, 0, 640]))
            .unwrap()
            .chunk_size,
        640
    );
    let binding = place.status()["binding"].clone();
    assert_eq!(
        (&binding["state"], &binding["chunk_size"]),
        (&json!("bound"), &json!(640))
    );
    match place.tool().negotiate(of(400, &[400])) {
        Err(ClientError::Refused(error)) => {
            assert_eq!(error.code, ErrorCode::IncompatibleChunkSize);
            assert_eq!(error.numbers, [640, 400]);
            assert!(
                error.message.contains("640") && error.message.contains("400"),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(place.status()["binding"], binding);
}

/// What one side splits into groups and the other does not has the same bytes in sum, and no common order.
#[test]
fn a_registration_with_other_group_sizes_is_refused_and_copies_nothing() {
    let place = Place::with_server();
    let writer = Engine::start(&place, &three_groups(), 1);
    writer.fill(1);
    store_groups(&writer, &[0, 1, 2]);
    let before = place.status();

    let sum = SIZES.iter().sum();
    let joined = shape(vec![group(0, ObjectKind::Full, sum)]);
    let swapped = shape(vec![
        group(0, ObjectKind::Full, SIZES[1]),
        group(1, ObjectKind::Window { tokens: 32 }, SIZES[0]),
        group(2, ObjectKind::Full, SIZES[2]),
    ]);
    let narrower = shape(vec![
        group(0, ObjectKind::Full, SIZES[0]),
        group(1, ObjectKind::Window { tokens: 16 }, SIZES[1]),
        group(2, ObjectKind::Full, SIZES[2]),
    ]);
    let smaller_window_pages = shape(vec![
        group(0, ObjectKind::Full, SIZES[0]),
        group(1, ObjectKind::Window { tokens: 32 }, SIZES[1] / 2),
        group(2, ObjectKind::Full, SIZES[2]),
    ]);
    for (other, field, numbers) in [
        (&joined, "unit bytes", [0, SIZES[0], sum]),
        (&swapped, "unit bytes", [0, SIZES[0], SIZES[1]]),
        (&narrower, "window", [1, 32, 16]),
        (&smaller_window_pages, "unit bytes", [1, SIZES[1], SIZES[1] / 2]),
    ] {
        let reader = newcomer(&place, other, 2);
        reader.fill(2);
        let memory = reader.everything();
        let error = refused(reader.client.register(other.registration()));
        assert_eq!(error.code, ErrorCode::RegistrationConflict, "{error}");
        assert_eq!(error.numbers, numbers, "{error}");
        assert!(error.message.contains(field), "{error}");
        // It has no registration, so it can ask for nothing, whatever it knows of the other's keys.
        let chain = writer.chain(CHUNK + 1, 1);
        let load = LoadRequest {
            tokens: CHUNK as u32,
            ..load_chunk(&chain, 0, four(9))
        };
        let loaded = reader.client.load(1, 0, &[load]);
        assert!(matches!(loaded, Err(ClientError::NoRegistration)), "{loaded:?}");
        assert_eq!(reader.everything(), memory);
        assert_eq!(reader.client.stats().loaded_bytes, 0);
    }
    let after = place.status();
    for field in ["objects", "incomplete", "domains"] {
        assert_eq!(after[field], before[field]);
    }
    assert_eq!(
        writer.lookup(&writer.chain(CHUNK + 1, 1), 1).hit_tokens,
        CHUNK as u64
    );
}

#[test]
fn pages_of_another_size_than_registered_are_refused_and_copy_nothing() {
    let place = Place::with_server();
    let engine = Engine::start(&place, &three_groups(), 1);
    engine.fill(1);
    store_groups(&engine, &[0, 1, 2]);
    // The engine's tensors are laid out anew, with half the page in the window's group.
    let mut other = three_groups();
    other.groups[1] = group(1, ObjectKind::Window { tokens: 32 }, SIZES[1] / 2);
    let changed = newcomer(&place, &other, 2);
    changed.client.register(three_groups().registration()).unwrap();
    changed.fill(2);
    let memory = changed.everything();
    let chain = engine.chain(CHUNK + 1, 1);
    let ids = [0, 1, 2].map(|group| ObjectId {
        key: chain.keys()[0],
        group,
    });
    let loads = ids.map(|id| LoadRequest {
        id,
        ..load_chunk(&chain, 0, four(9))
    });
    match changed.client.load(1, 0, &loads) {
        Err(ClientError::InvalidLayout { reason }) => {
            assert!(reason.contains("1024") && reason.contains("2048"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(changed.everything(), memory, "not even the groups that fit");
    let fresh = changed.chain(CHUNK, 9);
    let stores = [0, 1].map(|group| StoreRequest {
        id: ObjectId {
            key: fresh.keys()[0],
            group,
        },
        ..store_chunk(&fresh, 0, 0, four(1))
    });
    assert!(matches!(
        changed.client.store(&stores, &[]),
        Err(ClientError::InvalidLayout { .. })
    ));
    let status = place.status();
    assert_eq!(
        (&status["objects"], &status["incomplete"]),
        (&json!(3), &json!(0))
    );
    let reported = &status["clients"][1]["reported"];
    assert_eq!(
        (&reported["loads"], &reported["failed_loads"]),
        (&json!(0), &json!(3))
    );
    assert_eq!(
        (&reported["stores"], &reported["dropped_stores"]),
        (&json!(0), &json!(2))
    );
}

/// Two layouts of the same shape: only what is declared tells them apart.
#[test]
fn the_same_shape_under_another_layout_tag_or_fingerprint_is_a_miss() {
    let place = Place::with_server();
    let shape = Shape::plain(64, 0);
    let writer = Engine::start(&place, &shape, 1);
    writer.fill(1);
    store_groups(&writer, &[0]);
    let fingerprint = |layout: &str, backend: &str| {
        let layer = LayerFingerprint {
            page_size_bytes: 64 * BLOCK,
            dtype: "bfloat16".into(),
            tokens_per_state: Some((1, 1)),
            edited_by: None,
            kernel_block_size: Some(BLOCK),
        };
        let group = GroupFingerprint {
            kind: "full_attention".into(),
            block_size: BLOCK,
            tokens_per_block: BLOCK,
            window: None,
            layers: vec![layer.clone(), layer],
        };
        let input = FingerprintInput {
            layout: layout.into(),
            attention_backend: backend.into(),
            isa: String::new(),
            dcp: 1,
            groups: vec![group],
        };
        fingerprint(&input).unwrap()
    };
    let with = |fingerprint: [u8; 32]| RegisterKvCache {
        domain: kvasir::wire::Domain {
            fingerprint: fingerprint.to_vec(),
            ..shape.registration().domain
        },
        ..shape.registration()
    };
    let (nhd, hnd) = (fingerprint("LBNHC", "CPU_ATTN"), fingerprint("LBHNC", "CPU_ATTN"));
    let other_backend = fingerprint("LBNHC", "FLASH_ATTN");
    let first = newcomer(&place, &shape, 2);
    first.client.register(with(nhd)).unwrap();
    first.fill(2);
    store_groups(&first, &[0]);
    for (instance, other) in [(3, hnd), (4, other_backend)] {
        let engine = newcomer(&place, &shape, instance);
        engine.client.register(with(other)).unwrap();
        engine.fill(3);
        let memory = engine.everything();
        assert_eq!(engine.lookup(&engine.chain(CHUNK + 1, 1), 1).hit_tokens, 0);
        // Nor with the keys of the others.
        for keys in [first.chain(CHUNK + 1, 1), writer.chain(CHUNK + 1, 1)] {
            assert_eq!(engine.lookup(&keys, 1).hit_tokens, 0);
            assert_eq!(
                engine
                    .client
                    .load(1, 0, &[load_chunk(&keys, 0, four(9))])
                    .unwrap(),
                [false]
            );
        }
        assert_eq!(engine.everything(), memory);
    }
    let same = newcomer(&place, &shape, 5);
    same.client.register(with(nhd)).unwrap();
    assert_eq!(same.lookup(&same.chain(CHUNK + 1, 1), 1).hit_tokens, CHUNK as u64);
    assert_eq!(place.status()["objects"], 2);
}
