//! What people are told when something else than a server is where they look for one.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};

use common::*;
use kvasir::client::{Client, ClientConfig};
use kvasir::object::*;

/// What `kvasir status`, `kvasir doctor` and a client say of a path.
fn told(path: &Path) -> [String; 3] {
    let socket = path.to_str().unwrap();
    let (code, _, status) = run(&["status", "--socket", socket], |_| {});
    assert_eq!(code, Some(1), "{status}");
    let (_, doctor, _) = run(&["doctor", "--socket", socket], |_| {});
    [status, doctor, client(path)]
}

/// Why a client has no server.
fn client(path: &Path) -> String {
    let config = ClientConfig::new(path, ClientKind::Worker, "engine", [7; 16]);
    let client = Client::new(config).unwrap();
    // An attempt during which another test's thread forks is given up and made again.
    let settled = |text: String| {
        !["not connected yet", "forked meanwhile"]
            .iter()
            .any(|early| text.contains(early))
    };
    eventually("the first attempt", || settled(client.state_text()));
    client.state_text()
}

#[test]
fn what_is_not_a_servers_socket_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("file"), "text").unwrap();
    fs::create_dir(at("directory")).unwrap();
    drop(UnixListener::bind(at("stale")).unwrap());
    let _datagram = UnixDatagram::bind(at("datagram")).unwrap();
    let cases: [(PathBuf, &str); 6] = [
        (at("file"), "a regular file"),
        (at("directory"), "a directory"),
        (at("stale"), "nobody listens"),
        (at("datagram"), "another kind"),
        (at("none"), "nothing is there"),
        (at("no/such/place/k.sock"), "/no does not exist"),
    ];
    for (path, says) in cases {
        for text in told(&path) {
            assert!(text.contains(says), "{says}: {text}");
            assert!(text.contains(path.to_str().unwrap()), "{text}");
        }
    }
}

#[test]
fn another_users_socket_is_named() {
    use std::os::unix::process::CommandExt;
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: needs root to be two users");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("kvasir");
    fs::copy(KVASIR, &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = directory.path().join("k.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let mut status = std::process::Command::new(&program);
    status
        .args(["status", "--socket"])
        .arg(&path)
        .uid(65534)
        .gid(65534);
    clear_environment(&mut status);
    // Another test's fork may hold the copy open for writing for a moment.
    let output = loop {
        match status.output() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            output => break output.unwrap(),
        }
    };
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("a socket of uid 0, and this process is uid 65534"),
        "{error}"
    );
}

/// Answers whoever connects with these bytes, once something has arrived, and closes.
fn answering(path: &Path, answer: &'static [u8]) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(answer);
        }
    });
}

#[test]
fn a_server_of_another_protocol_is_shown_by_its_first_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let cases: [(&str, &[u8], &str); 4] = [
        (
            "http",
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "\"HTTP/1.1 400 Bad Request\"",
        ),
        (
            "redis",
            b"-ERR unknown command\r\n",
            "\"-ERR unknown command\\r\\n\"",
        ),
        // Its first four bytes would be the length of a short frame.
        (
            "binary",
            b"\x08\0\0\0garbage!",
            "\"\\x08\\x00\\x00\\x00garbage!\"",
        ),
        ("cut", b"\x02\x01", "\"\\x02\\x01\""),
    ];
    for (name, answer, shown) in cases {
        let path = directory.path().join(name);
        answering(&path, answer);
        for text in told(&path) {
            assert!(text.contains("is not a Kvasir server"), "{name}: {text}");
            assert!(
                text.contains(shown) && text.contains(path.to_str().unwrap()),
                "{name}: {text}"
            );
            assert!(!text.contains("split the request"), "{name}: {text}");
        }
    }
    let path = directory.path().join("silent");
    answering(&path, b"");
    for text in told(&path) {
        assert!(text.contains("closed the connection without an answer"), "{text}");
        assert!(text.contains(path.to_str().unwrap()), "{text}");
    }
}

#[test]
fn a_temporary_directory_that_does_not_exist_is_named() {
    if Path::new(&format!("/run/user/{}", nix::unistd::geteuid())).is_dir() {
        eprintln!("SKIPPED: this user has a runtime directory");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    for command in ["serve", "status"] {
        let (code, _, error) = run(&[command], |command| {
            command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", &missing);
        });
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains(missing.to_str().unwrap()), "{command}: {error}");
    }
}

#[test]
fn a_full_server_says_so_to_clients() {
    let server = ServerProcess::with_args(&["--pool-size", "1MiB", "--max-clients", "1"]);
    // They all wait for a hello that does not come. One more each time fills the place of those that came before.
    let mut crowd: Vec<_> = (0..64).map(|_| server.connect()).collect();
    let socket = server.socket().to_str().unwrap();
    eventually("all places to be taken", || {
        crowd.push(server.connect());
        (0..3).all(|_| {
            let (code, _, error) = run(&["status", "--socket", socket], |_| {});
            code == Some(1) && error.contains("connections are open, the limit is 65")
        })
    });
    let text = client(server.socket());
    assert!(text.contains("connections are open, the limit is 65"), "{text}");
    drop(crowd);
}
