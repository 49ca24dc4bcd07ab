//! Pools of huge pages and on NUMA nodes, in real servers: what is asked for, what is had, and what is said of it.
//!
//! Whether a machine has huge pages is not for a test to choose. To take the transparent ones away from a server, this
//! process gives them up while it starts one: its children inherit that.

mod client_support;

use std::fs;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use client_support::*;
use kvasir::client::{LookupAnswer, StoreRequest};
use nix::sys::prctl::set_thp_disable;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Held while this process has given transparent huge pages up, or needs that it has not.
static TRANSPARENT: Mutex<()> = Mutex::new(());

struct Transparent(#[allow(dead_code)] MutexGuard<'static, ()>);

impl Transparent {
    fn allowed(allowed: bool) -> Self {
        let lock = TRANSPARENT.lock().unwrap_or_else(PoisonError::into_inner);
        set_thp_disable(!allowed).unwrap();
        Self(lock)
    }
}

impl Drop for Transparent {
    fn drop(&mut self) {
        set_thp_disable(false).unwrap();
    }
}

fn started(arguments: &[&str]) -> Place {
    let mut place = Place::empty(&[arguments, &["--chunk-size", "64"]].concat());
    place.start();
    place.wait_prefaulted();
    place
}

/// `pool.memory` once the whole pool was looked at.
fn memory(place: &Place) -> Value {
    eventually("a look at the whole pool", || {
        let pool = &place.status()["pool"];
        pool["memory"]["seen_at"] == pool["total"]
    });
    place.status()["pool"]["memory"].clone()
}

/// What a server says that does not start, and its exit code; or what another command prints.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVASIR_") {
            command.env_remove(name);
        }
    }
    let output = command.args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Has a server refused, and returns what it said last.
fn refused(arguments: &[&str], code: i32) -> String {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("k.sock");
    let socket_arguments = ["serve", "--socket", socket.to_str().unwrap()];
    let (ended, text) = run(&[&socket_arguments, arguments].concat());
    assert_eq!(ended, Some(code), "{text}");
    assert!(!text.contains(" ready ") && !socket.exists(), "{text}");
    text.lines().last().unwrap().to_owned()
}

fn table(place: &Place) -> String {
    run(&["status", "--socket", place.socket().to_str().unwrap()]).1
}

