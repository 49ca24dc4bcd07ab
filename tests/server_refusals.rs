//! Bad input of every kind: a typed error that says what was wrong, and a server that carries on.

mod common;

use common::*;
use kvasir::object::*;
use kvasir::wire::*;
use std::os::fd::AsFd;

/// A server, a client that did nothing wrong, and one that is about to.
fn cast() -> (ServerProcess, RawClient, RawClient) {
    let server = ServerProcess::start();
    let bystander = server.worker();
    let culprit = server.worker();
    (server, bystander, culprit)
}

fn unregistered() -> (ServerProcess, RawClient, RawClient) {
    let server = ServerProcess::start();
    let bystander = server.tool();
    let mut culprit = server.connect();
    culprit.hello(true);
    culprit.attach();
    (server, bystander, culprit)
}

#[test]
fn alignment_zero() {
    let (mut server, mut bystander, mut culprit) = unregistered();
    let request = Request::Negotiate(Negotiate::default());
    let error = culprit.refused(&request);
    assert_eq!(
        (error.code, error.numbers),
        (ErrorCode::InvalidAlignment, vec![0])
    );
    assert!(
        error.message.contains("least common multiple"),
        "{}",
        error.message
    );
    assert_eq!(
        server.status()["binding"]["state"],
        "unbound",
        "a refusal binds nothing"
    );
    server.assert_serves(&mut bystander);
}

#[test]
fn no_cacheable_group() {
    let (mut server, mut bystander, mut culprit) = unregistered();
    let spans = vec![
        GroupSpan { group: 0, tokens: 0 },
        GroupSpan { group: 1, tokens: 0 },
    ];
    let request = Request::Negotiate(Negotiate {
        required_alignment: 64,
        spans,
        ..Negotiate::default()
    });
    let error = culprit.refused(&request);
    assert_eq!((error.code, error.numbers), (ErrorCode::InvalidSpans, vec![2]));
    assert_eq!(server.status()["binding"]["state"], "unbound");
    server.assert_serves(&mut bystander);
}

#[test]
fn overflow() {
    let (mut server, mut bystander, mut culprit) = unregistered();
    for (alignment, tokens) in [
        (u64::MAX, vec![u64::MAX]),
        (16_777_213, vec![16_777_213, 16_777_199]),
    ] {
        let spans = tokens
            .into_iter()
            .map(|tokens| GroupSpan { group: 0, tokens })
            .collect();
        let request = Request::Negotiate(Negotiate {
            required_alignment: alignment,
            spans,
            ..Negotiate::default()
        });
        let error = culprit.refused(&request);
        assert_eq!(error.code, ErrorCode::InvalidAlignment, "{error}");
        assert!(error.numbers.contains(&(1 << 24)), "{error}");
    }
    // Sizes that overflow later on: one object, and a grant.
    assert!(matches!(culprit.negotiate(ALIGNMENT), Reply::Negotiate(_)));
    let mut register = registration();
    register.groups[0].unit_bytes = u64::MAX;
    let error = culprit.refused(&Request::RegisterKvCache(register));
    assert!(
        matches!(error.code, ErrorCode::ObjectTooLarge | ErrorCode::InvalidGroup),
        "{error}"
    );
    server.assert_serves(&mut bystander);
}

#[test]
fn a_frame_over_the_limit() {
    let (mut server, mut bystander, mut culprit) = cast();
    let length = MAX_FRAME_BYTES as u32 + 1;
    culprit.send_bytes(&length.to_le_bytes()).unwrap();
    let error = culprit.expect_error();
    let expected = vec![u64::from(length), MAX_FRAME_BYTES as u64];
    assert_eq!((error.code, error.numbers), (ErrorCode::FrameTooLarge, expected));
    culprit.expect_closed();

    let mut early = server.connect();
    early.send_bytes(&u32::MAX.to_le_bytes()).unwrap();
    let error = early.expect_error();
    let expected = vec![u64::from(u32::MAX), MAX_HELLO_FRAME_BYTES as u64];
    assert_eq!((error.code, error.numbers), (ErrorCode::FrameTooLarge, expected));
    early.expect_closed();
    server.assert_serves(&mut bystander);
}

