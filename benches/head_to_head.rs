//! Kvasir's side of the questions that `cargo xtask bench --peer lmcache` asks two servers.
//!
//! python/benches/lmcache_peer.py asks the peer the same: chunks of 256 tokens, the same bytes per chunk, the same number of
//! chunks per call, and every byte is copied by the client in both. A figure has the same name in both files.
//! `BENCH_QUICK` set to anything takes fewer rounds.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use criterion::Criterion;
use kvasir::client::ClientKind;
use kvasir::copy::{CopyEngine, CopyPlan, HostMemory, Span};

use engine::{Engine, Prompt, Server, Shape, connect};
use report::{Report, median};

mod engine;
mod report;

/// 64 KiB, 1 MiB and 32 MiB per chunk of 256 tokens.
const TINY: Shape = Shape {
    layers: 1,
    page: 4 << 10,
};
const SMALL: Shape = Shape {
    layers: 4,
    page: 16 << 10,
};
const BIG: Shape = Shape {
    layers: 32,
    page: 64 << 10,
};
const POOL: &str = "2GiB";
const ARENA: u64 = 512 << 20;
/// What is stored before any of it is loaded: it fits the pool of either side, and no cache.
const BATCH_BYTES: u64 = 1400 << 20;
/// Chunks of a store or load whose throughput is measured.
const CHUNKS: u64 = 16;
/// Tells this program that it is one of several clients: the socket.
const CLIENT: &str = "BENCH_CLIENT";

/// How often things are done.
struct Rounds {
    exchanges: usize,
    calls: usize,
    copies: usize,
    starts: usize,
    seconds: f64,
}

impl Rounds {
    fn asked() -> Self {
        if std::env::var_os("BENCH_QUICK").is_some() {
            return Self {
                exchanges: 200,
                calls: 20,
                copies: 3,
                starts: 2,
                seconds: 0.5,
            };
        }
        Self {
            exchanges: 2000,
            calls: 100,
            copies: 9,
            starts: 11,
            seconds: 5.0,
        }
    }
}

fn timed(count: usize, mut call: impl FnMut()) -> f64 {
    for _ in 0..count / 10 + 1 {
        call();
    }
    let time = |_| {
        let begin = Instant::now();
        call();
        begin.elapsed()
    };
    median((0..count).map(time).collect())
}

/// From the start of a process to its first answer; and what it has in memory when it is idle.
fn start(rounds: &Rounds, report: &mut Report) {
    let once = |_| {
        let begin = Instant::now();
        let server = Server::start(POOL);
        let tool = connect(&server.socket(), ClientKind::Tool, [0; 16]);
        tool.release_label(0).expect("an answer");
        begin.elapsed()
    };
    let seconds = median((0..rounds.starts).map(once).collect());
    report.figure("start", seconds * 1e3, "ms");
    let server = Server::ready(POOL);
    std::thread::sleep(Duration::from_secs(1));
    report.figure("idle_memory", server.private_mib(), "MiB");
}

/// What no byte is copied for.
fn control(rounds: &Rounds, socket: &Path, report: &mut Report) {
    let mut engine = Engine::start(socket, TINY, 64 << 20, 1);
    let client = connect(socket, ClientKind::Tool, [0; 16]);
    let mut figure = |name: &str, seconds: f64| report.figure(name, seconds * 1e6, "us");
    // Its label has no pin, but the server is asked: the client has no mapping that could tell.
    figure(
        "noop",
        timed(rounds.exchanges, || client.release_label(7).expect("an answer")),
    );

    let prompt = engine.prompt(128);
    engine.store(&prompt);
    figure(
        "lookup_repeated",
        timed(rounds.exchanges, || engine.hit(&prompt.chain)),
    );
    let hashing = || engine.hit(&engine.hash(&prompt.tokens));
    figure("lookup_hashing", timed(rounds.calls, hashing));
    for chunks in [1, 128] {
        let (mut stores, mut loads) = (vec![], vec![]);
        for _ in 0..rounds.calls {
            let prompt = engine.prompt(chunks);
            stores.push(engine.store(&prompt));
            loads.push(engine.load(&prompt));
        }
        figure(&format!("store_{chunks}"), median(stores));
        figure(&format!("load_{chunks}"), median(loads));
    }
}

