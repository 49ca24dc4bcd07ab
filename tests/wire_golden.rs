//! One frame of every message kind, byte for byte.
//!
//! The files in `tests/data/wire/` pin what travels: a change of the schema that an old peer would misread shows
//! up here. A new message gets a new file; an old file changes only together with `PROTOCOL_VERSION`. After such a
//! change, `KVASIR_WRITE_GOLDEN=1 cargo test --test wire_golden` writes them anew.

use std::fmt::Write as _;
use std::path::PathBuf;

use kvasir::geometry::ObjectKind;
use kvasir::keys::ChunkKey;
use kvasir::object::*;
use kvasir::wire::*;

fn key(seed: u8) -> ChunkKey {
    ChunkKey::from_bytes(std::array::from_fn(|i| seed.wrapping_add(i as u8)))
}

fn id(seed: u8, group: u16) -> ObjectId {
    ObjectId {
        key: key(seed),
        group,
    }
}

fn extents() -> Vec<Extent> {
    vec![Extent { frame: 3, count: 2 }, Extent { frame: 17, count: 1 }]
}

fn spans() -> Vec<GroupSpan> {
    vec![
        GroupSpan {
            group: 0,
            tokens: 544,
        },
        GroupSpan { group: 1, tokens: 0 },
    ]
}

fn register() -> RegisterKvCache {
    RegisterKvCache {
        domain: Domain {
            model: "org/model".into(),
            weights_id: vec![1, 2, 3],
            kv_dtype: "bfloat16".into(),
            fingerprint: vec![9; 32],
            parallel_shape: "tp=2".into(),
        },
        rank: 1,
        world_size: 2,
        required_alignment: 544,
        spans: spans(),
        groups: vec![GroupRegistration {
            group: 0,
            kind: ObjectKind::Window { tokens: 1024 },
            parts: 2,
            part: 1,
            unit_bytes: 69632,
        }],
        layers: 24,
        blocks: 4096,
        payload_path: PayloadPath::ShmDirect,
        stores: false,
        copy_path: String::new(),
    }
}

fn commit() -> CommitRequest {
    let first = StoreItem {
        id: id(1, 0),
        parent: None,
        skipped: false,
        part: 0,
        tokens: 544,
        held_from: 32,
        bytes: 100_000,
        checksum: 0x0123_4567_89AB_CDEF,
        first_extent: 0,
        extent_count: 1,
    };
    let second = StoreItem {
        id: id(2, 0),
        parent: Some(key(1)),
        skipped: true,
        part: 1,
        tokens: 272,
        held_from: 0,
        bytes: 50_000,
        checksum: 0,
        first_extent: 1,
        extent_count: 1,
    };
    CommitRequest {
        domain_seed: key(0),
        items: vec![first, second],
        extents: extents(),
        supersedes: vec![id(3, 0)],
        grant_bytes: 1 << 30,
    }
}

