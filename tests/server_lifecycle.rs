//! Starting, stopping, and everything a server leaves or must not leave behind.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use common::*;
use kvasir::control::Health;
use kvasir::geometry::ObjectKind;
use kvasir::object::*;
use kvasir::wire::*;
use nix::sys::signal::Signal;
use serde_json::Value;

fn names(directory: &Path) -> BTreeSet<String> {
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

fn kvasir_names(directory: &str) -> BTreeSet<String> {
    let all = names(Path::new(directory));
    all.into_iter().filter(|name| name.contains("kvasir")).collect()
}

#[test]
fn a_stop_drains_and_leaves_nothing_named_behind() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut server = ServerProcess::start();
        let mut client = server.worker();
        store(&mut client, 1);
        let control = client.control();
        assert_eq!(control.health().unwrap(), Health::Serving);
        assert_eq!(
            names(server.directory()),
            BTreeSet::from(["k.sock", "k.sock.lock", "log"].map(String::from))
        );
        assert!(fs::metadata(server.socket()).unwrap().file_type().is_socket());
        assert_eq!(
            fs::metadata(server.socket()).unwrap().permissions().mode() & 0o777,
            0o600
        );
        server.signal(signal);
        client.expect_closed();
        assert!(server.wait().success(), "{}", server.log());
        assert_eq!(names(server.directory()), BTreeSet::from(["log".to_owned()]));
        assert_eq!(
            control.health().unwrap(),
            Health::Stopped,
            "those who still map it can tell"
        );
    }
}

#[test]
fn what_had_arrived_before_a_stop_is_answered() {
    let mut server = ServerProcess::start();
    let mut client = server.worker();
    let extent = grant_one(&mut client);
    let commit = commit_of(&client, 1, extent);
    // Both are in the socket before the server sees either: it is stopped while they are sent.
    server.signal(Signal::SIGSTOP);
    let id = client.send(&Request::Commit(commit));
    server.signal(Signal::SIGTERM);
    server.signal(Signal::SIGCONT);
    match client.receive() {
        Some((answered, Reply::Commit(reply))) => {
            assert_eq!(answered, id);
            assert_eq!(reply.outcomes, [CommitOutcome::Published]);
        }
        other => panic!("{other:?}"),
    }
    client.expect_closed();
    assert!(server.wait().success());
}

#[test]
fn a_killed_server_leaves_no_shared_memory_and_its_path_is_taken_over() {
    let before = kvasir_names("/dev/shm");
    let mut server = ServerProcess::start();
    let mut client = server.worker();
    store(&mut client, 1);
    assert_eq!(kvasir_names("/dev/shm"), before);
    server.signal(Signal::SIGKILL);
    server.wait();
    assert_eq!(kvasir_names("/dev/shm"), before);
    client.expect_closed();
    // The socket's name is still there and refuses connections, which is what stale means.
    assert!(server.socket().exists());
    let socket = server.socket().to_str().unwrap().to_owned();
    let mut next = Command::new(KVASIR);
    next.args(["serve", "--socket", &socket, "--pool-size", "1MiB"])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    clear_environment(&mut next);
    let mut next = next.spawn().unwrap();
    eventually("the next server", || UnixStream::connect(&socket).is_ok());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(next.id() as i32), Signal::SIGTERM).unwrap();
    assert!(next.wait().unwrap().success());
}

#[test]
fn socket_paths_that_cannot_be_used_say_why() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("file"), "mine").unwrap();
    let foreign = UnixListener::bind(at("foreign.sock")).unwrap();
    for (socket, why) in [
        (directory.path().to_str().unwrap().to_owned(), "is a directory"),
        (at(&"x".repeat(150)), "107"),
        (at("none/k.sock"), "does not exist"),
        (at("file"), "not a socket"),
        (at("file/k.sock"), "not a directory"),
        (at("foreign.sock"), "another server is running"),
    ] {
        let (code, _, error) = run(&["serve", "--socket", &socket, "--pool-size", "1MiB"], |_| {});
        assert_eq!(code, Some(1), "{socket}: {error}");
        assert!(error.contains(why), "{socket}: {error}");
    }
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "mine");
    assert!(
        UnixStream::connect(at("foreign.sock")).is_ok(),
        "a live listener is never unlinked"
    );
    drop(foreign);
    assert_eq!(
        names(directory.path()),
        BTreeSet::from(["file", "foreign.sock"].map(String::from))
    );
}

