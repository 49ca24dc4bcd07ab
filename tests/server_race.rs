//! Sixty-four processes race to bind two alignments, a thousand times; nobody ever sees two sizes.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use kvasir::control::{BindState, ChunkWord};
use kvasir::wire::*;

const PROCESSES: usize = 64;
const ROUNDS: usize = 1000;
const KILLS: u64 = 50;
/// With the default minimum of 256 these lead to 288 and 544, and neither suits the other.
const ALIGNMENTS: [u64; 2] = [48, 544];
const SIZES: [u64; 2] = [288, 544];

/// Set in a child: the alignment that it asks for.
const CHILD: &str = "RACE_ALIGNMENT";

#[test]
fn racing_processes_never_observe_two_sizes() {
    let mut children: Vec<Racer> = (0..PROCESSES)
        .map(|number| Racer::start(ALIGNMENTS[number % 2]))
        .collect();
    let begin = Instant::now();
    let mut wins = [0; 2];
    for round in 0..ROUNDS {
        let server = ServerProcess::with_args(&["--pool-size", "1MiB", "--log-level", "error"]);
        for child in &mut children {
            child.tell(server.socket().to_str().unwrap());
        }
        // All are connected before the first may negotiate.
        for child in &mut children {
            assert_eq!(child.hear(), "connected", "round {round}");
        }
        // Whoever is told first must not always be the same side.
        children.rotate_left(1 + round % 7);
        for child in &mut children {
            child.tell("go");
        }
        let sizes: Vec<String> = children.iter_mut().map(Racer::hear).collect();
        let size: u64 = sizes[0]
            .parse()
            .unwrap_or_else(|_| panic!("round {round}: {sizes:?}"));
        assert!(
            sizes.iter().all(|other| *other == sizes[0]),
            "round {round}: {sizes:?}"
        );
        let winner = SIZES.iter().position(|&s| s == size);
        wins[winner.unwrap_or_else(|| panic!("round {round}: size {size}"))] += 1;
    }
    println!(
        "{ROUNDS} rounds of {PROCESSES} processes in {:.1} s, {} won by alignment {}, {} by {}",
        begin.elapsed().as_secs_f64(),
        wins[0],
        ALIGNMENTS[0],
        wins[1],
        ALIGNMENTS[1]
    );
    assert!(
        wins[0] > 0 && wins[1] > 0,
        "one side always wins, so nothing raced"
    );
}

/// Whether the victim's request was read, or decided, or not even sent, is left to chance; the others are served all the
/// same, with the size that is in force.
#[test]
fn a_contender_killed_in_the_middle_leaves_a_server_that_can_be_bound() {
    let mut decided_by_the_dead = 0;
    for round in 0..KILLS {
        let server = ServerProcess::with_args(&["--pool-size", "1MiB", "--log-level", "error"]);
        let mut victim = Racer::start(ALIGNMENTS[0]);
        victim.tell(server.socket().to_str().unwrap());
        assert_eq!(victim.hear(), "connected");
        victim.tell("go");
        std::thread::sleep(Duration::from_micros(20 * round));
        victim.child.kill().unwrap();
        victim.child.wait().unwrap();
        let mut client = server.connect();
        client.hello(false);
        let size = match client.negotiate(ALIGNMENTS[1]) {
            Reply::Negotiate(reply) => {
                assert_eq!(reply.chunk_size, SIZES[1]);
                SIZES[1]
            }
            Reply::Error(error) => {
                assert_eq!(error.code, ErrorCode::IncompatibleChunkSize, "{error}");
                assert_eq!(error.numbers, [SIZES[0], ALIGNMENTS[1]]);
                decided_by_the_dead += 1;
                SIZES[0]
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(client.control().chunk_word().unwrap().bound(), Some(size as u32));
        let mut third = server.connect();
        third.hello(false);
        let fits = ALIGNMENTS[usize::from(size == SIZES[1])];
        match third.negotiate(fits) {
            Reply::Negotiate(reply) => assert_eq!(reply.chunk_size, size),
            other => panic!("{other:?}"),
        }
    }
    println!("of {KILLS} contenders that were killed, {decided_by_the_dead} had decided the size");
}

struct Racer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Racer {
    fn start(alignment: u64) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child_process", "--nocapture", "--test-threads=1"])
            .env(CHILD, alignment.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The next answer. The test runner of the child writes lines of its own, which have no mark.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(answer) = line.trim_end().strip_prefix(MARK) {
                return answer.to_owned();
            }
            line.clear();
        }
        panic!("a racing process ended: {:?}", self.child.wait());
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const MARK: &str = "racer: ";

/// The main function of a racing process; nothing when it is run as a test.
#[test]
fn child_process() {
    let Ok(alignment) = std::env::var(CHILD) else {
        return;
    };
    let alignment: u64 = alignment.parse().unwrap();
    let mut lines = std::io::stdin().lines();
    while let Some(Ok(socket)) = lines.next() {
        let mut client = RawClient::connect(Path::new(&socket));
        client.hello(false);
        println!("\n{MARK}connected");
        assert_eq!(lines.next().unwrap().unwrap(), "go");
        println!("\n{MARK}{}", race(&mut client, alignment));
    }
}

/// Negotiates once and reports the one size that was seen, or everything when it was more than one.
fn race(client: &mut RawClient, alignment: u64) -> String {
    let control = client.control();
    let mut words = vec![control.chunk_word().unwrap()];
    let answered = match client.negotiate(alignment) {
        Reply::Negotiate(reply) => reply.chunk_size,
        Reply::Error(error) if error.code == ErrorCode::IncompatibleChunkSize => error.numbers[0],
        other => return format!("{other:?}"),
    };
    words.extend((0..3).map(|_| control.chunk_word().unwrap()));
    // Whoever has an answer sees the size in force from then on.
    let consistent = words.iter().all(|word| match word {
        ChunkWord::Unbound => true,
        ChunkWord::Selected(size) | ChunkWord::Bound(size) => u64::from(*size) == answered,
    });
    let bound = words[1..].iter().all(|word| word.state() == BindState::Bound);
    if consistent && bound {
        answered.to_string()
    } else {
        format!("{answered}, {words:?}")
    }
}
