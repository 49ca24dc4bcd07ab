//! `kvasir vllm-args`: the configuration that makes vLLM use this cache.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use super::output::{fail, print};
use super::{BAD_INPUT, socket};

/// Arguments of `kvasir vllm-args`.
#[derive(Debug, Args)]
pub(super) struct VllmArgs {
    /// Path of the server's socket [default: as for serve]
    #[arg(long, value_name = "PATH", env = "KVASIR_SOCKET")]
    socket: Option<PathBuf>,
    /// Another setting of the connector, e.g. store=prompt; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

pub(super) fn run(args: &VllmArgs) -> ExitCode {
    match document(args) {
        Ok(document) => print(&format!("{document}\n")),
        Err(error) => fail("vllm-args", error, BAD_INPUT),
    }
}

fn document(args: &VllmArgs) -> Result<Value, String> {
    let path = args.socket.clone().unwrap_or_else(socket::default_path);
    let path = std::path::absolute(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = path
        .to_str()
        .ok_or_else(|| format!("{} is not UTF-8, which JSON cannot hold", path.display()))?;
    let mut extra = Map::new();
    extra.insert("kvasir.socket".into(), json!(text));
    for setting in &args.settings {
        let (key, value) = setting
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| format!("--set {setting:?}: write KEY=VALUE"))?;
        let key = if key.starts_with("kvasir.") {
            key.to_owned()
        } else {
            format!("kvasir.{key}")
        };
        // Numbers and booleans as themselves, everything else as text.
        let value = serde_json::from_str(value)
            .ok()
            .filter(|value: &Value| value.is_number() || value.is_boolean())
            .unwrap_or_else(|| json!(value));
        extra.insert(key, value);
    }
    Ok(json!({
        "kv_connector": "KvasirConnector",
        "kv_connector_module_path": "kvasir.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(settings: &[&str]) -> VllmArgs {
        VllmArgs {
            socket: Some("/run/k.sock".into()),
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
    fn a_setting_without_a_value_is_refused() {
        assert!(document(&args(&["store"])).unwrap_err().contains("KEY=VALUE"));
        assert!(document(&args(&["=1"])).is_err());
    }
}
