//! What the log says of clients, refusals and what happens to the server's names; and how much of it.

mod common;

use std::fs;
use std::os::unix::net::UnixListener;

use common::*;
use kvasir::wire::*;

/// The log, once it has this line: it is written by a thread of its own.
fn log_with(server: &ServerProcess, text: &str) -> String {
    server.wait_log(text);
    server.log()
}

fn line<'a>(log: &'a str, text: &str) -> &'a str {
    let found = log.lines().find(|line| line.contains(text));
    found.unwrap_or_else(|| panic!("no {text}:\n{log}"))
}

#[test]
fn clients_come_and_go_and_the_size_is_said_when_it_is_bound() {
    let server = ServerProcess::start();
    let worker = server.worker();
    let pid = format!("pid={}", std::process::id());
    server.wait_log("client registered");
    drop(worker);
    server.wait_log("client left");
    let log = server.log();
    let bound = line(&log, "chunk size bound");
    assert!(
        bound.contains("INFO") && bound.contains("chunk_size=256"),
        "{bound}"
    );
    for what in ["client connected", "client registered", "client left"] {
        let line = line(&log, what);
        assert!(line.contains("INFO"), "{line}");
        for part in [pid.as_str(), "kind=\"worker\"", "name=\"test\""] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert_eq!(log.matches(what).count(), 1, "{log}");
    }
    for what in ["client registered", "client left"] {
        let line = line(&log, what);
        assert!(
            line.contains("test/model, rank 0 of 1, chunks of 256 tokens"),
            "{line}"
        );
        assert!(line.contains("group 0 full, part 0 of 1"), "{line}");
    }
    assert!(line(&log, "client left").contains("the peer closed it"), "{log}");
}

#[test]
fn a_size_of_one_model_is_said_with_its_binding_domain() {
    let server = ServerProcess::with_args(&["--pool-size", "1MiB", "--chunk-scope", "model"]);
    let mut client = server.tool();
    let Request::Negotiate(mut request) = negotiate(48) else {
        unreachable!()
    };
    request.binding_domain = Some([0xab; 32]);
    assert!(matches!(
        client.call(&Request::Negotiate(request)),
        Reply::Negotiate(_)
    ));
    let log = log_with(&server, "chunk size bound");
    let bound = line(&log, "chunk size bound");
    assert!(
        bound.contains("chunk_size=288") && bound.contains(&"ab".repeat(32)),
        "{bound}"
    );
}