#[test]
fn a_truncated_flatbuffer() {
    let (mut server, mut bystander, mut culprit) = cast();
    let (_, frame) = culprit.frame(&lookup(&culprit, &[1, 2, 3]));
    // Half of the message in a frame of the right length for it.
    let half = &frame[PREFIX_BYTES..frame.len() / 2];
    culprit.send_bytes(&(half.len() as u32).to_le_bytes()).unwrap();
    culprit.send_bytes(half).unwrap();
    assert_eq!(culprit.expect_error().code, ErrorCode::Malformed);
    culprit.expect_closed();

    // A connection that ends inside a frame.
    let mut cut = server.worker();
    let (_, frame) = cut.frame(&Request::Status);
    cut.send_bytes(&frame[..frame.len() - 1]).unwrap();
    cut.stream().shutdown(std::net::Shutdown::Write).unwrap();
    let error = cut.expect_error();
    assert_eq!(error.code, ErrorCode::Malformed);
    assert!(error.message.contains("ended inside"), "{error}");
    cut.expect_closed();
    server.assert_serves(&mut bystander);
}

#[test]
fn a_malformed_flatbuffer() {
    let (mut server, mut bystander, _) = cast();
    for body in [&[0xff; 64][..], &[0; 8], b"GET / HTTP/1.1\r\n\r\n", &[1]] {
        let mut culprit = server.tool();
        culprit.send_bytes(&(body.len() as u32).to_le_bytes()).unwrap();
        culprit.send_bytes(body).unwrap();
        assert_eq!(culprit.expect_error().code, ErrorCode::Malformed, "{body:?}");
        culprit.expect_closed();
    }
    let mut empty = server.tool();
    empty.send_bytes(&[0; 4]).unwrap();
    assert_eq!(empty.expect_error().code, ErrorCode::Malformed);
    server.assert_serves(&mut bystander);
}

#[test]
fn an_unknown_message() {
    let (mut server, mut bystander, mut culprit) = cast();
    let (id, mut frame) = culprit.frame(&Request::Status);
    // The union's type is the one byte that holds the number of `Status`, the last of 15.
    let places: Vec<usize> = (PREFIX_BYTES..frame.len())
        .filter(|&at| frame[at] == 15)
        .collect();
    assert_eq!(places.len(), 1, "{frame:?}");
    frame[places[0]] = 200;
    culprit.send_bytes(&frame).unwrap();
    let (answered, reply) = culprit.receive().unwrap();
    assert_eq!(answered, id);
    match reply {
        Reply::Error(error) => {
            assert_eq!(
                (error.code, error.numbers),
                (ErrorCode::UnknownMessage, vec![200])
            );
        }
        other => panic!("{other:?}"),
    }
    // A newer client's request is no reason to part.
    assert!(matches!(culprit.call(&Request::Status), Reply::Status { .. }));
    server.assert_serves(&mut bystander);
}

#[test]
fn a_wrong_protocol_version() {
    let (mut server, mut bystander, _) = cast();
    let mut culprit = server.connect();
    let Request::Hello(mut hello) = hello(false) else {
        unreachable!()
    };
    hello.protocol_version = PROTOCOL_VERSION + 1;
    let error = culprit.refused(&Request::Hello(hello));
    let versions = vec![u64::from(PROTOCOL_VERSION) + 1, u64::from(PROTOCOL_VERSION)];
    assert_eq!(
        (error.code, error.numbers),
        (ErrorCode::ProtocolVersion, versions)
    );
    culprit.expect_closed();
    server.assert_serves(&mut bystander);
}

#[test]
fn a_first_message_that_is_no_hello_and_a_second_hello() {
    let (mut server, mut bystander, mut culprit) = cast();
    let error = culprit.refused(&hello(false));
    assert_eq!(error.code, ErrorCode::HelloExpected);
    culprit.expect_closed();
    let mut rude = server.connect();
    assert_eq!(rude.refused(&Request::Status).code, ErrorCode::HelloExpected);
    rude.expect_closed();
    server.assert_serves(&mut bystander);
}

