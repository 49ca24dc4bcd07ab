//! Traps of `--kv-transfer-config`: another connector, a policy under which nothing is loaded, misspelt settings.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Report;
use super::engine::Engine;
use crate::cli::vllm_args;
use crate::describe::{key_shown, shown};

const CONNECTOR: &str = "KvasirConnector";
const MODULE: &str = "kvasir.vllm";
const PREFIX: &str = "kvasir.";
const PRINTED: &str = "`kvasir vllm-args` prints the configuration to use";

/// Fields of vLLM's `KVTransferConfig` as of 0.32, which refuses any other.
const TRANSFER_FIELDS: [&str; 9] = [
    "enable_permute_local_kv",
    "engine_id",
    "kv_buffer_device",
    "kv_connector",
    "kv_connector_extra_config",
    "kv_connector_module_path",
    "kv_load_failure_policy",
    "kv_port",
    "kv_role",
];

/// What the engine asks of the connector if it gets that far.
pub(super) struct Settings {
    /// In the order of the setting; empty where no server is named.
    pub(super) sockets: Vec<PathBuf>,
    pub(super) preferred_base: u64,
    pub(super) only_loads: bool,
    pub(super) only_stores: bool,
}

/// `given` is the socket of the command line or the environment, which the engine uses where its settings name none.
pub(super) fn check(engine: &Engine<'_>, given: Option<PathBuf>, report: &mut Report) -> Settings {
    let fallback = |given: Option<PathBuf>| Settings {
        sockets: given.into_iter().collect(),
        preferred_base: DEFAULT_BASE,
        only_loads: false,
        only_stores: false,
    };
    let connector = engine.kv_transfer_config.and_then(|config| {
        let name = config.get("kv_connector").filter(|name| !name.is_null())?;
        Some((config, name))
    });
    let Some((config, name)) = connector else {
        report.silent(
            "not_connected",
            format_args!(
                "no connector is configured, so nothing is cached; give --kv-transfer-config ({PRINTED})"
            ),
        );
        return fallback(given);
    };
    if name == "MultiConnector" {
        let Some(own) = own_child(config) else {
            other_connector(
                "none of the connectors of kv_connector \"MultiConnector\"",
                report,
            );
            return fallback(given);
        };
        report.note(
            "several_connectors",
            "a MultiConnector makes every other connector of the list store too, and loads each request from one of \
             them only; Kvasir has not been run in one",
        );
        let outer = check_transfer_config(config, report);
        let role = check_transfer_config(own, report);
        check_policy(config, "a load that fails fails its request", report);
        check_own_policy(own, role, report);
        if outer == Some(Role::Producer) && matches!(role, Some(Role::Both | Role::Consumer)) {
            report.silent(
                "kv_role",
                "the outer kv_role is \"kv_producer\" while Kvasir's own lets it load: vLLM goes by the outer one and \
                 reuses blocks that a running step still writes, so what is loaded into them may be overwritten; set \
                 the outer one to \"kv_both\"",
            );
        }
        check_module(own, report);
        return Settings {
            only_loads: role == Some(Role::Consumer),
            only_stores: role == Some(Role::Producer),
            ..check_extra(own, given, report)
        };
    }
    if name != CONNECTOR {
        other_connector(&format!("kv_connector is {}, which is not", shown(name)), report);
        return fallback(given);
    }
    let role = check_transfer_config(config, report);
    check_own_policy(config, role, report);
    check_module(config, report);
    Settings {
        only_loads: role == Some(Role::Consumer),
        only_stores: role == Some(Role::Producer),
        ..check_extra(config, given, report)
    }
}

fn other_connector(what: &str, report: &mut Report) {
    report.silent(
        "other_connector",
        format_args!("{what} Kvasir's, so Kvasir caches nothing; set it to \"{CONNECTOR}\" ({PRINTED})"),
    );
}

/// Kvasir's entry among those of a `MultiConnector`.
fn own_child(config: &Map<String, Value>) -> Option<&Map<String, Value>> {
    let children = config.get("kv_connector_extra_config")?.get("connectors")?;
    children
        .as_array()?
        .iter()
        .filter_map(Value::as_object)
        .find(|child| child.get("kv_connector").is_some_and(|name| name == CONNECTOR))
}

