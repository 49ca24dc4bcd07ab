//! A server in this process, and an engine that calls the functions of the header.

#![allow(dead_code, unreachable_pub)] // each test binary uses its own part of this
#![allow(unsafe_code)] // every pointer here is to a value that lives across the call

pub mod random;

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use kvasir::server::{self, ByteSize, Config};
use kvasir_c::*;

/// Longer than anything here takes on the slowest machine; reaching it is a failure, not a measurement.
pub const WATCHDOG: Duration = Duration::from_secs(60);
pub const BLOCK_TOKENS: u64 = 16;
pub const PAGE: usize = 4096;
pub const BLOCKS: usize = 64;
/// Tokens of a chunk of these servers.
pub const CHUNK: u32 = 64;

/// The socket of this process's server, which runs until the process ends.
pub fn server() -> &'static Path {
    static SOCKET: OnceLock<PathBuf> = OnceLock::new();
    SOCKET.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap().keep();
        let mut config = Config::with_defaults(directory.join("k.sock"));
        config.pool_size = ByteSize(32 << 20);
        config.chunk_size = server::ChunkSize(kvasir::control::Minimum::Tokens(u64::from(CHUNK)));
        let socket = config.socket.clone();
        std::thread::spawn(|| server::run(config, Instant::now()).unwrap());
        socket
    })
}

/// A struct with its size set and all else zero, as KVASIR_INIT makes it.
pub fn made<T: Copy>() -> T {
    // SAFETY: the structs of the header are made of integers and raw pointers, for which zeroes are values. Each begins with
    // its size, a `u32`.
    unsafe {
        let mut value: T = std::mem::zeroed();
        (&raw mut value).cast::<u32>().write(size_of::<T>() as u32);
        value
    }
}

pub fn ok(code: kvasir_code) {
    assert_eq!(code, kvasir_code::Ok, "{}", last().2);
}

/// Code, numbers and message of this thread's last error.
pub fn last() -> (i32, Vec<i64>, String) {
    let mut error: kvasir_error = made();
    // SAFETY: the struct lives across the call, and the texts until the next failing one.
    unsafe {
        assert_eq!(kvasir_last_error(&mut error), kvasir_code::Ok);
        let message = std::ffi::CStr::from_ptr(error.message)
            .to_str()
            .unwrap()
            .to_owned();
        (
            error.code,
            error.numbers[..error.number_count as usize].to_vec(),
            message,
        )
    }
}

/// Asserts that a call was refused, and that its message has some words in it.
pub fn refused(code: kvasir_code, expected: kvasir_code, words: &str) {
    assert_eq!(code, expected, "{}", last().2);
    let (kept, _, message) = last();
    assert_eq!(kept, expected as i32);
    assert!(message.contains(words), "{message:?} has no {words:?}");
}

pub fn options(socket: &CString, kind: kvasir_client_kind) -> kvasir_client_options {
    let mut options: kvasir_client_options = made();
    options.kind = kind as u32;
    options.socket = socket.as_ptr();
    options.name = c"test".as_ptr();
    options.engine_instance = [7; 16];
    options.grant_bytes = 1 << 20;
    options
}

pub fn open(socket: &Path) -> kvasir_client {
    let socket = CString::new(socket.to_str().unwrap()).unwrap();
    let options = options(&socket, kvasir_client_kind::Worker);
    let mut client = kvasir_client::default();
    // SAFETY: all of it lives across the call.
    ok(unsafe { kvasir_client_open(&options, &mut client) });
    client
}

