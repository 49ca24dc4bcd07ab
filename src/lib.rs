//! Kvasir: a co-located KV-cache server for LLM inference engines.
//!
//! A server owns a pool of shared memory and an index of what lies in it. Engines on the same machine put the KV
//! cache of their prompts there and get it back: after it was evicted from their own memory, in another engine,
//! after a restart. Payload is never sent. An engine maps the pool and copies between it and its own memory. A
//! socket carries what needs the server: chunk size, registration, space for stores, what was stored.
//!
//! This crate is the client library that engines link, and with its default features the server and the program
//! `kvasir` as well.
//!
//! | Feature | Adds | Needs |
//! |---|---|---|
//! | (none) | [`client`], [`keys`], [`geometry`], [`wire`] | no event loop, no parser, no JSON |
//! | `describe` | `describe`, descriptions of engines | serde_json |
//! | `server` | `server`, to run one in the own process | tokio, toml, serde_json |
//! | `cli` | `cli` and the program, with both of the above | clap, tracing-subscriber |
//! | `cuda` | KV memory of GPUs, for engines in Rust | cudarc, and at run time a driver |
//!
//! # Words
//!
//! An **object** is the KV cache of one chunk of a prompt, named by a **key** over all tokens up to the chunk's
//! end. A **domain** is all else that decides about its bytes: the model, its weights, the layout. Engines of one
//! domain share objects. A **tail** is the object of a prompt's last tokens, which fill no chunk. A **rank** of a
//! tensor parallel engine holds one **part** of each object, and an object is there when all its parts are.
//!
//! # Modules, in the order in which to read them
//!
//! 1. [`client`]: connect, join, store, look up, load. What an engine calls.
//! 2. [`keys`]: from tokens to keys.
//! 3. [`geometry`]: from an engine's KV cache groups to spans, chunk size and bytes.
//! 4. [`wire`]: the messages, for those who write another client.
//! 5. `server`: settings, and how to run one. Its parts are the crate's own.
//!
//! Below these lie, from the bottom up, shared memory (`shm`), the agreement on the chunk size (`control`), the
//! copies (`copy`), the index (`index`), the pool (`pool`) and the server's half of the cache (`cache`). They are
//! public for the tests and benches of the repository alone.
//!
//! # A whole engine
//!
//! One KV cache group of two layers. `examples/` has the same in more steps, with many ranks, and for a scheduler.
//!
#![cfg_attr(feature = "server", doc = "```")]
#![cfg_attr(not(feature = "server"), doc = "```ignore")]
//! use kvasir::client::*;
//! use kvasir::keys::{Extras, KeyChain};
//! use kvasir::server::{self, ByteSize, Config};
//!
//! // A server, in a thread. It stops at SIGTERM, as the program does.
//! let directory = tempfile::tempdir()?;
//! let mut config = Config::with_defaults(directory.path().join("kvasir.sock"));
//! config.pool_size = ByteSize(32 << 20);
//! let socket = config.socket.clone();
//! let server = std::thread::spawn(|| server::run(config, std::time::Instant::now()));
//!
//! // A client connects by itself as soon as there is a server.
//! let client = Client::new(ClientConfig::new(socket, ClientKind::Worker, "tour", [1; 16]))?;
//! let wait = |holds: &dyn Fn() -> bool| {
//!     while !holds() {
//!         std::thread::sleep(std::time::Duration::from_millis(5));
//!     }
//! };
//! wait(&|| client.is_healthy());
//!
//! // Join: where the pages of 64 blocks of 16 tokens lie, [layer, block, page], and what they hold. Both sides agree on
//! // the size of a chunk, a multiple of the blocks. (One by one: `negotiate`, `set_memory`, `register`.)
//! let (blocks, page) = (64, 1024);
//! let kv = HostMemory::zeroed(2 * blocks * page);
//! let layer = |layer: usize| LayerPages {
//!     region: 0,
//!     offset: (layer * blocks * page) as u64,
//!     block_stride: page as u64,
//!     page_bytes: page as u64,
//! };
//! let pages = KvGroupPages { tokens_per_block: 16, layers: vec![layer(0), layer(1)] };
//! let Joined { chunk_tokens, seed } = client.join(Rank {
//!     domain: Domain {
//!         model: "tour/model".into(),
//!         weights_id: b"revision 1".to_vec(),
//!         kv_dtype: "bfloat16".into(),
//!         fingerprint: b"[layer, block, page]".to_vec(),
//!         parallel_shape: "tp=1".into(),
//!     },
//!     rank: 0,
//!     world_size: 1,
//!     preferred_chunk: 256,
//!     memory: vec![kv.clone()],
//!     groups: vec![(ObjectKind::Full, ObjectGroupPages { group: 0, kv_groups: vec![pages] })],
//!     blocks: blocks as u64,
//! })?;
//! assert_eq!(chunk_tokens, 256);
//!
//! // Store: a prompt of one chunk, whose KV cache lies in blocks 1 to 16. Every block holds other bytes.
//! let tokens: Vec<u32> = (0..256).collect();
//! let mut chain = KeyChain::new(seed, 256, Extras::default())?;
//! chain.extend(&tokens);
//! let at = |layer: usize, block: usize| ((layer * blocks + block) * page) as u64;
//! let bytes = |layer: usize, block: usize| vec![(100 * layer + block) as u8; page];
//! for block in 1..=16 {
//!     kv.write(at(0, block), &bytes(0, block))?;
//!     kv.write(at(1, block), &bytes(1, block))?;
//! }
//! let id = ObjectId { key: chain.keys()[0], group: 0 };
//! wait(&|| client.reserve(1 << 20).is_ok_and(|held| held >= 1 << 20));
//! let stored = client.store(
//!     &[StoreRequest { id, parent: None, part: 0, tokens: 256, blocks: Some(vec![(1..=16).collect()]) }],
//!     &[],
//! )?;
//! assert_eq!(stored, [StoreOutcome::Published]);
//!
//! // Look up: the prompt of another request. Its label is 7, and the hit stays in the pool until the pin is released.
//! let hit = client.lookup(&LookupRequest {
//!     domain_seed: seed,
//!     label: 7,
//!     keys: chain.keys(),
//!     tails: &TailList::default(),
//!     max_tokens: 256,
//!     local_tokens: 0,
//!     pin: true,
//!     describe: false,
//! })?;
//! assert_eq!((hit.hit_tokens, hit.loads[0].id), (256, id));
//!
//! // Load: into blocks 40 to 55.
//! let load = LoadRequest { id, tokens: 256, blocks: vec![(40..56).collect()] };
//! assert_eq!(client.load(7, 0, &[load])?, [true]);
//! client.release(hit.pin.as_slice())?;
//! for block in 0..16 {
//!     for layer in 0..2 {
//!         let mut loaded = vec![0; page];
//!         kv.read(at(layer, 40 + block), &mut loaded)?;
//!         assert_eq!(loaded, bytes(layer, 1 + block));
//!     }
//! }
//! # nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM)?;
//! # server.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layers
//!
//! The module list in `lib.rs` is also the layering: a module may import those above it, never those below it.
//! `cargo xtask layers` checks that. `unsafe` is denied here and opened only in the modules that touch shared memory or
//! copy payload.

// The words of shared memory are u64 and little-endian (docs/shm-layout.md).
#[cfg(not(all(target_pointer_width = "64", target_endian = "little", target_os = "linux")))]
compile_error!("Kvasir is for 64-bit little-endian Linux only");

pub mod geometry;

#[cfg(feature = "describe")]
pub mod describe;

pub mod keys;

pub mod object;

// What is hidden is no interface: it is public for this repository's tests, benches and fuzz targets, which play
// hostile peers and count what single steps cost. It changes without notice.
#[doc(hidden)]
pub mod sync;

#[doc(hidden)]
pub mod shm;

#[doc(hidden)]
pub mod control;

pub mod wire;

#[doc(hidden)]
pub mod copy;

#[cfg(feature = "cuda")]
#[doc(hidden)]
pub mod device;

#[doc(hidden)]
pub mod index;

#[cfg(feature = "server")]
#[doc(hidden)]
pub mod pool;

#[cfg(feature = "server")]
#[doc(hidden)]
pub mod cache;

#[cfg(all(feature = "server", not(loom)))] // tokio has no sockets under loom
pub mod server;

pub mod client;

#[cfg(all(feature = "cli", not(loom)))]
pub mod cli;
