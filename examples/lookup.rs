//! A scheduler that asks how much of a prompt is cached, and moves no byte of it.
//!
//! ```sh
//! cargo run --example store_and_load -- SOCKET   # stores a prompt
//! cargo run --example lookup -- SOCKET           # asks for it, and for others
//! ```
//!
//! A scheduler maps the index read-only. Once it knows the domain, a lookup reads memory and sends no message.

mod engine;

use std::error::Error;
use std::path::Path;

use engine::{BLOCK_TOKENS, Result, agree, ask, connect, keys};
use kvasir::client::{ClientError, ClientKind, ErrorCode};

fn main() -> Result<()> {
    let socket = std::env::args_os().nth(1).ok_or("usage: lookup SOCKET")?;
    let client = connect(Path::new(&socket), ClientKind::Scheduler)?;
    let (chunk_tokens, seed) = agree(&client, 1)?;

    let stored: Vec<u32> = (0..(3 * chunk_tokens + BLOCK_TOKENS) as u32).collect();
    let mut another_end = stored.clone();
    // A token in the second chunk differs: keys from there on do, those before it do not.
    another_end[chunk_tokens as usize + 5] = 99_999;
    let mut another_begin = stored.clone();
    another_begin[0] = 99_999;

    let prompts = [
        ("the same prompt", stored),
        ("another second chunk", another_end),
        ("another first token", another_begin),
    ];
    for (request, (what, tokens)) in prompts.iter().enumerate() {
        let chain = keys(seed, chunk_tokens, tokens)?;
        let hit = match ask(&client, seed, &chain, request as u64) {
            Ok(hit) => hit,
            // A server that is away is a miss; so is a domain of which no rank has registered, to a scheduler.
            Err(error) if is_unknown_domain(&*error) => {
                println!("no engine of this model has registered yet");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        println!("{what}: hit {} of {} tokens", hit.hit_tokens, tokens.len());
        // What was found is pinned, so that it is there when a worker loads it. Nobody will here.
        client.release(hit.pin.as_slice())?;
    }
    let stats = client.stats();
    println!(
        "{} of {} lookups without a message",
        stats.direct_lookups, stats.lookups
    );
    Ok(())
}

fn is_unknown_domain(error: &(dyn Error + 'static)) -> bool {
    let refused = error.downcast_ref::<ClientError>();
    matches!(refused, Some(ClientError::Refused(error)) if error.code == ErrorCode::NotRegistered)
}
