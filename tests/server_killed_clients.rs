//! Clients killed at their worst moments: everything that they held comes back, and nothing of theirs is served.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::*;
use kvasir::client::{Client, ClientConfig, ClientError, LookupAnswer};
use kvasir::geometry::ObjectKind;
use kvasir::object::*;
use kvasir::wire::*;
use nix::sys::signal::Signal;
use serde_json::Value;

const KILLS: usize = 100;

/// Set in a child: where to connect, and how far to go before it waits for its death.
const CHILD: &str = "KILLED_CLIENT";
const MARK: &str = "victim: ready";

/// What a victim holds when it dies.
const STAGES: [&str; 4] = ["granted", "half-committed", "pinned", "pinned-by-itself"];

#[test]
fn a_client_killed_between_grant_and_commit_a_hundred_times_leaves_nothing() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut bystander = server.worker();
    store(&mut bystander, 1);
    let engine = engine(&server, WATCHDOG);
    let before = held(&server.status());
    let mut objects = 0;
    for number in 0..KILLS {
        let stage = STAGES[number % STAGES.len()];
        kill_at(server.socket(), stage);
        // The deaths are nobody else's: every call of an engine is answered, not ended by its deadline.
        assert_eq!(calls(&engine), ANSWERED, "after the death of number {number}");
        let status = server.status();
        assert_balanced(&status);
        objects = objects.max(status["objects"].as_u64().unwrap());
    }
    eventually("everything to come back", || {
        let status = server.status();
        assert_balanced(&status);
        held(&status) == before
    });
    assert_eq!(objects, 1, "no half-written object was ever visible");
    let status = server.status();
    assert_eq!(status["incomplete"], 0);
    let clients = status["clients"].as_array().unwrap();
    assert_eq!(
        clients.len(),
        2,
        "only the bystander and the engine are left: {clients:?}"
    );
    // The slabs and frames are good for others.
    let mut fresh = server.worker();
    store(&mut fresh, 2);
    store(&mut bystander, 3);
}

/// The other side of what the test above asserts: where nobody answers, each of the same calls ends by its deadline with
/// a result that says so.
#[test]
fn calls_to_a_server_that_does_not_answer_end_and_say_so() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    store(&mut server.worker(), 1);
    let engine = engine(&server, Duration::from_secs(3));
    assert_eq!(calls(&engine), ANSWERED);
    server.signal(Signal::SIGSTOP);
    assert_eq!(calls(&engine), UNANSWERED);
    server.signal(Signal::SIGCONT);
    eventually("the engine to find its server again", || {
        engine.is_healthy() && calls(&engine) == ANSWERED
    });
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Answered,
    Unavailable,
}

const ANSWERED: [Ended; 4] = [Ended::Answered; 4];
/// A lookup is the client's own business.
const UNANSWERED: [Ended; 4] = [
    Ended::Answered,
    Ended::Unavailable,
    Ended::Unavailable,
    Ended::Unavailable,
];

/// An engine process by the library, beside the raw ones.
fn engine(server: &ServerProcess, deadline: Duration) -> Client {
    engine_at(server.socket(), deadline)
}

fn engine_at(socket: &Path, deadline: Duration) -> Client {
    let mut config = ClientConfig::new(socket, ClientKind::Worker, "engine", [7; 16]);
    config.deadline = deadline;
    config.heartbeat = Duration::from_millis(200);
    config.grant_bytes = 0;
    let client = Client::new(config).unwrap();
    client.negotiate(negotiation()).unwrap();
    client.register(registration()).unwrap();
    client
}

fn negotiation() -> Negotiate {
    match negotiate(ALIGNMENT) {
        Request::Negotiate(request) => request,
        other => panic!("{other:?}"),
    }
}

fn asked(engine: &Client) -> LookupAnswer {
    engine
        .lookup(
            &Lookup {
                domain_seed: engine.domain_seed().unwrap(),
                label: 1,
                keys: vec![key(1)],
                tails: TailList::default(),
                max_tokens: u64::MAX,
                local_tokens: 0,
                pin: true,
                describe: false,
            }
            .as_request(),
        )
        .unwrap()
}