#[test]
fn surplus_and_truncated_descriptors() {
    let (mut server, mut bystander, mut culprit) = cast();
    let before = open_descriptors(server.pid());
    let file = tempfile::tempfile().unwrap();
    let (_, frame) = culprit.frame(&Request::Status);
    culprit.send_with_fds(&frame, &[file.as_fd()]);
    let error = culprit.expect_error();
    assert_eq!((error.code, error.numbers), (ErrorCode::Descriptors, vec![1, 0]));
    culprit.expect_closed();

    // More than the server has room for: the kernel drops some, and the server closes the rest.
    let mut many = server.worker();
    let (_, frame) = many.frame(&Request::Status);
    many.send_with_fds(&frame, &[file.as_fd(); 16]);
    let error = many.expect_error();
    assert_eq!(error.code, ErrorCode::Descriptors);
    assert!(error.message.contains("truncated"), "{error}");
    many.expect_closed();

    let mut early = server.connect();
    let (_, frame) = early.frame(&hello(false));
    early.send_with_fds(&frame, &[file.as_fd(), file.as_fd()]);
    assert_eq!(early.expect_error().code, ErrorCode::Descriptors);
    early.expect_closed();
    eventually("no descriptor to be left", || {
        open_descriptors(server.pid()) <= before
    });
    server.assert_serves(&mut bystander);
}

fn open_descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

#[test]
fn an_extent_outside_the_grant() {
    let (mut server, mut bystander, mut culprit) = cast();
    let theirs = store(&mut bystander, 1);
    let granted_to_other = grant_one(&mut bystander);
    let mine = grant_one(&mut culprit);
    let before = server.status()["pool"].clone();
    let run = |frame, count| Extent { frame, count };
    for (extent, in_commit, in_abort) in [
        (theirs, ErrorCode::ExtentNotGranted, ErrorCode::ExtentNotGranted),
        (
            granted_to_other,
            ErrorCode::ExtentNotGranted,
            ErrorCode::ExtentNotGranted,
        ),
        (
            run(1 << 30, 1),
            ErrorCode::InvalidExtent,
            ErrorCode::InvalidExtent,
        ),
        // The part takes one frame, so a commit has a reason of its own to refuse these.
        (
            run(mine.frame, u32::MAX),
            ErrorCode::SizeMismatch,
            ErrorCode::InvalidExtent,
        ),
        (
            run(mine.frame, 0),
            ErrorCode::SizeMismatch,
            ErrorCode::InvalidExtent,
        ),
    ] {
        let commit = commit_of(&culprit, 2, extent);
        let error = culprit.refused(&Request::Commit(commit));
        assert_eq!(error.code, in_commit, "{extent:?}: {error}");
        let extents = vec![mine, extent];
        let error = culprit.refused(&Request::Abort { extents });
        assert_eq!(error.code, in_abort, "{extent:?}: {error}");
        assert!(error.numbers.contains(&u64::from(extent.frame)), "{error}");
    }
    assert_eq!(server.status()["pool"], before, "nothing was freed");
    // What was really granted is still good.
    let commit = commit_of(&culprit, 2, mine);
    assert!(matches!(culprit.call(&Request::Commit(commit)), Reply::Commit(_)));
    server.assert_serves(&mut bystander);
}