#[test]
fn a_foreign_file_in_the_place_of_the_lock_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("k.sock").to_str().unwrap().to_owned();
    let lock = format!("{socket}.lock");
    let serve = ["serve", "--socket", &socket, "--pool-size", "1MiB"];
    fs::write(&lock, "dependencies\n").unwrap();
    let (code, _, error) = run(&serve, |_| {});
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains(&lock) && error.contains("13 bytes"), "{error}");
    assert_eq!(fs::read_to_string(&lock).unwrap(), "dependencies\n");

    // A start that is refused for another reason leaves what was there before it.
    fs::write(&lock, "").unwrap();
    fs::write(&socket, "mine").unwrap();
    let (code, _, error) = run(&serve, |_| {});
    assert_eq!(code, Some(1), "{error}");
    assert_eq!(
        names(directory.path()),
        BTreeSet::from(["k.sock", "k.sock.lock"].map(String::from))
    );
}

#[test]
fn a_stop_leaves_the_names_of_the_next_server() {
    let mut server = ServerProcess::start();
    let lock = format!("{}.lock", server.socket().to_str().unwrap());
    // It is told to stop only when it listens to signals.
    server.wait_log("ready");
    // Somebody cleans up behind the server's back and a second one takes the path.
    fs::remove_file(server.socket()).unwrap();
    fs::remove_file(&lock).unwrap();
    let _successor = UnixListener::bind(server.socket()).unwrap();
    fs::write(&lock, "1\n").unwrap();
    server.signal(Signal::SIGTERM);
    assert!(server.wait().success(), "{}", server.log());
    assert!(server.socket().exists());
    assert_eq!(fs::read_to_string(&lock).unwrap(), "1\n");

    let mut server = ServerProcess::start();
    server.wait_log("ready");
    fs::remove_file(format!("{}.lock", server.socket().to_str().unwrap())).unwrap();
    server.signal(Signal::SIGTERM);
    assert!(server.wait().success(), "{}", server.log());
}

#[test]
fn a_server_that_does_not_accept_keeps_nobody_waiting() {
    use nix::sys::socket::{Backlog, listen};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("k.sock");
    let socket = path.to_str().unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    // Room for one connection, which is taken.
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let _waiting = UnixStream::connect(&path).unwrap();
    let (code, _, error) = run(&["serve", "--socket", socket, "--pool-size", "1MiB"], |_| {});
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("another server is running"), "{error}");
    let (code, _, error) = run(&["status", "--socket", socket], |_| {});
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("no answer within 5 s"), "{error}");

    // A stopped server has room, but does not answer.
    let server = ServerProcess::start();
    server.signal(Signal::SIGSTOP);
    let socket = server.socket().to_str().unwrap();
    let (code, _, error) = run(&["status", "--socket", socket], |_| {});
    server.signal(Signal::SIGCONT);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("no answer within 5 s"), "{error}");
}

