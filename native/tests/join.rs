//! Joining in one call, and the settings of a client that came with the second version of the interface.

#![allow(unsafe_code)] // every pointer here is NULL, or to a value that lives across the call

mod support;

use std::ffi::CString;
use std::ptr::{null, null_mut};

use kvasir_c::kvasir_code as Code;
use kvasir_c::*;
use support::*;

/// What `Engine::start` says in three calls, as a rank. What it names lives as long as it does.
struct Named {
    region: kvasir_region,
    layer: kvasir_layer,
    kv_group: kvasir_kv_group,
    pages: Vec<kvasir_group_memory>,
    memory: kvasir_memory,
    domain: kvasir_domain,
    kinds: Vec<kvasir_group>,
    rank: kvasir_rank,
}

impl Named {
    fn new(engine: &mut Engine) -> Box<Self> {
        let mut named = Box::new(Self {
            region: kvasir_region {
                base: engine.memory.as_mut_ptr(),
                bytes: engine.memory.len() as u64,
            },
            layer: kvasir_layer {
                block_stride: PAGE as u64,
                page_bytes: PAGE as u64,
                ..Default::default()
            },
            kv_group: made(),
            pages: vec![made()],
            memory: made(),
            domain: made(),
            kinds: vec![made()],
            rank: made(),
        });
        named.kv_group.tokens_per_block = BLOCK_TOKENS;
        named.kinds[0].kind = kvasir_group_kind::Full as u32;
        named.domain.model = c"joined".as_ptr();
        named.domain.kv_dtype = c"bfloat16".as_ptr();
        named.domain.parallel_shape = c"tp=1".as_ptr();
        named.memory.blocks = BLOCKS as u64;
        named.rank.world_size = 1;
        named.link();
        named
    }

    /// Names what lies beside it, wherever that is by now.
    fn link(&mut self) {
        (self.kv_group.layers, self.kv_group.layer_count) = (&raw const self.layer, 1);
        for pages in &mut self.pages {
            (pages.kv_groups, pages.kv_group_count) = (&raw const self.kv_group, 1);
        }
        (self.memory.regions, self.memory.region_count) = (&raw const self.region, 1);
        (self.memory.groups, self.memory.group_count) = (self.pages.as_ptr(), self.pages.len());
        (self.rank.domain, self.rank.memory) = (&raw const self.domain, &raw const self.memory);
        (self.rank.groups, self.rank.group_count) = (self.kinds.as_ptr(), self.kinds.len());
    }

    fn join(&self, client: kvasir_client) -> (Code, u64, kvasir_key) {
        let (mut chunk_size, mut seed) = (0, kvasir_key::default());
        // SAFETY: all of it lives across the call, and the region until the client is closed.
        let code = unsafe { kvasir_join(client, &self.rank, &mut chunk_size, &mut seed) };
        (code, chunk_size, seed)
    }
}

/// A worker that has not said anything yet.
fn connected(change: impl Fn(&mut kvasir_client_options)) -> Engine {
    let socket = CString::new(server().to_str().unwrap()).unwrap();
    let mut options = options(&socket, kvasir_client_kind::Worker);
    change(&mut options);
    let mut client = kvasir_client::default();
    // SAFETY: all of it lives across the call.
    ok(unsafe { kvasir_client_open(&options, &mut client) });
    eventually("a server", || health(client).healthy == 1);
    Engine {
        client,
        seed: kvasir_key::default(),
        memory: vec![0; BLOCKS * PAGE],
    }
}

/// The server's status, which leaves out who asks.
fn status() -> String {
    let client = open(server());
    eventually("a server", || health(client).healthy == 1);
    let (mut text, mut length) = (vec![0_u8; 1 << 20], 0);
    // SAFETY: the text is as long as said.
    ok(unsafe { kvasir_status_json(client, text.as_mut_ptr().cast(), text.len(), &mut length) });
    ok(kvasir_client_close(client));
    text.truncate(length);
    String::from_utf8(text).unwrap()
}

