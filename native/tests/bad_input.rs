//! What C can do wrong is an error code and a message, never a crash.

#![allow(unsafe_code)] // every pointer here is NULL, misaligned, or to a value that lives across the call

mod support;

use std::ffi::CString;
use std::ptr::{null, null_mut};

use kvasir_c::kvasir_code as Code;
use kvasir_c::*;
use support::*;

#[test]
fn null_is_an_error_everywhere() {
    let engine = Engine::start("null");
    let (client, chain) = (engine.client, engine.chain(1, 200));
    let request: kvasir_lookup_request = made();
    // SAFETY: NULL is what is tried; what is not NULL lives across the calls.
    unsafe {
        let calls = [
            kvasir_client_open(null(), &mut kvasir_client::default()),
            kvasir_client_open(
                &options(&CString::new("s").unwrap(), kvasir_client_kind::Tool),
                null_mut(),
            ),
            kvasir_required_alignment(null(), 1, &mut 0),
            kvasir_required_alignment(SPANS.as_ptr(), 1, null_mut()),
            kvasir_negotiate(client, null(), &mut 0),
            kvasir_negotiate(client, &made(), null_mut()),
            kvasir_warnings(client, null_mut(), 10, &mut 0),
            kvasir_warnings(client, null_mut(), 0, null_mut()),
            kvasir_register(client, null(), &mut kvasir_key::default()),
            kvasir_register(client, &made(), &mut kvasir_key::default()), // no domain
            kvasir_domain_seed(null(), 64, &mut kvasir_key::default()),
            kvasir_domain_seed(&made(), 64, &mut kvasir_key::default()), // no model
            kvasir_set_memory(client, null()),
            kvasir_chain_new(null(), &mut kvasir_chain::default()),
            kvasir_chain_extend(chain, null(), 4),
            kvasir_chain_keys(chain, 0, 2, null_mut()),
            kvasir_chain_tail_key(chain, 0, 16, null_mut()),
            kvasir_lookup(client, null(), &mut made()),
            kvasir_lookup(client, &request, null_mut()),
            kvasir_lookup_start(client, &request, null_mut()),
            kvasir_lookup_poll(client, 1, 0, null_mut(), &mut made()),
            kvasir_release(client, null(), 1),
            kvasir_store(client, null(), 1, null(), 0, &mut 0),
            kvasir_store(client, &made(), 1, null(), 0, null_mut()),
            kvasir_store(client, null(), 0, null(), 1, &mut 0),
            kvasir_load(client, 1, 0, null(), 1, &mut 0),
            kvasir_load(client, 1, 0, &made(), 1, null_mut()),
            kvasir_present(client, 0, null(), 1, &mut 0),
            kvasir_reserve(client, 1, null_mut()),
            kvasir_clear(client, null_mut()),
            kvasir_get_capabilities(null_mut()),
            kvasir_last_error(null_mut()),
            kvasir_get_health(client, null_mut()),
            kvasir_status_json(client, null_mut(), 5, &mut 0),
            kvasir_get_stats(client, null_mut()),
            kvasir_get_counters(client, null_mut()),
            kvasir_count_reuse(client, null()),
        ];
        for (index, code) in calls.into_iter().enumerate() {
            assert_eq!(code, Code::InvalidArgument, "call {index}");
        }
        refused(
            kvasir_set_memory(client, null()),
            Code::InvalidArgument,
            "memory is NULL",
        );
        // A count of 0 needs no pointer, and nothing is asked of the server.
        ok(kvasir_store(client, null(), 0, null(), 0, null_mut()));
        ok(kvasir_load(client, 1, 0, null(), 0, null_mut()));
        ok(kvasir_chain_extend(chain, null(), 0));
    }
    ok(kvasir_client_close(client));
}

#[test]
fn misaligned_pointers_are_errors_with_the_address() {
    let engine = Engine::start("misaligned");
    let chain = engine.chain(1, 200);
    let mut space = [0_u64; 64];
    // SAFETY: the addresses lie in `space`, which lives across the calls; nothing is read or written at them.
    unsafe {
        let odd = space.as_mut_ptr().byte_add(1);
        refused(
            kvasir_reserve(engine.client, 1, odd),
            Code::InvalidArgument,
            "which is no multiple of 8",
        );
        assert_eq!(last().1, [odd.addr() as i64, 8]);
        for code in [
            kvasir_chain_extend(chain, odd.cast(), 4),
            kvasir_get_stats(engine.client, odd.cast()),
            kvasir_set_memory(engine.client, odd.cast()),
            kvasir_lookup(engine.client, odd.cast(), &mut made()),
            kvasir_store(engine.client, odd.cast(), 1, null(), 0, &mut 0),
            kvasir_release(engine.client, odd.cast(), 1),
        ] {
            assert_eq!(code, Code::InvalidArgument);
        }
    }
    ok(kvasir_client_close(engine.client));
}

