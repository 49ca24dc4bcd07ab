//! A pool against the memory that there is, in real control groups where this machine lets a test make one.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::*;
use nix::sys::signal::Signal;

const MIB: u64 = 1 << 20;

/// A control group of this test, with a limit of memory.
struct Group {
    directory: PathBuf,
}

impl Group {
    /// Nothing where this user or this machine has no control groups to give.
    fn new(name: &str, limit: u64) -> Option<Self> {
        let name = format!("kvasir-test-{name}-{}", std::process::id());
        let places = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        for (place, file) in places {
            let group = Self {
                directory: Path::new(place).join(&name),
            };
            if fs::create_dir(&group.directory).is_ok()
                && group.directory.join(file).exists()
                && fs::write(group.directory.join(file), limit.to_string()).is_ok()
            {
                return Some(group);
            }
        }
        eprintln!("SKIPPED: no control group can be made here");
        None
    }

    /// What a shell does to be in it.
    fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs &&", self.directory.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Empty only when the last of its processes is gone for good.
        for _ in 0..200 {
            if !self.directory.exists() || fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn a_pool_beyond_its_control_group_is_refused_with_both_sizes() {
    let Some(group) = Group::new("refused", 96 * MIB) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("k.sock");
    let script = format!("{} exec \"$0\" \"$@\"", group.enter());
    let mut shell = std::process::Command::new("sh");
    shell
        .arg("-c")
        .arg(script)
        .args([KVASIR, "serve", "--pool-size", "128MiB", "--socket"])
        .arg(&socket);
    clear_environment(&mut shell);
    let output = shell.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{:?} {error}", output.status);
    let last = error.lines().last().unwrap();
    for part in [
        "128MiB (134217728 bytes)",
        "96MiB (100663296 bytes)",
        "kvasir-test-refused",
    ] {
        assert!(last.contains(part), "{error}");
    }
    assert!(!error.contains("ready"), "{error}");
    assert!(!socket.exists());
}

#[test]
fn a_pool_that_would_take_the_last_of_its_control_group_is_made_present_only_in_part() {
    let Some(group) = Group::new("limited", 136 * MIB) else {
        return;
    };
    let mut server = ServerProcess::after(&group.enter(), &["--pool-size", "128MiB"], |_| {});
    // Both numbers before it is ready, and once more when it has come to it.
    server.wait_log("the pool stays smaller than configured");
    let log = server.log();
    let warned = log
        .find("--pool-size is 128MiB (134217728 bytes), but of")
        .unwrap();
    assert!(warned < log.find("ready").unwrap(), "{log}");
    let status = server.status();
    let of = |name: &str| status["pool"][name].as_u64().unwrap();
    assert!(
        of("prefaulted") >= 16 * MIB && of("prefaulted") <= 136 * MIB - 16 * MIB,
        "{status}"
    );
    // What is there is used, and when it is full, makes room for others.
    let mut worker = server.worker();
    for number in 0..3 * of("prefaulted") / CHUNK_BYTES / 2 {
        store(&mut worker, number);
    }
    assert!(server.is_running());
    server.signal(Signal::SIGTERM);
    assert!(server.wait().success(), "{}", server.log());
}

#[test]
fn a_pool_beyond_the_machine_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("k.sock");
    let socket = socket.to_str().unwrap();
    let (code, _, error) = run(&["serve", "--pool-size", "64TiB", "--socket", socket], |_| {});
    assert_eq!(code, Some(1), "{error}");
    let last = error.lines().last().unwrap();
    assert!(last.contains("64TiB") && last.contains("MemTotal"), "{error}");
}