/// What the kernel says of a server's pool: bytes that huge pages map. Only root may read it of a process that is not dumpable.
fn in_smaps(place: &Place) -> Option<u64> {
    let pid = place.status()["pid"].as_u64().unwrap();
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?;
    let pool = smaps.split("memfd:kvasir-pool").nth(1)?;
    let pool = pool.split("VmFlags").next()?;
    let kib = |name: &str| -> u64 {
        let line = pool.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    Some((kib("ShmemPmdMapped:") + kib("Shared_Hugetlb:") + kib("Private_Hugetlb:")) << 10)
}

/// Stores what follows from the place in memory, and reads it back to where other bytes are.
fn serves(place: &Place) {
    let engine = Engine::start(place, &Shape::plain(1024, 0), 1);
    engine.fill(1);
    let chain = engine.chain(8 * CHUNK + 1, 7);
    let items: Vec<StoreRequest> = (0..8)
        .map(|chunk| store_chunk(&chain, chunk, 0, four(1 + 4 * chunk as i64)))
        .collect();
    let stored: Vec<Vec<u8>> = (1..33).map(|block| engine.block(0, 0, block)).collect();
    assert_published(&engine.client.store(&items, &[]).unwrap());
    let answer: LookupAnswer = engine.lookup(&chain, 1);
    assert_eq!(answer.hit_tokens, 8 * CHUNK as u64);
    engine.fill(2);
    let loads: Vec<_> = (0..8)
        .map(|chunk| load_chunk(&chain, chunk, four(1 + 4 * chunk as i64)))
        .collect();
    assert!(
        engine
            .client
            .load(2, 0, &loads)
            .unwrap()
            .iter()
            .all(|whole| *whole)
    );
    for (block, bytes) in (1..).zip(&stored) {
        assert!(engine.block(0, 0, block) == *bytes, "block {block}");
    }
    engine.client.release(answer.pin.as_slice()).unwrap();
}

#[test]
fn require_without_any_is_refused_with_what_was_found_and_what_to_do() {
    let _none = Transparent::allowed(false);
    if reserved_free() > 0 {
        eprintln!("SKIPPED: this machine has reserved huge pages");
        return;
    }
    let last = refused(&["--pool-size", "512MiB", "--huge-pages", "require"], 1);
    for part in [
        "--huge-pages is require",
        "512.0 MiB",
        "reserved huge pages",
        "transparent huge page",
        "1 refused with EINVAL",
        "vm.nr_hugepages=",
        "--huge-pages try",
    ] {
        assert!(last.contains(part), "{part}: {last}");
    }
    // Smaller than a huge page: there is no pool of whole ones.
    let last = refused(&["--pool-size", "1MiB", "--huge-pages", "require"], 1);
    assert!(last.contains("--huge-pages is require"), "{last}");
}

#[test]
fn try_without_any_falls_back_to_small_pages_and_says_so() {
    let none = Transparent::allowed(false);
    if reserved_free() > 0 {
        eprintln!("SKIPPED: this machine has reserved huge pages");
        return;
    }
    let place = started(&["--pool-size", "64MiB", "--huge-pages", "try"]);
    drop(none);
    let memory = memory(&place);
    assert_eq!(memory["huge_pages"], "try", "{memory}");
    assert_eq!(
        (&memory["pages"], &memory["huge_bytes"]),
        (&"transparent".into(), &0.into())
    );
    assert_eq!(in_smaps(&place).unwrap_or(0), 0);
    let log = place.log();
    let none = [
        "the pool has no reserved huge pages",
        "of reserved huge pages of 2.0 MiB it needs 32, and 0 are free",
    ];
    assert!(none.iter().all(|part| log.contains(part)), "{log}");
    let why = memory["not_reserved"].as_str().unwrap();
    assert!(why.contains("it needs 32, and 0 are free ("), "{memory}");
    // Every one that was asked for was refused, and after so many no more were.
    assert_eq!(
        memory["not_huge"],
        "32 refused with EINVAL (this kernel is older than 6.1, or has them off for this process or this memory)",
        "{memory}"
    );
    let table = table(&place);
    assert!(
        table.contains("not huge: 32 refused with EINVAL") && table.contains("not reserved: of reserved"),
        "{table}"
    );
    assert!(
        log.contains("of the pool 0 B of 64.0 MiB are huge pages"),
        "{log}"
    );
    serves(&place);
}

#[test]
fn off_asks_for_none() {
    let place = started(&["--pool-size", "16MiB", "--huge-pages", "off"]);
    let memory = memory(&place);
    assert_eq!(
        (&memory["pages"], &memory["huge_bytes"]),
        (&"small".into(), &Value::Null)
    );
    assert_eq!(memory["huge_page_bytes"], Value::Null, "{memory}");
    serves(&place);
}

#[test]
fn what_status_says_is_huge_is_huge_in_smaps() {
    let _allowed = Transparent::allowed(true);
    let place = started(&["--pool-size", "65MiB"]);
    let seen = memory(&place);
    let huge = seen["huge_bytes"].as_u64().unwrap();
    assert_eq!(in_smaps(&place).unwrap_or(huge), huge, "{seen}");
    assert_eq!(
        place.status()["pool"]["total"],
        65 * MIB,
        "no byte is lost for it"
    );
    serves(&place);
    if huge < 64 * MIB {
        eprintln!("SKIPPED: this machine makes {huge} bytes of huge pages of shared memory");
        return;
    }
    assert_eq!(
        (&seen["pages"], huge),
        (&"transparent".into(), 64 * MIB),
        "{seen}"
    );
    let table = table(&place);
    assert!(
        table.contains("transparent huge pages (64.0 MiB of 65.0 MiB huge)"),
        "{table}"
    );
    let place = started(&["--pool-size", "65MiB", "--huge-pages", "require"]);
    let seen = memory(&place);
    assert_eq!(
        place.status()["pool"]["total"],
        64 * MIB,
        "whole huge pages and nothing else"
    );
    assert_eq!(seen["huge_bytes"], 64 * MIB, "{seen}");
    serves(&place);
}

/// Reserved huge pages of this machine that nobody has.
fn reserved_free() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let number = |name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name));
        line.map_or(0, |line| line.split_whitespace().nth(1).unwrap().parse().unwrap())
    };
    number("HugePages_Free:") - number("HugePages_Rsvd:")
}

