//! `kvasir clear`: everything goes that nobody reads, and both are said.

mod common;

use common::*;
use kvasir::wire::*;
use serde_json::{Value, json};

fn clear(server: &ServerProcess, more: &[&str]) -> (Option<i32>, String, String) {
    let mut args = vec!["clear", "--socket", server.socket().to_str().unwrap()];
    args.extend(more);
    run(&args, |_| {})
}

fn hit(client: &mut RawClient, number: u64) -> u64 {
    let question = lookup(client, &[number]);
    match client.call(&question) {
        Reply::Lookup(reply) => {
            client.call(&Request::Release {
                pins: vec![reply.pin],
            });
            reply.hit_tokens
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn everything_goes_that_nobody_reads() {
    let server = ServerProcess::start();
    let mut worker = server.worker();
    for number in 0..5 {
        store(&mut worker, number);
    }
    let question = lookup(&worker, &[4]);
    let pin = match worker.call(&question) {
        Reply::Lookup(reply) => reply.pin,
        other => panic!("{other:?}"),
    };
    assert_ne!(pin, 0);
    let (code, answer, error) = clear(&server, &["--json"]);
    assert_eq!(code, Some(0), "{error}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let expected = json!({
        "dropped_objects": 4, "freed_bytes": 4 * CHUNK_BYTES, "kept_objects": 1, "pinned_bytes": CHUNK_BYTES,
    });
    assert_eq!(answer, expected);
    assert_balanced(&server.status());
    for number in 0..4 {
        assert_eq!(hit(&mut worker, number), 0, "{number}");
    }
    assert_eq!(hit(&mut worker, 4), CHUNK, "what is being read stays");
    let (code, text, error) = clear(&server, &[]);
    assert_eq!(
        (code, text.as_str()),
        (
            Some(0),
            "dropped 0 objects, 0 B freed; 1 object stays, pinned by readers (64.0 KiB) or stored meanwhile\n"
        ),
        "{error}"
    );
    worker.call(&Request::Release { pins: vec![pin] });
    let (_, text, _) = clear(&server, &[]);
    assert_eq!(text, "dropped 1 object, 64.0 KiB freed\n");
    let (code, text, _) = clear(&server, &[]);
    assert_eq!(
        (code, text.as_str()),
        (Some(0), "dropped 0 objects, 0 B freed\n"),
        "nothing is left"
    );
    // And the server goes on.
    store(&mut worker, 4);
    assert_eq!(hit(&mut worker, 4), CHUNK);
}

/// A program that asks for JSON gets JSON, whatever happens; people get one line. The exit code is the same.
#[test]
fn failures_are_json_where_json_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = directory.path().join("k.sock");
    let nowhere = nowhere.to_str().unwrap();
    let file = directory.path().join("not.json");
    std::fs::write(&file, "{").unwrap();
    let file = file.to_str().unwrap();
    let place = directory.path().to_str().unwrap();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["status", "--socket", nowhere], 1, "no_server"),
        (&["status", "--socket", place], 1, "no_server"),
        (&["clear", "--socket", nowhere], 1, "no_server"),
        (&["status", "--no-such-flag"], 2, "usage"),
        (&["clear", "--no-such-flag"], 2, "usage"),
        (&["doctor", "--no-such-flag"], 2, "usage"),
        (&["doctor", "--engine", "-", "--engine", "-"], 2, "usage"),
        (&["doctor", "--engine", file], 2, "json"),
        (&["plan", "groups", file], 2, "json"),
        (&["plan", "groups"], 2, "usage"),
        (&["no-such-command"], 2, "usage"),
    ];
    for (args, code, kind) in cases {
        let mut with = args.to_vec();
        with.push("--json");
        let (found, answer, error) = run(&with, |_| {});
        assert_eq!((found, error.as_str()), (Some(*code), ""), "{args:?}: {answer}");
        assert_eq!(answer.lines().count(), 1, "{args:?}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["error"]["kind"], *kind, "{args:?}: {answer}");
        assert!(
            answer["error"]["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{answer}"
        );
        let (found, answer, error) = run(args, |_| {});
        assert_eq!((found, answer.as_str()), (Some(*code), ""), "{args:?}");
        assert!(
            !error.is_empty() && serde_json::from_str::<Value>(&error).is_err(),
            "{error}"
        );
    }
    // The variable's error too.
    let (code, answer, _) = run(&["serve", "--json"], |command| {
        command.env("KVASIR_MAX_CLIENTS", "many");
    });
    assert_eq!(code, Some(2));
    assert!(answer.is_empty() || answer.starts_with('{'), "{answer}");
}

#[test]
fn a_refusal_of_the_server_keeps_its_code_and_numbers() {
    let server = ServerProcess::with_args(&["--pool-size", "1MiB", "--max-clients", "1"]);
    let _peers: Vec<RawClient> = (0..65).map(|_| server.tool()).collect();
    for command in ["status", "clear"] {
        let args = [command, "--json", "--socket", server.socket().to_str().unwrap()];
        let (code, answer, _) = run(&args, |_| {});
        assert_eq!(code, Some(1), "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let error = &answer["error"];
        assert_eq!(
            (&error["kind"], &error["code"], &error["numbers"]),
            (&json!("refused"), &json!("LimitExceeded"), &json!([65, 65])),
            "{answer}"
        );
    }
}
