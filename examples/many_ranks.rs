//! A tensor parallel engine: each rank holds one part of every object.
//!
//! ```sh
//! cargo run --example many_ranks -- SOCKET [RANKS]
//! ```
//!
//! The ranks are threads here and processes in an engine; the server sees no difference. They do not wait for each
//! other: an object becomes visible with its last part, whoever brings it.

mod engine;

use std::path::Path;
use std::sync::Barrier;
use std::thread;

use engine::{BLOCK_BYTES, BLOCK_TOKENS, Engine, Result, agree, ask, connect, keys};
use kvasir::client::{ClientKind, LoadRequest, ObjectId, StoreRequest};
use kvasir::keys::KeyChain;

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let socket = arguments.next().ok_or("usage: many_ranks SOCKET [RANKS]")?;
    let ranks: u16 = match arguments.next() {
        Some(ranks) => ranks.to_string_lossy().parse()?,
        None => 4,
    };
    let scheduler = connect(Path::new(&socket), ClientKind::Scheduler)?;

    // All ranks compute the same keys: a part is named by the object and its number.
    let (chunk_tokens, seed) = agree(&scheduler, ranks)?;
    let tokens: Vec<u32> = (0..chunk_tokens as u32).map(|token| token + 1000).collect();
    let chain = keys(seed, chunk_tokens, &tokens)?;

    // Until all ranks have registered, nobody can tell whether an object is complete, and a lookup is a miss. Then
    // it is a miss until the last part is there.
    let mut engines = Vec::new();
    for rank in 0..ranks {
        let engine = Engine::start(Path::new(&socket), rank, ranks)?;
        let before = ask(&scheduler, seed, &chain, 0)?;
        let outcome = store(&engine, rank.into(), &chain)?;
        let after = ask(&scheduler, seed, &chain, 0)?;
        println!(
            "rank {rank} registered: hit {}; stored its part: {outcome}, hit {} of {chunk_tokens} tokens",
            before.hit_tokens, after.hit_tokens
        );
        scheduler.release_label(0)?;
        engines.push(engine);
    }

    // The ranks load at the same time, each its own part. The scheduler's pin keeps all of them until then.
    let hit = ask(&scheduler, seed, &chain, 1)?;
    let begin = Barrier::new(engines.len());
    thread::scope(|scope| {
        let load = |(rank, engine)| {
            let (begin, chain) = (&begin, &chain);
            scope.spawn(move || {
                begin.wait();
                load(engine, rank, chain).map_err(|error| format!("rank {rank}: {error}"))
            })
        };
        let threads: Vec<_> = engines.iter().enumerate().map(load).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a rank does not panic"))
    })?;
    scheduler.release(hit.pin.as_slice())?;
    println!("every rank loaded its part, every byte as it was stored");
    Ok(())
}

/// Stores this rank's part of the only chunk, and says what became of it.
fn store(engine: &Engine, rank: usize, chain: &KeyChain) -> Result<&'static str> {
    let blocks = engine.chunk_tokens / BLOCK_TOKENS;
    for block in 0..blocks {
        engine.write_block(1 + block, content(rank, block))?;
    }
    engine.wait_for_room(blocks * BLOCK_BYTES);
    let request = StoreRequest {
        id: ObjectId {
            key: chain.keys()[0],
            group: 0,
        },
        parent: None,
        part: rank as u16,
        tokens: engine.chunk_tokens as u32,
        blocks: Some(vec![(1..=blocks as i64).collect()]),
    };
    Ok(engine.client.store(&[request], &[])?[0].name())
}

/// Loads this rank's part into other blocks, and compares the bytes.
fn load(engine: &Engine, rank: usize, chain: &KeyChain) -> std::result::Result<(), String> {
    let blocks = engine.chunk_tokens / BLOCK_TOKENS;
    let first = 100;
    let request = LoadRequest {
        id: ObjectId {
            key: chain.keys()[0],
            group: 0,
        },
        tokens: engine.chunk_tokens as u32,
        blocks: vec![(first..first + blocks).map(|block| block as i64).collect()],
    };
    let loaded = engine
        .client
        .load(1, rank as u16, &[request])
        .map_err(|error| error.to_string())?;
    if loaded != [true] {
        return Err("the object went away".into());
    }
    for block in 0..blocks {
        let read = |block| engine.read_block(block).map_err(|error| error.to_string());
        if read(first + block)? != read(1 + block)? {
            return Err(format!("block {block} has other bytes than were stored"));
        }
    }
    Ok(())
}

/// What a block of a rank holds: no two have the same.
fn content(rank: usize, block: u64) -> u64 {
    rank as u64 * 1000 + block
}
