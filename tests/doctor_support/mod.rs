//! `kvasir doctor` as a process, and the set-up that it has nothing against.

#![allow(dead_code, unreachable_pub)] // each test binary uses its own part of this

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::common::*;

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

    /// (severity, name) in the order of the report.
    pub fn findings(&self) -> Vec<(String, String)> {
        let report = self.json();
        let findings = report["findings"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        findings
            .iter()
            .map(|finding| (text(&finding["severity"]), text(&finding["name"])))
            .collect()
    }
}

pub fn doctor(args: &[&str], stdin: &[u8]) -> Output {
    let mut command = Command::new(KVASIR);
    command
        .arg("doctor")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    clear_environment(&mut command);
    let mut child = command.spawn().unwrap();
    // A command that does not read its input closes the pipe, which is no fault.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let output = child.wait_with_output().unwrap();
    Output {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A server whose whole pool may be used; until then that is a finding.
pub fn ready(args: &[&str]) -> ServerProcess {
    let server = ServerProcess::with_args(args);
    server.wait_prefaulted();
    server
}

/// With a small pool.
pub fn ready_16() -> ServerProcess {
    ready(&["--pool-size", "16MiB"])
}

pub fn examine(engine: &Value) -> Output {
    doctor(&["--json", "--engine", "-"], engine.to_string().as_bytes())
}

/// What the README tells a user to give to vLLM.
pub fn transfer_config(socket: &Path) -> Value {
    let (code, printed, error) = run(&["vllm-args", "--socket", socket.to_str().unwrap()], |_| {});
    assert_eq!(code, Some(0), "{error}");
    serde_json::from_str(&printed).unwrap()
}

pub fn full(block_size: u64, page: u64) -> Value {
    json!({"kind": "full_attention", "block_size": block_size,
        "layers": [{"count": 2, "page_size_bytes": page, "dtype": "bfloat16"}]})
}

pub fn state(block_size: u64, page: u64) -> Value {
    json!({"kind": "mamba", "block_size": block_size, "mamba_cache_mode": "align",
        "layers": [{"count": 2, "page_size_bytes": page, "dtype": "float32"}]})
}

/// A gated-delta hybrid, set up as the documentation says.
pub fn sound(socket: &Path) -> Value {
    json!({
        "kv_transfer_config": transfer_config(socket),
        "architectures": ["Qwen3_5ForCausalLM"],
        "device": "cpu",
        "multiprocessing": true,
        "enable_prefix_caching": true,
        "enable_chunked_prefill": true,
        "block_size": 256,
        "max_num_batched_tokens": 4096,
        "max_model_len": 4096,
        "groups": [state(256, 65536), full(256, 65536)],
    })
}

pub fn set(engine: &mut Value, path: &str, value: Value) {
    let (parent, key) = path.rsplit_once('/').unwrap();
    engine.pointer_mut(parent).unwrap()[key] = value;
}

pub fn remove(engine: &mut Value, path: &str) {
    let (parent, key) = path.rsplit_once('/').unwrap();
    let parent = engine.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    assert!(parent.remove(key).is_some(), "{path}");
}

/// The connector's settings in the description.
pub const EXTRA: &str = "/kv_transfer_config/kv_connector_extra_config";