#[test]
fn a_rank_that_joined_stores_and_loads_and_is_what_three_calls_say() {
    let mut engine = connected(|_| {});
    let named = Named::new(&mut engine);
    let (code, chunk_size, seed) = named.join(engine.client);
    ok(code);
    assert_eq!(chunk_size, u64::from(CHUNK));
    engine.seed = seed;
    assert_eq!(engine.store(1), kvasir_outcome::Published);
    assert!(engine.load(1));
    // The same again, and the seed that a scheduler computes.
    assert_eq!(named.join(engine.client), (Code::Ok, chunk_size, seed));
    let mut computed = kvasir_key::default();
    // SAFETY: both live across the call.
    ok(unsafe { kvasir_domain_seed(&named.domain, chunk_size, &mut computed) });
    assert_eq!((computed, health(engine.client).seed), (seed, seed));
    assert!(engine.load(1));

    // Another engine registers the same by itself: what the first one stored is its own too.
    let mut other = Engine::start("another model");
    let mut registration: kvasir_registration = made();
    let mut group = named.kinds[0];
    (group.parts, group.unit_bytes) = (1, PAGE as u64);
    registration.domain = &named.domain;
    registration.world_size = 1;
    registration.required_alignment = BLOCK_TOKENS;
    (registration.spans, registration.span_count) = (SPANS.as_ptr(), 1);
    (registration.groups, registration.group_count) = (&group, 1);
    (registration.blocks, registration.layers) = (BLOCKS as u64, 1);
    // SAFETY: all of it lives across the call.
    ok(unsafe { kvasir_register(other.client, &registration, &mut other.seed) });
    assert_eq!(other.seed, seed);
    assert!(other.load(1));
    ok(kvasir_client_close(engine.client));
    ok(kvasir_client_close(other.client));
}

#[test]
fn a_rank_that_says_nonsense_is_refused_and_nothing_is_joined() {
    let mut engine = connected(|_| {});
    let client = engine.client;
    let refused_rank = |engine: &mut Engine, code: Code, words: &str, change: &dyn Fn(&mut Named)| {
        let mut named = Named::new(engine);
        change(&mut named);
        refused(named.join(client).0, code, words);
    };
    let invalid = Code::InvalidArgument;
    refused_rank(&mut engine, invalid, "rank: flags 0x1", &|named| {
        named.rank.flags = 1
    });
    refused_rank(&mut engine, invalid, "rank.domain is NULL", &|named| {
        named.rank.domain = null();
    });
    refused_rank(&mut engine, invalid, "rank.memory is NULL", &|named| {
        named.rank.memory = null();
    });
    refused_rank(&mut engine, invalid, "rank.groups is NULL", &|named| {
        named.rank.groups = null();
    });
    refused_rank(
        &mut engine,
        invalid,
        "rank.rank is 65536, at most 65535",
        &|named| {
            named.rank.rank = 1 << 16;
        },
    );
    refused_rank(&mut engine, invalid, "rank.world_size is 4294967295", &|named| {
        named.rank.world_size = u32::MAX;
    });
    refused_rank(&mut engine, invalid, "kind 9", &|named| named.kinds[0].kind = 9);
    refused_rank(&mut engine, invalid, "a reserved field is 3", &|named| {
        named.kinds[0].reserved = 3;
    });
    refused_rank(
        &mut engine,
        invalid,
        "object group 0 has 4096 unit_bytes, 0 parts and part 0; they follow from",
        &|named| named.kinds[0].unit_bytes = 4096,
    );
    assert_eq!(last().1, [0, 4096, 0, 0]);
    refused_rank(
        &mut engine,
        invalid,
        "rank.groups has 0 object groups and rank.memory has 1",
        &|named| named.rank.group_count = 0,
    );
    refused_rank(
        &mut engine,
        invalid,
        "object group 0 of rank.memory nowhere",
        &|named| {
            named.kinds[0].group = 4;
        },
    );
    refused_rank(
        &mut engine,
        invalid,
        "object group 0 of rank.memory twice",
        &|named| {
            named.pages.push(named.pages[0]);
            named.pages[1].group = 1;
            named.kinds.push(named.kinds[0]);
            named.link();
        },
    );
    refused_rank(&mut engine, Code::TooManyItems, "rank.groups", &|named| {
        named.rank.group_count = usize::MAX;
    });
    refused_rank(&mut engine, Code::InvalidLayout, "0 tokens per block", &|named| {
        named.kv_group.tokens_per_block = 0;
    });
    refused_rank(
        &mut engine,
        Code::InvalidStruct,
        "rank says that it has 0 bytes",
        &|named| {
            named.rank.struct_size = 0;
        },
    );
    refused_rank(&mut engine, Code::Refused, "", &|named| named.rank.rank = 1);
    let mut named = Named::new(&mut engine);
    let mut seed = kvasir_key::default();
    // SAFETY: NULL is what is tried; what is not NULL lives across the calls.
    unsafe {
        refused(
            kvasir_join(client, null(), &mut 0, &mut seed),
            invalid,
            "rank is NULL",
        );
        refused(
            kvasir_join(client, &named.rank, null_mut(), &mut seed),
            invalid,
            "chunk_size is NULL",
        );
        refused(
            kvasir_join(client, &named.rank, &mut 0, null_mut()),
            invalid,
            "seed is NULL",
        );
    }
    assert_eq!(
        health(client).seed,
        kvasir_key::default(),
        "nothing is registered"
    );
    named.link();
    ok(named.join(client).0);
    ok(kvasir_client_close(client));
    refused(named.join(client).0, Code::Closed, "this client was closed");
}