fn requests() -> Vec<(&'static str, Request)> {
    vec![
        (
            "hello",
            Request::Hello(Hello {
                protocol_version: 1,
                features: 0,
                kind: ClientKind::Worker,
                name: "engine worker 0".into(),
                engine_instance: [7; 16],
                wants_pool: true,
                ring_bytes: 0,
                named: false,
            }),
        ),
        (
            "negotiate",
            Request::Negotiate(Negotiate {
                required_alignment: 544,
                spans: spans(),
                preferred_base: 256,
                previous_size: 1088,
                binding_domain: None,
            }),
        ),
        ("get_chunk_size", Request::GetChunkSize),
        ("attach", Request::Attach),
        ("register_kv_cache", Request::RegisterKvCache(register())),
        ("unregister_kv_cache", Request::UnregisterKvCache),
        (
            "lookup",
            Request::Lookup(Lookup {
                domain_seed: key(0),
                label: 5,
                keys: vec![key(1), key(2)],
                tails: TailList::new(vec![Tail {
                    key: key(3),
                    chunk: 2,
                    tokens: 32,
                }]),
                max_tokens: 1100,
                local_tokens: 64,
                pin: false,
                describe: false,
            }),
        ),
        (
            "retrieve",
            Request::Retrieve(RetrieveRequest {
                domain_seed: key(0),
                label: 5,
                part: 1,
                ids: vec![id(1, 0), id(2, 3)],
            }),
        ),
        ("release", Request::Release { pins: vec![11, 12] }),
        ("end_session", Request::ReleaseLabel { label: 5 }),
        ("grant", Request::Grant(GrantRequest::of(1 << 20))),
        ("commit", Request::Commit(commit())),
        ("abort", Request::Abort { extents: extents() }),
        ("clear", Request::Clear),
        ("status", Request::Status),
        (
            "negotiate_domain",
            Request::Negotiate(Negotiate {
                required_alignment: 640,
                spans: spans(),
                preferred_base: 256,
                previous_size: 0,
                binding_domain: Some(*key(7).as_bytes()),
            }),
        ),
        (
            "discard",
            Request::Discard {
                domain_seed: key(0),
                objects: vec![(id(1, 2), 2 << 44 | 1)],
            },
        ),
        (
            "lookup_describe",
            Request::Lookup(Lookup {
                domain_seed: key(0),
                label: 5,
                keys: vec![key(1)],
                tails: TailList::default(),
                max_tokens: 543,
                local_tokens: 0,
                pin: true,
                describe: true,
            }),
        ),
        (
            "register_kv_cache_copies",
            Request::RegisterKvCache(RegisterKvCache {
                copy_path: "avx2-8x64".into(),
                ..register()
            }),
        ),
        (
            "grant_under",
            Request::Grant(GrantRequest {
                bytes: 3 << 16,
                under: vec![key(1), key(2)],
                ahead: true,
            }),
        ),
    ]
}

fn hello_of(ring_bytes: u64, named: bool) -> Request {
    Request::Hello(Hello {
        protocol_version: 2,
        features: 0,
        kind: ClientKind::Worker,
        name: "engine worker 1".into(),
        engine_instance: [7; 16],
        wants_pool: false,
        ring_bytes,
        named,
    })
}

/// What has to do with payload rings, and what operators ask.
fn later_requests() -> Vec<(&'static str, Request)> {
    let run = |frame, offset, bytes| RingRun { frame, offset, bytes };
    let part = |place, offset, bytes| RingPart { place, offset, bytes };
    vec![
        ("hello_ring", hello_of(8 << 20, false)),
        ("hello_ring_named", hello_of(1 << 20, true)),
        (
            "ring_write",
            Request::RingWrite {
                runs: vec![run(3, 0, 131_072), run(17, 32768, 656)],
            },
        ),
        (
            "ring_read",
            Request::RingRead {
                pin: 77,
                parts: vec![part(0, 0, 4097), part(5, 1 << 20, 17)],
            },
        ),
        (
            "kick",
            Request::Kick(Kick {
                client: 7,
                pid: 4711,
                grace_ms: 2000,
                spare: true,
            }),
        ),
    ]
}

fn later_replies() -> Vec<(&'static str, Reply)> {
    let reply = |regions, named| {
        Reply::Hello(HelloReply {
            protocol_version: 2,
            features: 0,
            boot_id: [1; 16],
            boot_seq: 2,
            pool_id: [3; 16],
            frame_bytes: 65536,
            slab: 4,
            regions,
            named,
        })
    };
    let ring = Region {
        kind: RegionKind::Ring,
        offset: 0,
        bytes: 65536 + (2 << 20),
    };
    let file = NamedRegion {
        kind: RegionKind::Ring,
        path: "/dev/shm/kvasir.node.0.ring".into(),
        bytes: 65536 + (2 << 20),
    };
    let clients = [(7, KickOutcome::Killed), (8, KickOutcome::HeldByOther)].map(|(client, outcome)| Kicked {
        client,
        pid: 4711,
        outcome,
    });
    let clients = clients.to_vec();
    vec![
        ("hello_reply_ring", reply(vec![ring], vec![])),
        ("hello_reply_named", reply(vec![], vec![file])),
        ("kick_reply", Reply::Kick { clients }),
    ]
}

fn named(name: &str) -> Request {
    let mut all = requests().into_iter();
    all.find(|(found, _)| *found == name).unwrap().1
}

