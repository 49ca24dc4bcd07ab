//! Who may use a server, what it may do itself, and how many it serves.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use common::*;
use kvasir::wire::*;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

/// The user that tests become when they run as root and need another.
const NOBODY: u32 = 65534;

/// A server and a directory of another user, or of this one when it is not root.
struct Unprivileged {
    directory: tempfile::TempDir,
    server: std::process::Child,
}

impl Unprivileged {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        // The build directory may be closed to others.
        let program = directory.path().join("kvasir");
        fs::copy(KVASIR, &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new(&program);
        command
            .args(["serve", "--pool-size", "16MiB", "--socket"])
            .arg(directory.path().join("k.sock"))
            .stdin(Stdio::null())
            .stderr(fs::File::create(directory.path().join("log")).unwrap());
        clear_environment(&mut command);
        if geteuid().is_root() {
            std::os::unix::fs::chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
            command.uid(NOBODY).gid(NOBODY);
        }
        let server = command.spawn().unwrap();
        let started = Self { directory, server };
        eventually("the server", || UnixStream::connect(started.socket()).is_ok());
        started
    }

    fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("k.sock")
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A process that is not dumpable has its files in /proc owned by root, whoever runs it.
#[test]
fn the_server_cannot_be_dumped_or_traced_by_its_user() {
    let server = Unprivileged::start();
    let mut sleep = Command::new("sleep");
    sleep.arg("600");
    if geteuid().is_root() {
        sleep.uid(NOBODY).gid(NOBODY);
    }
    let mut sleep = sleep.spawn().unwrap();
    let owner = |pid: u32| fs::metadata(format!("/proc/{pid}/mem")).unwrap().uid();
    let expected = if geteuid().is_root() {
        NOBODY
    } else {
        geteuid().as_raw()
    };
    let control = owner(sleep.id());
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    assert_eq!(control, expected, "an ordinary process belongs to its user");
    assert_eq!(owner(server.server.id()), 0, "the server does not");
}

/// Run as root: the server is another user's, so root is the stranger at its socket.
#[test]
fn another_user_is_refused_and_the_server_needs_no_privileges() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: needs root to be two users");
        return;
    }
    let server = Unprivileged::start();
    let mut stranger = RawClient::connect(&server.socket());
    let error = stranger.expect_error();
    assert_eq!(
        (error.code, error.numbers),
        (ErrorCode::PermissionDenied, vec![0, u64::from(NOBODY)])
    );
    stranger.expect_closed();
    let mut own = Command::new(server.directory.path().join("kvasir"));
    clear_environment(&mut own);
    own.args(["status", "--socket"])
        .arg(server.socket())
        .uid(NOBODY)
        .gid(NOBODY);
    let output = own.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn more_connections_than_allowed_are_refused_and_come_back() {
    let server = ServerProcess::with_args(&["--pool-size", "16MiB", "--max-clients", "2"]);
    let _workers = [server.worker(), server.worker()];
    let mut third = server.connect();
    let error = third.refused(&hello(true));
    assert_eq!(error.code, ErrorCode::LimitExceeded, "{error}");
    // Questions still get through, up to the limit of connections.
    let mut tools = Vec::new();
    let refused = loop {
        let mut client = server.connect();
        let id = client.frame(&hello(false));
        // A refused connection may be closed before the hello is written.
        let _ = client.send_bytes(&id.1);
        match client.receive() {
            Some((_, Reply::Hello(_))) => tools.push(client),
            Some((_, Reply::Error(error))) => break error,
            other => panic!("{other:?}"),
        }
        assert!(tools.len() < 1000, "there is no limit");
    };
    assert_eq!(refused.code, ErrorCode::LimitExceeded);
    assert!(refused.message.contains("--max-clients"), "{refused}");
    tools.clear();
    eventually("room for another", || {
        let mut client = server.connect();
        let (_, frame) = client.frame(&hello(false));
        client.send_bytes(&frame).is_ok() && matches!(client.receive(), Some((_, Reply::Hello(_))))
    });
}

