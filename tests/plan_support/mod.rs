//! `kvasir plan` as a process, and the recorded cases.

#![allow(dead_code, unreachable_pub)] // each test binary uses its own part of this

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

pub fn cases(file: &str, list: &str) -> Vec<Value> {
    let path = format!("{}/tests/data/geometry/{file}", env!("CARGO_MANIFEST_DIR"));
    let value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    value[list].as_array().unwrap().clone()
}

pub struct Output {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: stdout {:?} stderr {:?}", self.stdout, self.stderr))
    }
}

pub fn kvasir(args: &[&str], stdin: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvasir"))
        .arg("plan")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its arguments may end before it reads; then the pipe is closed, which is no
    // fault.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let output = child.wait_with_output().unwrap();
    Output {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

pub fn refused(args: &[&str], stdin: &str) -> Value {
    let mut with_json = args.to_vec();
    with_json.push("--json");
    let output = kvasir(&with_json, stdin.as_bytes());
    assert_eq!(output.code, Some(2), "{args:?} {stdin}: {}", output.stdout);
    let answer = output.json();
    let error = answer["error"].clone();
    assert!(
        error["kind"].is_string() && error["message"].is_string() && error["groups"].is_array(),
        "{answer}"
    );
    // The same in one line for people, and nothing on standard output.
    let plain = kvasir(args, stdin.as_bytes());
    assert_eq!(plain.code, Some(2));
    assert_eq!(plain.stdout, "");
    assert_eq!(
        plain.stderr,
        format!("kvasir plan: {}\n", error["message"].as_str().unwrap())
    );
    assert_eq!(plain.stderr.lines().count(), 1);
    error
}

pub fn one_group(fields: &str) -> String {
    format!(r#"{{"dcp":1,"groups":[{{{fields}}}]}}"#)
}

pub const LAYERS: &str =
    r#""layers":[{"count":2,"page_size_bytes":4096,"dtype":"bfloat16","tokens_per_state":1}]"#;
