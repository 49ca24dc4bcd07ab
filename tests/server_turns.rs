//! One peer's requests never keep the server from another's: turns bounded in frames and bytes.

mod common;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use kvasir::object::*;
use kvasir::wire::*;
use nix::sys::signal::Signal;

/// Others are answered while three peers send without a pause, and so is the signal.
#[test]
fn a_server_that_is_flooded_answers_others_and_stops_when_it_is_told_to() {
    let mut server = ServerProcess::start();
    server.wait_prefaulted();
    let mut other = server.tool();
    let mut floods = Vec::new();
    let over = Arc::new(AtomicBool::new(false));
    for _ in 0..3 {
        let mut busy = server.worker();
        let (_, frame) = busy.frame(&Request::Status);
        let frames = frame.repeat(500);
        let mut from = busy.stream().try_clone().unwrap();
        let mut to = busy.stream().try_clone().unwrap();
        let (stop_sending, stop_reading) = (Arc::clone(&over), Arc::clone(&over));
        floods.push(std::thread::spawn(move || {
            while !stop_sending.load(Ordering::Relaxed) && to.write_all(&frames).is_ok() {}
        }));
        floods.push(std::thread::spawn(move || {
            let mut sink = vec![0; 1 << 20];
            while !stop_reading.load(Ordering::Relaxed)
                && matches!(from.read(&mut sink), Ok(bytes) if bytes > 0)
            {}
            drop(busy);
        }));
    }
    for _ in 0..20 {
        other.status();
    }
    server.signal(Signal::SIGTERM);
    assert!(server.wait().success());
    over.store(true, Ordering::Relaxed);
    floods.into_iter().for_each(|flood| flood.join().unwrap());
}

/// Frames that are read and written elsewhere say the same, and in their order.
#[test]
fn long_requests_and_long_replies_arrive_whole_and_in_order() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut client = server.worker();
    store(&mut client, 7);
    let retrieve = |ids: Vec<ObjectId>| {
        Request::Retrieve(RetrieveRequest {
            domain_seed: client.seed.unwrap(),
            label: 1,
            part: 0,
            ids,
        })
    };
    // A long request between short ones, sent as one; the object that is there comes last.
    let mut ids: Vec<ObjectId> = (100..100 + MAX_ITEMS as u64 - 1).map(object).collect();
    ids.push(object(7));
    let requests = [
        retrieve(vec![object(7)]),
        retrieve(ids),
        retrieve(vec![object(8)]),
    ];
    let mut bytes = Vec::new();
    let mut sent = Vec::new();
    for request in &requests {
        let (id, frame) = client.frame(request);
        sent.push(id);
        bytes.extend(frame);
    }
    client.send_bytes(&bytes).unwrap();
    let counts = sent.iter().map(|id| {
        let Some((answered, Reply::Retrieve(found))) = client.receive() else {
            panic!("a retrieve reply")
        };
        assert_eq!(answered, *id);
        let there = found
            .locations
            .iter()
            .filter(|place| place.incarnation != 0)
            .count();
        assert_eq!(found.locations.last().unwrap().incarnation != 0, there == 1);
        (found.locations.len(), there)
    });
    let counts: Vec<_> = counts.collect();
    assert_eq!(counts, [(1, 1), (MAX_ITEMS, 1), (1, 0)]);
}

/// A document that one peer could make longer than a frame would be nobody's.
#[test]
fn status_fits_whatever_peers_call_their_models() {
    let server = ServerProcess::with_args(&["--pool-size", "16MiB", "--max-clients", "256"]);
    server.wait_prefaulted();
    let mut peers = Vec::new();
    for number in 0..240 {
        let mut peer = server.connect();
        peer.hello(true);
        peer.attach();
        peer.negotiate(ALIGNMENT);
        let mut request = registration();
        // Six bytes of JSON for each, in a field of the largest size.
        request.domain.model = "\u{1}".repeat(4000);
        request.rank = number % request.world_size;
        assert!(matches!(
            peer.call(&Request::RegisterKvCache(request)),
            Reply::Register(_)
        ));
        peers.push(peer);
    }
    let status = server.status();
    let clients = status["clients"].as_array().unwrap();
    let registered = clients.iter().filter(|client| !client["registered"].is_null());
    assert_eq!(registered.count(), 240);
}

/// A client that dies in the middle of a long commit leaves nothing behind but what was published.
#[test]
fn what_was_begun_ends_with_its_client() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut client = server.worker();
    let before = server.status();
    for round in 0..20 {
        let mut runs = Vec::new();
        for extent in client.grant(64 * CHUNK_BYTES) {
            runs.extend((extent.frame..extent.frame + extent.count).map(|frame| Extent { frame, count: 1 }));
        }
        let mut commit = commit_of(&client, 0, runs[0]);
        let item = commit.items[0];
        commit.items = (0..runs.len())
            .map(|at| StoreItem {
                id: object(1000 + round * 100 + at as u64),
                first_extent: at as u32,
                ..item
            })
            .collect();
        commit.extents = runs;
        commit.grant_bytes = 32 * CHUNK_BYTES;
        client.send(&Request::Commit(commit));
        // It does not wait for the answer.
        client = server.worker();
        eventually("what the dead client held to come back", || {
            let status = server.status();
            assert_balanced(&status);
            status["pool"]["granted"] == before["pool"]["granted"] && status["incomplete"] == 0
        });
    }
}
