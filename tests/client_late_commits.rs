//! Commits that a server does only after their client has given up waiting: what hangs under them is stored all the same.

mod client_support;

use std::time::Duration;

use client_support::*;
use kvasir::client::{StoreOutcome, StoreRequest};
use kvasir::object::FRAME_BYTES;
use nix::sys::signal::Signal;

/// What the server may take for a call; it is stopped for as long.
const DEADLINE: Duration = Duration::from_millis(500);
/// Idle space is to stay the client's.
const HEARTBEAT: Duration = Duration::from_secs(600);
/// Enough that the server takes many turns for their commit, in each of which a new connection gets a word in; and few
/// enough that the request lies in the socket of a stopped server as a whole.
const CHUNKS: usize = 500;

fn chunks(chain: &kvasir::keys::KeyChain, chunks: std::ops::Range<usize>) -> Vec<StoreRequest> {
    chunks
        .map(|chunk| store_chunk(chain, chunk, 0, four(1)))
        .collect()
}

/// The server is stopped while a commit is under way and goes on after the client has given up. The next store comes at
/// the first moment at which it can, and hangs under what that commit brings.
#[test]
fn what_hangs_under_a_late_commit_finds_it() {
    let mut place = Place::empty(&["--pool-size", "512MiB", "--chunk-size", "64"]);
    place.start();
    place.wait_prefaulted();
    let shape = Shape::plain(16, 0);
    let engine = Engine::unregistered(&place, &shape, 1, DEADLINE, HEARTBEAT);
    engine.client.negotiate(shape.negotiation()).unwrap();
    engine.client.register(shape.registration()).unwrap();
    for round in 0..5 {
        let chain = engine.chain((CHUNKS + 1) * CHUNK + 1, round);
        let bytes = CHUNKS as u64 * FRAME_BYTES;
        let held = engine.client.reserve(bytes).unwrap();
        assert!(held >= bytes, "{held} of {bytes} bytes");
        place.signal(Signal::SIGSTOP);
        let late = engine.client.store(&chunks(&chain, 0..CHUNKS), &[]).unwrap();
        assert_eq!(late, vec![StoreOutcome::Unavailable; CHUNKS]);
        place.signal(Signal::SIGCONT);
        eventually("recovery", || engine.client.is_healthy());
        let next = engine
            .client
            .store(&chunks(&chain, CHUNKS..CHUNKS + 1), &[])
            .unwrap();
        assert_eq!(next, [StoreOutcome::Published], "in round {round}");
        let hit = engine.lookup(&chain, 1);
        assert_eq!(hit.hit_tokens, ((CHUNKS + 1) * CHUNK) as u64);
        engine.client.release_label(1).unwrap();
        assert!(engine.client.clear().unwrap());
    }
}
