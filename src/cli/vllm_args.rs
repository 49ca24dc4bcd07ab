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
        "cache_dir" | "weights_id" | "store" => json!(text),
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
        "heartbeat_interval" | "deadline" | "lookup_wait" => expect(
            value
                .as_f64()
                .is_some_and(|seconds| seconds > 0.0 && seconds <= SECONDS_MAX),
            "a number of seconds above 0, up to a day",
        ),
        "checksums" => expect(value.is_boolean(), "true or false"),
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

/// The connector's settings, without their prefix.
pub(super) const KNOWN: &[&str] = &[
    "cache_dir",
    "checksums",
    "credit_bytes",
    "deadline",
    "describe_file",
    "hash_threads",
    "heartbeat_interval",
    "lookup_wait",
    "preferred_base",
    "socket",
    "store",
    "weights_id",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn args(settings: &[&str]) -> VllmArgs {
        VllmArgs {
            socket: Some("/run/k.sock".into()),
            role: Role::Both,
            settings: settings.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn the_document_is_what_vllm_expects() {
        let document = document(&args(&["store=prompt", "kvasir.heartbeat_interval=5"])).unwrap();
        let expected = json!({
            "kv_connector": "KvasirConnector",
            "kv_connector_module_path": "kvasir.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "kvasir.socket": "/run/k.sock",
                "kvasir.store": "prompt",
                "kvasir.heartbeat_interval": 5,
            },
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn sockets_are_absolute_and_may_be_several() {
        let sockets = |setting: &str| {
            document(&args(&[setting])).map(|it| it["kv_connector_extra_config"]["kvasir.socket"].clone())
        };
        let here = std::path::absolute("k.sock").unwrap();
        assert_eq!(sockets("socket=k.sock").unwrap(), json!(here));
        assert_eq!(
            sockets(r#"socket=["/run/a", "k.sock"]"#).unwrap(),
            json!(["/run/a", here])
        );
        assert!(sockets(r#"socket=["/run/a", ""]"#).is_err());
        assert!(sockets("socket=").is_err());
    }

    #[test]
    fn every_role_is_one_that_the_connector_knows() {
        let source = include_str!("../../python/kvasir/vllm/settings.py");
        let (_, roles) = source.split_once("\n_ROLES = {").unwrap();
        let (roles, _) = roles.split_once("}\n").unwrap();
        for role in Role::value_variants() {
            let args = VllmArgs {
                role: *role,
                ..args(&[])
            };
            let name = document(&args).unwrap()["kv_role"].as_str().unwrap().to_owned();
            assert_eq!(role.to_possible_value().unwrap().get_name(), name);
            assert!(roles.contains(&format!("\"{name}\":")), "{name}");
        }
        assert_eq!(roles.matches("\": (").count(), Role::value_variants().len());
    }

    #[test]
    fn a_setting_without_a_value_is_refused() {
        assert!(document(&args(&["store"])).unwrap_err().contains("KEY=VALUE"));
        assert!(document(&args(&["=1"])).is_err());
    }

    #[test]
    fn text_stays_text_and_numbers_are_numbers() {
        let settings = [
            "weights_id=20241105",
            "deadline=0.5",
            "credit_bytes=1MiB",
            "checksums=false",
            "kvasir.store=all",
        ];
        let document = document(&args(&settings)).unwrap();
        assert_eq!(
            document["kv_connector_extra_config"],
            json!({
                "kvasir.socket": "/run/k.sock",
                "kvasir.weights_id": "20241105",
                "kvasir.deadline": 0.5,
                "kvasir.credit_bytes": 1_048_576,
                "kvasir.checksums": false,
                "kvasir.store": "all",
            })
        );
        for truth in ["true", "null", "1e3", "\"x\"", "a=b"] {
            let document = super::document(&args(&[&format!("weights_id={truth}")])).unwrap();
            assert_eq!(document["kv_connector_extra_config"]["kvasir.weights_id"], truth);
        }
    }

    #[test]
    fn what_the_connector_would_refuse_is_refused() {
        for setting in [
            "weight_id=x",
            "kvasir.kvasir.store=all",
            "weights_id=",
            "socket=",
            "store=none",
            "store=1",
            "deadline=0",
            "deadline=-1",
            "deadline=inf",
            "deadline=NaN",
            "deadline=1e999",
            "deadline=true",
            "lookup_wait=",
            "heartbeat_interval=10s",
            "preferred_base=0",
            "preferred_base=256.0",
            "preferred_base=-1",
            "checksums=off",
            "credit_bytes=64X",
            "credit_bytes=0MiB",
            "describe_file=",
            "credit_bytes=99999999999999999999",
        ] {
            let error = document(&args(&[setting])).unwrap_err();
            assert!(error.contains(setting), "{error}");
        }
    }

    #[test]
    fn sizes_in_a_configuration_may_be_text() {
        for (value, holds) in [
            (json!("64MiB"), true),
            (json!("1.5gb"), true),
            (json!(1), true),
            (json!("64X"), false),
            (json!("0"), false),
            (json!("8000000TiB"), false),
            (json!(1.5), false),
        ] {
            assert_eq!(check_value("credit_bytes", &value).is_ok(), holds, "{value}");
        }
        assert!(check_value("preferred_base", &json!("256")).is_err());
    }

    #[test]
    fn known_settings_are_those_of_the_connector() {
        let source = include_str!("../../python/kvasir/vllm/settings.py");
        let (_, table) = source.split_once("\n_KEYS").unwrap();
        let mut keys: Vec<&str> = table
            .split("\"kvasir.")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap())
            .collect();
        keys.sort_unstable();
        assert_eq!(keys, KNOWN);
        for key in KNOWN {
            let known = ["1", "all", "true"]
                .iter()
                .any(|value| read_value(key, value).is_ok());
            assert!(known, "{key}");
        }
    }

    #[test]
    fn a_socket_path_has_to_fit_its_address() {
        let path = |bytes: usize| format!("/{}", "s".repeat(bytes - 1));
        let named = |bytes| VllmArgs {
            role: Role::Both,
            socket: Some(path(bytes).into()),
            settings: Vec::new(),
        };
        assert!(document(&named(107)).is_ok());
        assert!(document(&named(108)).unwrap_err().contains("108 bytes"));
        assert!(document(&args(&[&format!("socket={}", path(107))])).is_ok());
        assert!(document(&args(&[&format!("socket={}", path(108))])).is_err());
    }
}
