//! `kvasir clients`: who holds what, and what becomes of clients that an operator ends.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::*;
use kvasir::client::{Client, ClientConfig};
use kvasir::object::*;
use kvasir::shm::{Mapping, ReadWrite};
use kvasir::wire::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Set in a child: what it is and where to connect.
const CHILD: &str = "KICKED_CLIENT";
const MARK: &str = "kicked: ";
/// Frames that the child is granted and goes on writing to.
const GRANTED: u64 = 32;
/// What it writes there. No object of these tests has such bytes.
const FOREIGN: u8 = 0xEE;

fn clients(server: &ServerProcess, more: &[&str]) -> (Option<i32>, Value) {
    let mut args = vec!["clients", "--json", "--socket", server.socket().to_str().unwrap()];
    args.extend(more);
    let (code, answer, error) = run(&args, |_| {});
    assert_eq!(error, "", "{args:?}");
    let answer = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
    (code, answer)
}

/// The row of a process.
fn row(server: &ServerProcess, pid: u32) -> Value {
    let (code, answer) = clients(server, &[]);
    assert_eq!(code, Some(0));
    let rows = answer["clients"].as_array().unwrap();
    rows.iter()
        .find(|row| row["pid"] == pid)
        .cloned()
        .unwrap_or(Value::Null)
}

fn operator(server: &ServerProcess) -> RawClient {
    let mut tool = server.connect();
    let Request::Hello(mut request) = hello(false) else {
        unreachable!()
    };
    request.kind = ClientKind::Tool;
    assert!(matches!(tool.call(&Request::Hello(request)), Reply::Hello(_)));
    tool
}

/// A client process that holds a pin and frames, and writes to the frames for ever.
struct Writer {
    child: Child,
    frames: Vec<u32>,
}

