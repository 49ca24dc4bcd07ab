//! A log that cannot be written, signals that were ignored at the start, and output that nobody reads: none of it
//! matters to whom the server serves, nor to what it leaves behind.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use common::*;
use kvasir::wire::*;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;

const POOL: &[&str] = &["--pool-size", "16MiB"];

/// A server with this standard error.
fn server(stderr: OwnedFd, args: &[&str]) -> ServerProcess {
    ServerProcess::with(args, |command| {
        command.stderr(Stdio::from(stderr));
    })
}

/// A peer that breaks the rules is told so, others are served, and a stop cleans up and ends with 0.
fn assert_serves_and_stops(mut server: ServerProcess) {
    let mut worker = server.worker();
    for _ in 0..100 {
        let mut bad = server.connect();
        bad.send_bytes(&[0, 0, 0, 0]).unwrap();
        assert_eq!(bad.expect_error().code, ErrorCode::Malformed);
    }
    store(&mut worker, 1);
    server.signal(Signal::SIGTERM);
    worker.expect_closed();
    let status = server.wait();
    assert_eq!((status.code(), status.signal()), (Some(0), None));
    let names: BTreeSet<_> = fs::read_dir(server.directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(
        names,
        BTreeSet::from(["log".to_owned()]),
        "socket and lock file are gone"
    );
}

#[test]
fn a_log_whose_reader_has_gone_does_not_matter() {
    let (reader, writer) = nix::unistd::pipe().unwrap();
    drop(reader);
    assert_serves_and_stops(server(writer, POOL));
}

#[test]
fn a_log_on_a_full_disk_does_not_matter() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_serves_and_stops(server(full.into(), POOL));
}

#[test]
fn a_closed_standard_error_does_not_matter() {
    assert_serves_and_stops(ServerProcess::after("exec 2>&-;", POOL, |_| {}));
}

