//! `kvasir doctor` with servers that are there and of which an engine gets nothing, or little.

mod common;
mod doctor_support;

use std::fs;

use common::*;
use doctor_support::*;
use kvasir::client::{Client, ClientConfig, Maps};
use kvasir::object::*;
use kvasir::wire::*;

/// What the doctor says of the server alone: (severity, name), and all of it as text.
fn findings(server: &ServerProcess) -> (Vec<(String, String)>, String) {
    let output = doctor(&["--json", "--socket", server.socket().to_str().unwrap()], b"");
    (output.findings(), output.stdout)
}

fn assert_only(server: &ServerProcess, severity: &str, name: &str, says: &[&str]) {
    let (found, text) = findings(server);
    assert_eq!(found, [(severity.to_owned(), name.to_owned())], "{text}");
    for part in says {
        assert!(text.contains(part), "{name} does not say {part:?}: {text}");
    }
}

fn assert_well(server: &ServerProcess) {
    assert_eq!(findings(server).0, []);
}

#[test]
fn a_server_without_a_place_for_another_client_is_full() {
    let server = ready(&["--pool-size", "1MiB", "--max-clients", "2"]);
    let first = server.worker();
    assert_well(&server);
    let _second = server.worker();
    assert_only(
        &server,
        "silent",
        "server_full",
        &["2 of 2 clients", "--max-clients"],
    );
    drop(first);
    eventually("the place", || findings(&server).0.is_empty());
}

#[test]
fn a_server_without_a_connection_for_another_peer_is_full() {
    let server = ready(&["--pool-size", "1MiB", "--max-clients", "1"]);
    let mut peers: Vec<RawClient> = (0..64).map(|_| server.tool()).collect();
    // The doctor's own is the last there is.
    assert_only(&server, "silent", "server_full", &["65 of 65 connections"]);
    peers.push(server.tool());
    assert_only(
        &server,
        "silent",
        "server_full",
        &["65 connections are open", "caches nothing"],
    );
}

/// Whoever comes then waits in the queue of the socket, or is told that something failed inside.
#[test]
fn a_server_without_descriptors_is_found() {
    let server = ServerProcess::with_open_files(32, &["--pool-size", "1MiB"]);
    server.wait_prefaulted();
    let peers: Vec<RawClient> = (0..40)
        .map(|_| {
            let mut peer = server.connect();
            let (_, frame) = peer.frame(&hello(false));
            // What is refused may be closed by now.
            let _ = peer.send_bytes(&frame);
            peer
        })
        .collect();
    let bad = || {
        let (found, text) = findings(&server);
        let is_bad = |(severity, name): &(String, String)| {
            severity != "note" && ["server_stalled", "server_refuses"].contains(&name.as_str())
        };
        assert!(found.iter().all(is_bad), "{text}");
        !found.is_empty()
    };
    eventually("a finding", bad);
    drop(peers);
    eventually("the end of it", || findings(&server).0.is_empty());
}

#[test]
fn a_client_that_has_used_up_its_pins_is_named() {
    let server = ready_16();
    let mut worker = server.worker();
    store(&mut worker, 7);
    let mut config = ClientConfig::new(server.socket(), ClientKind::Scheduler, "pin collector", [3; 16]);
    config.maps = Maps::Index;
    let client = Client::new(config).unwrap();
    let Request::Negotiate(negotiation) = negotiate(ALIGNMENT) else {
        unreachable!("that is what it is called");
    };
    client.negotiate(negotiation).unwrap();
    let Request::Lookup(question) = lookup(&worker, &[7]) else {
        unreachable!("that is what it is called");
    };
    let limit = server.status()["limits"]["pin_words"].as_u64().unwrap();
    for _ in 0..limit {
        let answer = client.lookup(&question.as_request()).unwrap();
        assert_eq!(answer.hit_tokens, CHUNK);
    }
    assert_only(
        &server,
        "slow",
        "pin_words",
        &["pin collector", "all of its 4096 pin words"],
    );
}

#[test]
fn workers_that_have_registered_nothing_are_named() {
    let server = ready_16();
    let mut worker = server.connect();
    worker.hello(true);
    assert_only(&server, "note", "not_registered", &["has registered no KV cache"]);
    worker.attach();
    worker.negotiate(ALIGNMENT);
    worker.call(&Request::RegisterKvCache(registration()));
    assert_well(&server);
}

#[test]
fn a_pool_that_engines_hold_for_later_is_granted_away() {
    let server = ready_16();
    let mut workers = [server.worker(), server.worker()];
    for worker in &mut workers {
        while !worker.grant(1 << 20).is_empty() {}
    }
    assert_only(
        &server,
        "slow",
        "pool_granted",
        &["12.0 MiB", "16.0 MiB", "credit_bytes"],
    );
}

