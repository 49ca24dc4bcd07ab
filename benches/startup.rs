//! What does a server cost before it does anything: start to ready, resident memory, and wake-ups while idle?
//!
//! Asserts nothing. Run with `cargo bench --bench startup`. Numbers come from a real process with a pool of 4 GiB and from
//! what /proc says of it; idle servers are watched for 10 s.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use criterion::Criterion;
use kvasir::control::Counter;

use common::{KVASIR, RawClient};
use report::Report;

#[path = "../tests/common/mod.rs"]
mod common;
mod report;

const STARTS: usize = 21;
const POOL: &str = "4GiB";
const IDLE_SECONDS: u64 = 10;

fn main() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("k.sock");
    let socket = socket.to_str().expect("a UTF-8 path");
    let mut criterion = Criterion::default().configure_from_args().sample_size(10);
    criterion.bench_function("startup/to ready, pool of 4 GiB", |bencher| {
        bencher.iter_custom(|count| (0..count).map(|_| Server::start(socket).to_ready()).sum());
    });
    criterion.final_summary();
    let mut report = Report::new("startup");
    if report.is_wanted() {
        starts(socket, &mut report);
        footprint(socket, &mut report);
    }
    report.finish();
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

impl Server {
    fn to_ready(&self) -> Duration {
        Duration::from_secs_f64(self.ready_ms / 1e3)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails when it has ended, and then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn starts(socket: &str, report: &mut Report) {
    let mut ready = Vec::new();
    let mut own = Vec::new();
    for _ in 0..STARTS {
        let server = Server::start(socket);
        ready.push(server.ready_ms);
        own.push(server.own_ms);
    }
    let (middle, own) = (median(&mut ready), median(&mut own));
    let worst = ready[ready.len() - 1];
    report.figure("start to ready, median", middle, "ms");
    report.figure("start to ready, worst", worst, "ms");
    report.figure("start to ready inside the process, median", own, "ms");
    println!(
        "start to ready, pool {POOL}: median {middle:.1} ms, worst {worst:.1} ms of {STARTS} (inside the process: median \
         {own:.1} ms)"
    );
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn footprint(socket: &str, report: &mut Report) {
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
    report.figure("resident besides pool pages", (rss - pool) as f64, "KiB");
    println!(
        "resident, pool prefaulted: {rss} KiB; besides {pool} KiB of pool pages {:.1} MiB (anonymous {} KiB, files {} \
         KiB, other shared memory {} KiB)",
        (rss - pool) as f64 / 1024.0,
        status_kib(pid, "RssAnon:"),
        status_kib(pid, "RssFile:"),
        shmem - pool
    );
    watch(pid, "no client", report);
    let client = idle_client(socket);
    thread::sleep(Duration::from_millis(100));
    watch(pid, "one idle client", report);
    drop(client);
}

/// A connection that has said hello and does nothing.
fn idle_client(socket: &str) -> RawClient {
    let mut client = RawClient::connect(Path::new(socket));
    client.hello(false);
    client
}

/// Counts wake-ups and processor time over some seconds.
fn watch(pid: u32, what: &str, report: &mut Report) {
    let before = (wakeups(pid), cpu_ns(pid));
    thread::sleep(Duration::from_secs(IDLE_SECONDS));
    let after = (wakeups(pid), cpu_ns(pid));
    let woken = after.0 - before.0;
    let share = (after.1 - before.1) as f64 / (IDLE_SECONDS as f64 * 1e9) * 100.0;
    report.figure(
        format!("{what}/wake-ups in {IDLE_SECONDS} s"),
        woken as f64,
        "wake-ups",
    );
    report.figure(format!("{what}/share of a core"), share, "%");
    println!("idle for {IDLE_SECONDS} s, {what}: {woken} wake-ups, {share:.4} % of a core");
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