#[test]
fn the_limit_of_connections_holds_in_a_burst() {
    const LIMIT: usize = 2 + 64;
    let server = ServerProcess::with_args(&["--pool-size", "16MiB", "--max-clients", "2"]);
    // They all wait in the queue before the server accepts the first.
    server.signal(Signal::SIGSTOP);
    let mut burst: Vec<_> = (0..2 * LIMIT).map(|_| server.connect()).collect();
    for client in &mut burst {
        let (_, frame) = client.frame(&hello(false));
        client.send_bytes(&frame).unwrap();
    }
    server.signal(Signal::SIGCONT);
    let mut admitted = 0;
    for client in &mut burst {
        match client.receive() {
            Some((_, Reply::Hello(_))) => admitted += 1,
            Some((_, Reply::Error(error))) => assert_eq!(error.code, ErrorCode::LimitExceeded, "{error}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(admitted, LIMIT);
}

#[test]
fn a_server_without_descriptors_waits_and_carries_on() {
    let mut server = ServerProcess::with_open_files(48, &["--pool-size", "16MiB"]);
    let mut old = server.worker();
    let mut crowd = Vec::new();
    let mut turned_away = 0;
    for _ in 0..64 {
        // The kernel completes a connection before the server accepts it.
        let mut client = server.connect();
        let (_, frame) = client.frame(&hello(true));
        // What is refused may be closed by now.
        let _ = client.send_bytes(&frame);
        match client.receive() {
            Some((_, Reply::Hello(_))) => crowd.push(client),
            Some((_, Reply::Error(error))) => {
                assert_eq!(error.code, ErrorCode::Exhausted, "{error}");
                turned_away += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(turned_away > 0 && !crowd.is_empty(), "{turned_away} of 64");
    store(&mut old, 1);
    drop(crowd);
    eventually("a new client", || {
        let mut client = server.connect();
        let (_, frame) = client.frame(&hello(true));
        client.send_bytes(&frame).is_ok() && matches!(client.receive(), Some((_, Reply::Hello(_))))
    });
    server.assert_serves(&mut old);
}

/// Whoever comes to a server without descriptors is answered, at once and so that he can tell, whether the server notices
/// it when it accepts, when it makes the descriptors of the hello's reply, or not at all.
#[test]
fn peers_that_find_no_descriptors_left_are_told_to_come_again() {
    // From a server that has just enough for itself on, so that it runs out at every step of an admission.
    for limit in 40..52 {
        let server = ServerProcess::with_open_files(limit, &["--pool-size", "1MiB"]);
        let mut admitted = Vec::new();
        for _ in 0..24 {
            let mut client = server.connect();
            let (_, frame) = client.frame(&hello(true));
            // What is refused may be closed by now.
            let _ = client.send_bytes(&frame);
            match client.receive() {
                Some((_, Reply::Hello(_))) => admitted.push(client),
                Some((id, Reply::Error(error))) => {
                    assert_eq!(error.code, ErrorCode::Exhausted, "{error}");
                    assert_eq!(error.numbers, [nix::libc::EMFILE as u64, limit as u64]);
                    let text = format!("EMFILE; it may have {limit} open files");
                    assert!(error.message.contains(&text), "{error}");
                    assert_eq!(id, 1, "the hello is what is refused");
                    client.expect_closed();
                }
                other => panic!("{other:?} after {} of {limit}", admitted.len()),
            }
        }
        assert!(
            !admitted.is_empty() && admitted.len() < 24,
            "{limit}: {}",
            admitted.len()
        );
        server.wait_log("EMFILE");
        admitted.clear();
        eventually("room", || {
            let mut client = server.connect();
            let (_, frame) = client.frame(&hello(true));
            client.send_bytes(&frame).is_ok() && matches!(client.receive(), Some((_, Reply::Hello(_))))
        });
    }
}

#[test]
fn a_peer_that_cannot_even_be_accepted_is_told_so_too() {
    let server = ServerProcess::with_open_files(48, &["--pool-size", "1MiB"]);
    server.wait_log("ready");
    // Each of them costs descriptors, and none says anything.
    let mut crowd: Vec<_> = (0..64).map(|_| server.connect()).collect();
    let mut last = crowd.pop().unwrap();
    match last.receive() {
        Some((0, Reply::Error(error))) => {
            assert_eq!(error.code, ErrorCode::Exhausted, "{error}");
            assert_eq!(error.numbers, [nix::libc::EMFILE as u64, 48]);
        }
        other => panic!("{other:?}"),
    }
    last.expect_closed();
}
