//! An engine that stores a prompt's KV cache and gets it back, byte for byte.
//!
//! ```sh
//! cargo run --example store_and_load             # with a server in this process
//! cargo run --example store_and_load -- SOCKET   # with the server that listens there
//! ```
//!
//! Where the engine's memory is and how it registers: `engine/mod.rs`.

mod engine;

use std::path::Path;
use std::thread;
use std::time::Instant;

use engine::{BLOCK_BYTES, BLOCK_TOKENS, BLOCKS, Engine, Result, ask, keys};
use kvasir::client::{LoadRequest, ObjectId, StoreRequest};
use kvasir::server::{self, ByteSize, Config};
use nix::sys::signal::{Signal, raise};

/// A number that the engine chooses per request: it labels the pins of that request.
const REQUEST: u64 = 1;

fn main() -> Result<()> {
    if let Some(socket) = std::env::args_os().nth(1) {
        return store_and_load(Path::new(&socket));
    }
    let directory = tempfile::tempdir()?;
    let mut config = Config::with_defaults(directory.path().join("kvasir.sock"));
    config.pool_size = ByteSize(64 << 20);
    let socket = config.socket.clone();
    let server = thread::spawn(move || server::run(config, Instant::now()));
    let result = store_and_load(&socket);
    // A server stops at SIGTERM, whoever sends it.
    raise(Signal::SIGTERM)?;
    server.join().expect("the server does not panic")?;
    result
}

fn store_and_load(socket: &Path) -> Result<()> {
    let engine = Engine::start(socket, 0, 1)?;

    // A prompt of three chunks and one block more, in blocks 1, 2, 3 and so on. Block 0 is the null block of an engine:
    // it holds nothing, and the client neither reads nor writes it.
    let tokens: Vec<u32> = (0..(3 * engine.chunk_tokens + BLOCK_TOKENS) as u32).collect();
    let blocks = tokens.len() as u64 / BLOCK_TOKENS;
    for block in 1..=blocks {
        engine.write_block(block, block)?;
    }

    // Each full chunk is one object, and what is left is a tail. Each but the first names the object before it.
    let chain = keys(engine.seed, engine.chunk_tokens, &tokens)?;
    let chunks = chain.keys().iter().map(|key| (engine.chunk_tokens as u32, *key));
    let tail = chain.tail_keys(BLOCK_TOKENS as u32).into_iter().last();
    let mut next = 1;
    let stores = chunks
        .chain(tail)
        .enumerate()
        .map(|(chunk, (tokens, key))| StoreRequest {
            id: ObjectId { key, group: 0 },
            parent: chunk.checked_sub(1).map(|before| chain.keys()[before]),
            part: 0,
            tokens,
            blocks: Some(vec![take_blocks(&mut next, tokens)]),
        });
    let stores: Vec<StoreRequest> = stores.collect();
    engine.wait_for_room(blocks * BLOCK_BYTES);
    for (request, outcome) in stores.iter().zip(engine.client.store(&stores, &[])?) {
        println!("store of {} tokens: {}", request.tokens, outcome.name());
    }

    // Another request has the same prompt. The pin keeps what was found until it is loaded.
    let hit = ask(&engine.client, engine.seed, &chain, REQUEST)?;
    println!("hit: {} of {} tokens", hit.hit_tokens, tokens.len());

    // Its blocks are others, as it happens.
    let first = BLOCKS - blocks;
    let mut next = first as i64;
    let loads = hit.loads.iter().map(|item| LoadRequest {
        id: item.id,
        tokens: item.tokens,
        blocks: vec![take_blocks(&mut next, item.tokens)],
    });
    let loads: Vec<LoadRequest> = loads.collect();
    let loaded = engine.client.load(REQUEST, 0, &loads)?;
    engine.client.release(hit.pin.as_slice())?;

    // A load can fail at any time: an engine then computes those tokens again.
    if loaded.contains(&false) || hit.hit_tokens < tokens.len() as u64 {
        return Err(format!("loaded {loaded:?} of {} tokens", hit.hit_tokens).into());
    }
    for block in 0..blocks {
        if engine.read_block(first + block)? != engine.read_block(1 + block)? {
            return Err(format!("block {block} has other bytes than were stored").into());
        }
    }
    println!("loaded: {blocks} blocks, every byte as it was stored");
    Ok(())
}

/// The next block ids for so many tokens.
fn take_blocks(next: &mut i64, tokens: u32) -> Vec<i64> {
    let first = *next;
    *next += i64::from(tokens) / BLOCK_TOKENS as i64;
    (first..*next).collect()
}