#[test]
fn a_client_with_a_ring_joins_and_has_lanes_of_the_size_that_it_asked_for() {
    const LANE: u64 = 1 << 20;
    let mut engine = connected(|options| {
        options.maps = kvasir_maps::Ring as u32;
        options.ring_bytes = LANE;
    });
    let (code, _, seed) = Named::new(&mut engine).join(engine.client);
    ok(code);
    engine.seed = seed;
    engine.store(2);
    assert!(engine.load(2));
    let status = status();
    for expected in [
        "\"payload_path\":\"shm-ring\"".to_owned(),
        format!("\"lane_bytes\":{LANE}"),
    ] {
        assert!(status.contains(&expected), "{expected} in {status}");
    }
    ok(kvasir_client_close(engine.client));
}

#[test]
fn a_scheduler_has_nothing_to_join_with() {
    let mut engine = connected(|options| options.kind = kvasir_client_kind::Scheduler as u32);
    let named = Named::new(&mut engine);
    refused(
        named.join(engine.client).0,
        Code::InvalidArgument,
        "can neither store nor load",
    );
    assert_eq!(health(engine.client).chunk_size, 0, "nothing was negotiated");
    ok(kvasir_client_close(engine.client));
}

#[test]
fn large_copies_are_shared_by_as_many_threads_as_was_said() {
    let mut engine = connected(|options| options.copy_threads = 3);
    ok(Named::new(&mut engine).join(engine.client).0);
    // The registration says which copy the client uses.
    let shown = status();
    assert!(shown.contains(", 3 threads\""), "{shown}");
    ok(kvasir_client_close(engine.client));
}

#[test]
fn settings_out_of_range_are_errors_with_the_numbers() {
    let socket = CString::new(server().to_str().unwrap()).unwrap();
    let try_open = |change: &dyn Fn(&mut kvasir_client_options)| {
        let mut options = options(&socket, kvasir_client_kind::Worker);
        change(&mut options);
        // SAFETY: all of it lives across the call.
        unsafe { kvasir_client_open(&options, &mut kvasir_client::default()) }
    };
    let invalid = Code::InvalidArgument;
    let threads = try_open(&|options| options.copy_threads = 17);
    refused(
        threads,
        invalid,
        "options.copy_threads is 17, at most 16 are allowed",
    );
    assert_eq!(last().1, [17, 16]);
    let reserved = try_open(&|options| options.reserved = 5);
    refused(reserved, invalid, "a reserved field is 5");
    let without = try_open(&|options| options.ring_bytes = 4096);
    refused(
        without,
        invalid,
        "there is no ring: set options.maps to KVASIR_MAPS_RING",
    );
    let lanes = try_open(&|options| {
        options.maps = kvasir_maps::Ring as u32;
        options.ring_bytes = (64 << 20) + 1;
    });
    refused(
        lanes,
        invalid,
        "options.ring_bytes is 67108865, at most 67108864 are allowed",
    );
    assert_eq!(last().1, [67_108_865, 67_108_864]);
}

#[test]
fn options_of_the_first_version_are_read_without_what_came_later() {
    /// Bytes of `kvasir_client_options` in version 1.
    const FIRST: u32 = 72;
    // SAFETY of both calls: at most as many bytes are read as the struct says that it has.
    let mut engine = connected(|options| {
        options.struct_size = FIRST;
        // Whatever lies behind the older struct is the caller's, and not looked at.
        (options.ring_bytes, options.copy_threads, options.reserved) = (u64::MAX, u32::MAX, u32::MAX);
    });
    ok(Named::new(&mut engine).join(engine.client).0);
    ok(kvasir_client_close(engine.client));
}
