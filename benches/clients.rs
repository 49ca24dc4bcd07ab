//! What do N engines get that use one server at once: rounds per second, and the call that one in a hundred exceeds?
//!
//! Each engine is a process of its own with its own KV cache. A round is all that an engine does for a call, and its rate is of
//! wall-clock time. The median and the 99th percentile are of the call alone:
//!
//! * lookup: the lookup of 16 chunks that hit, with its release, which is all of the round;
//! * store: the store of 16 new chunks of 64 KiB; the round also makes their keys from tokens;
//! * load: the load of 16 chunks that the same process has stored; the round also looks them up and releases them.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use criterion::Criterion;

use engine::{Engine, Server, Shape, percentile};
use report::Report;

mod engine;
mod report;

/// 64 KiB per chunk.
const SHAPE: Shape = Shape {
    layers: 1,
    page: 4 << 10,
};
const POOL: &str = "1GiB";
const CHUNKS: u64 = 16;
const CLIENTS: [usize; 4] = [1, 2, 4, 8];
const KINDS: [&str; 3] = ["lookup", "store", "load"];
/// Tells this program that it is one of the clients: the socket, and its number.
const SOCKET: &str = "BENCH_SOCKET";
const NUMBER: &str = "BENCH_NUMBER";

/// One client: `KIND SECONDS` on a line asks for calls, and the answer is rounds per second, median and 99th percentile.
fn be_client(socket: &Path, number: u8) {
    let mut engine = Engine::start(socket, SHAPE, 64 << 20, number);
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let (kind, seconds) = line.split_once(' ').expect("a kind and seconds");
        let seconds: f64 = seconds.parse().expect("seconds");
        let prompt = engine.prompt(CHUNKS);
        engine.store(&prompt);
        let (begin, mut times) = (Instant::now(), Vec::new());
        while begin.elapsed().as_secs_f64() < seconds {
            times.push(match kind {
                "lookup" => {
                    let begin = Instant::now();
                    engine.hit(&prompt.chain);
                    begin.elapsed()
                }
                "store" => {
                    let prompt = engine.prompt(CHUNKS);
                    engine.store(&prompt)
                }
                _ => engine.load(&prompt),
            });
        }
        let rate = times.len() as f64 / begin.elapsed().as_secs_f64();
        let [median, most] = [0.5, 0.99].map(|fraction| percentile(&mut times, fraction) * 1e6);
        println!("{rate} {median} {most}");
    }
}

struct Clients(Vec<(Child, BufReader<ChildStdout>)>);

impl Drop for Clients {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            // Fails when it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Clients {
    fn start(socket: &Path, count: usize) -> Self {
        let program = std::env::current_exe().expect("this program");
        let client = |number: usize| {
            let mut command = Command::new(&program);
            command.env(SOCKET, socket).env(NUMBER, (number + 1).to_string());
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a client");
            let out = BufReader::new(child.stdout.take().expect("a pipe"));
            (child, out)
        };
        let mut clients = Self((0..count).map(client).collect());
        assert!(clients.lines().iter().all(|line| line == "ready"));
        clients
    }

    /// A line of each.
    fn lines(&mut self) -> Vec<String> {
        let line = |out: &mut BufReader<ChildStdout>| {
            let mut line = String::new();
            out.read_line(&mut line).expect("a line");
            line.trim().to_owned()
        };
        self.0.iter_mut().map(|(_, out)| line(out)).collect()
    }

    /// What each got: rounds per second, median and 99th percentile of the call in microseconds.
    fn ask(&mut self, kind: &str, seconds: f64) -> Vec<[f64; 3]> {
        for (child, _) in &mut self.0 {
            let input = child.stdin.as_mut().expect("a pipe");
            writeln!(input, "{kind} {seconds}").expect("a client that reads");
        }
        let numbers = |line: String| -> [f64; 3] {
            let numbers = line.split(' ').map(|text| text.parse().expect("a number"));
            let numbers: Vec<f64> = numbers.collect();
            numbers.try_into().expect("three numbers")
        };
        self.lines().into_iter().map(numbers).collect()
    }
}

fn ratios(report: &mut Report) {
    let quick = std::env::var_os("BENCH_QUICK").is_some();
    let seconds = if quick { 0.3 } else { 3.0 };
    let server = Server::ready(POOL);
    let mut idle = [0.0; KINDS.len()];
    for count in CLIENTS {
        let mut clients = Clients::start(&server.socket(), count);
        for (kind, idle) in KINDS.iter().zip(&mut idle) {
            let found = clients.ask(kind, seconds);
            let rate: f64 = found.iter().map(|[rate, ..]| rate).sum();
            let middle = found.iter().map(|[_, median, _]| median).sum::<f64>() / found.len() as f64;
            let worst = found.iter().map(|[.., most]| *most).fold(0.0, f64::max);
            report.figure(format!("{count} clients/{kind}, rounds per second"), rate, "1/s");
            report.figure(
                format!("{count} clients/{kind}, median of the call"),
                middle,
                "us",
            );
            report.figure(
                format!("{count} clients/{kind}, p99 of the call of the slowest client"),
                worst,
                "us",
            );
            if count == 1 {
                *idle = worst;
            }
            let share = report.ratio(
                format!("{count} clients/{kind}, p99 in multiples of that of one client"),
                worst,
                *idle,
            );
            println!(
                "{count} clients, {kind:>6}: {rate:>9.0} rounds/s, median {middle:.1} us, p99 {worst:.1} us ({share:.2})"
            );
        }
    }
}

fn main() {
    if let (Some(socket), Ok(number)) = (std::env::var_os(SOCKET), std::env::var(NUMBER)) {
        be_client(Path::new(&socket), number.parse().expect("a number"));
        return;
    }
    let mut criterion = Criterion::default().configure_from_args().sample_size(20);
    let server = Server::ready(POOL);
    let mut engine = Engine::start(&server.socket(), SHAPE, 64 << 20, 1);
    let prompt = engine.prompt(CHUNKS);
    engine.store(&prompt);
    criterion.bench_function("clients/one lookup of 16 chunks", |bencher| {
        bencher.iter(|| engine.hit(&prompt.chain));
    });
    criterion.bench_function("clients/one load of 16 chunks", |bencher| {
        bencher.iter_custom(|count| (0..count).map(|_| engine.load(&prompt)).sum::<Duration>());
    });
    drop((engine, server));
    criterion.final_summary();
    let mut report = Report::new("clients");
    if report.is_wanted() {
        ratios(&mut report);
    }
    report.finish();
}
