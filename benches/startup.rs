//! What does a server cost before it does anything: start to ready, resident memory, and wake-ups while idle?
//!
//! Prints and asserts nothing. Run with `cargo bench --bench startup`; `--idle-seconds N` changes how long it is
//! watched (default 10). Numbers come from a real process with a pool of 4 GiB and from what /proc says of it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use common::{KVASIR, RawClient};
use kvasir::control::Counter;

#[path = "../tests/common/mod.rs"]
mod common;

const STARTS: usize = 21;
const POOL: &str = "4GiB";

fn main() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("k.sock");
    let socket = socket.to_str().expect("a UTF-8 path");
    starts(socket);
    footprint(socket);
}

/// Ends with the value, so that a panic leaves no server behind.
struct Server {
    child: Child,
    /// From the call that starts the process to the line that says ready, and what the server counts itself.
    ready_ms: f64,
    own_ms: f64,
}

impl Server {
    fn start(socket: &str) -> Self {
        let begin = Instant::now();
        let mut child = Command::new(KVASIR)
            .args(["serve", "--socket", socket, "--pool-size", POOL])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        while !line.contains(" ready ") {
            line.clear();
            let bytes = log.read_line(&mut line).expect("a readable pipe");
            assert!(bytes > 0, "the server ended before it was ready");
        }
        let ready_ms = begin.elapsed().as_secs_f64() * 1e3;
        let own_ms = line
            .rsplit("start_ms=")
            .next()
            .and_then(|text| text.trim().parse().ok())
            .expect("a number");
        // Nobody reads the rest, which is less than a pipe holds.
        thread::spawn(move || log.lines().for_each(drop));
        Self {
            child,
            ready_ms,
            own_ms,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails when it has ended, and then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn starts(socket: &str) {
    let mut ready = Vec::new();
    let mut own = Vec::new();
    for _ in 0..STARTS {
        let server = Server::start(socket);
        ready.push(server.ready_ms);
        own.push(server.own_ms);
    }
    println!(
        "start to ready, pool {POOL}: median {:.1} ms, worst {:.1} ms of {STARTS} (inside the process: median {:.1} ms)",
        median(&mut ready),
        ready[ready.len() - 1],
        median(&mut own)
    );
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn footprint(socket: &str) {
    let server = Server::start(socket);
    let pid = server.child.id();
    let client = idle_client(socket);
    let control = client.control();
    let total = control.counter(Counter::PoolBytesTotal);
    while control.counter(Counter::Prefaulted) < total {
        thread::sleep(Duration::from_millis(50));
    }
    drop(client);
    thread::sleep(Duration::from_secs(1));
    let (rss, shmem) = (status_kib(pid, "VmRSS:"), status_kib(pid, "RssShmem:"));
    let pool = shmem.min(total / 1024);
    println!(
        "resident, pool prefaulted: {rss} KiB; besides {pool} KiB of pool pages {:.1} MiB (anonymous {} KiB, files {} \
         KiB, other shared memory {} KiB)",
        (rss - pool) as f64 / 1024.0,
        status_kib(pid, "RssAnon:"),
        status_kib(pid, "RssFile:"),
        shmem - pool
    );
    let idle = idle_seconds();
    watch(pid, idle, "no client");
    let client = idle_client(socket);
    thread::sleep(Duration::from_millis(100));
    watch(pid, idle, "one idle client");
    drop(client);
}

/// A connection that has said hello and does nothing.
fn idle_client(socket: &str) -> RawClient {
    let mut client = RawClient::connect(Path::new(socket));
    client.hello(false);
    client
}

fn idle_seconds() -> u64 {
    let mut args = std::env::args();
    args.by_ref().find(|arg| arg == "--idle-seconds");
    args.next().and_then(|text| text.parse().ok()).unwrap_or(10)
}

/// Counts wake-ups and processor time over some seconds.
fn watch(pid: u32, seconds: u64, what: &str) {
    let before = (wakeups(pid), cpu_ns(pid));
    thread::sleep(Duration::from_secs(seconds));
    let after = (wakeups(pid), cpu_ns(pid));
    println!(
        "idle for {seconds} s, {what}: {} wake-ups, {:.4} % of a core",
        after.0 - before.0,
        (after.1 - before.1) as f64 / (seconds as f64 * 1e9) * 100.0
    );
}

fn threads(pid: u32) -> impl Iterator<Item = String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a running server");
    tasks.map(|task| task.expect("a task").path().display().to_string())
}

fn wakeups(pid: u32) -> u64 {
    threads(pid)
        .map(|task| field(&read(&format!("{task}/status")), "voluntary_ctxt_switches:"))
        .sum()
}

/// Nanoseconds on a processor: the first number of schedstat, finer than the ticks of stat.
fn cpu_ns(pid: u32) -> u64 {
    threads(pid)
        .map(|task| {
            let text = read(&format!("{task}/schedstat"));
            let first = text.split_whitespace().next();
            first
                .and_then(|number| number.parse::<u64>().ok())
                .expect("a number")
        })
        .sum()
}

fn status_kib(pid: u32, name: &str) -> u64 {
    field(&read(&format!("/proc/{pid}/status")), name)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line[name.len()..].split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no {name}"))
}
