//! The programs of `examples/` against a real server: they end well, and say what they are there to show.

mod client_support;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use client_support::*;

/// What cargo has built of `examples/`, as it does for `cargo test`.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test
        .parent()
        .and_then(|dependencies| dependencies.parent())
        .unwrap();
    let program = profile.join("examples").join(name);
    assert!(
        program.is_file(),
        "{} is not built; `cargo build --examples` does it",
        program.display()
    );
    program
}

/// The lines that an example prints; it has to succeed.
fn run(name: &str, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new(example(name));
    command.args(arguments).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{name}: {}\n{printed}{errors}",
        output.status
    );
    printed.lines().map(str::to_owned).collect()
}

/// A server of chunks of 64 tokens.
fn server() -> (Place, String) {
    let place = Place::with_server();
    let socket = place.socket().to_str().unwrap().to_owned();
    (place, socket)
}

const STORED: [&str; 6] = [
    "store of 64 tokens: published",
    "store of 64 tokens: published",
    "store of 64 tokens: published",
    "store of 16 tokens: published",
    "hit: 208 of 208 tokens",
    "loaded: 13 blocks, every byte as it was stored",
];

#[test]
fn a_prompt_is_stored_and_loaded_and_a_scheduler_finds_it() {
    let (place, socket) = server();
    assert_eq!(
        run("lookup", &[&socket]),
        ["no engine of this model has registered yet"]
    );
    assert_eq!(run("store_and_load", &[&socket]), STORED);
    // Each prompt finds what it shares.
    assert_eq!(
        run("lookup", &[&socket]),
        [
            "the same prompt: hit 208 of 208 tokens",
            "another second chunk: hit 64 of 208 tokens",
            "another first token: hit 0 of 208 tokens",
            "3 of 3 lookups without a message",
        ]
    );
    // The same again: the objects are there already, and loaded all the same.
    let again = run("store_and_load", &[&socket]);
    assert_eq!(again[0], "store of 64 tokens: exists");
    assert_eq!(again[4..], STORED[4..]);
    assert_eq!(place.status()["pool"]["pinned"], 0, "every pin was given back");
}

#[test]
fn without_a_socket_the_server_runs_in_the_same_process() {
    let printed = run("store_and_load", &[]);
    assert_eq!(
        printed.last().unwrap(),
        "loaded: 49 blocks, every byte as it was stored"
    );
    assert_eq!(printed[0], "store of 256 tokens: published");
}

#[test]
fn an_object_of_many_ranks_is_there_with_its_last_part() {
    let (_place, socket) = server();
    for ranks in [1, 3] {
        let mut expected: Vec<String> = (0..ranks - 1)
            .map(|rank| {
                format!("rank {rank} registered: hit 0; stored its part: part_accepted, hit 0 of 64 tokens")
            })
            .collect();
        let last = ranks - 1;
        expected.push(format!(
            "rank {last} registered: hit 0; stored its part: published, hit 64 of 64 tokens"
        ));
        expected.push("every rank loaded its part, every byte as it was stored".to_owned());
        assert_eq!(
            run("many_ranks", &[&socket, &ranks.to_string()]),
            expected,
            "{ranks} ranks"
        );
    }
}