#[test]
fn ready_is_announced_to_the_service_manager_and_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(WATCHDOG)).unwrap();
    let mut server = ServerProcess::with(&["--pool-size", "16MiB"], |command| {
        command.env("NOTIFY_SOCKET", &path);
    });
    let mut message = [0; 256];
    let bytes = manager.recv(&mut message).unwrap();
    assert_eq!(&message[..bytes], b"READY=1\n");
    server.wait_log("ready");
    let log = server.log();
    let line = log.lines().find(|line| line.contains("ready")).unwrap();
    for field in ["socket=", "pool_bytes=16777216", "start_ms="] {
        assert!(line.contains(field), "{line}");
    }
    server.wait_prefaulted();
    server.signal(Signal::SIGTERM);
    let bytes = manager.recv(&mut message).unwrap();
    assert_eq!(&message[..bytes], b"STOPPING=1\n");
    assert!(server.wait().success());
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_status_document_has_its_documented_shape() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut worker = server.worker();
    store(&mut worker, 1);
    let mut scheduler = server.worker();
    assert!(matches!(
        scheduler.call(&lookup(&scheduler, &[1, 2])),
        Reply::Lookup(_)
    ));
    let socket = server.socket().to_str().unwrap();
    let (code, json, error) = run(&["status", "--json", "--socket", socket], |_| {});
    assert_eq!(code, Some(0), "{error}");
    let status: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        keys(&status),
        BTreeSet::from([
            "status_version",
            "version",
            "pid",
            "boot_id",
            "boot_seq",
            "pool_id",
            "started_unix_ms",
            "uptime_s",
            "health",
            "socket",
            "binding",
            "pool",
            "objects",
            "limbo",
            "incomplete",
            "kicks",
            "domains",
            "counters",
            "reported",
            "store_amplification",
            "tokens",
            "models",
            "connections",
            "limits",
            "rings",
            "clients",
        ])
    );
    assert_eq!(
        keys(&status["pool"]),
        BTreeSet::from([
            "total",
            "prefaulted",
            "free",
            "used",
            "granted",
            "quarantined",
            "pinned",
            "frame_bytes",
            "memory",
        ])
    );
    assert_eq!(
        keys(&status["rings"]),
        BTreeSet::from(["bytes", "limit", "broken"])
    );
    assert_eq!(
        keys(&status["counters"]),
        BTreeSet::from([
            "lookups",
            "requested",
            "hit",
            "miss",
            "stored",
            "stored_bytes",
            "evicted",
            "discarded",
            "dropped_stores",
            "ended_incomplete",
            "shortened",
        ])
    );
    let token_keys = [
        "requests",
        "asked",
        "held",
        "hit",
        "hit_percent",
        "loaded",
        "failed",
        "preempted_asked",
        "preempted_hit",
    ];
    for tokens in [&status["tokens"], &status["clients"][0]["tokens"]] {
        assert_eq!(keys(tokens), BTreeSet::from(token_keys));
    }
    let client_keys = [
        "connected",
        "pid",
        "name",
        "kind",
        "engine",
        "slab",
        "attached",
        "payload_path",
        "ring",
        "granted",
        "age_s",
        "idle_s",
        "incomplete",
        "lock_held",
        "number",
        "oldest_pin_s",
        "process",
        "pins",
        "pin_words",
        "kept",
        "registered",
        "refused",
        "conditions",
        "reported",
        "tokens",
    ];
    for client in status["clients"].as_array().unwrap() {
        assert_eq!(keys(client), BTreeSet::from(client_keys));
    }
    assert_eq!(status["pid"], server.pid());
    assert_eq!(status["health"], "serving");
    assert_eq!(
        status["binding"],
        serde_json::json!({
            "state": "bound",
            "chunk_size": 256,
            "minimum": 256,
            "policy": "negotiate",
            "scope": "server",
            "domains": [],
        })
    );
    assert_eq!(
        (&status["objects"], &status["pool"]["used"]),
        (&1.into(), &CHUNK_BYTES.into())
    );
    assert_eq!(
        status["counters"]["requested"], 8,
        "two chunks of four units each"
    );
    assert_eq!(status["counters"]["hit"], 4);
    assert_eq!(
        status["clients"].as_array().unwrap().len(),
        2,
        "not the one that asks"
    );
    assert_eq!(status["clients"][0]["pid"], std::process::id());
    assert_eq!(status["clients"][0]["payload_path"], "shm-direct");
    assert_eq!(
        status["clients"][0]["registered"],
        serde_json::json!({
            "model": "test/model",
            "rank": 0,
            "world_size": 1,
            "layers": 2,
            "blocks": 100,
            "stores": true,
            "domain": worker.seed.unwrap().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
            "copy_path": null,
            "chunk_size": 256,
            "groups": [{
                "group": 0,
                "kind": "full",
                "parts": 1,
                "part": 0,
                "window_tokens": 0,
                "chunk_bytes": CHUNK_BYTES,
            }],
        })
    );
    assert_balanced(&status);

    let (code, table, _) = run(&["status", "--socket", socket], |_| {});
    assert_eq!(code, Some(0));
    for text in [
        "256 tokens, bound",
        "16.0 MiB",
        "shm-direct",
        "0 asked, 0 hit, 0 loaded",
    ] {
        assert!(table.contains(text), "{table}");
    }
}