pub fn health(client: kvasir_client) -> kvasir_health {
    let mut health: kvasir_health = made();
    // SAFETY: as above.
    ok(unsafe { kvasir_get_health(client, &mut health) });
    health
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < WATCHDOG, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A worker with memory and a registration.
pub struct Engine {
    pub client: kvasir_client,
    pub seed: kvasir_key,
    pub memory: Vec<u8>,
}

pub const SPANS: [kvasir_span; 1] = [kvasir_span {
    group: 0,
    reserved: 0,
    tokens: BLOCK_TOKENS,
}];

impl Engine {
    pub fn start(model: &str) -> Self {
        let client = open(server());
        eventually("a server", || health(client).healthy == 1);
        let mut engine = Self {
            client,
            seed: kvasir_key::default(),
            memory: vec![0; BLOCKS * PAGE],
        };
        let mut negotiation: kvasir_negotiation = made();
        negotiation.required_alignment = BLOCK_TOKENS;
        negotiation.spans = SPANS.as_ptr();
        negotiation.span_count = 1;
        let mut chunk = 0;
        // SAFETY: all of it lives across the calls, the memory until the client is closed.
        unsafe {
            ok(kvasir_negotiate(client, &negotiation, &mut chunk));
            assert_eq!(chunk, u64::from(CHUNK));
            engine.set_memory();
            ok(register(client, model, &mut engine.seed));
        }
        engine
    }

    pub fn set_memory(&mut self) {
        let region = kvasir_region {
            base: self.memory.as_mut_ptr(),
            bytes: self.memory.len() as u64,
        };
        let layer = kvasir_layer {
            block_stride: PAGE as u64,
            page_bytes: PAGE as u64,
            ..Default::default()
        };
        let mut kv_group: kvasir_kv_group = made();
        kv_group.tokens_per_block = BLOCK_TOKENS;
        (kv_group.layers, kv_group.layer_count) = (&layer, 1);
        let mut group: kvasir_group_memory = made();
        (group.kv_groups, group.kv_group_count) = (&kv_group, 1);
        let mut memory: kvasir_memory = made();
        memory.blocks = BLOCKS as u64;
        (memory.regions, memory.region_count) = (&region, 1);
        (memory.groups, memory.group_count) = (&group, 1);
        // SAFETY: all of it lives across the call, and the region until the client is closed.
        ok(unsafe { kvasir_set_memory(self.client, &memory) });
    }

    /// The keys of a prompt of some tokens, which follow from its number.
    pub fn chain(&self, prompt: u32, tokens: u32) -> kvasir_chain {
        let mut options: kvasir_chain_options = made();
        options.seed = self.seed;
        options.chunk_size = CHUNK;
        let mut chain = kvasir_chain::default();
        let tokens: Vec<u32> = (0..tokens).map(|at| prompt * 100_000 + at).collect();
        // SAFETY: all of it lives across the calls.
        unsafe {
            ok(kvasir_chain_new(&options, &mut chain));
            ok(kvasir_chain_extend(chain, tokens.as_ptr(), tokens.len()));
        }
        chain
    }

    /// Fills the blocks of a chunk with bytes that follow from the prompt, and stores it.
    pub fn store(&mut self, prompt: u32) -> kvasir_outcome {
        let key = self.key(prompt);
        for block in 1..=4 {
            self.memory[block * PAGE..(block + 1) * PAGE].fill((prompt * 16) as u8 + block as u8);
        }
        let ids = [1_i64, 2, 3, 4];
        let list = kvasir_block_list {
            ids: ids.as_ptr(),
            count: 4,
        };
        let mut item: kvasir_store_item = made();
        item.key = key;
        item.tokens = CHUNK;
        (item.lists, item.list_count) = (&list, 1);
        let mut outcome = 99;
        // SAFETY: all of it lives across the calls.
        unsafe {
            let mut held = 0;
            eventually("room", || {
                ok(kvasir_reserve(self.client, 1 << 20, &mut held));
                held >= 1 << 20
            });
            ok(kvasir_store(
                self.client,
                &item,
                1,
                std::ptr::null(),
                0,
                &mut outcome,
            ));
        }
        [kvasir_outcome::Published, kvasir_outcome::Exists]
            .into_iter()
            .find(|known| *known as u32 == outcome)
            .unwrap_or_else(|| panic!("outcome {outcome}"))
    }

    /// Loads that chunk into other blocks. Whether it came whole, with the bytes that were stored.
    pub fn load(&mut self, prompt: u32) -> bool {
        let key = self.key(prompt);
        let ids = [11_i64, 12, 13, 14];
        let list = kvasir_block_list {
            ids: ids.as_ptr(),
            count: 4,
        };
        let mut item: kvasir_load_item = made();
        item.key = key;
        item.tokens = CHUNK;
        (item.lists, item.list_count) = (&list, 1);
        let mut loaded = 99;
        self.memory[11 * PAGE..15 * PAGE].fill(0);
        // SAFETY: all of it lives across the call.
        ok(unsafe { kvasir_load(self.client, 5, 0, &item, 1, &mut loaded) });
        let expected = |block: usize| (prompt * 16) as u8 + (block - 10) as u8;
        loaded == 1
            && (11..15).all(|block| {
                self.memory[block * PAGE..(block + 1) * PAGE]
                    .iter()
                    .all(|byte| *byte == expected(block))
            })
    }

    pub fn key(&self, prompt: u32) -> kvasir_key {
        let chain = self.chain(prompt, CHUNK);
        let mut key = kvasir_key::default();
        // SAFETY: the key lives across the call.
        ok(unsafe { kvasir_chain_keys(chain, 0, 1, &mut key) });
        ok(kvasir_chain_free(chain));
        key
    }
}

/// Registers a full-attention group of one layer.
///
/// # Safety
/// None beyond the pointers of the header, which this makes itself.
pub unsafe fn register(client: kvasir_client, model: &str, seed: &mut kvasir_key) -> kvasir_code {
    let model = CString::new(model).unwrap();
    let mut domain: kvasir_domain = made();
    domain.model = model.as_ptr();
    domain.weights_id = kvasir_bytes {
        data: b"1".as_ptr(),
        size: 1,
    };
    domain.kv_dtype = c"bfloat16".as_ptr();
    domain.fingerprint = domain.weights_id;
    domain.parallel_shape = c"tp=1".as_ptr();
    let mut group: kvasir_group = made();
    group.kind = kvasir_group_kind::Full as u32;
    group.parts = 1;
    group.unit_bytes = PAGE as u64;
    let mut registration: kvasir_registration = made();
    registration.domain = &domain;
    registration.world_size = 1;
    registration.required_alignment = BLOCK_TOKENS;
    registration.spans = SPANS.as_ptr();
    registration.span_count = 1;
    (registration.groups, registration.group_count) = (&group, 1);
    registration.blocks = BLOCKS as u64;
    registration.layers = 1;
    // SAFETY: all of it lives across the call.
    unsafe { kvasir_register(client, &registration, seed) }
}

/// Looks a chain up with room for `room` objects.
pub fn look_up(
    client: kvasir_client,
    chain: kvasir_chain,
    room: &mut [kvasir_found],
) -> (kvasir_code, kvasir_answer) {
    let mut request: kvasir_lookup_request = made();
    request.chain = chain;
    request.label = 5;
    request.tail_step = BLOCK_TOKENS as u32;
    let mut answer: kvasir_answer = made();
    answer.found = room.as_mut_ptr();
    answer.found_capacity = room.len();
    // SAFETY: all of it lives across the call.
    let code = unsafe { kvasir_lookup(client, &request, &mut answer) };
    (code, answer)
}