#[test]
fn refusals_are_said_with_code_and_numbers_and_a_flood_of_them_is_cut() {
    let server = ServerProcess::start();
    let mut client = server.worker();
    let refusal = client.refused(&negotiate(544));
    assert_eq!(refusal.code, ErrorCode::IncompatibleChunkSize);
    let log = log_with(&server, "refused");
    let said = line(&log, "refused");
    for part in ["INFO", "code=IncompatibleChunkSize", "numbers=[256, 544]", "544"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    for _ in 0..2000 {
        client.refused(&Request::Release { pins: vec![77] });
        let mut bad = server.connect();
        bad.send_bytes(&[0, 0, 0, 0]).unwrap();
        bad.expect_error();
    }
    // Whatever was said of them is written by the time that this is.
    drop(server.worker());
    server.wait_log("client left");
    let lines = server.log().lines().count();
    assert!(lines < 400, "{lines} lines of 4000 refusals");
    // A client that comes now is seen all the same.
    let before = server.log().matches("client registered").count();
    let _other = server.worker();
    eventually("the line", || {
        server.log().matches("client registered").count() == before + 1
    });
}

#[test]
fn a_name_cannot_make_lines_of_its_own() {
    let server = ServerProcess::start();
    let mut client = server.connect();
    let Request::Hello(mut request) = hello(false) else {
        unreachable!()
    };
    request.name = "evil\nERROR all is lost\u{1b}[2J".into();
    assert!(matches!(client.call(&Request::Hello(request)), Reply::Hello(_)));
    server.wait_log("client connected");
    // The line about one that caches nothing, which an earlier server's size makes.
    let Request::Negotiate(mut request) = negotiate(ALIGNMENT) else {
        unreachable!()
    };
    request.previous_size = 64;
    assert!(matches!(
        client.call(&Request::Negotiate(request)),
        Reply::Negotiate(_)
    ));
    let log = log_with(&server, "client caches nothing");
    assert!(!log.contains("\nERROR all"), "{log}");
    assert!(!log.contains('\u{1b}'), "{log}");
    for what in ["client connected", "client caches nothing"] {
        assert!(line(&log, what).contains("evil"), "{log}");
    }
}

#[test]
fn too_few_open_files_are_raised_or_warned_about() {
    let low = ServerProcess::with_open_files(80, &["--pool-size", "1MiB"]);
    low.wait_log("ready");
    let log = low.log();
    let warning = line(&log, "too few open files");
    for part in ["WARN", "limit=80", "needed=960", "max_clients=256", "ulimit -n"] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    // The hard limit is enough here.
    let raised = ServerProcess::after("ulimit -S -n 80;", &["--pool-size", "1MiB"], |_| {});
    raised.wait_log("ready");
    let log = raised.log();
    assert!(
        line(&log, "the limit of open files was raised").contains("from=80"),
        "{log}"
    );
    assert!(!log.contains("too few open files"), "{log}");
    let enough = ServerProcess::after(
        "ulimit -n 80;",
        &["--pool-size", "1MiB", "--max-clients", "1"],
        |_| {},
    );
    enough.wait_log("ready");
    assert!(
        enough.log().contains("too few"),
        "64 more connections count too: {}",
        enough.log()
    );
}

#[test]
fn a_name_that_is_taken_away_is_said_also_when_nobody_is_connected() {
    let server = ServerProcess::with_args(&["--pool-size", "1MiB"]);
    server.wait_log("ready");
    let away = server.directory().join("elsewhere");
    fs::rename(server.socket(), &away).unwrap();
    server.wait_log("the socket was removed or moved");
    fs::rename(&away, server.socket()).unwrap();
    server.wait_log("the socket has its name again");
    fs::remove_file(server.socket()).unwrap();
    let _other = UnixListener::bind(server.socket()).unwrap();
    eventually("the line", || server.log().matches("WARN").count() >= 2);
    fs::remove_file(format!("{}.lock", server.socket().display())).unwrap();
    server.wait_log("lock file was removed or moved");
    let log = server.log();
    assert!(
        line(&log, "the socket was removed").contains(server.socket().to_str().unwrap()),
        "{log}"
    );
}

#[test]
fn a_directory_that_is_taken_away_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    fs::create_dir(&run).unwrap();
    let socket = run.join("k.sock");
    let log = directory.path().join("log");
    let mut command = std::process::Command::new(KVASIR);
    command
        .args(["serve", "--pool-size", "1MiB", "--socket"])
        .arg(&socket)
        .stdout(std::process::Stdio::null())
        .stderr(fs::File::create(&log).unwrap());
    clear_environment(&mut command);
    let mut server = command.spawn().unwrap();
    let said = |text: &str| fs::read_to_string(&log).unwrap().matches(text).count();
    eventually("the server", || said("ready") == 1);
    let warned = std::panic::catch_unwind(|| {
        // Renamed, it keeps the socket, which nobody finds any more; a look at the start may see the first of it.
        let away = directory.path().join("elsewhere");
        fs::rename(&run, &away).unwrap();
        eventually("the warning", || said("the socket was removed or moved") == 1);
        fs::rename(&away, &run).unwrap();
        eventually("its return", || said("the socket has its name again") == 1);
        fs::remove_dir_all(&run).unwrap();
        eventually("the next warning", || {
            said("the socket was removed or moved") == 2
        });
    });
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(warned.is_ok());
}

#[test]
fn a_fleet_file_that_cannot_be_made_is_in_the_log_with_path_and_reason() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("fleet");
    fs::create_dir(&place).unwrap();
    let fleet = place.join("size");
    let server = ServerProcess::with_args(&["--pool-size", "1MiB", "--fleet-file", fleet.to_str().unwrap()]);
    server.wait_log("ready");
    fs::remove_dir(&place).unwrap();
    let mut client = server.tool();
    let refusal = client.refused(&negotiate(ALIGNMENT));
    assert_eq!(refusal.code, ErrorCode::BindingListenerFailed);
    let log = log_with(&server, "BindingListenerFailed");
    let said = line(&log, "BindingListenerFailed");
    for part in ["WARN", fleet.to_str().unwrap(), "os error 2"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Mended, it goes on where it was.
    fs::create_dir(&place).unwrap();
    assert!(matches!(client.negotiate(ALIGNMENT), Reply::Negotiate(_)));
    assert!(fleet.exists());
}

/// A real file system that is full: no inode is left on it.
#[test]
fn a_full_fleet_directory_is_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("fleet");
    fs::create_dir(&place).unwrap();
    let mount = |args: &[&str]| {
        let mounted = std::process::Command::new("mount")
            .args(args)
            .arg(&place)
            .output();
        mounted.is_ok_and(|output| output.status.success())
    };
    if !mount(&["-t", "tmpfs", "-o", "size=4k,nr_inodes=1", "tmpfs"]) {
        eprintln!("SKIPPED: this user cannot mount a file system");
        return;
    }
    let fleet = place.join("size");
    let server = ServerProcess::with_args(&["--pool-size", "1MiB", "--fleet-file", fleet.to_str().unwrap()]);
    let refusal = server.tool().refused(&negotiate(ALIGNMENT));
    let log = log_with(&server, "BindingListenerFailed");
    drop(server);
    let _ = std::process::Command::new("umount")
        .arg("-l")
        .arg(&place)
        .status();
    assert_eq!(refusal.code, ErrorCode::BindingListenerFailed);
    let said = line(&log, "BindingListenerFailed");
    for part in ["WARN", "No space left", fleet.to_str().unwrap()] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