/// What moves over the payload path, and how, is shown as the rank has registered it, and no longer than that.
#[test]
fn a_registration_is_shown_with_its_copy_and_its_bytes() {
    let server = ServerProcess::start();
    let mut client = server.connect();
    client.hello(true);
    client.attach();
    assert!(matches!(client.negotiate(ALIGNMENT), Reply::Negotiate(_)));
    let group = |group, kind, unit_bytes| GroupRegistration {
        group,
        kind,
        parts: 2,
        part: 1,
        unit_bytes,
    };
    let request = RegisterKvCache {
        rank: 1,
        world_size: 2,
        groups: vec![
            group(0, ObjectKind::Full, 16384),
            group(3, ObjectKind::Window { tokens: 128 }, 656),
            group(7, ObjectKind::Recurrent, 4097),
        ],
        stores: false,
        // Whatever a client calls it: text, and no escape sequence on the terminal.
        copy_path: "portable\u{1b}[2J".into(),
        ..registration()
    };
    assert!(matches!(
        client.call(&Request::RegisterKvCache(request)),
        Reply::Register(_)
    ));
    let socket = server.socket().to_str().unwrap();
    let shown = || {
        let (_, json, _) = run(&["status", "--json", "--socket", socket], |_| {});
        let status: Value = serde_json::from_str(&json).unwrap();
        let (_, table, _) = run(&["status", "--socket", socket], |_| {});
        (status["clients"][0].clone(), table)
    };
    let (row, table) = shown();
    assert_eq!(row["payload_path"], "shm-direct");
    let registered = &row["registered"];
    assert_eq!(
        (&registered["copy_path"], &registered["stores"]),
        (&"portable\u{1b}[2J".into(), &false.into())
    );
    let groups: Vec<_> = registered["groups"].as_array().unwrap().iter().collect();
    let of = |name: &str| groups.iter().map(|group| group[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("group"), [0, 3, 7]);
    assert_eq!(of("kind"), ["full", "sliding_window", "recurrent"]);
    assert_eq!(of("window_tokens"), [0, 128, 0]);
    assert_eq!(of("chunk_bytes"), [65536, 4 * 656, 4097]);
    assert_eq!((of("parts"), of("part")), (vec![2.into(); 3], vec![1.into(); 3]));
    let line = "test/model rank 1 of 2, reads only, copies by portable[2J; a chunk of 256 tokens: \
                group 0 full 64.0 KiB (part 1 of 2), group 3 sliding_window 2.6 KiB (part 1 of 2), \
                group 7 recurrent 4.0 KiB (part 1 of 2)";
    assert!(table.contains(line), "{table}");

    assert_eq!(client.call(&Request::UnregisterKvCache), Reply::Ack);
    let (row, table) = shown();
    assert_eq!(
        (&row["registered"], &row["payload_path"]),
        (&Value::Null, &"none".into())
    );
    assert!(!table.contains("test/model"), "{table}");
}

#[test]
fn the_control_region_shows_the_same_numbers() {
    use kvasir::control::Counter;
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut client = server.worker();
    store(&mut client, 1);
    assert!(matches!(client.call(&lookup(&client, &[1, 2])), Reply::Lookup(_)));
    let status = server.status();
    let control = client.control();
    for (counter, value) in [
        (Counter::RequestedUnits, &status["counters"]["requested"]),
        (Counter::HitUnits, &status["counters"]["hit"]),
        (Counter::MissUnits, &status["counters"]["miss"]),
        (Counter::StoredObjects, &status["counters"]["stored"]),
        (Counter::PoolBytesTotal, &status["pool"]["total"]),
        (Counter::Prefaulted, &status["pool"]["prefaulted"]),
        (Counter::Used, &status["pool"]["used"]),
        (Counter::Granted, &status["pool"]["granted"]),
        (Counter::Pinned, &status["pool"]["pinned"]),
    ] {
        assert_eq!(
            Some(control.counter(counter)),
            value.as_u64(),
            "{}",
            counter.name()
        );
    }
    assert_eq!(control.chunk_word().unwrap().bound(), Some(CHUNK as u32));
}

#[test]
fn the_heartbeat_runs_while_somebody_is_connected() {
    let server = ServerProcess::start();
    let client = server.worker();
    let control = client.control();
    let first = control.heartbeat_ms();
    eventually("two beats", || control.heartbeat_ms() >= first + 2000);
}

#[test]
fn status_of_no_server_and_a_reader_that_leaves() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none.sock");
    let (code, _, error) = run(&["status", "--socket", socket.to_str().unwrap()], |_| {});
    assert_eq!(code, Some(1));
    assert!(
        error.contains("none.sock") && error.contains("kvasir serve"),
        "{error}"
    );
    let long = directory.path().join("x".repeat(150));
    for (path, why) in [(&*long, "107"), (directory.path(), "is a directory")] {
        let (code, _, error) = run(&["status", "--socket", path.to_str().unwrap()], |_| {});
        assert_eq!(code, Some(1));
        assert!(error.contains(why), "{error}");
    }

    for args in [&["vllm-args"][..], &["serve", "--print-config"], &["--help"]] {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(KVASIR);
        clear_environment(&mut command);
        let output = command.args(args).stdout(writer).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some(), "{args:?} died");
        assert!(!error.contains("panicked"), "{args:?}: {error}");
    }
}

#[test]
fn vllm_args_prints_the_configuration() {
    let (code, json, _) = run(&["vllm-args", "--socket", "/run/k.sock"], |_| {});
    assert_eq!(code, Some(0));
    let document: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        document,
        serde_json::json!({
            "kv_connector": "KvasirConnector",
            "kv_connector_module_path": "kvasir.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"kvasir.socket": "/run/k.sock"},
        })
    );
}