/// The settings that Kvasir reads, wherever it stands in the configuration.
pub(super) fn own_extra(config: &Map<String, Value>) -> Option<&Map<String, Value>> {
    let own = match config.get("kv_connector")?.as_str()? {
        "MultiConnector" => own_child(config)?,
        _ => config,
    };
    own.get("kv_connector_extra_config")?.as_object()
}

/// What `kv_role` leaves Kvasir to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Both,
    Producer,
    Consumer,
}

/// What vLLM makes of a configuration, whichever connector it names, and its role. An engine with several connectors has
/// several of them: the outer one is the engine's, the inner one Kvasir's.
fn check_transfer_config(config: &Map<String, Value>, report: &mut Report) -> Option<Role> {
    let unknown: Vec<String> = config
        .keys()
        .filter(|key| !TRANSFER_FIELDS.contains(&key.as_str()))
        .map(|key| key_shown(key))
        .collect();
    if !unknown.is_empty() {
        report.refused(
            "transfer_field",
            format_args!(
                "kv_transfer_config holds {}, which vLLM 0.32 refuses; it knows {}",
                unknown.join(", "),
                TRANSFER_FIELDS.join(", ")
            ),
        );
    }
    let role = config.get("kv_role").unwrap_or(&Value::Null);
    match role.as_str() {
        Some("kv_both") => Some(Role::Both),
        Some("kv_producer") => Some(Role::Producer),
        Some("kv_consumer") => Some(Role::Consumer),
        _ => {
            report.refused(
                "kv_role",
                format_args!(
                    "kv_role is {}, and vLLM starts no connector without a role that it knows; set it to \"kv_both\"",
                    shown(role)
                ),
            );
            None
        }
    }
}

/// Kvasir's own role and failure policy.
fn check_own_policy(config: &Map<String, Value>, role: Option<Role>, report: &mut Report) {
    match role {
        Some(Role::Producer) => report.note(
            "kv_role",
            "kv_role is \"kv_producer\": this engine only stores and never hits; \"kv_both\" does both",
        ),
        Some(Role::Consumer) => {
            report.note(
                "kv_role",
                "kv_role is \"kv_consumer\": this engine stores nothing and hits only what others (\"kv_both\" or \
                 \"kv_producer\") store in the same server; \"kv_both\" does both",
            );
            check_policy(
                config,
                "a load that fails would fail its request, so Kvasir loads nothing, and as a consumer stores nothing either",
                report,
            );
        }
        Some(Role::Both) | None => check_policy(
            config,
            "a load that fails would fail its request, so Kvasir stores but never loads and no request hits",
            report,
        ),
    }
}

/// The policy for loads that fail; `failing` is what "fail" leads to.
fn check_policy(config: &Map<String, Value>, failing: &str, report: &mut Report) {
    match config.get("kv_load_failure_policy") {
        Some(policy) if policy == "recompute" => {}
        None => report.silent(
            "load_failure_policy",
            format_args!(
                "kv_load_failure_policy is not set and vLLM's default is \"fail\", under which {failing}; set it to \
                 \"recompute\""
            ),
        ),
        Some(policy) if policy == "fail" => report.silent(
            "load_failure_policy",
            format_args!("kv_load_failure_policy is \"fail\", under which {failing}; set it to \"recompute\""),
        ),
        Some(policy) => report.refused(
            "load_failure_policy",
            format_args!(
                "kv_load_failure_policy is {}; vLLM knows \"recompute\" and \"fail\", set \"recompute\"",
                shown(policy)
            ),
        ),
    }
}

fn check_module(config: &Map<String, Value>, report: &mut Report) {
    let module = config.get("kv_connector_module_path").unwrap_or(&Value::Null);
    if module != MODULE {
        report.refused(
            "connector_module",
            format_args!(
                "kv_connector_module_path is {}, where vLLM finds no {CONNECTOR}; set it to \"{MODULE}\"",
                shown(module)
            ),
        );
    }
}

/// Chunk size that the connector asks for where its settings do not say and the server leaves it open.
const DEFAULT_BASE: u64 = 256;

