//! `kvasir vllm-args`: the configuration that makes vLLM use this cache.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use super::output::{fail, print};
use super::{BAD_INPUT, socket};
use crate::geometry::ByteSize;

/// Arguments of `kvasir vllm-args`.
#[derive(Debug, Args)]
pub(super) struct VllmArgs {
    /// Path of the server's socket [default: as for serve]
    #[arg(long, value_name = "PATH", env = "KVASIR_SOCKET")]
    socket: Option<PathBuf>,
    /// What the engine does with the cache
    #[arg(long, value_name = "ROLE", value_enum, default_value_t = Role::Both)]
    role: Role,
    /// Another setting of the connector, e.g. store=prompt; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

/// vLLM's `kv_role`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    /// Stores and loads
    #[value(name = "kv_both")]
    Both,
    /// Stores, never loads
    #[value(name = "kv_producer")]
    Producer,
    /// Loads, never stores
    #[value(name = "kv_consumer")]
    Consumer,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Both => "kv_both",
            Self::Producer => "kv_producer",
            Self::Consumer => "kv_consumer",
        }
    }
}

pub(super) fn run(args: &VllmArgs) -> ExitCode {
    match document(args) {
        Ok(document) => print(&format!("{document}\n")),
        Err(error) => fail("vllm-args", error, BAD_INPUT),
    }
}

fn document(args: &VllmArgs) -> Result<Value, String> {
    let path = args.socket.clone().unwrap_or_else(socket::default_path);
    let mut extra = Map::new();
    extra.insert("kvasir.socket".into(), json!(absolute(&path)?));
    for setting in &args.settings {
        let (key, value) = setting
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| format!("--set {setting:?}: write KEY=VALUE"))?;
        let name = key.strip_prefix("kvasir.").unwrap_or(key);
        let value = read_value(name, value).map_err(|reason| format!("--set {setting:?}: {reason}"))?;
        extra.insert(format!("kvasir.{name}"), value);
    }
    Ok(json!({
        "kv_connector": "KvasirConnector",
        "kv_connector_module_path": "kvasir.vllm",
        "kv_role": args.role.name(),
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }))
}

/// Longest path of a Unix socket: the address holds 108 bytes, the last of them zero.
const MAX_SOCKET_BYTES: usize = 107;

fn check_socket(path: &str) -> Result<(), String> {
    if path.len() > MAX_SOCKET_BYTES {
        return Err(format!(
            "the socket path {path:?} has {} bytes; a socket's path can have {MAX_SOCKET_BYTES}",
            path.len()
        ));
    }
    Ok(())
}

/// Where an engine finds a socket, wherever it is started.
fn absolute(path: &Path) -> Result<String, String> {
    let text = whole(path)?;
    check_socket(&text)?;
    Ok(text)
}

/// A path that means the same in every directory.
fn whole(path: &Path) -> Result<String, String> {
    let there = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = there
        .to_str()
        .ok_or_else(|| format!("{} is not UTF-8, which JSON cannot hold", there.display()))?;
    Ok(text.to_owned())
}

/// Reads a value as the connector will, which refuses what is wrong only once an engine starts.
fn read_value(name: &str, text: &str) -> Result<Value, String> {
    let value = match name {
        // Text whatever it looks like: an identity of digits is no number.
        "socket" => {
            // One path, or a JSON list of several servers' paths.
            let several = serde_json::from_str::<Vec<String>>(text).unwrap_or_default();
            if several.is_empty() {
                check_value(name, &json!(text))?;
                return Ok(json!(absolute(Path::new(text))?));
            }
            let paths: Result<Vec<String>, String> = several
                .iter()
                .map(|path| {
                    check_value(name, &json!(path))?;
                    absolute(Path::new(path))
                })
                .collect();
            return Ok(json!(paths?));
        }
        "cache_dir" | "weights_id" | "store" | "payload_path" => json!(text),
        "describe_file" => {
            check_value(name, &json!(text))?;
            json!(whole(Path::new(text))?)
        }
        // Sizes are written as everywhere else and travel as numbers.
        "credit_bytes" => text
            .parse::<ByteSize>()
            .map(|size| json!(size.0))
            .map_err(|reason| reason.to_string())?,
        _ => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
    };
    check_value(name, &value).map(|()| value)
}

/// Checks the value of one setting, given without its prefix, as the connector does.
pub(super) fn check_value(name: &str, value: &Value) -> Result<(), String> {
    let text = || value.as_str().filter(|text| !text.is_empty());
    let expect = |holds: bool, what: &str| {
        if holds {
            return Ok(());
        }
        Err(format!("the value has to be {what}"))
    };
    match name {
        "socket" => {
            let path = text().ok_or_else(|| "the value has to be text that is not empty".to_owned())?;
            check_socket(path)
        }
        "cache_dir" | "weights_id" | "describe_file" => expect(text().is_some(), "text that is not empty"),
        "store" => expect(matches!(text(), Some("all" | "prompt")), "all or prompt"),
        "payload_path" => expect(matches!(text(), Some("direct" | "ring")), "direct or ring"),
        "heartbeat_interval" | "deadline" | "lookup_wait" => expect(
            value
                .as_f64()
                .is_some_and(|seconds| seconds > 0.0 && seconds <= SECONDS_MAX),
            "a number of seconds above 0, up to a day",
        ),
        "checksums" => expect(value.is_boolean(), "true or false"),
        "copy_threads" => expect(
            matches!(text(), Some("auto"))
                || value
                    .as_u64()
                    .is_some_and(|count| (1..=COPY_THREADS_MAX).contains(&count)),
            "auto or an integer above 0, up to 16",
        ),
        "hash_threads" => expect(
            value
                .as_u64()
                .is_some_and(|count| (1..=THREADS_MAX).contains(&count)),
            "an integer above 0, up to 256",
        ),
        "preferred_base" | "credit_bytes" => {
            let size = |text: &str| text.parse::<ByteSize>().map(|size| size.0);
            let count = match value.as_str().filter(|_| name == "credit_bytes") {
                Some(text) => Some(size(text)?),
                None => value.as_u64(),
            };
            expect(
                count.is_some_and(|count| count > 0 && count <= COUNT_MAX),
                "an integer above 0, up to 2^62",
            )
        }
        _ => Err(format!("unknown setting; known are {}", KNOWN.join(", "))),
    }
}

/// What the connector takes at most.
const SECONDS_MAX: f64 = 86_400.0;
const COUNT_MAX: u64 = 1 << 62;
const THREADS_MAX: u64 = 256;
const COPY_THREADS_MAX: u64 = 16;

/// The connector's settings, without their prefix.
pub(super) const KNOWN: &[&str] = &[
    "cache_dir",
    "checksums",
    "copy_threads",
    "credit_bytes",
    "deadline",
    "describe_file",
    "hash_threads",
    "heartbeat_interval",
    "lookup_wait",
    "payload_path",
    "preferred_base",
    "socket",
    "store",
    "weights_id",
];

#[cfg(test)]
#[path = "tests/vllm_args.rs"]
mod tests;
