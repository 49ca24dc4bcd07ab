//! `kvasir doctor` with servers that cannot be used, and with input that is none.

mod common;
mod doctor_support;

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::Command;

use common::*;
use doctor_support::*;
use kvasir::wire::{Encoder, ErrorCode, Reply, WireError};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use serde_json::json;

#[test]
fn a_server_bound_to_another_size_is_refused_unless_sizes_are_per_model() {
    let server = ready_16();
    let _worker = server.worker();
    let mut engine = sound(server.socket());
    engine["groups"] = json!([state(160, 65536), full(160, 163_840)]);
    engine["max_model_len"] = json!(1024);
    let output = examine(&engine);
    assert_eq!(
        output.findings(),
        [("refused".to_owned(), "chunk_size".to_owned())]
    );
    let message = output.json()["findings"][0]["message"].to_string();
    assert!(
        message.contains("256 tokens, no multiple of the 160"),
        "{message}"
    );
    let fixed = ready(&[
        "--pool-size",
        "16MiB",
        "--chunk-size",
        "256",
        "--chunk-size-policy",
        "fixed",
    ]);
    set(
        &mut engine,
        "/kv_transfer_config/kv_connector_extra_config",
        json!({"kvasir.socket": fixed.socket()}),
    );
    let output = examine(&engine);
    assert_eq!(
        output.findings(),
        [("refused".to_owned(), "chunk_size".to_owned())]
    );
    assert!(output.stdout.contains("--chunk-size 160"), "{}", output.stdout);
    let model = ready(&[
        "--pool-size",
        "16MiB",
        "--chunk-size",
        "160",
        "--chunk-scope",
        "model",
    ]);
    set(
        &mut engine,
        "/kv_transfer_config/kv_connector_extra_config",
        json!({"kvasir.socket": model.socket()}),
    );
    let output = examine(&engine);
    assert_eq!(
        (output.code, output.findings()),
        (Some(0), vec![]),
        "{}",
        output.stdout
    );
    assert_eq!(output.json()["unchecked"].as_array().unwrap().len(), 1);
}

#[test]
fn a_stopped_server_is_stalled() {
    let server = ready_16();
    server.signal(Signal::SIGSTOP);
    let output = examine(&sound(server.socket()));
    server.signal(Signal::SIGCONT);
    assert_eq!(
        output.findings(),
        [("silent".to_owned(), "server_stalled".to_owned())]
    );
    assert_eq!(output.code, Some(1));
}

/// A fake for what a real server does only for a moment, or only to another user: it answers one connection.
fn fake(answer: Option<WireError>) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("k.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let serve = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; 4096];
        assert!(stream.read(&mut hello).unwrap() > 0);
        let mut encoder = Encoder::new();
        let bytes = match answer {
            Some(error) => encoder.reply(1, &Reply::Error(error)).unwrap(),
            None => b"HTTP/1.1 400 Bad Request\r\n\r\n",
        };
        stream.write_all(bytes).unwrap();
    });
    let output = examine(&sound(&socket));
    serve.join().unwrap();
    output
}

#[test]
fn refusals_of_a_server_are_told_apart() {
    let refusal = |code| Some(WireError::new(code, "a reason with 42", vec![1, 42]));
    for (answer, severity, name) in [
        (refusal(ErrorCode::Draining), "silent", "server_draining"),
        (refusal(ErrorCode::PermissionDenied), "refused", "other_user"),
        (refusal(ErrorCode::ProtocolVersion), "refused", "server_refuses"),
    ] {
        let output = fake(answer);
        assert_eq!(output.findings(), [(severity.to_owned(), name.to_owned())]);
        assert!(output.stdout.contains("a reason with 42"), "{}", output.stdout);
    }
    let output = fake(None);
    assert_eq!(
        output.findings(),
        [("silent".to_owned(), "server_unknown".to_owned())]
    );
}

#[test]
fn another_users_server_is_named() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: needs root to be two users");
        return;
    }
    const NOBODY: u32 = 65534;
    let server = ready_16();
    let engine = sound(server.socket());
    // The build directory may be closed to others, and so is a temporary one.
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    let program = directory.path().join("kvasir");
    std::fs::copy(KVASIR, &program).unwrap();
    let file = directory.path().join("engine.json");
    std::fs::write(&file, engine.to_string()).unwrap();
    for path in [directory.path(), server.directory()] {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(&program);
    clear_environment(&mut command);
    use std::os::unix::process::CommandExt as _;
    let output = command
        .args(["doctor", "--engine"])
        .arg(&file)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("silent    other_user"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn a_socket_given_to_the_command_counts_where_the_settings_name_none() {
    let server = ready_16();
    let mut engine = sound(server.socket());
    remove(&mut engine, "/kv_transfer_config/kv_connector_extra_config");
    let socket = server.socket().to_str().unwrap();
    let output = doctor(
        &["--engine", "-", "--socket", socket],
        engine.to_string().as_bytes(),
    );
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), "no findings\n"));
}

