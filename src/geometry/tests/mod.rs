//! Spans, sizes, objects and refusals, as a caller sees them.

use proptest::prelude::*;

use super::chunk::resolve_chunk;
use super::*;

fn layers(count: u64, page: u64) -> Vec<LayerSpec> {
    vec![LayerSpec::new(count, page, "bfloat16".parse().unwrap())]
}

fn group(kind: GroupKind, block_size: u64, page: u64) -> KvGroup {
    KvGroup::new(kind, block_size, layers(4, page))
}

fn windowed(kind: GroupKind, block_size: u64, window: u64) -> KvGroup {
    KvGroup {
        window: Some(window),
        ..group(kind, block_size, 1024)
    }
}

fn mamba(block_size: u64, page: u64, mode: RecurrentMode) -> KvGroup {
    KvGroup {
        recurrent_mode: Some(mode),
        ..group(GroupKind::Mamba, block_size, page)
    }
}

fn run(dcp: u64, groups: &[KvGroup]) -> Result<ResolvedGeometry, GeometryError> {
    resolve(&GeometryInput {
        dcp,
        groups: groups.to_vec(),
    })
}

fn faults(groups: &[KvGroup]) -> Vec<(usize, GroupFault)> {
    match run(1, groups) {
        Err(GeometryError::Groups { problems, .. }) => {
            problems.into_iter().map(|p| (p.index, p.fault)).collect()
        }
        other => panic!("expected group problems, got {other:?}"),
    }
}

#[test]
fn context_parallelism_scales_shards_only() {
    let full = group(GroupKind::FullAttention, 16, 1024);
    let replicated = KvGroup {
        dcp_sharded: false,
        ..windowed(GroupKind::SlidingWindow, 16, 1024)
    };
    // A recurrent group is never a shard, whatever its flag says.
    let state = KvGroup {
        dcp_sharded: true,
        ..mamba(32, 4096, RecurrentMode::Align)
    };
    let scratch = KvGroup {
        prefix_cacheable: false,
        ..group(GroupKind::FullAttention, 48, 1024)
    };
    let resolved = run(4, &[full, replicated, state, scratch]).unwrap();
    assert_eq!(resolved.spans(), [64, 16, 32, 0]);
    assert_eq!(resolved.required_alignment(), 64);
    // Slots are counted in the worker's own block, before context parallelism.
    assert_eq!(resolved.groups()[0].layers[0].slots_per_block, 16);
}

#[test]
fn one_group_can_mix_compression_ratios() {
    let mut specs = layers(2, 37440);
    for (page, ratio) in [(8640, "4"), (1728, "128"), (4096, "1/4")] {
        specs.push(LayerSpec {
            tokens_per_state: ratio.parse().ok(),
            ..layers(3, page).remove(0)
        });
    }
    let resolved = run(1, &[KvGroup::new(GroupKind::Mla, 256, specs)]).unwrap();
    let group = &resolved.groups()[0];
    let slots: Vec<u64> = group.layers.iter().map(|layer| layer.slots_per_block).collect();
    assert_eq!(slots, [256, 64, 2, 1024]);
    assert_eq!(group.bytes_per_block, 2 * 37440 + 3 * (8640 + 1728 + 4096));
    assert_eq!(group.tokens_per_block, 256);
}

#[test]
fn groups_of_32_and_16_tokens_slice_a_chunk_differently() {
    let groups = [
        group(GroupKind::FullAttention, 32, 1024),
        windowed(GroupKind::SlidingWindow, 16, 1024),
    ];
    let bound = run(1, &groups).unwrap().bind(64).unwrap();
    assert_eq!(
        bound
            .groups()
            .iter()
            .map(|g| g.blocks_per_chunk)
            .collect::<Vec<_>>(),
        [2, 4]
    );
    assert_eq!(
        bound.groups().iter().map(|g| g.object_bytes).collect::<Vec<_>>(),
        [2 * 4096, 4 * 4096]
    );
    assert_eq!(bound.groups()[0].window_chunks, None);
    assert_eq!(bound.groups()[1].window_chunks, Some(16));
}