/// Each of sixteen workers stores and pins one of a pool's sixteen frames; a client's pins keep at most a quarter.
fn pin_everything(workers: &mut [RawClient]) {
    for (number, worker) in workers.iter_mut().enumerate() {
        store(worker, number as u64);
        let reply = worker.call(&lookup(worker, &[number as u64]));
        assert!(
            matches!(reply, Reply::Lookup(ref found) if found.pin != 0),
            "{reply:?}"
        );
    }
}

#[test]
fn a_pool_that_is_being_read_has_no_room() {
    let server = ready(&["--pool-size", "1MiB"]);
    let mut workers: Vec<RawClient> = (0..16).map(|_| server.worker()).collect();
    pin_everything(&mut workers);
    let status = server.status();
    assert_eq!(status["pool"]["pinned"], status["pool"]["total"], "{status}");
    assert_only(
        &server,
        "silent",
        "pool_pinned",
        &["1.0 MiB are being read", "--pool-size"],
    );
}

#[test]
fn a_chunk_size_that_is_not_in_force_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("fleet");
    fs::create_dir(&place).unwrap();
    let fleet = place.join("record");
    let server = ready(&["--pool-size", "1MiB", "--fleet-file", fleet.to_str().unwrap()]);
    fs::remove_dir(&place).unwrap();
    let refused = server.tool().refused(&negotiate(ALIGNMENT));
    assert_eq!(refused.code, ErrorCode::BindingListenerFailed);
    assert_only(&server, "silent", "binding_pending", &["256 tokens", "fleet"]);
}

#[test]
fn as_many_sizes_of_models_as_there_can_be_are_found() {
    let server = ready(&["--pool-size", "1MiB", "--chunk-scope", "model"]);
    let limit = server.status()["limits"]["binding_domains"].as_u64().unwrap();
    let mut tool = server.tool();
    for number in 0..limit {
        let Request::Negotiate(mut request) = negotiate(ALIGNMENT) else {
            unreachable!("that is what it is called");
        };
        request.binding_domain = Some([number as u8; 32]);
        let reply = tool.call(&Request::Negotiate(request));
        assert!(matches!(reply, Reply::Negotiate(_)), "{number}: {reply:?}");
    }
    assert_only(
        &server,
        "silent",
        "domains_full",
        &["64 models have a chunk size"],
    );
}

#[test]
fn damage_is_found() {
    let server = ready(&["--pool-size", "1MiB"]);
    let mut worker = server.worker();
    store(&mut worker, 1);
    let domain_seed = worker.seed.unwrap();
    let retrieve = Request::Retrieve(RetrieveRequest {
        domain_seed,
        label: 1,
        part: 0,
        ids: vec![object(1)],
    });
    let incarnation = match worker.call(&retrieve) {
        Reply::Retrieve(reply) => reply.locations[0].incarnation,
        other => panic!("{other:?}"),
    };
    assert_well(&server);
    // What a reader says whose bytes did not have the writer's sum.
    let discard = Request::Discard {
        domain_seed,
        objects: vec![(object(1), incarnation)],
    };
    assert_eq!(worker.call(&discard), Reply::Ack);
    assert_only(
        &server,
        "silent",
        "damaged_objects",
        &["1 objects held other bytes"],
    );
}

#[test]
fn stores_that_found_no_room_are_found() {
    let server = ready(&["--pool-size", "1MiB"]);
    let mut workers: Vec<RawClient> = (0..16).map(|_| server.worker()).collect();
    pin_everything(&mut workers);
    assert_only(&server, "silent", "pool_pinned", &[]);
    assert_eq!(workers[0].grant(CHUNK_BYTES), []);
    let (found, text) = findings(&server);
    assert!(
        found.contains(&("slow".to_owned(), "stores_dropped".to_owned())),
        "{text}"
    );
    assert!(text.contains("1 stores found no room"), "{text}");
}

#[test]
fn a_process_that_lost_its_connection_and_lives_is_named() {
    let server = ready_16();
    let mut worker = server.worker();
    let granted = worker.grant(CHUNK_BYTES);
    assert_eq!(granted.len(), 1);
    worker.stream().shutdown(std::net::Shutdown::Both).unwrap();
    // Its lock is held as long as it lives, which is as long as this test.
    eventually("the end of the connection", || !findings(&server).0.is_empty());
    assert_only(&server, "note", "lost_client", &["64.0 KiB of pool space"]);
}