#[test]
fn structs_of_other_versions_are_told_from_those_that_are_none() {
    let engine = Engine::start("versions");
    // Larger than this library's, and zero behind what it knows: a newer engine that uses nothing new.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Newer {
        known: kvasir_stats,
        more: [u64; 4],
    }
    // SAFETY: the structs are as large as they say.
    unsafe {
        let mut newer = Newer {
            known: made(),
            more: [0; 4],
        };
        newer.known.struct_size = size_of::<Newer>() as u32;
        ok(kvasir_get_stats(engine.client, (&raw mut newer).cast()));
        assert_eq!(
            newer.known.struct_size as usize,
            size_of::<Newer>(),
            "the size stays the caller's"
        );
        for size in [0, 8, 12, 148, 156, 5000, u32::MAX] {
            newer.known.struct_size = size;
            let code = kvasir_get_stats(engine.client, (&raw mut newer).cast());
            refused(
                code,
                Code::InvalidStruct,
                &format!("says that it has {size} bytes; kvasir_stats has 152"),
            );
        }

        #[repr(C)]
        #[derive(Clone, Copy)]
        struct NewReuse {
            known: kvasir_reuse,
            more: [u64; 2],
        }
        let mut reuse = NewReuse {
            known: made(),
            more: [0; 2],
        };
        reuse.known.struct_size = size_of::<NewReuse>() as u32;
        ok(kvasir_count_reuse(engine.client, (&raw const reuse).cast()));
        reuse.more[1] = 1;
        let code = kvasir_count_reuse(engine.client, (&raw const reuse).cast());
        refused(code, Code::InvalidStruct, "is not zero at byte 80");

        // Elements of different sizes.
        let mut items: [kvasir_load_item; 2] = [made(), made()];
        items[1].struct_size += 8;
        let code = kvasir_load(engine.client, 1, 0, items.as_ptr(), 2, [0_u8; 2].as_mut_ptr());
        refused(
            code,
            Code::InvalidStruct,
            "element 1 says that it has 72 bytes, the first one 64",
        );
    }
    ok(kvasir_client_close(engine.client));
}

#[test]
fn closed_and_foreign_handles_are_errors() {
    let mut engine = Engine::start("handles");
    let (client, chain) = (engine.client, engine.chain(1, 100));
    // SAFETY: pointers to locals.
    unsafe {
        let swapped = kvasir_client { id: chain.id };
        refused(
            kvasir_release_label(swapped, 1),
            Code::InvalidHandle,
            "is not a client",
        );
        let swapped = kvasir_chain { id: client.id };
        refused(
            kvasir_chain_size(swapped, null_mut(), null_mut()),
            Code::InvalidHandle,
            "is not a chain",
        );
        for id in [0, 1, client.id + 1000, u64::MAX] {
            assert_eq!(
                kvasir_give_back(kvasir_client { id }),
                Code::InvalidHandle,
                "{id:#x}"
            );
        }
        ok(kvasir_chain_free(chain));
        refused(kvasir_chain_free(chain), Code::Closed, "this chain was closed");
        refused(
            kvasir_chain_extend(chain, [1_u32].as_ptr(), 1),
            Code::Closed,
            "closed",
        );
        assert_eq!(look_up(client, chain, &mut []).0, Code::Closed);
        ok(kvasir_client_close(client));
        refused(
            kvasir_client_close(client),
            Code::Closed,
            "this client was closed",
        );
        let (mut number, mut held) = (0, 0_u64);
        for code in [
            kvasir_reserve(client, 1, &mut held),
            kvasir_store(client, null(), 0, null(), 0, null_mut()),
            kvasir_load(client, 1, 0, null(), 0, null_mut()),
            kvasir_status_json(client, null_mut(), 0, &mut number),
            kvasir_get_stats(client, &mut made()),
            kvasir_set_conditions(client, 1),
        ] {
            assert_eq!(code, Code::Closed);
        }
    }
    engine.memory.clear(); // nobody looks at it any more
}