#[test]
fn objects_hold_groups_that_are_needed_together() {
    let groups = [
        windowed(GroupKind::SlidingWindow, 16, 1024),
        mamba(544, 4096, RecurrentMode::Align),
        group(GroupKind::FullAttention, 16, 1024),
        windowed(GroupKind::ChunkedLocal, 16, 1024),
        KvGroup {
            prefix_cacheable: false,
            ..group(GroupKind::CircularBuffer, 8, 512)
        },
        windowed(GroupKind::SlidingWindowMla, 32, 1024),
        group(GroupKind::Mla, 32, 2048),
        windowed(GroupKind::SlidingWindow, 16, 128),
        mamba(272, 8192, RecurrentMode::All),
    ];
    let resolved = run(1, &groups).unwrap();
    let objects = object_groups(&resolved);
    let found: Vec<(ObjectKind, Vec<usize>)> =
        objects.iter().map(|o| (o.kind(), o.groups().collect())).collect();
    let expected = [
        (ObjectKind::Full, vec![2, 6]),
        (ObjectKind::Window { tokens: 1024 }, vec![0, 5]),
        (ObjectKind::Recurrent, vec![1, 8]),
        (ObjectKind::ChunkedLocal { tokens: 1024 }, vec![3]),
        (ObjectKind::Window { tokens: 128 }, vec![7]),
    ];
    assert_eq!(found, expected);
    assert_eq!(objects[0].bytes_for_tokens(32), Ok(2 * 4096 + 8192));
    assert_eq!(objects[0].object_bytes(64), Ok(4 * 4096 + 2 * 8192));
    // A state is one state, however many tokens it stands for.
    assert_eq!(objects[2].bytes_for_tokens(544), Ok(4 * 4096 + 4 * 8192));
    assert_eq!(objects[2].object_bytes(5440), objects[2].bytes_for_tokens(544));
    let cut = BindError::PartialBlock {
        tokens: 48,
        group: 6,
        tokens_per_block: 32,
    };
    assert_eq!(objects[0].bytes_for_tokens(48), Err(cut));
    assert!(objects[0].bytes_for_tokens(0).is_err());
}

#[test]
fn a_chunk_must_be_a_multiple_of_the_alignment() {
    let resolved = run(1, &[group(GroupKind::FullAttention, 544, 1024)]).unwrap();
    let refused = resolved.bind(600).unwrap_err();
    assert_eq!(
        refused,
        BindError::Misaligned {
            chunk: 600,
            alignment: 544,
            spans: vec![544]
        }
    );
    assert_eq!(resolved.bind(0), Err(BindError::OutOfRange { chunk: 0 }));
    assert!(resolved.bind(1 << 40).is_err());
    assert!(resolved.bind(1088).is_ok());
}

#[test]
fn an_object_that_overflows_is_refused_by_group() {
    let groups = [
        group(GroupKind::FullAttention, 16, 1024),
        KvGroup::new(GroupKind::Mla, 16, layers(1, u64::MAX / 2)),
    ];
    let resolved = run(1, &groups).unwrap();
    assert!(matches!(
        resolved.bind(64),
        Err(BindError::ObjectTooLarge {
            group: 1,
            blocks: 4,
            ..
        })
    ));
}