/// Stores an object and pins it.
fn pinned(client: &mut RawClient, number: u64) -> u64 {
    store(client, number);
    match client.call(&lookup(client, &[number])) {
        Reply::Lookup(found) => {
            assert_eq!(found.hit_tokens, CHUNK);
            assert_ne!(found.pin, 0);
            found.pin
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_release_of_someone_elses_pin() {
    let (mut server, mut bystander, mut culprit) = cast();
    let pin = pinned(&mut bystander, 1);
    let held = server.status()["pool"]["pinned"].clone();
    assert_ne!(held, 0);
    let error = culprit.refused(&Request::Release { pins: vec![pin] });
    assert_eq!((error.code, error.numbers), (ErrorCode::UnknownPin, vec![pin]));
    assert_eq!(server.status()["pool"]["pinned"], held);
    let mine = bystander.call(&Request::Release { pins: vec![pin] });
    assert_eq!(mine, Reply::Ack);
    server.assert_serves(&mut bystander);
}

#[test]
fn a_double_release() {
    let (mut server, mut bystander, mut culprit) = cast();
    let (first, second) = (pinned(&mut culprit, 1), pinned(&mut culprit, 2));
    let release = |pins: &[u64]| Request::Release { pins: pins.to_vec() };
    // Twice in one request changes nothing either.
    assert_eq!(
        culprit.refused(&release(&[first, first])).code,
        ErrorCode::UnknownPin
    );
    assert_eq!(culprit.call(&release(&[first])), Reply::Ack);
    let error = culprit.refused(&release(&[second, first]));
    assert_eq!((error.code, error.numbers), (ErrorCode::UnknownPin, vec![first]));
    assert_eq!(server.status()["pool"]["pinned"], CHUNK_BYTES, "all or nothing");
    assert_eq!(culprit.call(&release(&[second])), Reply::Ack);
    assert_eq!(server.status()["pool"]["pinned"], 0);
    server.assert_serves(&mut bystander);
}

#[test]
fn a_commit_of_a_key_that_exists() {
    let (mut server, mut bystander, mut culprit) = cast();
    let first = store(&mut bystander, 1);
    let other = grant_one(&mut culprit);
    let before = server.status();
    let commit = commit_of(&culprit, 1, other);
    match culprit.call(&Request::Commit(commit)) {
        Reply::Commit(reply) => assert_eq!(reply.outcomes, [CommitOutcome::Exists]),
        reply => panic!("{reply:?}"),
    }
    let after = server.status();
    assert_balanced(&after);
    assert_eq!(after["objects"], before["objects"]);
    assert_eq!(
        after["pool"]["granted"].as_u64().unwrap() + CHUNK_BYTES,
        before["pool"]["granted"].as_u64().unwrap(),
        "the space went back"
    );
    // The first copy is the one that is served.
    let seed = culprit.seed.unwrap();
    let retrieve = Request::Retrieve(RetrieveRequest {
        domain_seed: seed,
        label: 1,
        part: 0,
        ids: vec![object(1)],
    });
    match culprit.call(&retrieve) {
        Reply::Retrieve(reply) => assert_eq!(reply.extents, [first]),
        reply => panic!("{reply:?}"),
    }
    // The same commit a second time, as after a lost answer, succeeds.
    let again = commit_of(&bystander, 1, first);
    match bystander.call(&Request::Commit(again)) {
        Reply::Commit(reply) => assert_eq!(reply.outcomes, [CommitOutcome::Published]),
        reply => panic!("{reply:?}"),
    }
    server.assert_serves(&mut bystander);
}

#[test]
fn a_pool_smaller_than_one_object() {
    let (mut server, mut bystander, mut culprit) = unregistered();
    assert!(matches!(culprit.negotiate(ALIGNMENT), Reply::Negotiate(_)));
    let mut register = registration();
    register.groups[0].unit_bytes = 16 << 20;
    let error = culprit.refused(&Request::RegisterKvCache(register));
    assert_eq!(error.code, ErrorCode::ObjectTooLarge, "{error}");
    assert!(error.message.contains("--pool-size"), "{error}");
    assert!(
        error.numbers.contains(&(64 << 20)) && error.numbers.contains(&(16 << 20)),
        "{error}"
    );
    server.assert_serves(&mut bystander);
}

#[test]
fn two_servers_on_one_path() {
    let (mut server, mut bystander, _) = cast();
    let socket = server.socket().to_str().unwrap().to_owned();
    let (code, _, error) = run(&["serve", "--socket", &socket, "--pool-size", "1MiB"], |_| {});
    assert_eq!(code, Some(1));
    assert!(error.contains("another server is running"), "{error}");
    assert!(error.contains(&server.pid().to_string()), "{error}");
    server.assert_serves(&mut bystander);
}

#[test]
fn chunk_size_zero() {
    for args in [
        &["serve", "--chunk-size", "0"][..],
        &["serve", "--chunk-size", "0", "--print-config"],
    ] {
        let (code, _, error) = run(args, |_| {});
        assert_eq!(code, Some(2), "{error}");
        assert!(
            error.contains("--chunk-size") && error.contains("auto"),
            "{error}"
        );
    }
    let (code, _, error) = run(&["serve"], |command| {
        command.env("KVASIR_CHUNK_SIZE", "0");
    });
    assert_eq!(code, Some(2), "{error}");
    let (code, _, error) = run(
        &["serve", "--chunk-size", "auto", "--chunk-size-policy", "fixed"],
        |_| {},
    );
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("fixed"), "{error}");
}

#[test]
fn requests_before_their_time() {
    let (mut server, mut bystander, mut culprit) = unregistered();
    let register = Request::RegisterKvCache(registration());
    let seed = key(0);
    let lookup = Request::Lookup(Lookup {
        domain_seed: seed,
        label: 0,
        keys: vec![key(1)],
        tails: TailList::default(),
        max_tokens: 1000,
        local_tokens: 0,
        pin: true,
        describe: false,
    });
    let retrieve = Request::Retrieve(RetrieveRequest {
        domain_seed: seed,
        label: 0,
        part: 0,
        ids: vec![object(1)],
    });
    let commit = Request::Commit(CommitRequest {
        domain_seed: seed,
        items: vec![],
        extents: vec![],
        supersedes: vec![],
        grant_bytes: 1 << 20,
    });
    let grant = Request::Grant(GrantRequest::of(1 << 20));
    let before = server.status();
    for request in [&register, &lookup, &retrieve, &commit, &grant] {
        let error = culprit.refused(request);
        assert_eq!(error.code, ErrorCode::NotNegotiated, "{request:?}: {error}");
    }
    let after = server.status();
    assert_eq!(
        (&after["pool"]["granted"], &after["counters"], &after["binding"]),
        (
            &before["pool"]["granted"],
            &before["counters"],
            &before["binding"]
        )
    );
    assert!(matches!(culprit.negotiate(ALIGNMENT), Reply::Negotiate(_)));
    for request in [&lookup, &retrieve] {
        let error = culprit.refused(request);
        assert_eq!(error.code, ErrorCode::NotRegistered, "{request:?}: {error}");
    }
    // Without the lock byte nothing can be written.
    let mut unlocked = server.connect();
    unlocked.hello(true);
    assert_eq!(unlocked.refused(&Request::Attach).code, ErrorCode::NotAttached);
    assert!(matches!(unlocked.call(&register), Reply::Register(_)));
    assert_eq!(unlocked.refused(&grant).code, ErrorCode::NotAttached);
    server.assert_serves(&mut bystander);
}

#[test]
fn spans_that_do_not_fit_are_found_again_at_registration() {
    let (mut server, mut bystander, mut culprit) = unregistered();
    assert!(matches!(culprit.negotiate(ALIGNMENT), Reply::Negotiate(_)));
    let mut register = registration();
    register.spans[0].tokens = 48;
    register.required_alignment = 48;
    let error = culprit.refused(&Request::RegisterKvCache(register));
    assert_eq!(
        (error.code, error.numbers),
        (ErrorCode::InvalidSpans, vec![CHUNK, 0, 48])
    );
    let mut register = registration();
    register.required_alignment = 32;
    let error = culprit.refused(&Request::RegisterKvCache(register));
    assert_eq!(
        (error.code, error.numbers),
        (ErrorCode::InvalidAlignment, vec![32, ALIGNMENT])
    );
    // A model that does not suit the bound size.
    let mut other = server.connect();
    other.hello(true);
    match other.negotiate(544) {
        Reply::Error(error) => {
            assert_eq!(
                (error.code, error.numbers.clone()),
                (ErrorCode::IncompatibleChunkSize, vec![CHUNK, 544])
            );
            assert!(error.message.contains("group 0: 544"), "{error}");
        }
        reply => panic!("{reply:?}"),
    }
    server.assert_serves(&mut bystander);
}

#[test]
fn a_peer_that_does_not_read_is_dropped() {
    let (mut server, mut bystander, mut culprit) = cast();
    let (_, frame) = culprit.frame(&Request::Status);
    let batch = frame.repeat(64);
    // Far more than queue and socket hold; the error is the point where the server has hung up.
    let sent = (0..2000).find_map(|_| culprit.send_bytes(&batch).err());
    assert!(
        sent.is_some(),
        "the server still takes requests of a peer that reads nothing"
    );
    server.wait_log("does not read its replies");
    server.assert_serves(&mut bystander);
}
