//! Processes that have a payload ring: what they can see of the server, and what is left when one of them is killed.

mod client_support;
mod rings_support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use client_support::*;
use kvasir::client::Maps;
use rings_support::*;

/// Set in a child: what it does, and where.
const CHILD: &str = "RING_CHILD";
const READY: &str = "child: ready";

/// A client process that ends with the value.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        // Fails when it has ended, and then there is nothing to end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a client process, and returns it with what it said before it was ready.
fn child(place: &Place, task: &str) -> (Child, Vec<String>) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{task} {}", place.socket().display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = Child(child.unwrap());
    let output = BufReader::new(child.0.stdout.take().unwrap());
    let mut said = Vec::new();
    for line in output.lines() {
        let line = line.unwrap();
        if line == READY {
            return (child, said);
        }
        said.push(line);
    }
    panic!("the child ended early: {said:?}");
}

/// What an engine's pages hold when it stores the chain of this salt.
fn fill_of(salt: u32) -> u64 {
    100 + u64::from(salt)
}

/// The main function of a child; nothing when it is run as a test.
#[test]
fn child_process() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let (task, socket) = task.split_once(' ').unwrap();
    let shape = Shape::plain(4096, 0);
    let engine = Engine::at(Path::new(socket), &shape, 7, |config| {
        config.maps = Maps::Ring;
        config.ring_bytes = SHORT;
    });
    engine.fill(3);
    match task {
        "shows" => {
            let chain = engine.chain(CHUNK + 1, std::process::id());
            assert_published(
                &engine
                    .client
                    .store(&[store_chunk(&chain, 0, 0, four(1))], &[])
                    .unwrap(),
            );
            assert!(engine.lookup(&chain, 1).pin.is_some());
            assert_eq!(
                engine
                    .client
                    .load(1, 0, &[load_chunk(&chain, 0, four(9))])
                    .unwrap(),
                [true]
            );
            print!("{}", std::fs::read_to_string("/proc/self/maps").unwrap());
            for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
                let to = std::fs::read_link(entry.path()).unwrap_or_default();
                println!("fd -> {}", to.display());
            }
        }
        "works" => {
            for round in 0.. {
                engine.fill(fill_of(round % 16));
                let chain = engine.chain(CHUNK + 1, round % 16);
                let store = store_chunk(&chain, 0, 0, four(1));
                let _ = engine.client.store(&[store], &[]).unwrap();
                if round == 0 {
                    println!("\n{READY}");
                }
                let _ = engine.lookup(&chain, 1);
                let _ = engine
                    .client
                    .load(1, 0, &[load_chunk(&chain, 0, four(9))])
                    .unwrap();
            }
        }
        "holds" => {
            let chain = engine.chain(CHUNK + 1, 1);
            assert!(engine.lookup(&chain, 1).pin.is_some());
            engine.client.reserve(4 << 20).unwrap();
        }
        other => panic!("{other}"),
    }
    println!("\n{READY}");
    loop {
        std::thread::park();
    }
}