impl Writer {
    fn start(server: &ServerProcess, what: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_process", "--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{what} {}", server.socket().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let frames = output.find_map(|line| Some(line.unwrap().strip_prefix(MARK)?.to_owned()));
        let frames = frames.expect("the child got its frames");
        let frames = frames.split_whitespace().map(|frame| frame.parse().unwrap());
        Self {
            frames: frames.collect(),
            child,
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    fn stop(&self, server: &ServerProcess) {
        self.signal(Signal::SIGSTOP);
        eventually("the process to be stopped", || {
            row(server, self.pid())["process"] == "stopped"
        });
    }

    fn kick(&self, server: &ServerProcess, more: &[&str]) -> (Option<i32>, Value) {
        let pid = self.pid().to_string();
        let mut args = vec!["--kick", &pid];
        args.extend(more);
        let (code, answer) = clients(server, &args);
        let rows = answer["kicked"].as_array().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!((rows.len(), &rows[0]["pid"]), (1, &json!(self.pid())), "{answer}");
        (code, rows[0].clone())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Fails when it has ended, and then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that stores objects of bytes that follow from their number, and looks at them again.
struct Storing {
    client: RawClient,
    pool: Mapping<ReadWrite>,
    stored: Vec<(u64, Extent)>,
}

impl Storing {
    fn new(server: &ServerProcess) -> Self {
        let client = server.worker();
        let pool = map_pool(&client);
        Self {
            client,
            pool,
            stored: Vec::new(),
        }
    }

    /// Stores so many objects; where they are.
    fn store(&mut self, numbers: std::ops::Range<u64>) -> Vec<u32> {
        let first = self.stored.len();
        for number in numbers {
            let extent = grant_one(&mut self.client);
            self.pool
                .write_bytes(frame_at(extent.frame), &bytes_of(number))
                .unwrap();
            let commit = commit_of(&self.client, number, extent);
            match self.client.call(&Request::Commit(commit)) {
                Reply::Commit(reply) => assert_eq!(reply.outcomes, [CommitOutcome::Published]),
                other => panic!("{other:?}"),
            }
            self.stored.push((number, extent));
        }
        self.stored[first..]
            .iter()
            .map(|(_, extent)| extent.frame)
            .collect()
    }

    /// Reads all that is still there of what was stored. How many objects that are; each has its own bytes.
    fn check(&mut self) -> usize {
        let mut found = 0;
        let mut bytes = vec![0; CHUNK_BYTES as usize];
        for (number, _) in &self.stored {
            let request = Request::Retrieve(RetrieveRequest {
                domain_seed: self.client.seed.unwrap(),
                label: 1,
                part: 0,
                ids: vec![object(*number)],
            });
            let Reply::Retrieve(answer) = self.client.call(&request) else {
                panic!("no answer")
            };
            if let [extent] = answer.extents[..] {
                self.pool.read_bytes(frame_at(extent.frame), &mut bytes).unwrap();
                assert_eq!(
                    bytes,
                    bytes_of(*number),
                    "object {number} in frame {}",
                    extent.frame
                );
                found += 1;
            }
            self.client.call(&Request::ReleaseLabel { label: 1 });
        }
        found
    }
}

fn map_pool(client: &RawClient) -> Mapping<ReadWrite> {
    let regions = &client.hello.as_ref().unwrap().regions;
    let pool = regions
        .iter()
        .find(|region| region.kind == RegionKind::Pool)
        .unwrap();
    Mapping::map_foreign(client.region(RegionKind::Pool), pool.bytes as usize).unwrap()
}

fn frame_at(frame: u32) -> usize {
    frame as usize * CHUNK_BYTES as usize
}

/// The bytes of an object, which no other has.
fn bytes_of(number: u64) -> Vec<u8> {
    let word = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let words = (0..CHUNK_BYTES / 8).map(|at| word ^ at);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    assert!(bytes.iter().any(|byte| *byte != FOREIGN));
    bytes
}

#[test]
fn a_stopped_client_that_holds_its_byte_is_ended_and_what_it_may_still_write_hits_nobody() {
    let server = ServerProcess::with_args(&["--pool-size", "16MiB"]);
    server.wait_prefaulted();
    let mut others = Storing::new(&server);
    others.store(1..2);
    let mut writer = Writer::start(&server, "writer");
    writer.stop(&server);
    let held = row(&server, writer.pid());
    assert_eq!(
        (
            &held["granted"],
            &held["incomplete"],
            &held["pins"],
            &held["kept"],
            &held["lock_held"]
        ),
        (
            &json!(GRANTED * CHUNK_BYTES),
            &json!(0),
            &json!(1),
            &json!(CHUNK_BYTES),
            &json!(true)
        ),
        "{held}"
    );
    assert_eq!(held["holds"], (GRANTED + 1) * CHUNK_BYTES);
    assert!(
        held["oldest_pin_s"].is_u64() && held["age_s"].is_u64() && held["idle_s"].is_u64(),
        "{held}"
    );
    assert_eq!(
        (&held["model"], &held["rank"], &held["connected"]),
        (&json!("test/model"), &json!(0), &json!(true))
    );

    // Spared, it loses its connection and the pins of that, and keeps what it may still write to.
    let (code, kicked) = writer.kick(&server, &["--spare", "--grace", "300"]);
    assert_eq!((code, &kicked["outcome"]), (Some(1), &json!("kept")));
    let orphan = row(&server, writer.pid());
    assert_eq!(
        (
            &orphan["connected"],
            &orphan["lock_held"],
            &orphan["pins"],
            &orphan["granted"]
        ),
        (
            &json!(false),
            &json!(true),
            &json!(0),
            &json!(GRANTED * CHUNK_BYTES)
        ),
        "{orphan}"
    );
    assert_eq!(
        (&orphan["process"], &orphan["number"]),
        (&json!("stopped"), &held["number"])
    );
    // It wakes up and writes, and everything else that fits is stored meanwhile, none of it there.
    writer.signal(Signal::SIGCONT);
    let frames = others.store(1000..1300);
    assert!(
        frames.iter().all(|frame| !writer.frames.contains(frame)),
        "a frame has two writers"
    );
    assert!(others.check() > 100);

    // Killed, everything comes back before the command has.
    writer.stop(&server);
    let (code, kicked) = writer.kick(&server, &["--grace", "0"]);
    assert_eq!(
        (code, &kicked["outcome"], &kicked["held"]),
        (Some(0), &json!("killed"), &json!(GRANTED * CHUNK_BYTES))
    );
    let status = server.status();
    assert_balanced(&status);
    assert_eq!(
        (&status["pool"]["granted"], &status["pool"]["quarantined"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(row(&server, writer.pid()), Value::Null);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(
        writer.child.wait().unwrap().signal(),
        Some(Signal::SIGKILL as i32)
    );
    let frames = others.store(2000..2300);
    assert!(
        frames.iter().any(|frame| writer.frames.contains(frame)),
        "others get its frames"
    );
    assert!(others.check() > 100);
    assert_eq!(
        server.status()["kicks"],
        json!({ "let_go": 0, "killed": 1, "kept": 1 })
    );
    for words in [
        "an operator ended a client",
        "its process was killed",
        "keeps what it holds",
    ] {
        assert!(server.log().contains(words), "{words}: {}", server.log());
    }
}

/// One that runs is told why, lets go, and begins anew. Nobody kills it.
#[test]
fn a_client_that_runs_lets_go_and_comes_back() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut config = ClientConfig::new(server.socket(), ClientKind::Worker, "engine", [7; 16]);
    config.deadline = WATCHDOG;
    config.grant_bytes = 8 * CHUNK_BYTES;
    let engine = Client::new(config).unwrap();
    let Request::Negotiate(negotiation) = negotiate(ALIGNMENT) else {
        unreachable!()
    };
    engine.negotiate(negotiation).unwrap();
    engine.register(registration()).unwrap();
    let before = row(&server, std::process::id());
    assert_eq!(
        (&before["granted"], &before["process"]),
        (&json!(8 * CHUNK_BYTES), &json!("running"))
    );
    let number = format!("c{}", before["number"]);
    // The process is this one, which is not to be killed however slow it is.
    let (code, answer) = clients(&server, &["--kick", &number, "--grace", "60000", "--spare"]);
    assert_eq!(
        (code, &answer["kicked"][0]["outcome"]),
        (Some(0), &json!("let_go")),
        "{answer}"
    );
    eventually("the engine to come back", || {
        engine.is_healthy() && engine.stats().reconnects == 1
    });
    assert_eq!(
        engine.state_text(),
        "healthy; an operator ended a connection of it (kvasir clients --kick)"
    );
    let after = row(&server, std::process::id());
    assert_ne!(after["number"], before["number"]);
    let (code, answer) = clients(&server, &["--kick", &number]);
    assert_eq!(
        (code, &answer["error"]["code"]),
        (Some(1), &json!("UnknownClient")),
        "{answer}"
    );
    let status = server.status();
    assert_balanced(&status);
    assert_eq!(status["kicks"], json!({ "let_go": 1, "killed": 0, "kept": 0 }));
}

/// A child of the client has a copy of its lock: the process is dead, and what it was granted is not anybody else's yet.
#[test]
fn frames_stay_away_from_others_while_a_child_of_a_killed_client_has_its_lock() {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut others = Storing::new(&server);
    others.store(1..2);
    let mut parent = Writer::start(&server, "parent");
    let child = parent.frames.pop().unwrap() as i32;
    parent.stop(&server);
    let (code, kicked) = parent.kick(&server, &["--grace", "0"]);
    assert_eq!((code, &kicked["outcome"]), (Some(1), &json!("held_by_other")));
    let row = row(&server, parent.pid());
    assert_eq!(
        (&row["process"], &row["lock_held"]),
        (&json!("ended"), &json!(true)),
        "{row}"
    );
    let frames = others.store(1000..1300);
    assert!(frames.iter().all(|frame| !parent.frames.contains(frame)));
    assert!(others.check() > 100);
    kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
    eventually("its frames to come back", || {
        server.status()["pool"]["granted"] == 0
    });
}

#[test]
fn what_an_operator_may_not_ask_is_refused_and_changes_nothing() {
    let mut server = ServerProcess::start();
    let mut worker = server.worker();
    let mut tool = operator(&server);
    let kick = |client, pid, grace_ms| {
        Request::Kick(Kick {
            client,
            pid,
            grace_ms,
            spare: true,
        })
    };
    let number = row(&server, std::process::id())["number"].as_u64().unwrap();
    let mut refused = |request: &Request| {
        let error = tool.refused(request);
        (error.code, error.numbers)
    };
    assert_eq!(refused(&kick(0, 0, 0)), (ErrorCode::InvalidArgument, vec![0]));
    assert_eq!(
        refused(&kick(number, 0, 60_001)),
        (ErrorCode::LimitExceeded, vec![60_001, 60_000])
    );
    assert_eq!(
        refused(&kick(0, server.pid(), 0)),
        (ErrorCode::UnknownClient, vec![0, u64::from(server.pid())])
    );
    assert_eq!(
        refused(&kick(u64::MAX, 0, 0)),
        (ErrorCode::UnknownClient, vec![u64::MAX, 0])
    );
    assert_eq!(
        refused(&kick(number, 1, 0)),
        (ErrorCode::UnknownClient, vec![number, 1]),
        "both have to fit"
    );
    // All clients of this process, and the one that asks is one of them.
    assert_eq!(
        refused(&kick(0, std::process::id(), 0)).0,
        ErrorCode::InvalidArgument
    );
    let error = worker.refused(&kick(number, 0, 0));
    assert_eq!(
        (error.code, error.numbers),
        (ErrorCode::InvalidArgument, vec![2]),
        "only a tool may"
    );
    server.assert_serves(&mut worker);
    for wrong in ["0", "c0", "-7", "x", "c"] {
        let kick = format!("--kick={wrong}");
        let (code, answer) = clients(&server, &[&kick]);
        assert_eq!(
            (code, &answer["error"]["kind"]),
            (Some(2), &json!("usage")),
            "{wrong}: {answer}"
        );
    }
    let (code, answer) = clients(&server, &["--spare"]);
    assert_eq!(
        (code, &answer["error"]["kind"]),
        (Some(2), &json!("usage")),
        "{answer}"
    );
    assert_eq!(
        server.status()["kicks"],
        json!({ "let_go": 0, "killed": 0, "kept": 0 })
    );
}

/// Others are served while a kick waits, and a server that is stopped meanwhile stops.
#[test]
fn a_kick_that_waits_holds_nobody_up() {
    let mut server = ServerProcess::start();
    server.wait_prefaulted();
    let mut others = Storing::new(&server);
    others.store(1..2);
    let writer = Writer::start(&server, "writer");
    writer.stop(&server);
    let mut tool = operator(&server);
    tool.send(&Request::Kick(Kick {
        client: 0,
        pid: writer.pid(),
        grace_ms: 60_000,
        spare: false,
    }));
    eventually("the connection to be closed", || {
        row(&server, writer.pid())["connected"] == false
    });
    others.store(2..10);
    assert_eq!(others.check(), 9);
    server.signal(Signal::SIGTERM);
    assert_eq!(tool.expect_error().code, ErrorCode::Draining);
    assert!(server.wait().success());
}

#[test]
fn a_list_is_for_people_too() {
    let server = ServerProcess::start();
    let list = |more: &[&str]| {
        let mut args = vec!["clients", "--socket", server.socket().to_str().unwrap()];
        args.extend(more);
        run(&args, |_| {})
    };
    assert_eq!(list(&[]), (Some(0), "no clients\n".to_owned(), String::new()));
    let mut worker = server.worker();
    store(&mut worker, 1);
    worker.call(&lookup(&worker, &[1]));
    let (code, text, _) = list(&[]);
    assert_eq!(code, Some(0));
    for part in [
        "client  process",
        "worker",
        "running",
        "test/model rank 0 of 1; keeps 64.0 KiB from others",
        "1 (0 s)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let number = row(&server, std::process::id())["number"].to_string();
    let (code, text, _) = list(&["--kick", &format!("c{number}"), "--grace", "100", "--spare"]);
    assert_eq!(code, Some(1), "a raw client never lets go: {text}");
    assert!(
        text.contains(&format!("client c{number} of process")) && text.contains("keeps 64.0 KiB"),
        "{text}"
    );
}

/// The main function of a client that is kicked; nothing when it is run as a test.
#[test]
fn child_process() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let (what, socket) = task.split_once(' ').unwrap();
    let mut client = RawClient::connect(Path::new(socket));
    client.become_worker();
    match client.call(&lookup(&client, &[1])) {
        Reply::Lookup(found) => assert_ne!(found.pin, 0),
        other => panic!("{other:?}"),
    }
    let extents = client.grant(GRANTED * CHUNK_BYTES);
    let mut frames: Vec<u32> = extents.iter().flat_map(|extent| extent.frames()).collect();
    assert_eq!(frames.len() as u64, GRANTED);
    if what == "parent" {
        // No library of this process knows of the child, and so nothing closes its copy of the lock. It outlives this one.
        #[allow(clippy::zombie_processes)]
        let child = Command::new("sleep")
            .arg("600")
            .stdin(child_stdin(&client))
            .spawn()
            .unwrap();
        frames.push(child.id());
    }
    let pool = map_pool(&client);
    let list: Vec<String> = frames.iter().map(ToString::to_string).collect();
    println!("\n{MARK}{}", list.join(" "));
    let bytes = vec![FOREIGN; CHUNK_BYTES as usize];
    loop {
        for frame in frames.iter().take(GRANTED as usize) {
            pool.write_bytes(frame_at(*frame), &bytes).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The lock's descriptor as the standard input of a program.
fn child_stdin(client: &RawClient) -> Stdio {
    client
        .region(RegionKind::Liveness)
        .try_clone_to_owned()
        .unwrap()
        .into()
}
