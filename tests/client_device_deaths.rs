//! Engines with device memory that die, or lose their device, while a copy runs: everything that they held comes back, and
//! nobody reads a wrong byte. The engines are processes of their own, beside a real server and another engine.

#![allow(unsafe_code)]

mod client_support;
mod device_support;

use std::os::unix::net::UnixStream;
use std::time::Duration;

use client_support::device::gpu;
use client_support::*;
use device_support::messages::{meet, receive, send};
use device_support::{faults, passes, peer, with_peer};
use kvasir::client::*;
use kvasir::keys::KeyChain;
use serde_json::Value;

/// Time that a call has whose copy never ends.
const SHORT: Duration = Duration::from_secs(2);

/// What happens to a victim: a fault of the stand-in, whether it is a store that meets it, and whether its client is
/// dropped before its process ends.
const DEATHS: [(&str, bool, bool); 7] = [
    ("never@1", true, false),
    ("never@1", false, false),
    ("never@1", true, true),
    ("copy-error@1", true, false),
    ("copy-error@1", false, true),
    ("lost", true, false),
    ("lost", false, false),
];

fn engine(socket: &std::path::Path, instance: u8, deadline: Duration) -> Engine {
    let engine = Engine::at(socket, &Shape::plain(256, 0), instance, |config| {
        config.pin_piece_bytes = 4 << 20;
        config.deadline = deadline;
    });
    eventually("the registration", || {
        let stats = engine.client.device_stats().unwrap();
        matches!(stats.pool, PoolPinning::Pinned { pieces: 16 })
    });
    engine
}

fn store(engine: &Engine, chain: &KeyChain) -> Vec<StoreOutcome> {
    let item = |chunk| store_chunk(chain, chunk, 0, four(1 + 4 * chunk as i64));
    engine.client.store(&[item(0), item(1), item(2)], &[]).unwrap()
}

fn load(engine: &Engine, chain: &KeyChain) -> Vec<bool> {
    let item = |chunk| load_chunk(chain, chunk, four(30 + 4 * chunk as i64));
    engine.client.load(1, 0, &[item(0), item(1), item(2)]).unwrap()
}

/// Bytes that are granted, quarantined and pinned, pin words, and clients.
fn held(status: &Value) -> [u64; 5] {
    let pool = |class: &str| status["pool"][class].as_u64().unwrap();
    let clients = status["clients"].as_array().unwrap();
    let words = clients.iter().map(|row| row["pin_words"].as_u64().unwrap());
    [
        pool("granted"),
        pool("quarantined"),
        pool("pinned"),
        words.sum(),
        clients.len() as u64,
    ]
}

/// The engine that dies. It says when it has come to where it holds something, and is killed there.
fn victim(mut socket: UnixStream) {
    let [case] = receive(&mut socket);
    let path: [u8; 128] = receive(&mut socket);
    let path = String::from_utf8(path.to_vec()).unwrap();
    let (fault, stores, drops) = DEATHS[usize::from(case)];
    let engine = engine(path.trim_end_matches('\0').as_ref(), 10 + case, SHORT);
    engine.fill(case.into());
    let good = engine.chain(3 * CHUNK + 1, u32::from(case));
    assert_published(&store(&engine, &good));
    eventually("the writes of the engine", || {
        gpu().engine.quarantined_bytes() == 0
    });
    faults(fault);
    if stores {
        let bad = engine.chain(3 * CHUNK + 1, 100 + u32::from(case));
        assert_eq!(store(&engine, &bad), [StoreOutcome::Dropped; 3]);
        // What would be as late is not begun, and holds nothing more.
        assert_eq!(store(&engine, &bad), [StoreOutcome::Dropped; 3]);
    } else {
        assert_eq!(load(&engine, &good), [false; 3]);
        assert_eq!(load(&engine, &good), [false; 3]);
    }
    let stats = engine.client.device_stats().unwrap();
    match fault {
        "never@1" => assert_eq!((stats.late_copies, stats.failed_copies), (1, 1)),
        "lost" => assert!(stats.last_error.unwrap().is_lost()),
        _ => assert!(stats.last_error.unwrap().to_string().contains("ILLEGAL_ADDRESS")),
    }
    // Lookups are no matter of the device.
    assert_eq!(engine.lookup(&good, 9).hit_tokens, 192);
    engine.client.release_label(9).unwrap();
    let Engine { client, memory, .. } = engine;
    if drops {
        drop(client);
    } else {
        std::mem::forget(client);
    }
    std::mem::forget(memory); // a lost device frees nothing
    meet(&mut socket);
    loop {
        std::thread::park();
    }
}

#[test]
fn engines_that_die_under_a_copy_leave_nothing_and_no_wrong_byte() {
    let name = "engines_that_die_under_a_copy_leave_nothing_and_no_wrong_byte";
    if let Some(socket) = peer() {
        return victim(socket);
    }
    passes(name, &[("KVASIR_TEST_PAGES", "device")], || {
        let place = Place::with_server();
        let bystander = engine(&place.socket(), 1, WATCHDOG);
        bystander.fill(200);
        assert_published(&store(&bystander, &bystander.chain(3 * CHUNK + 1, 200)));
        let before = held(&place.status());
        for (case, &(fault, stores, drops)) in DEATHS.iter().enumerate() {
            let what = format!("{fault}, stores: {stores}, drops: {drops}");
            let (mut child, mut socket) = with_peer(name, &[]);
            let mut path = [0; 128];
            let place_path = place.socket();
            let bytes = place_path.to_str().unwrap().as_bytes();
            path[..bytes.len()].copy_from_slice(bytes);
            send(&mut socket, &[case as u8]);
            send(&mut socket, &path);
            meet(&mut socket);
            // Long after the looks at a client without a connection.
            std::thread::sleep(Duration::from_millis(if drops { 600 } else { 0 }));
            let now = held(&place.status());
            let runs = fault != "lost";
            if stores {
                assert!(
                    !runs || now[0] >= before[0] + 3 * 65536,
                    "{what}: {now:?}, before {before:?}"
                );
            } else {
                assert!(!runs || now[3] > before[3], "{what}: {now:?}, before {before:?}");
            }
            child.kill().unwrap();
            child.wait().unwrap();
            eventually(&format!("everything of a victim to come back ({what})"), || {
                held(&place.status()) == before
            });
            // What it had stored before is whole, and what it had not is not there.
            let good = bystander.chain(3 * CHUNK + 1, case as u32);
            assert_eq!(load(&bystander, &good), [true; 3], "{what}");
            let loaded: Vec<_> = (30..42).map(|block| bystander.block(0, 0, block)).collect();
            bystander.fill(case as u64);
            for (block, loaded) in (1..).zip(loaded) {
                assert!(loaded == bystander.block(0, 0, block), "{what}: block {block}");
            }
            let bad = bystander.chain(3 * CHUNK + 1, 100 + case as u32);
            assert_eq!(bystander.lookup(&bad, 1).hit_tokens, 0, "{what}");
        }
    });
}