/// What a process of such a client has of the server: the control region to read, and its own ring.
#[test]
fn a_process_with_a_ring_maps_nothing_of_anybody_else() {
    let place = Place::with_server();
    let shape = Shape::plain(4096, 0);
    // Somebody who maps everything, and whose bytes are in the pool.
    let mapped = Engine::start(&place, &shape, 1);
    mapped.fill(5);
    let chain = mapped.chain(CHUNK + 1, 1);
    assert_published(
        &mapped
            .client
            .store(&[store_chunk(&chain, 0, 0, four(1))], &[])
            .unwrap(),
    );
    let regions = |lines: &[String]| -> Vec<(String, String, u64, String)> {
        let shared = lines.iter().filter(|line| line.contains("memfd:kvasir-"));
        // What the test's engine keeps its pages in is its own.
        let shared = shared.filter(|line| !line.starts_with("fd") && !line.contains("kvasir-engine"));
        let mut found: Vec<_> = shared
            .map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let (from, to) = fields[0].split_once('-').unwrap();
                let at = |text| u64::from_str_radix(text, 16).unwrap();
                (
                    fields[5].to_owned(),
                    fields[1].to_owned(),
                    at(to) - at(from),
                    fields[4].to_owned(),
                )
            })
            .collect();
        found.sort();
        found
    };
    let own: Vec<String> = std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    let own = regions(&own);
    for region in ["control", "index", "epochs", "slabs", "pool"] {
        let name = format!("/memfd:kvasir-{region}");
        assert!(
            own.iter().any(|row| row.0 == name),
            "the test sees {name} where it is mapped: {own:?}"
        );
    }
    let children = [child(&place, "shows"), child(&place, "shows")];
    let mut rings = Vec::new();
    for (_, said) in &children {
        let found = regions(said);
        let shown: Vec<_> = found
            .iter()
            .map(|(name, access, bytes, _)| (name.as_str(), access.as_str(), *bytes))
            .collect();
        assert_eq!(
            shown,
            [
                ("/memfd:kvasir-control", "r--s", 4096),
                ("/memfd:kvasir-ring", "rw-s", (64 << 10) + 2 * SHORT),
            ],
            "{said:?}"
        );
        rings.push(found[1].3.clone());
        // No descriptor either that could be mapped later.
        let left: Vec<_> = said
            .iter()
            .filter(|line| line.starts_with("fd") && line.contains("memfd:kvasir-"))
            .filter(|line| !line.contains("kvasir-engine"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
    assert_ne!(rings[0], rings[1], "each has a ring of its own");
}

#[test]
fn a_client_killed_at_any_moment_leaves_no_wrong_bytes_and_nothing_held() {
    let place = Place::with_server();
    let shape = Shape::plain(4096, 0);
    let witness = ring_engine(&place, &shape, 7, SHORT);
    witness.client.give_back().unwrap();
    let held = || {
        let pool = &place.status()["pool"];
        ["granted", "pinned", "quarantined"].map(|class| pool[class].as_u64().unwrap())
    };
    for kill in 0..12_u64 {
        let (child, _) = child(&place, "works");
        // Somewhere in the midst of stores and loads, which go on all the time.
        std::thread::sleep(Duration::from_millis(3 * kill));
        drop(child); // kill -9
    }
    eventually("all to come back", || {
        held() == [0, 0, 0] && clients(&place).len() == 1
    });
    let mut hits = 0;
    for round in 0..16 {
        let chain = witness.chain(CHUNK + 1, round);
        if witness.lookup(&chain, 1).hit_tokens > 0 {
            hits += 1;
            witness.fill(fill_of(round));
            let original = pages(&witness, 1);
            assert_eq!(
                witness
                    .client
                    .load(1, 0, &[load_chunk(&chain, 0, four(40))])
                    .unwrap(),
                [true]
            );
            assert_eq!(pages(&witness, 40), original, "round {round}");
        }
    }
    assert!(hits > 0, "the killed clients have stored something");
    assert_eq!(witness.client.stats().corrupt_loads, 0);
}

#[test]
fn pins_and_grants_of_a_ring_end_with_its_process_and_hold_until_then() {
    let place = Place::with_server();
    let shape = Shape::plain(4096, 0);
    let engine = ring_engine(&place, &shape, 1, SHORT);
    engine.fill(1);
    let chain = engine.chain(CHUNK + 1, 1);
    assert_published(
        &engine
            .client
            .store(&[store_chunk(&chain, 0, 0, four(1))], &[])
            .unwrap(),
    );
    let (child, _) = child(&place, "holds");
    let pool = place.status()["pool"].clone();
    assert_eq!(pool["pinned"], 512 << 10);
    assert!(pool["granted"].as_u64().unwrap() >= 4 << 20);
    assert!(engine.client.clear().unwrap());
    assert_eq!(
        engine.lookup(&chain, 1).hit_tokens,
        CHUNK as u64,
        "its pin keeps it"
    );
    engine.client.release_label(1).unwrap();
    engine.client.give_back().unwrap();
    drop(child);
    eventually("all to come back", || {
        let pool = place.status()["pool"].clone();
        pool["pinned"] == 0 && pool["granted"] == 0
    });
    assert!(engine.client.clear().unwrap());
    assert_eq!(engine.lookup(&chain, 1).hit_tokens, 0);
}
