//! `kvasir conform` with clients that are right, and with clients that have one thing wrong.

mod conform_support;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conform_support::{Wrong, go};
use kvasir::object::{ObjectId, RetrieveRequest};
use kvasir::wire::{Encoder, FrameReader, Reply, Request, decode_reply};
use serde_json::Value;

const WATCHDOG: Duration = Duration::from_secs(120);

/// A `kvasir conform` process that listens in a directory of its own.
struct Kit {
    child: Child,
    directory: tempfile::TempDir,
}

impl Kit {
    fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command
            .arg("conform")
            .arg(directory.path().join("k.sock"))
            .args(arguments);
        command
            .env("TMPDIR", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        let kit = Self { child, directory };
        let begin = Instant::now();
        while !kit.socket().exists() {
            assert!(begin.elapsed() < WATCHDOG, "the kit does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        kit
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("k.sock")
    }

    /// Waits for the verdict: whether it exits with success, and what it prints.
    fn verdict(mut self) -> (bool, String) {
        let mut text = String::new();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        let status = self.child.wait().unwrap();
        let left: Vec<_> = std::fs::read_dir(self.directory.path())
            .unwrap()
            .flatten()
            .collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        (status.success(), text)
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        // Fails when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the kit says of a client.
fn judged(client: impl FnOnce(&Path)) -> Value {
    let kit = Kit::start(&["--json", "--patience", "2", "--late", "500"]);
    client(&kit.socket());
    let (success, text) = kit.verdict();
    let verdict: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(
        verdict["conforms"].as_bool(),
        Some(success),
        "the exit code says the same"
    );
    verdict
}

fn findings(verdict: &Value) -> Vec<(String, String)> {
    let steps = verdict["steps"].as_array().unwrap().iter();
    let all = steps.flat_map(|step| {
        let name = step["step"].as_str().unwrap().to_owned();
        let findings = step["findings"].as_array().unwrap().iter();
        findings.map(move |f| {
            let text = |name: &str| f[name].as_str().unwrap().to_owned();
            (
                name.clone(),
                format!("{}: {} / {}", text("field"), text("expected"), text("found")),
            )
        })
    });
    all.collect()
}

#[test]
fn a_client_that_is_right_conforms() {
    let kit = Kit::start(&["--late", "100"]);
    assert!(go(&kit.socket(), Wrong::Nothing).is_ok());
    let (success, text) = kit.verdict();
    assert!(success, "{text}");
    assert!(
        text.contains("20 held, 0 failed, 0 not reached, 0 skipped"),
        "{text}"
    );
}

#[test]
fn the_products_own_client_conforms() {
    let kit = Kit::start(&["--late", "100"]);
    conform_support::product::go(&kit.socket());
    let (success, text) = kit.verdict();
    assert!(success, "{text}");
}

/// What is wrong, the step where it is found, and what the finding says.
const WRONGS: [(Wrong, &str, &[&str]); 22] = [
    (Wrong::Version, "hello", &["Hello.protocol_version", "2", "3"]),
    (
        Wrong::RootMissing,
        "hello",
        &["the frame", "root_type", "Hello without a root"],
    ),
    (
        Wrong::NoEngineInstance,
        "hello",
        &["Hello.engine_instance", "16 random bytes", "zeroes"],
    ),
    (Wrong::ByteNotLocked, "attach", &["Attach", "NotAttached", "lock"]),
    (
        Wrong::Alignment,
        "negotiate",
        &["Negotiate.required_alignment", "16, the least common", "32"],
    ),
    (Wrong::IdZero, "attach", &["Request.id", "any number but 0"]),
    (
        Wrong::DescriptorsSent,
        "register",
        &["the frame", "no descriptors", "descriptors arrived"],
    ),
    (Wrong::GrantNotAskedAgain, "", &[]),
    (
        Wrong::KeyWithoutParent,
        "commit",
        &[
            "Commit.items[1].id.key",
            "chunk 1 of the first",
            "the hash of the tokens alone",
        ],
    ),
    (
        Wrong::KeyOfWideTokens,
        "commit",
        &["Commit.items[1].id.key", "made of tokens of 8 bytes"],
    ),
    (
        Wrong::ParentMissing,
        "commit",
        &["Commit.items[1].parent", "the key of the chunk before", "none"],
    ),
    (
        Wrong::FramesOfOthers,
        "commit",
        &["Commit.items[1], its extents", "granted frames", "frame 900"],
    ),
    (
        Wrong::BytesTooMany,
        "commit",
        &["Commit.items[1].bytes", "4000 (1000 for each 16", "4001"],
    ),
    (
        Wrong::Checksum,
        "commit",
        &["Commit.items[1].checksum", "that of the bytes"],
    ),
    (
        Wrong::WritesAfterCommit,
        "untouched",
        &["byte 0 of chunk 2 of the first prompt", "0x03", "0xee"],
    ),
    (
        Wrong::WritesIntoLoaded,
        "untouched",
        &["which is another engine's", "0xee"],
    ),
    (
        Wrong::CopyMixedUp,
        "retrieve",
        &["byte 0 of chunk 0 of the third", "these are the bytes of chunk 1"],
    ),
    (Wrong::PinKept, "release", &["Release.pins", "EndSession"]),
    (
        Wrong::ConnectionKept,
        "commit-refused",
        &["the connection", "its end", "on the same connection"],
    ),
    (
        Wrong::AnswersByOrder,
        "release",
        &["Release", "UnknownPin", "4711"],
    ),
    (
        Wrong::SizeForgotten,
        "restart",
        &[
            "Negotiate.previous_size",
            "64, the size of the server before",
            "0",
        ],
    ),
    (Wrong::CutOff, "close", &["the last frame", "5 bytes"]),
];

#[test]
fn every_wrong_client_is_told_what_is_wrong() {
    // A few at a time: each has a server behind it.
    for some in WRONGS.chunks(8) {
        std::thread::scope(|scope| {
            for (wrong, step, words) in some {
                scope.spawn(move || {
                    let verdict = judged(|socket| drop(go(socket, *wrong)));
                    assert_eq!(verdict["conforms"], false, "{wrong:?}: {verdict}");
                    let found = findings(&verdict);
                    if step.is_empty() {
                        assert_eq!(found, [], "{wrong:?} only stops");
                        return;
                    }
                    let says = |text: &str| words.iter().all(|word| text.contains(word));
                    assert!(
                        found.iter().any(|(at, text)| at == step && says(text)),
                        "{wrong:?} is not found at {step} with {words:?}: {found:#?}"
                    );
                });
            }
        });
    }
}

/// One request over the pipes, and its reply.
fn ask(kit: &mut Child, reader: &mut FrameReader, id: u64, request: &Request) -> Reply {
    let frame = Encoder::new().request(id, request).unwrap().to_vec();
    kit.stdin.as_mut().unwrap().write_all(&frame).unwrap();
    loop {
        if let Some(frame) = reader.next_frame().unwrap() {
            let (found, reply) = decode_reply(frame).unwrap();
            assert_eq!(found, id);
            return reply;
        }
        let bytes = kit
            .stdout
            .as_mut()
            .unwrap()
            .read(reader.space().unwrap())
            .unwrap();
        assert!(bytes > 0, "the kit has ended");
        reader.received(bytes);
    }
}

/// Goes through what can be done without descriptors; `wants_pool` is wrong there.
fn over_pipes(wants_pool: bool) -> (bool, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    command.args(["conform", "--stdio", "--json"]);
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut kit = piped.spawn().unwrap();
    let mut reader = FrameReader::new();
    let mut id = 10;
    let mut ask = |request: Request| {
        id += 1;
        ask(&mut kit, &mut reader, id, &request)
    };
    let Reply::Hello(hello) = ask(conform_support::hello(wants_pool)) else {
        panic!("hello");
    };
    assert_eq!(hello.regions, [], "no descriptor rides on a pipe");
    let Reply::Negotiate(agreed) = ask(conform_support::negotiation()) else {
        panic!("negotiate");
    };
    let Reply::Register(registered) = ask(conform_support::reading()) else {
        panic!("register");
    };
    let keys = conform_support::keys(registered.domain_seed, agreed.chunk_size, 2);
    let lookup = conform_support::question(registered.domain_seed, &keys);
    assert!(
        matches!(ask(lookup.clone()), Reply::Error(_)),
        "the first is refused"
    );
    let Reply::Lookup(found) = ask(lookup) else {
        panic!("lookup")
    };
    assert_eq!(found.hit_tokens, 3 * agreed.chunk_size);
    let ids: Vec<ObjectId> = found.loads.iter().map(|load| load.id).collect();
    let retrieve = RetrieveRequest {
        domain_seed: registered.domain_seed,
        label: 2,
        part: 0,
        ids,
    };
    let Reply::Retrieve(places) = ask(Request::Retrieve(retrieve)) else {
        panic!("retrieve");
    };
    let pins = vec![found.pin, places.pin];
    assert_eq!(ask(Request::Release { pins }), Reply::Ack);
    let output = kit.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"", "frames only");
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.success(), serde_json::from_str(&text).unwrap())
}

#[test]
fn a_kit_that_cannot_listen_says_that_there_is_no_verdict() {
    let directory = tempfile::tempdir().unwrap();
    let taken = directory.path().join("taken");
    std::fs::write(&taken, "somebody's").unwrap();
    let kit = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        let command = command.arg("conform").args(arguments).stdin(Stdio::null());
        command.output().unwrap()
    };
    let output = kit(&["--json", taken.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["error"]["kind"], "no_verdict");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("cannot listen on "), "{message}");
    assert_eq!(std::fs::read(&taken).unwrap(), b"somebody's");
    // Arguments that cannot be used are another exit code.
    assert_eq!(kit(&["--json"]).status.code(), Some(2));
}

#[test]
fn a_client_without_descriptors_is_judged_over_pipes() {
    let (success, verdict) = over_pipes(false);
    assert!(success, "{verdict:#}");
    let steps = verdict["steps"].as_array().unwrap();
    let skipped = steps.iter().filter(|step| step["verdict"] == "skipped").count();
    assert_eq!(skipped, 10, "those that need descriptors or a second connection");

    let (success, verdict) = over_pipes(true);
    assert!(!success);
    let found = findings(&verdict);
    assert!(found[0].1.contains("Hello.wants_pool: false / true"), "{found:?}");
}

#[test]
fn a_step_that_is_not_reached_is_said() {
    let verdict = judged(|socket| drop(go(socket, Wrong::GrantNotAskedAgain)));
    let of = |name: &str| {
        let mut steps = verdict["steps"].as_array().unwrap().iter();
        steps.find(|step| step["step"] == name).unwrap()["verdict"].clone()
    };
    assert_eq!(
        (of("register"), of("grant-empty"), of("commit")),
        ("held".into(), "not_reached".into(), "not_reached".into())
    );
}

#[test]
fn a_socket_that_is_there_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("k.sock");
    std::fs::write(&path, "somebody's").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kvasir"))
        .arg("conform")
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot listen on"));
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
}