fn check_extra(config: &Map<String, Value>, given: Option<PathBuf>, report: &mut Report) -> Settings {
    let nothing = Map::new();
    let extra = match config.get("kv_connector_extra_config") {
        None => &nothing,
        Some(Value::Object(extra)) => extra,
        Some(other) => {
            report.refused(
                "transfer_field",
                format_args!(
                    "kv_connector_extra_config is {}, expected an object",
                    shown(other)
                ),
            );
            &nothing
        }
    };
    let mut sockets = Vec::new();
    for (key, value) in extra {
        let Some(name) = key.strip_prefix(PREFIX) else {
            check_foreign(key, report);
            continue;
        };
        if !vllm_args::KNOWN.contains(&name) {
            report.refused(
                "unknown_setting",
                format_args!(
                    "kv_connector_extra_config holds {}, which the connector refuses; known under \"{PREFIX}\" are {}",
                    key_shown(key),
                    vllm_args::KNOWN.join(", ")
                ),
            );
        } else if value.is_null() {
            // The connector takes its default.
        } else if name == "socket" {
            sockets = read_sockets(value, report);
        } else if let Err(reason) = vllm_args::check_value(name, value) {
            report.refused("bad_setting", format_args!("{key} is {}: {reason}", shown(value)));
        }
    }
    if extra.get("kvasir.socket").is_none_or(Value::is_null) {
        match &given {
            Some(path) => sockets.push(path.clone()),
            None => report.refused(
                "no_socket",
                "neither \"kvasir.socket\" in kv_connector_extra_config nor KVASIR_SOCKET names a server; set it to \
                 the path given to `kvasir serve --socket`",
            ),
        }
    } else if let Some(path) = given.filter(|path| !names(&sockets, path)) {
        report.silent(
            "other_socket",
            format_args!(
                "the engine uses {}, not {}, which --socket or KVASIR_SOCKET names: \"kvasir.socket\" takes precedence",
                listed(&sockets),
                path.display()
            ),
        );
    }
    Settings {
        sockets,
        preferred_base: extra
            .get("kvasir.preferred_base")
            .and_then(Value::as_u64)
            .filter(|&base| base > 0)
            .unwrap_or(DEFAULT_BASE),
        only_loads: false,
        only_stores: false,
    }
}

/// Keys without the prefix belong to others, and nobody complains about them.
fn check_foreign(key: &str, report: &mut Report) {
    let lower = key.to_ascii_lowercase();
    if vllm_args::KNOWN.contains(&lower.as_str()) || lower.starts_with("kvasir") {
        report.silent(
            "unprefixed_setting",
            format_args!(
                "kv_connector_extra_config holds {}, which nothing reads: Kvasir's settings begin with \"{PREFIX}\"",
                key_shown(key)
            ),
        );
    }
}

fn read_sockets(value: &Value, report: &mut Report) -> Vec<PathBuf> {
    let one = std::slice::from_ref(value);
    let values = value.as_array().map_or(one, Vec::as_slice);
    let mut sockets: Vec<PathBuf> = Vec::new();
    let mut bad = |reason: &str| report.refused("bad_setting", format_args!("kvasir.socket: {reason}"));
    if values.is_empty() {
        bad("the list is empty; it has to name at least one socket");
    }
    for value in values {
        match (vllm_args::check_value("socket", value), value.as_str()) {
            (Ok(()), Some(path)) if sockets.iter().any(|known| is_same(known, Path::new(path))) => {
                bad(&format!(
                    "{} is named twice, maybe by another path; name each server once",
                    shown(value)
                ));
            }
            (Ok(()), Some(path)) => sockets.push(path.into()),
            (Err(reason), _) => bad(&format!("{}: {reason}", shown(value))),
            (Ok(()), None) => {}
        }
    }
    sockets
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = std::fs::canonicalize;
    one == other || matches!((real(one), real(other)), (Ok(one), Ok(other)) if one == other)
}

fn names(sockets: &[PathBuf], path: &Path) -> bool {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    sockets.iter().any(|socket| absolute(socket) == absolute(path))
}

fn listed(sockets: &[PathBuf]) -> String {
    let paths: Vec<String> = sockets.iter().map(|path| path.display().to_string()).collect();
    if paths.is_empty() {
        return "no server".to_owned();
    }
    paths.join(", ")
}