#[test]
fn two_paths_of_one_server_are_found() {
    let server = ready_16();
    let also = server.directory().join("also.sock");
    std::os::unix::fs::symlink(server.socket(), &also).unwrap();
    let mut engine = sound(server.socket());
    set(
        &mut engine,
        "/kv_transfer_config/kv_connector_extra_config",
        json!({"kvasir.socket": [server.socket(), also]}),
    );
    let output = examine(&engine);
    assert_eq!(
        output.findings(),
        [("refused".to_owned(), "bad_setting".to_owned())]
    );
    assert!(output.stdout.contains("also.sock"), "{}", output.stdout);
}

#[test]
fn input_that_is_none_gives_typed_errors() {
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep = format!("{{\"kv_transfer_config\": {nested}}}");
    let large = " ".repeat((16 << 20) + 1);
    let cases: &[(&str, &str, &str)] = &[
        ("", "json", "not JSON"),
        ("kv_connector: KvasirConnector", "json", "line 1"),
        ("{} {}", "json", "trailing"),
        (&nested, "json", "recursion"),
        (&deep, "json", "recursion"),
        (&large, "too_large", "16777216"),
        (r#"{"block_size": 1e999}"#, "json", "out of range"),
        (r#"{"device": "cpu", "device": "cuda"}"#, "duplicate", "device"),
        (
            r#"{"kv_transfer_config": {"kv_role": "kv_both", "kv_role": "x"}}"#,
            "duplicate",
            "kv_role",
        ),
        ("[]", "invalid", "expected an object"),
        ("null", "invalid", "expected an object"),
        (r#"{"kv_transfer_config": "{}"}"#, "invalid", "expected an object"),
        (
            r#"{"block_size": 99999999999999999999999}"#,
            "invalid",
            "0..=2^64-1",
        ),
        (r#"{"block_size": 0}"#, "invalid", "above 0"),
        (
            r#"{"block_size": -1, "device": 7, "multiprocessing": "yes"}"#,
            "invalid",
            "device is 7",
        ),
        (r#"{"architectures": [1]}"#, "invalid", "architectures"),
        (r#"{"groups": 1}"#, "invalid", "groups is 1"),
        (r#"{"groups": []}"#, "no_groups", "no KV cache groups"),
        (
            r#"{"groups": [{"kind": "full_attention", "block_size": 0, "layers": []}]}"#,
            "invalid",
            "no layers",
        ),
        (
            r#"{"groups": [{"kind": "full", "block_size": 18446744073709551615}], "device": 1}"#,
            "invalid",
            "device is 1",
        ),
    ];
    for (input, kind, says) in cases {
        let shown: String = input.chars().take(80).collect();
        let output = doctor(&["--json", "--engine", "-"], input.as_bytes());
        assert_eq!(output.code, Some(2), "{shown}: {}", output.stdout);
        let error = &output.json()["error"];
        assert_eq!(error["kind"], *kind, "{shown}: {error}");
        assert!(
            error["message"].as_str().unwrap().contains(says),
            "{shown}: {error}"
        );
        let output = doctor(&["--engine", "-"], input.as_bytes());
        assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{shown}");
        assert!(output.stderr.starts_with("kvasir doctor: "), "{}", output.stderr);
    }
    let output = doctor(&["--json", "--engine", "/nonexistent/engine.json"], b"");
    assert_eq!(
        (output.code, &output.json()["error"]["kind"]),
        (Some(2), &json!("io"))
    );
    // Every field that cannot be read is in one error.
    let output = doctor(
        &["--engine", "-"],
        br#"{"block_size": -1, "device": 7, "multiprocessing": "yes"}"#,
    );
    for field in ["block_size", "device", "multiprocessing"] {
        assert!(output.stderr.contains(field), "{}", output.stderr);
    }
}

#[test]
fn values_of_any_length_and_content_stay_in_one_line() {
    let server = ready_16();
    let mut engine = sound(server.socket());
    let long = "x\n\u{1b}[31m".repeat(10_000);
    for path in [
        "/kv_transfer_config/kv_role",
        "/kv_transfer_config/kv_connector_module_path",
        "/kv_transfer_config/kv_load_failure_policy",
    ] {
        set(&mut engine, path, json!(long));
    }
    set(&mut engine, "/device", json!(long));
    let extra = engine.pointer_mut(EXTRA).unwrap().as_object_mut().unwrap();
    extra.insert(format!("kvasir.{long}"), json!(1));
    extra.insert("kvasir.store".into(), json!(long));
    extra.insert(format!("kvasir_{long}"), json!(1));
    extra.insert("kvasir.deadline".into(), json!({"a": [1, 2, 3]}));
    let output = doctor(&["--engine", "-"], engine.to_string().as_bytes());
    assert_eq!(output.code, Some(1));
    assert_eq!(output.stdout.lines().count(), 8, "{}", output.stdout);
    for line in output.stdout.lines() {
        assert!(line.len() < 1000 && !line.contains('\u{1b}'), "{}", &line[..200]);
    }
}