fn replies() -> Vec<(&'static str, Reply)> {
    vec![
        (
            "error",
            Reply::Error(WireError::new(
                ErrorCode::SizeMismatch,
                "a part has 3 bytes instead of 4",
                [3, 4],
            )),
        ),
        ("ack", Reply::Ack),
        (
            "hello_reply",
            Reply::Hello(HelloReply {
                protocol_version: 1,
                features: 0,
                boot_id: [1; 16],
                boot_seq: 2,
                pool_id: [3; 16],
                frame_bytes: 65536,
                slab: 4,
                regions: vec![
                    Region {
                        kind: RegionKind::Control,
                        offset: 0,
                        bytes: 4096,
                    },
                    Region {
                        kind: RegionKind::PinSlab,
                        offset: 4 << 16,
                        bytes: 65536,
                    },
                ],
                named: vec![],
            }),
        ),
        (
            "negotiate_reply",
            Reply::Negotiate(NegotiateReply {
                chunk_size: 544,
                warnings: vec!["coarse".into()],
            }),
        ),
        (
            "register_reply",
            Reply::Register(RegisterReply {
                domain_seed: key(0),
                chunk_size: 544,
                domain: None,
                kept_frames_max: 0,
            }),
        ),
        (
            "lookup_reply",
            Reply::Lookup(LookupAnswer {
                hit_tokens: 576,
                pin: 9,
                loads: vec![LoadItem {
                    id: id(1, 0),
                    chunk: 0,
                    tokens: 544,
                }],
                present_tokens: vec![576, 544],
                shape: None,
            }),
        ),
        (
            "retrieve_reply",
            Reply::Retrieve(RetrieveAnswer {
                pin: 10,
                locations: vec![
                    PartLocation {
                        incarnation: 2 << 44 | 1,
                        bytes: 100_000,
                        checksum: 0x0123_4567_89AB_CDEF,
                        first_extent: 0,
                        extent_count: 2,
                        tokens: 544,
                        held_from: 32,
                    },
                    PartLocation::default(),
                ],
                extents: extents(),
            }),
        ),
        ("grant_reply", Reply::Grant { extents: extents() }),
        (
            "commit_reply",
            Reply::Commit(CommitAnswer {
                outcomes: vec![CommitOutcome::Published, CommitOutcome::NoParent],
                granted: extents(),
            }),
        ),
        (
            "status_reply",
            Reply::Status {
                json: "{\"version\":\"1\"}".into(),
            },
        ),
        (
            "lookup_reply_shape",
            Reply::Lookup(LookupAnswer {
                shape: Some(DomainShape {
                    domain: 3,
                    chunk_size: 544,
                    alignment: 32,
                    anchor: Some(1),
                    groups: vec![
                        GroupShape {
                            group: 0,
                            kind: ObjectKind::Window { tokens: 128 },
                            bit: 2,
                        },
                        GroupShape {
                            group: 1,
                            kind: ObjectKind::Full,
                            bit: 1,
                        },
                    ],
                    kept_frames_max: 16384,
                }),
                ..LookupAnswer::default()
            }),
        ),
        (
            "register_reply_domain",
            Reply::Register(RegisterReply {
                domain_seed: key(0),
                chunk_size: 544,
                domain: Some(3),
                kept_frames_max: 16384,
            }),
        ),
    ]
}