/// Pages that this test has set aside, and what there was before.
struct Set(String);

impl Set {
    const FILE: &str = "/proc/sys/vm/nr_hugepages";

    /// Nothing where it may not, where others use such pages, or where there are none to be had.
    fn aside(pages: u64) -> Option<Self> {
        let before = fs::read_to_string(Self::FILE).ok()?;
        let size = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        if before.trim() != "0"
            || !fs::exists(size).unwrap_or(false)
            || fs::write(Self::FILE, pages.to_string()).is_err()
        {
            return None;
        }
        let set = Self(before);
        (reserved_free() == pages).then_some(set)
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        fs::write(Self::FILE, &self.0).unwrap();
    }
}

#[test]
fn reserved_pages_are_taken_when_they_hold_the_whole_pool() {
    let _none = Transparent::allowed(false);
    let Some(_set) = Set::aside(20) else {
        eprintln!("SKIPPED: no reserved huge pages of 2 MiB to be had");
        return;
    };
    {
        let place = started(&["--pool-size", "33MiB", "--huge-pages", "try"]);
        let seen = memory(&place);
        assert_eq!(seen["pages"], "reserved", "{seen}");
        assert_eq!(place.status()["pool"]["total"], 32 * MIB, "whole pages");
        assert_eq!(seen["huge_bytes"], 32 * MIB);
        assert_eq!(in_smaps(&place).unwrap_or(32 * MIB), 32 * MIB);
        serves(&place);
        assert_eq!(reserved_free(), 4);
        // What is left does not hold another, which is told so.
        let last = refused(&["--pool-size", "32MiB", "--huge-pages", "require"], 1);
        assert!(last.contains("it needs 16, and 4 are free"), "{last}");
        let other = started(&["--pool-size", "8MiB", "--huge-pages", "require"]);
        assert_eq!(memory(&other)["huge_bytes"], 8 * MIB);
        // `auto` leaves them to whoever they were set aside for.
        let plain = started(&["--pool-size", "8MiB"]);
        assert_eq!(memory(&plain)["pages"], "transparent");
    }
    eventually("the pages back", || reserved_free() == 20);
}

#[test]
fn one_node_is_said_and_nothing_is_placed_and_a_node_that_is_not_there_is_refused() {
    let nodes = fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    if nodes.trim() != "0" {
        eprintln!("SKIPPED: this machine has the nodes {nodes:?}");
        return;
    }
    for setting in ["auto", "0"] {
        let place = started(&["--pool-size", "16MiB", "--numa", setting]);
        let seen = memory(&place);
        assert_eq!(
            (&seen["numa"], &seen["policy"]),
            (&setting.into(), &"none".into()),
            "{seen}"
        );
        assert_eq!(
            seen["placement"],
            "this machine has one node (0), so there is nothing to place"
        );
        assert_eq!(
            seen["bytes_by_node"]["0"].as_u64().unwrap_or(16 * MIB),
            16 * MIB,
            "{seen}"
        );
        assert!(
            place.log().contains("this machine has one node (0)"),
            "{}",
            place.log()
        );
        let table = table(&place);
        assert!(table.contains("NUMA: this machine has one node (0)"), "{table}");
    }
    let last = refused(&["--numa", "0,3"], 1);
    let told = "--numa is 0,3, but this machine's nodes with memory are 0;";
    assert!(last.contains(told), "{last}");
    refused(&["--numa", "near"], 2);
}