/// A lookup that hits, a negotiation, a grant and a status, and how each ended. Anything but the two ways is a failure.
fn calls(engine: &Client) -> [Ended; 4] {
    let found = asked(engine);
    let lookup = match (found.degraded, found.hit_tokens, found.pin) {
        (false, CHUNK, Some(_)) => Ended::Answered,
        (true, 0, None) => Ended::Unavailable,
        _ => panic!("{found:?}"),
    };
    engine.release_label(1).unwrap();
    [
        lookup,
        ended(engine.negotiate(negotiation())),
        ended(engine.reserve(CHUNK_BYTES).and_then(|_| engine.give_back())),
        ended(engine.status()),
    ]
}

fn ended<T>(result: Result<T, ClientError>) -> Ended {
    match result {
        Ok(_) => Ended::Answered,
        Err(ClientError::Unavailable { .. }) => Ended::Unavailable,
        Err(error) => panic!("{error:?}"),
    }
}

/// A chunk of a model of three groups, of which its writer stored two: nobody may resume there, as what is missing would
/// be garbage.
#[test]
fn a_chunk_whose_writer_was_killed_before_its_last_group_is_a_miss() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    kill_at(server.socket(), "two-of-three-groups");
    let mut reader = server.worker();
    register(&mut reader, three_groups());
    eventually("the writer's space to come back", || {
        let status = server.status();
        assert_balanced(&status);
        held(&status) == [0, 0, 0]
    });
    assert_eq!(server.status()["objects"], 2, "what was published stays");
    let ask = |reader: &mut RawClient| match reader.call(&lookup(reader, &[7])) {
        Reply::Lookup(found) => (found.hit_tokens, found.pin, found.present_tokens),
        other => panic!("{other:?}"),
    };
    assert_eq!(ask(&mut reader), (0, 0, vec![CHUNK, CHUNK, 0]));
    commit_group(&mut reader, 2);
    let (hit, pin, _) = ask(&mut reader);
    assert_eq!(hit, CHUNK, "with the group that was missing it is a hit");
    assert_ne!(pin, 0);
}

/// Full attention, a window and a state.
fn three_groups() -> RegisterKvCache {
    let mut request = registration();
    request.domain.model = "test/three-groups".into();
    let kinds = [
        ObjectKind::Full,
        ObjectKind::Window { tokens: 65 },
        ObjectKind::Recurrent,
    ];
    let groups = kinds.into_iter().zip(0..).map(|(kind, group)| GroupRegistration {
        group,
        kind,
        ..request.groups[0]
    });
    request.groups = groups.collect();
    request
}

fn register(client: &mut RawClient, request: RegisterKvCache) {
    match client.call(&Request::RegisterKvCache(request)) {
        Reply::Register(reply) => client.seed = Some(reply.domain_seed),
        other => panic!("{other:?}"),
    }
}

/// Stores chunk 7 of one group.
fn commit_group(client: &mut RawClient, group: u16) {
    let extent = grant_one(client);
    let mut commit = commit_of(client, 7, extent);
    commit.items[0].id.group = group;
    if group == 2 {
        // A state has the bytes of one unit, whatever the tokens.
        commit.items[0].bytes = three_groups().groups[2].unit_bytes;
    }
    match client.call(&Request::Commit(commit)) {
        Reply::Commit(reply) => assert_eq!(reply.outcomes, [CommitOutcome::Published]),
        other => panic!("{other:?}"),
    }
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
    if stage == "pinned-by-itself" {
        let engine = engine_at(Path::new(socket), WATCHDOG);
        let pins = [asked(&engine), asked(&engine)].map(|found| found.pin.unwrap());
        assert_ne!(pins[0], pins[1]);
        assert_eq!(engine.stats().direct_lookups, 2);
        wait_for_death();
    }
    let mut client = RawClient::connect(Path::new(socket));
    client.hello(true);
    client.attach();
    assert!(matches!(client.negotiate(ALIGNMENT), Reply::Negotiate(_)));
    let mut request = registration();
    if stage == "half-committed" {
        // A domain of its own, of which this is one of two ranks.
        request.domain.model = "test/two-ranks".into();
        request.world_size = 2;
        request.groups[0].parts = 2;
    }
    if stage == "two-of-three-groups" {
        request = three_groups();
    }
    register(&mut client, request);
    if stage == "two-of-three-groups" {
        commit_group(&mut client, 0);
        commit_group(&mut client, 1);
    }
    let extent = grant_one(&mut client);
    match stage {
        "granted" | "two-of-three-groups" => {}
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
    wait_for_death();
}

fn wait_for_death() -> ! {
    println!("\n{MARK}");
    loop {
        std::thread::park();
    }
}
