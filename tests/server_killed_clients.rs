//! Clients killed at their worst moments: everything that they held comes back, and nothing of theirs is served.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::*;
use kvasir::wire::*;
use serde_json::Value;

const KILLS: usize = 100;

/// Set in a child: where to connect, and how far to go before it waits for its death.
const CHILD: &str = "KILLED_CLIENT";
const MARK: &str = "victim: ready";

/// What a victim holds when it dies.
const STAGES: [&str; 3] = ["granted", "half-committed", "pinned"];

#[test]
fn a_client_killed_between_grant_and_commit_a_hundred_times_leaves_nothing() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut bystander = server.worker();
    store(&mut bystander, 1);
    let before = held(&server.status());
    let mut objects = 0;
    for number in 0..KILLS {
        let stage = STAGES[number % STAGES.len()];
        kill_at(server.socket(), stage);
        let status = server.status();
        assert_balanced(&status);
        objects = objects.max(status["objects"].as_u64().unwrap());
    }
    let last_death = Instant::now();
    eventually("everything to come back", || {
        let status = server.status();
        assert_balanced(&status);
        held(&status) == before
    });
    println!(
        "{KILLS} clients killed; granted, quarantined and pinned were back {:.0} ms after the last death",
        last_death.elapsed().as_secs_f64() * 1e3
    );
    assert_eq!(objects, 1, "no half-written object was ever visible");
    let status = server.status();
    assert_eq!(status["partials"], 0);
    let clients = status["clients"].as_array().unwrap();
    assert_eq!(clients.len(), 1, "only the bystander is left: {clients:?}");
    // The slabs and frames are good for others.
    let mut fresh = server.worker();
    store(&mut fresh, 2);
    store(&mut bystander, 3);
}

/// A client that lives but has lost its connection keeps what it may still be writing to.
#[test]
fn a_living_client_keeps_its_grants_and_a_dead_connection_its_pins_not() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut client = server.worker();
    store(&mut client, 1);
    grant_one(&mut client);
    assert!(matches!(client.call(&lookup(&client, &[1])), Reply::Lookup(_)));
    assert_eq!(server.status()["pool"]["pinned"], CHUNK_BYTES);
    client.stream().shutdown(std::net::Shutdown::Both).unwrap();
    eventually("the pins to go", || server.status()["pool"]["pinned"] == 0);
    // Long enough for any timer that would take the grant back.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let status = server.status();
    assert_ne!(status["pool"]["granted"], 0, "the lock byte is still held");
    assert_eq!(status["clients"][0]["connected"], false);
    drop(client);
    eventually("the grant to come back", || {
        server.status()["pool"]["granted"] == 0
    });
}

fn held(status: &Value) -> [u64; 3] {
    ["granted", "quarantined", "pinned"].map(|class| status["pool"][class].as_u64().unwrap())
}

/// Starts a client, lets it get to `stage` and kills it there.
fn kill_at(socket: &Path, stage: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{stage} {}", socket.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let ready = output.lines().any(|line| line.unwrap() == MARK);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ready, "the victim ended before it was killed");
}

/// The main function of a victim; nothing when it is run as a test.
#[test]
fn child_process() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let (stage, socket) = task.split_once(' ').unwrap();
    let mut client = RawClient::connect(Path::new(socket));
    client.hello(true);
    client.attach();
    assert!(matches!(client.negotiate(ALIGNMENT), Reply::Negotiate(_)));
    let mut register = registration();
    if stage == "half-committed" {
        // A domain of its own, of which this is one of two ranks.
        register.domain.model = "test/two-ranks".into();
        register.world_size = 2;
        register.groups[0].parts = 2;
    }
    match client.call(&Request::RegisterKvCache(register)) {
        Reply::Register(reply) => client.seed = Some(reply.domain_seed),
        other => panic!("{other:?}"),
    }
    let extent = grant_one(&mut client);
    match stage {
        "granted" => {}
        "half-committed" => {
            let commit = commit_of(&client, 7, extent);
            match client.call(&Request::Commit(commit)) {
                Reply::Commit(reply) => assert_eq!(reply.outcomes, [CommitOutcome::PartAccepted]),
                other => panic!("{other:?}"),
            }
        }
        "pinned" => match client.call(&lookup(&client, &[1])) {
            Reply::Lookup(found) => assert_ne!(found.pin, 0),
            other => panic!("{other:?}"),
        },
        other => panic!("{other}"),
    }
    println!("\n{MARK}");
    loop {
        std::thread::park();
    }
}