#[test]
fn all_refusals_come_in_one_error() {
    let mut mixed = mamba(32, 4096, RecurrentMode::Align);
    mixed.layers.push(LayerSpec {
        kind: Some(GroupKind::FullAttention),
        ..layers(1, 4096).remove(0)
    });
    let mut differing = windowed(GroupKind::SlidingWindow, 16, 1024);
    differing.layers.push(LayerSpec {
        window: Some(512),
        ..layers(1, 1024).remove(0)
    });
    differing.layers.push(LayerSpec {
        kind: Some(GroupKind::FullAttention),
        ..layers(1, 1024).remove(0)
    });
    let groups = [
        group(GroupKind::CrossAttention, 16, 1024),
        group(GroupKind::FullAttention, 16, 1024),
        mamba(544, 4096, RecurrentMode::None),
        mixed,
        differing,
        group(GroupKind::EncoderOnly, 16, 1024),
        group(GroupKind::Mamba, 544, 4096),
    ];
    let error = run(1, &groups).unwrap_err();
    assert_eq!(error.kind(), "refused");
    let text = error.to_string();
    for part in [
        "6 of the model's",
        "group 0: cross-attention",
        "group 2: recurrent cache mode \"none\"",
        "group 3: layer entry 1 is full_attention in a mamba group",
        "group 4: layer entry 1 needs a sliding window of 512 tokens but the group a sliding window of 1024",
        "group 4: layer entry 2 needs the whole prefix",
        "group 5: encoder-only",
        "group 6: recurrent cache mode \"none\"",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(!text.contains("group 1:"));
}

#[test]
fn a_model_started_without_snapshots_still_gets_its_numbers() {
    let groups = [
        group(GroupKind::FullAttention, 544, 1024),
        mamba(8192, 4096, RecurrentMode::None),
    ];
    let Err(GeometryError::Groups {
        would_be: Some(geometry),
        ..
    }) = run(1, &groups)
    else {
        panic!()
    };
    assert_eq!(geometry.required_alignment(), 139_264);
    let groups = [groups[1].clone(), group(GroupKind::CrossAttention, 16, 1024)];
    assert!(matches!(
        run(1, &groups),
        Err(GeometryError::Groups { would_be: None, .. })
    ));
}

#[test]
fn malformed_groups_are_named_with_their_numbers() {
    let bad_ratio = LayerSpec {
        tokens_per_state: Ratio::new(3, 1),
        ..layers(1, 1024).remove(0)
    };
    let groups = [
        group(GroupKind::FullAttention, 0, 1024),
        KvGroup::new(GroupKind::FullAttention, 16, vec![]),
        KvGroup::new(GroupKind::FullAttention, 16, layers(0, 1024)),
        group(GroupKind::FullAttention, 16, 0),
        KvGroup::new(GroupKind::FullAttention, 16, layers(u64::MAX, 2)),
        KvGroup::new(GroupKind::FullAttention, 16, vec![bad_ratio]),
        group(GroupKind::SlidingWindow, 16, 1024),
        windowed(GroupKind::ChunkedLocal, 16, 0),
        KvGroup {
            prefix_cacheable: true,
            ..group(GroupKind::CircularBuffer, 8, 64)
        },
        group(GroupKind::FullAttention, 1 << 33, 1024),
        KvGroup::new(
            GroupKind::FullAttention,
            16,
            vec![LayerSpec {
                dtype: None,
                ..layers(1, 1024).remove(0)
            }],
        ),
    ];
    let found = faults(&groups);
    let expected = vec![
        (0, GroupFault::ZeroBlockSize),
        (1, GroupFault::NoLayers),
        (2, GroupFault::ZeroCount { layer: 0 }),
        (3, GroupFault::ZeroPage { layer: 0 }),
        (4, GroupFault::BytesOverflow { layer: 0 }),
        (
            5,
            GroupFault::SlotsNotWhole {
                layer: 0,
                block_size: 16,
                ratio: Ratio::new(3, 1).unwrap(),
            },
        ),
        (
            6,
            GroupFault::MissingWindow {
                kind: GroupKind::SlidingWindow,
            },
        ),
        (
            7,
            GroupFault::MissingWindow {
                kind: GroupKind::ChunkedLocal,
            },
        ),
        (
            8,
            GroupFault::CacheableScratch {
                kind: GroupKind::CircularBuffer,
            },
        ),
        (
            9,
            GroupFault::SpanTooLarge {
                block_size: 1 << 33,
                shards: 1,
            },
        ),
        (10, GroupFault::MissingDtype { layer: 0 }),
    ];
    assert_eq!(found, expected);
    assert_eq!(run(1, &groups).unwrap_err().kind(), "invalid");
    assert_eq!(run(0, &groups), Err(GeometryError::ZeroDcp));
    assert_eq!(run(1, &[]), Err(GeometryError::NoGroups));
    let huge = run(u64::MAX, &[group(GroupKind::FullAttention, 16, 1024)]).unwrap_err();
    assert!(
        huge.to_string()
            .contains("a block of 16 tokens times 18446744073709551615 context shards"),
        "{huge}"
    );
}

#[test]
fn a_model_of_scratch_only_has_nothing_to_cache() {
    let scratch = group(GroupKind::CircularBuffer, 8, 64);
    assert_eq!(
        run(1, &[scratch]),
        Err(GeometryError::Chunk(ChunkError::NoCacheableGroup { spans: 1 }))
    );
}

#[test]
fn shared_layers_belong_to_their_owner() {
    let named = |name: &str, owner: Option<&str>| LayerSpec {
        name: Some(name.into()),
        shares_kv_of: owner.map(str::to_owned),
        ..layers(1, 1024).remove(0)
    };
    let full = |specs: Vec<LayerSpec>| KvGroup::new(GroupKind::FullAttention, 16, specs);
    let groups = [
        full(vec![named("a", None), named("b", Some("a"))]),
        full(vec![named("c", None), named("d", Some("a"))]),
    ];
    let resolved = run(1, &groups).unwrap();
    assert_eq!(
        resolved
            .groups()
            .iter()
            .map(|g| g.bytes_per_block)
            .collect::<Vec<_>>(),
        [1024, 1024]
    );
    assert!(resolved.groups()[0].layers[1].shared && !resolved.groups()[0].layers[0].shared);

    let twice = [
        full(vec![named("a", None)]),
        full(vec![named("a", None), named("e", Some("z"))]),
    ];
    let expected = vec![
        (
            1,
            GroupFault::DuplicateLayer {
                name: "a".into(),
                other: 0,
            },
        ),
        (
            1,
            GroupFault::UnknownOwner {
                layer: 1,
                owner: "z".into(),
            },
        ),
    ];
    assert_eq!(faults(&twice), expected);
}

#[test]
fn warnings_name_near_coprime_spans_and_long_recurrent_chunks() {
    let groups = [
        group(GroupKind::FullAttention, 544, 1024),
        mamba(8192, 4096, RecurrentMode::All),
    ];
    let resolved = run(1, &groups).unwrap();
    let near = Warning::NearCoprime {
        alignment: 139_264,
        largest_span: 8192,
    };
    assert_eq!(
        resolved.bind(139_264).unwrap().warnings(),
        std::slice::from_ref(&near)
    );
    let long = Warning::LongRecurrentChunk {
        chunk: 278_528,
        alignment: 139_264,
    };
    assert_eq!(resolved.bind(278_528).unwrap().warnings(), [near, long]);
    let attention = run(1, &[group(GroupKind::FullAttention, 16, 1024)]).unwrap();
    assert_eq!(attention.bind(256).unwrap().warnings(), []);
}

fn any_group() -> impl Strategy<Value = KvGroup> {
    let kinds = prop_oneof![
        Just(GroupKind::FullAttention),
        Just(GroupKind::Mla),
        Just(GroupKind::SlidingWindow),
        Just(GroupKind::ChunkedLocal),
        Just(GroupKind::Mamba),
    ];
    // Several large ones have rarely a common chunk below the limit, so most are smaller.
    let block = prop_oneof![3 => 1..700_u64, 1 => 1..=4096_u64];
    (kinds, block, 1..1_000_000_u64, any::<bool>(), 1..5_u64).prop_map(
        |(kind, block, page, sharded, count)| KvGroup {
            window: Some(1024),
            recurrent_mode: Some(RecurrentMode::Align),
            dcp_sharded: sharded,
            ..KvGroup::new(kind, block, layers(count, page))
        },
    )
}

proptest! {
    #[test]
    fn scratch_groups_and_order_change_nothing(
        groups in prop::collection::vec(any_group(), 1..5),
        dcp in 1..9_u64,
        scratch in prop::collection::vec((any_group(), 0..6_usize), 0..4),
        minimum in 1..3000_u64,
    ) {
        let Ok(plain) = run(dcp, &groups) else { return Ok(()) };
        let mut other = groups.clone();
        other.reverse();
        for (group, at) in scratch {
            other.insert(at.min(other.len()), KvGroup { prefix_cacheable: false, ..group });
        }
        let other = run(dcp, &other).unwrap();
        prop_assert_eq!(plain.required_alignment(), other.required_alignment());
        prop_assert_eq!(plain.warnings(), other.warnings());
        let Ok(chunk) = resolve_chunk(plain.required_alignment(), minimum) else { return Ok(()) };
        let (plain, other) = (plain.bind(chunk).unwrap(), other.bind(chunk).unwrap());
        prop_assert_eq!(plain.warnings(), other.warnings());
        let total = |bound: &BoundGeometry| bound.groups().iter().map(|g| g.object_bytes).sum::<u64>();
        prop_assert_eq!(total(&plain), total(&other));
        let objects = |bound: &BoundGeometry| {
            bound.objects().iter().map(|o| o.object_bytes(chunk).unwrap()).sum::<u64>()
        };
        prop_assert_eq!(objects(&plain), total(&plain));
        prop_assert_eq!(objects(&other), total(&other));
    }

    #[test]
    fn every_span_divides_the_chunk_and_bytes_add_up(
        groups in prop::collection::vec(any_group(), 1..5),
        dcp in 1..9_u64,
        minimum in 1..3000_u64,
    ) {
        let Ok(resolved) = run(dcp, &groups) else { return Ok(()) };
        let Ok(chunk) = resolve_chunk(resolved.required_alignment(), minimum) else { return Ok(()) };
        let bound = resolved.bind(chunk).unwrap();
        for (group, sizes) in resolved.groups().iter().zip(bound.groups()) {
            prop_assert_eq!(sizes.blocks_per_chunk * group.tokens_per_block, chunk);
            let blocks = if group.recurrent { 1 } else { sizes.blocks_per_chunk };
            prop_assert_eq!(sizes.object_bytes, group.bytes_per_block * blocks);
        }
    }

    #[test]
    fn absurd_numbers_are_errors_not_panics(
        dcp in any::<u64>(), block in any::<u64>(), page in any::<u64>(), count in any::<u64>(),
        ratio in (any::<u64>(), any::<u64>()), chunk in any::<u64>(), tokens in any::<u64>(),
    ) {
        let tokens_per_state = Ratio::new(ratio.0, ratio.1);
        let spec = LayerSpec { tokens_per_state, ..layers(count, page).remove(0) };
        if let Ok(resolved) = run(dcp, &[KvGroup::new(GroupKind::FullAttention, block, vec![spec])]) {
            let wide = u128::from(page) * u128::from(count);
            prop_assert_eq!(u128::from(resolved.groups()[0].bytes_per_block), wide);
            let _ = resolved.bind(chunk);
            for object in object_groups(&resolved) {
                if let Ok(bytes) = object.bytes_for_tokens(tokens) {
                    let blocks = u128::from(tokens / resolved.groups()[0].tokens_per_block);
                    prop_assert_eq!(u128::from(bytes), wide * blocks);
                }
            }
        }
    }
}