/// Rates of stores and loads, and of the fastest plain copy of as many bytes in the same run. All of them are of cold bytes: first a
/// batch is stored, then it is loaded, then as much is copied, so that nothing was touched just before.
fn throughput(rounds: &Rounds, socket: &Path, name: &str, shape: Shape, report: &mut Report) {
    let mut engine = Engine::start(socket, shape, ARENA, 2);
    let bytes = shape.bytes() * CHUNKS;
    // Every page of the pool has been written once before anything is timed.
    for _ in 0..(2 << 30) / bytes {
        let prompt = engine.prompt(CHUNKS);
        engine.store(&prompt);
    }
    let (mut stores, mut loads, mut plain, mut slices) = (vec![], vec![], vec![], vec![]);
    let source = [HostMemory::mapped(std::sync::Arc::clone(&engine.memory))];
    let target = [HostMemory::zeroed(ARENA as usize)];
    let (from, mut to) = (vec![1_u8; ARENA as usize], vec![2_u8; ARENA as usize]);
    let copier = CopyEngine::detect();
    let calls = rounds
        .copies
        .max((rounds.copies as u64 * (64 << 20) / bytes) as usize);
    let batch = (BATCH_BYTES / bytes).max(1) as usize;
    for first in (0..calls).step_by(batch) {
        let rounds = first..calls.min(first + batch);
        let prompts: Vec<Prompt> = rounds.clone().map(|_| engine.prompt(CHUNKS)).collect();
        stores.extend(prompts.iter().map(|prompt| engine.store(prompt)));
        loads.extend(prompts.iter().map(|prompt| engine.load(prompt)));
        for round in rounds {
            let at = round as u64 * bytes % (ARENA - bytes + 1);
            let begin = Instant::now();
            let mut plan = CopyPlan::new();
            plan.push(Span::new(0, at), Span::new(0, at), bytes);
            copier.execute(&plan, &source, &target).expect("a copy");
            plain.push(begin.elapsed());
            let range = at as usize..(at + bytes) as usize;
            let begin = Instant::now();
            to[range.clone()].copy_from_slice(&from[range]);
            slices.push(begin.elapsed());
        }
    }
    let rate = |times| bytes as f64 / median(times) / 1e9;
    let ceiling = rate(plain).max(rate(slices));
    report.figure(format!("store_{name}"), rate(stores), "GB/s");
    report.figure(format!("load_{name}"), rate(loads), "GB/s");
    report.figure(format!("copy_{name}"), ceiling, "GB/s");
}

/// A client process: looks the same prompt up until its time is over, and says how often.
fn be_client(socket: &Path) {
    let engine = Engine::start(socket, TINY, 1 << 20, 40);
    let prompt = engine.prompt_number(1, CHUNKS);
    engine.hit(&prompt.chain);
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    let seconds: f64 = line.trim().parse().expect("seconds");
    let (begin, mut count) = (Instant::now(), 0_u64);
    while begin.elapsed().as_secs_f64() < seconds {
        engine.hit(&prompt.chain);
        count += 1;
    }
    println!("{}", count as f64 / begin.elapsed().as_secs_f64());
}

struct Clients(Vec<(Child, BufReader<std::process::ChildStdout>)>);

impl Drop for Clients {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            // Fails when it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Requests of four processes at once: a lookup of 16 chunks and its release.
fn four_clients(rounds: &Rounds, socket: &Path, report: &mut Report) {
    let mut engine = Engine::start(socket, TINY, 64 << 20, 3);
    let prompt = engine.prompt_number(1, CHUNKS);
    engine.store(&prompt);
    let program = std::env::current_exe().expect("this program");
    let mut clients = Clients(vec![]);
    for _ in 0..4 {
        let mut command = Command::new(&program);
        command
            .env(CLIENT, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("a client");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        clients.0.push((child, out));
    }
    let line = |out: &mut BufReader<_>| {
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    };
    for (_, out) in &mut clients.0 {
        assert_eq!(line(out), "ready");
    }
    for (child, _) in &mut clients.0 {
        let input = child.stdin.as_mut().expect("a pipe");
        writeln!(input, "{}", rounds.seconds).expect("a client that reads");
    }
    let rates = clients
        .0
        .iter_mut()
        .map(|(_, out)| line(out).parse::<f64>().expect("a rate"));
    report.figure("requests_of_4", rates.sum(), "1/s");
}

fn main() {
    if let Some(socket) = std::env::var_os(CLIENT) {
        be_client(Path::new(&socket));
        return;
    }
    let criterion = Criterion::default().configure_from_args();
    criterion.final_summary();
    let mut report = Report::new("head_to_head");
    if report.is_wanted() {
        let rounds = Rounds::asked();
        start(&rounds, &mut report);
        let server = Server::ready(POOL);
        let socket = server.socket();
        control(&rounds, &socket, &mut report);
        four_clients(&rounds, &socket, &mut report);
        throughput(&rounds, &socket, "1MiB", SMALL, &mut report);
        throughput(&rounds, &socket, "32MiB", BIG, &mut report);
    }
    report.finish();
}