fn golden(name: &str, frame: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/wire/{name}.hex"));
    if std::env::var_os("KVASIR_WRITE_GOLDEN").is_some() {
        let mut text = String::new();
        for line in frame.chunks(32) {
            for byte in line {
                write!(text, "{byte:02x}").unwrap();
            }
            text.push('\n');
        }
        std::fs::write(&path, text).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn requests_are_as_recorded() {
    let mut encoder = Encoder::new();
    for (number, (name, request)) in requests().into_iter().chain(later_requests()).enumerate() {
        let frame = encoder.request(100 + number as u64, &request).unwrap().to_vec();
        let recorded = golden(name, &frame);
        assert_eq!(frame, recorded, "{name} is encoded differently");
        let (id, decoded) = decode_request(&recorded).unwrap();
        assert_eq!((id, decoded), (100 + number as u64, request), "{name}");
    }
}

#[test]
fn replies_are_as_recorded() {
    let mut encoder = Encoder::new();
    for (number, (name, reply)) in replies().into_iter().chain(later_replies()).enumerate() {
        let frame = encoder.reply(200 + number as u64, &reply).unwrap().to_vec();
        let recorded = golden(name, &frame);
        assert_eq!(frame, recorded, "{name} is encoded differently");
        let (id, decoded) = decode_reply(&recorded).unwrap();
        assert_eq!((id, decoded), (200 + number as u64, reply), "{name}");
    }
}

/// Whatever a peer does to a frame: an answer, never a panic. And nothing that is cut short is accepted.
#[test]
fn damaged_frames_are_refused_or_decoded_but_never_fatal() {
    let mut encoder = Encoder::new();
    for (name, request) in requests().into_iter().chain(later_requests()) {
        let frame = encoder.request(1, &request).unwrap().to_vec();
        for len in 0..frame.len() {
            let _ = decode_request(&frame[..len]);
        }
        for at in 0..frame.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = frame.clone();
                damaged[at] = value;
                let _ = decode_request(&damaged);
            }
        }
        assert!(
            decode_request(&frame[..frame.len() / 2]).is_err(),
            "{name} cut in half"
        );
    }
    for (_, reply) in replies().into_iter().chain(later_replies()) {
        let frame = encoder.reply(1, &reply).unwrap().to_vec();
        for at in 0..frame.len() {
            let mut damaged = frame.clone();
            damaged[at] ^= 0x55;
            let _ = decode_reply(&damaged);
        }
    }
}

#[test]
fn values_that_no_peer_may_send_have_a_typed_error() {
    let mut encoder = Encoder::new();
    let mut refused = |request: Request| {
        let frame = encoder.request(42, &request).unwrap();
        let bad = decode_request(frame).unwrap_err();
        assert_eq!(bad.id, 42);
        bad.error.to_wire()
    };
    let mut long_name = requests().remove(0).1;
    if let Request::Hello(hello) = &mut long_name {
        hello.name = "x".repeat(MAX_NAME_BYTES + 1);
    }
    let error = refused(long_name);
    assert_eq!(
        (error.code, error.numbers),
        (ErrorCode::LimitExceeded, vec![129, 128])
    );

    let mut frame = Encoder::new()
        .request(42, &named("negotiate_domain"))
        .unwrap()
        .to_vec();
    let length = frame.windows(5).position(|w| w == [32, 0, 0, 0, 7]).unwrap();
    for bytes in [1, 16, 31] {
        frame[length] = bytes;
        let error = decode_request(&frame).unwrap_err().error.to_wire();
        assert_eq!(
            (error.code, error.numbers),
            (ErrorCode::InvalidArgument, vec![u64::from(bytes), 32])
        );
    }
    // As good as absent.
    frame[length] = 0;
    let (_, empty) = decode_request(&frame).unwrap();
    assert!(matches!(
        empty,
        Request::Negotiate(Negotiate {
            binding_domain: None,
            ..
        })
    ));

    let mut outside = commit();
    outside.items[1].extent_count = 2;
    let error = refused(Request::Commit(outside));
    assert_eq!(
        (error.code, error.numbers),
        (ErrorCode::InvalidExtent, vec![1, 2])
    );

    let mut overflow = commit();
    overflow.items[0].first_extent = u32::MAX;
    overflow.items[0].extent_count = u32::MAX;
    assert_eq!(refused(Request::Commit(overflow)).code, ErrorCode::InvalidExtent);

    let error = refused(Request::Release {
        pins: vec![0; MAX_ITEMS + 1],
    });
    assert_eq!(
        (error.code, error.numbers),
        (ErrorCode::LimitExceeded, vec![16385, 16384])
    );

    let keys = vec![key(0); MAX_KEYS + 1];
    let lookup = Lookup {
        domain_seed: key(0),
        label: 0,
        keys,
        tails: TailList::default(),
        max_tokens: 0,
        local_tokens: 0,
        pin: true,
        describe: false,
    };
    assert_eq!(refused(Request::Lookup(lookup)).code, ErrorCode::LimitExceeded);
}

#[test]
fn a_message_beyond_the_frame_limit_is_not_made() {
    let mut encoder = Encoder::new();
    let request = Request::Release {
        pins: vec![0; MAX_FRAME_BYTES / 8 + 1],
    };
    let error = encoder.request(1, &request).unwrap_err();
    assert_eq!(error.limit, MAX_FRAME_BYTES);
    assert!(error.bytes > MAX_FRAME_BYTES);
}