#[test]
fn an_answer_that_does_not_fit_pins_nothing() {
    let mut engine = Engine::start("room");
    engine.store(1);
    let chain = engine.chain(1, CHUNK);
    let pinned = || {
        let mut counters: kvasir_counters = made();
        // SAFETY: the struct lives across the call.
        ok(unsafe { kvasir_get_counters(engine.client, &mut counters) });
        counters.pinned_bytes
    };
    let mut room = [kvasir_found::default(); 2];
    let (code, answer) = look_up(engine.client, chain, &mut room);
    ok(code);
    assert_eq!((answer.hit_tokens, answer.found_count), (u64::from(CHUNK), 1));
    assert_ne!(answer.pin.id, 0);
    // SAFETY: the pins live across the calls.
    unsafe {
        ok(kvasir_release(engine.client, &answer.pin, 1));
        refused(
            kvasir_release(engine.client, &answer.pin, 1),
            Code::UnknownPin,
            "is not held",
        );
        ok(kvasir_release(engine.client, &kvasir_pin::default(), 1)); // no pin
    }
    // A capacity of 0 with an address is no room.
    let (code, answer) = look_up(engine.client, chain, &mut room[..0]);
    refused(
        code,
        Code::BufferTooSmall,
        "answer.found: 1 are needed, there is room for 0",
    );
    assert_eq!((answer.found_count, answer.pin.id, last().1), (1, 0, vec![1, 0]));
    eventually("nothing pinned", || pinned() == 0);

    let (mut length, mut text) = (0, [1_u8; 8]);
    // SAFETY: as large as said.
    unsafe {
        let code = kvasir_state_text(engine.client, text.as_mut_ptr().cast(), 7, &mut length);
        refused(code, Code::BufferTooSmall, "8 are needed, there is room for 7");
        assert_eq!((length, text), (7, [1; 8]), "nothing was written");
        ok(kvasir_state_text(
            engine.client,
            text.as_mut_ptr().cast(),
            8,
            &mut length,
        ));
        assert_eq!(&text, b"healthy\0");
        ok(kvasir_status_json(engine.client, null_mut(), 0, &mut length));
        assert!(length > 1000);
    }
    ok(kvasir_chain_free(chain));
    ok(kvasir_client_close(engine.client));
}

#[test]
fn weights_are_known_by_every_byte_and_unreadable_ones_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let model = directory.path().join("model");
    std::fs::create_dir(&model).unwrap();
    let weights = model.join("model.safetensors");
    let text = |path: &std::path::Path| CString::new(path.to_str().unwrap()).unwrap();
    let (path, cache) = (text(&model), text(&directory.path().join("cache")));
    let identify = |overrides: *const std::ffi::c_char| {
        let mut identity = kvasir_key::default();
        // SAFETY: all of it lives across the call.
        let code =
            unsafe { kvasir_identify_weights(path.as_ptr(), overrides, cache.as_ptr(), &mut identity) };
        (code, identity)
    };
    refused(identify(null()).0, Code::WeightsUnreadable, "model");
    let mut bytes = vec![7_u8; 100_000];
    std::fs::write(&weights, &bytes).unwrap();
    let (code, first) = identify(null());
    ok(code);
    assert_eq!(identify(null()).1, first);
    assert_ne!(identify(c"rope=2".as_ptr()).1, first);
    bytes[77_777] += 1;
    std::fs::write(&weights, &bytes).unwrap();
    let (code, second) = identify(null());
    ok(code);
    assert_ne!(second, first);
    // SAFETY: NULL is what is tried.
    let code = unsafe { kvasir_identify_weights(null(), null(), null(), null_mut()) };
    refused(code, Code::InvalidArgument, "identity is NULL");
}