/// A pipe into which no byte more goes.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = nix::unistd::pipe().unwrap();
    fcntl(writer.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    while nix::unistd::write(&writer, &[b'.'; 4096]).is_ok() {}
    while nix::unistd::write(&writer, b".").is_ok() {}
    // The description is shared with the server, for which it has to block.
    fcntl(writer.as_fd(), FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (reader, writer)
}

#[test]
fn a_log_that_nobody_reads_keeps_nobody_waiting() {
    let (_reader, writer) = full_pipe();
    assert_serves_and_stops(server(writer, &["--pool-size", "16MiB", "--log-level", "trace"]));
}

#[test]
fn a_log_that_is_read_late_has_its_lines_in_order() {
    let (reader, writer) = full_pipe();
    let mut server = server(writer, POOL);
    server.worker();
    let text = std::thread::spawn(move || {
        let mut text = Vec::new();
        fs::File::from(reader).read_to_end(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    });
    server.signal(Signal::SIGTERM);
    assert!(server.wait().success());
    let text = text.join().unwrap();
    let at = |line: &str| text.find(line).unwrap_or_else(|| panic!("{line}: {text}"));
    let order = ["starting", "ready", "client connected", "stopping", "stopped"].map(at);
    assert!(order.is_sorted(), "{text}");
}

#[test]
fn a_refused_start_says_why_if_anybody_reads_and_has_its_exit_code_if_nobody_does() {
    let running = ServerProcess::start();
    let socket = running.socket().to_str().unwrap();
    let serve = ["serve", "--socket", socket, "--pool-size", "1MiB"];
    let (code, _, error) = run(&serve, |_| {});
    assert_eq!(code, Some(1));
    let last = error.lines().last().unwrap();
    assert!(
        last.starts_with("kvasir serve: another server is running"),
        "{error}"
    );
    let (_reader, full) = full_pipe();
    let (gone, broken) = nix::unistd::pipe().unwrap();
    drop(gone);
    for stderr in [full, broken] {
        for (args, expected) in [(&serve[..], 1), (&["serve", "--pool-size", "nonsense=1"], 2)] {
            let stderr = stderr.try_clone().unwrap();
            let (code, _, _) = run(args, |command| {
                // What clap itself refuses is said before there is a server, to whoever reads.
                command.stderr(if expected == 2 {
                    Stdio::null()
                } else {
                    Stdio::from(stderr)
                });
            });
            assert_eq!(code, Some(expected));
        }
    }
}

#[test]
fn output_that_nobody_reads_is_a_failure_and_no_panic() {
    let running = ServerProcess::start();
    let socket = running.socket().to_str().unwrap();
    let commands: &[&[&str]] = &[
        &["status", "--socket", socket],
        &["status", "--json", "--socket", socket],
        &["plan", "chunk", "--minimum", "256", "--spans", "16"],
        &["plan", "chunk", "--json", "--minimum", "nonsense"],
        &["vllm-args", "--socket", socket],
        &["doctor", "--socket", socket],
        &["doctor", "--json", "--socket", socket],
        &["serve", "--print-config"],
        &["--help"],
        &["--version"],
        &["plan", "--help"],
    ];
    for args in commands {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        drop(reader);
        let (code, _, error) = run(args, |command| {
            command.stdout(Stdio::from(writer));
        });
        assert!(!error.contains("panic"), "{args:?}: {error}");
        assert!(
            code.is_some_and(|code| code <= 2),
            "{args:?} ended with {code:?}: {error}"
        );
    }
    assert!(matches!(
        running.tool().call(&Request::Status),
        Reply::Status { .. }
    ));
}

/// A child of this shell has no file larger than a limit, and gets a signal for one that would be.
#[test]
fn a_pool_beyond_the_largest_file_is_refused_with_both_sizes() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("k.sock");
    for (limit, pool, says) in [
        ("-f 1000", "64MiB", "RLIMIT_FSIZE"),
        ("-v 400000", "4GiB", "RLIMIT_AS"),
    ] {
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(format!("ulimit {limit}; exec \"$0\" \"$@\""))
            .args([KVASIR, "serve", "--pool-size", pool, "--socket"])
            .arg(&socket);
        clear_environment(&mut shell);
        let output = shell.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{limit}: {:?} {error}",
            output.status
        );
        let last = error.lines().last().unwrap();
        assert!(last.contains(says) && last.contains(pool), "{limit}: {error}");
        assert!(!socket.exists());
    }
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    // As `nohup` does for one, and a shell for its background jobs for the other.
    let mut server = ServerProcess::after("trap '' HUP INT;", POOL, |_| {});
    server.wait_log("ready");
    let mut client = server.worker();
    server.signal(Signal::SIGHUP);
    server.signal(Signal::SIGINT);
    // Signals are seen before what arrives after them, so this answer shows that they did nothing.
    store(&mut client, 1);
    assert!(server.is_running() && !server.log().contains("stopping"));
    server.signal(Signal::SIGTERM);
    assert!(server.wait().success());
    assert!(
        server.log().contains("stopping signal=\"SIGTERM\""),
        "{}",
        server.log()
    );
    // And one that may not be told by SIGTERM is told by another.
    let mut server = ServerProcess::after("trap '' TERM;", POOL, |_| {});
    server.wait_log("ready");
    server.signal(Signal::SIGTERM);
    server.worker();
    assert!(server.is_running());
    server.signal(Signal::SIGHUP);
    assert!(server.wait().success());
}

#[test]
fn a_stuck_service_manager_keeps_nobody_waiting() {
    use std::os::unix::net::UnixDatagram;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let filler = UnixDatagram::unbound().unwrap();
    filler.connect(&path).unwrap();
    filler.set_nonblocking(true).unwrap();
    while filler.send(b"full").is_ok() {}
    let server = ServerProcess::with(POOL, |command| {
        command.env("NOTIFY_SOCKET", &path);
    });
    server.wait_log("could not be notified");
    assert_serves_and_stops(server);
    drop(manager);
}