#[test]
fn values_out_of_range_are_errors_with_the_numbers() {
    let mut engine = Engine::start("ranges");
    let socket = CString::new(server().to_str().unwrap()).unwrap();
    let mut client = kvasir_client::default();
    let mut try_open = |change: &dyn Fn(&mut kvasir_client_options)| {
        let mut options = options(&socket, kvasir_client_kind::Tool);
        change(&mut options);
        // SAFETY: all of it lives across the call.
        unsafe { kvasir_client_open(&options, &mut client) }
    };
    refused(try_open(&|o| o.kind = 9), Code::InvalidArgument, "kind 9");
    refused(
        try_open(&|o| o.maps = 9),
        Code::InvalidArgument,
        "options.maps is 9",
    );
    refused(try_open(&|o| o.flags = 6), Code::InvalidArgument, "flags 0x6");
    refused(
        try_open(&|o| o.deadline_ms = u64::MAX),
        Code::InvalidArgument,
        "at most",
    );
    refused(
        try_open(&|o| o.socket = c"".as_ptr()),
        Code::InvalidArgument,
        "0 bytes",
    );
    refused(
        try_open(&|o| o.name = c"\xff".as_ptr()),
        Code::InvalidArgument,
        "not UTF-8",
    );
    let chain = engine.chain(1, 100);
    // SAFETY: pointers to locals that live across the calls; counts that are too large are refused before anything is read.
    unsafe {
        let token = 1;
        refused(
            kvasir_chain_extend(chain, &token, usize::MAX),
            Code::TooManyItems,
            "tokens: 18446744073709551615",
        );
        let mut key = kvasir_key::default();
        refused(
            kvasir_chain_keys(chain, 1, 1, &mut key),
            Code::InvalidArgument,
            "of 1 full chunks",
        );
        assert_eq!(last().1, [1, 1, 1]);
        refused(
            kvasir_chain_keys(chain, usize::MAX, 1, &mut key),
            Code::InvalidArgument,
            "full chunks",
        );
        refused(
            kvasir_chain_tail_key(chain, 1, 40, &mut key),
            Code::InvalidArgument,
            "of a chain with 100 tokens",
        );
        let (mut item, mut outcome): (kvasir_store_item, u32) = (made(), 0);
        refused(
            kvasir_store(engine.client, &item, 1 << 40, null(), 0, &mut outcome),
            Code::TooManyItems,
            "items: 1099511627776",
        );
        item.flags = 8;
        refused(
            kvasir_store(engine.client, &item, 1, null(), 0, &mut outcome),
            Code::InvalidArgument,
            "flags 0x8",
        );
        item.flags = 0;
        item.tokens = CHUNK;
        item.group = 9;
        assert_eq!(
            kvasir_store(engine.client, &item, 1, null(), 0, &mut outcome),
            Code::UnknownGroup
        );
        item.group = 0;
        let ids = [1_i64, 2, 3, BLOCKS as i64];
        let list = kvasir_block_list {
            ids: ids.as_ptr(),
            count: 4,
        };
        (item.lists, item.list_count) = (&list, 1);
        refused(
            kvasir_store(engine.client, &item, 1, null(), 0, &mut outcome),
            Code::BlockOutOfRange,
            "block id 64 is outside 0..64",
        );
        assert_eq!(last().1, [0, 64, 64]);
        refused(
            kvasir_lookup_poll(engine.client, 77, 0, &mut 0, &mut made()),
            Code::UnknownTicket,
            "77",
        );
        refused(
            kvasir_set_conditions(engine.client, 1 << 50),
            Code::InvalidArgument,
            "mean something",
        );
        // The server's own refusal, with its code and numbers.
        let mut request: kvasir_negotiation = made();
        request.required_alignment = 48;
        let spans = [kvasir_span {
            tokens: 48,
            ..SPANS[0]
        }];
        (request.spans, request.span_count) = (spans.as_ptr(), 1);
        refused(
            kvasir_negotiate(engine.client, &request, &mut 0),
            Code::Refused,
            "64",
        );
        let mut error: kvasir_error = made();
        ok(kvasir_last_error(&mut error));
        assert_eq!(
            error.server_code,
            kvasir_server_code::IncompatibleChunkSize as i32
        );
        // A region that wraps around the address space.
        let region = kvasir_region {
            base: usize::MAX as *mut u8,
            bytes: 4096,
        };
        let mut memory: kvasir_memory = made();
        memory.blocks = 1;
        (memory.regions, memory.region_count) = (&region, 1);
        refused(
            kvasir_set_memory(engine.client, &memory),
            Code::InvalidLayout,
            "is no memory",
        );
    }
    // All of that changed nothing.
    engine.store(3);
    assert!(engine.load(3));
    ok(kvasir_client_close(engine.client));
}
