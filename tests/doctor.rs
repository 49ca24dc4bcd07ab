//! Every trap that `kvasir doctor` knows: none in a sound set-up, each alone, all in one run.

mod common;
mod doctor_support;

use doctor_support::*;
use kvasir::index::conditions::Condition;
use serde_json::{Value, json};

#[test]
fn the_documented_set_up_has_no_findings() {
    let server = ready_16();
    let engine = sound(server.socket());
    let output = doctor(&["--engine", "-"], engine.to_string().as_bytes());
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (Some(0), "no findings\n"),
        "{}",
        output.stderr
    );
    let output = examine(&engine);
    assert_eq!(output.json(), json!({"findings": [], "unchecked": []}));
    // From a file too, and by a user who names the same server twice over.
    let file = server.directory().join("engine.json");
    std::fs::write(&file, engine.to_string()).unwrap();
    let socket = server.socket().to_str().unwrap();
    let output = doctor(&["--engine", file.to_str().unwrap(), "--socket", socket], b"");
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), "no findings\n"));
}

/// As in the documentation: a chunk of two blocks, under the least chunk size that servers have without a setting.
#[test]
fn the_documented_description_reads_as_it_says() {
    let server = ready(&["--pool-size", "64MiB"]);
    let page = include_str!("../docs/operations.md");
    let (_, section) = page.split_once("\n## `kvasir doctor`\n").unwrap();
    let (_, example) = section.split_once("```json\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let mut engine: Value = serde_json::from_str(example).unwrap();
    let socket = engine
        .pointer_mut(EXTRA)
        .unwrap()
        .get_mut("kvasir.socket")
        .unwrap();
    *socket = json!(server.socket());
    let output = examine(&engine);
    assert_eq!(output.findings(), [("note".to_owned(), "long_chunk".to_owned())]);
    assert_eq!(output.code, Some(0));
    assert_eq!(output.json()["unchecked"], json!([]));
}

#[test]
fn without_settings_only_the_server_is_asked() {
    let server = ready_16();
    let socket = server.socket().to_str().unwrap();
    let output = doctor(&["--json", "--socket", socket], b"");
    assert_eq!((output.code, output.findings()), (Some(0), vec![]));
    assert_eq!(output.json()["unchecked"].as_array().unwrap().len(), 1);
    let away = doctor(&["--socket", "/nonexistent/k.sock"], b"");
    assert_eq!(away.code, Some(1));
    assert!(
        away.stdout.starts_with("silent    server_away"),
        "{}",
        away.stdout
    );
    assert!(!away.stdout.contains("no findings"));
}

/// A trap: its severity and name, what the message has to say, and what to change in the sound set-up.
type Trap = (&'static str, &'static str, &'static str, fn(&mut Value));

fn mamba2(engine: &mut Value) {
    set(engine, "/architectures", json!(["FalconH1ForCausalLM"]));
}

const CONFIG: &str = "/kv_transfer_config";
const TRAPS: &[Trap] = &[
    ("silent", "not_connected", "--kv-transfer-config", |e| {
        remove(e, CONFIG)
    }),
    ("silent", "not_connected", "--kv-transfer-config", |e| {
        remove(e, "/kv_transfer_config/kv_connector")
    }),
    ("silent", "other_connector", "\"OffloadingConnector\"", |e| {
        set(
            e,
            "/kv_transfer_config/kv_connector",
            json!("OffloadingConnector"),
        );
        // Another connector's policy is its own matter.
        remove(e, "/kv_transfer_config/kv_load_failure_policy");
    }),
    ("silent", "other_connector", "MultiConnector", |e| {
        set(
            e,
            CONFIG,
            json!({"kv_connector": "MultiConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": [{"kv_connector": "OffloadingConnector"}]}}),
        );
    }),
    ("note", "several_connectors", "MultiConnector", |e| {
        let own = e["kv_transfer_config"].clone();
        set(
            e,
            CONFIG,
            json!({"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": [{"kv_connector": "OffloadingConnector"}, own]}}),
        );
    }),
    ("refused", "connector_module", "null", |e| {
        remove(e, "/kv_transfer_config/kv_connector_module_path")
    }),
    ("refused", "connector_module", "\"kvasir\"", |e| {
        set(e, "/kv_transfer_config/kv_connector_module_path", json!("kvasir"));
    }),
    ("refused", "kv_role", "null", |e| {
        remove(e, "/kv_transfer_config/kv_role")
    }),
    ("refused", "kv_role", "\"both\"", |e| {
        set(e, "/kv_transfer_config/kv_role", json!("both"))
    }),
    ("note", "kv_role", "only stores and never hits", |e| {
        set(e, "/kv_transfer_config/kv_role", json!("kv_producer"));
        // Of no concern to whoever loads nothing.
        set(e, "/kv_transfer_config/kv_load_failure_policy", json!("fail"));
    }),
    ("note", "kv_role", "stores nothing", |e| {
        set(e, "/kv_transfer_config/kv_role", json!("kv_consumer"))
    }),
    (
        "silent",
        "load_failure_policy",
        "so Kvasir stores but never loads",
        |e| remove(e, "/kv_transfer_config/kv_load_failure_policy"),
    ),
    ("silent", "load_failure_policy", "would fail its request", |e| {
        set(e, "/kv_transfer_config/kv_load_failure_policy", json!("fail"));
    }),
    ("refused", "load_failure_policy", "\"retry\"", |e| {
        set(e, "/kv_transfer_config/kv_load_failure_policy", json!("retry"));
    }),
    ("refused", "transfer_field", "kv_load_failure_polcy", |e| {
        set(e, "/kv_transfer_config/kv_load_failure_polcy", json!("recompute"));
    }),
    ("refused", "unknown_setting", "kvasir.stor,", |e| {
        e.pointer_mut(EXTRA).unwrap()["kvasir.stor"] = json!("all")
    }),
    ("refused", "bad_setting", "none", |e| {
        e.pointer_mut(EXTRA).unwrap()["kvasir.store"] = json!("none")
    }),
    ("refused", "bad_setting", "18446744073709551615", |e| {
        e.pointer_mut(EXTRA).unwrap()["kvasir.checksums"] = json!(u64::MAX);
    }),
    ("silent", "unprefixed_setting", "kvasir_store", |e| {
        e.pointer_mut(EXTRA).unwrap()["kvasir_store"] = json!("all")
    }),
    ("silent", "unprefixed_setting", "deadline", |e| {
        e.pointer_mut(EXTRA).unwrap()["deadline"] = json!(2)
    }),
    ("refused", "no_socket", "kvasir serve --socket", |e| {
        e.pointer_mut(EXTRA).unwrap()["kvasir.socket"] = Value::Null
    }),
    ("refused", "device_memory", "cuda", |e| {
        set(e, "/device", json!("cuda"))
    }),
    ("silent", "prefill_context_parallel", "is 2", |e| {
        set(e, "/prefill_context_parallel_size", json!(2))
    }),
    ("refused", "replayssm", "false", |e| {
        set(e, "/use_replayssm", json!(true))
    }),
    ("refused", "prefix_caching_off", "set it to true", |e| {
        set(e, "/enable_prefix_caching", json!(false))
    }),
    ("note", "prefix_caching_off", "own hits", |e| {
        set(e, "/enable_prefix_caching", json!(false));
        set(e, "/groups", json!([full(256, 65536)]));
    }),
    ("refused", "chunked_prefill_off", "set it to true", |e| {
        set(e, "/enable_chunked_prefill", json!(false))
    }),
    (
        "silent",
        "block_size_reset",
        "128 tokens, while recurrent state is kept every 256",
        |e| remove(e, "/block_size"),
    ),
    ("refused", "mamba2_steps", "4096 at a block size of 256", mamba2),
    ("refused", "mamba2_steps", "to 256", |e| {
        mamba2(e);
        remove(e, "/max_num_batched_tokens");
    }),
    ("refused", "no_snapshots", "group 0", |e| {
        set(e, "/groups/0/mamba_cache_mode", json!("none"))
    }),
    ("refused", "group_refused", "group 1: cross-attention", |e| {
        set(e, "/groups/1/kind", json!("cross_attention"))
    }),
    ("refused", "no_chunk_size", "16777216", |e| {
        set(e, "/groups", json!([full(8191, 2 * 8191), full(8192, 2 * 8192)]));
    }),
    ("slow", "near_coprime", "4352 tokens", |e| {
        set(e, "/groups", json!([full(256, 65536), full(272, 2 * 272)]))
    }),
    ("note", "uneven_spans", "every 128 tokens", |e| {
        set(e, "/groups/0/block_size", json!(128))
    }),
    ("note", "long_chunk", "--chunk-size 128", |e| {
        set(e, "/groups", json!([state(128, 65536), full(128, 65536)]));
    }),
    (
        "refused",
        "object_too_large",
        "takes 32.0 MiB and the pool has 16.0 MiB",
        |e| set(e, "/groups/0/layers/0/page_size_bytes", json!(16 << 20)),
    ),
    ("slow", "small_pool", "1048576", |e| {
        set(e, "/max_model_len", json!(1 << 20))
    }),
    ("note", "unread_fields", "enable_prefix_cachin", |e| {
        set(e, "/enable_prefix_cachin", json!(true))
    }),
];

#[test]
fn every_trap_alone_is_the_only_finding() {
    let server = ready_16();
    for (severity, name, says, change) in TRAPS {
        let mut engine = sound(server.socket());
        change(&mut engine);
        let output = examine(&engine);
        assert_eq!(
            output.findings(),
            [((*severity).to_owned(), (*name).to_owned())],
            "{}",
            output.stdout
        );
        let message = output.json()["findings"][0]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(
            message.contains(says),
            "{name}: {message:?} does not say {says:?}"
        );
        assert_eq!(message.lines().count(), 1, "{message}");
        let bad = matches!(*severity, "refused" | "silent");
        assert_eq!(output.code, Some(i32::from(bad)), "{name}");
    }
}

/// What servers do, by name; each has a test of its own.
const SERVER_TRAPS: &[&str] = &[
    "server_away",
    "server_stalled",
    "server_draining",
    "server_refuses",
    "server_unknown",
    "other_user",
    "other_socket",
    "servers_differ",
    "chunk_size",
    "client_refused",
    "pin_words",
    // Of what it says of itself: doctor_state.rs.
    "server_full",
    "lost_client",
    "not_registered",
    "binding_pending",
    "domains_full",
    "pool_not_present",
    "pool_pinned",
    "pool_granted",
    "pool_quarantined",
    "damaged_objects",
    "stores_dropped",
    "nobody_stores",
    "nobody_loads",
    // Of two engines: doctor_engines.rs.
    "engines_differ",
    // Of what engines say of themselves (python/tests/test_engine_conditions.py), under a later version's name.
    "engine_condition",
];

#[test]
fn the_documentation_names_exactly_what_is_tested() {
    let page = include_str!("../docs/operations.md");
    let (_, section) = page.split_once("\n## `kvasir doctor`\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let mut documented: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("| `"))
        // A first cell may have several names.
        .filter_map(|line| line.split('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|name| !name.contains('.'))
        .collect();
    documented.retain(|name| !FIELDS.contains(name));
    let mut tested: Vec<&str> = TRAPS
        .iter()
        .map(|trap| trap.1)
        .chain(SERVER_TRAPS.iter().copied())
        .chain(Condition::ALL.map(Condition::name))
        .collect();
    for list in [&mut documented, &mut tested] {
        list.sort_unstable();
        list.dedup();
    }
    assert_eq!(documented, tested);
}

/// Fields of the description, which the same section lists.
const FIELDS: &[&str] = &[
    "dcp",
    "kv_transfer_config",
    "architectures",
    "device",
    "multiprocessing",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "use_replayssm",
    "block_size",
    "max_num_batched_tokens",
    "max_model_len",
    "prefill_context_parallel_size",
    "groups",
    "vllm",
    "model",
    "attention_backend",
    "identity",
];

#[test]
fn one_run_reports_every_trap_worst_first() {
    let bound = ready_16();
    let _worker = bound.worker(); // decides on 256 tokens
    let unbound = ready_16();
    let long = ready(&["--pool-size", "16MiB", "--chunk-size", "20000"]);
    let mut config = transfer_config(bound.socket());
    config["kv_role"] = json!("kv_consumer");
    config["kv_rank"] = json!(0);
    config["kv_connector_module_path"] = json!("kvasir");
    config.as_object_mut().unwrap().remove("kv_load_failure_policy");
    config["kv_connector_extra_config"] = json!({
        "kvasir.socket": [bound.socket(), unbound.socket(), long.socket(), "/nonexistent/k.sock"],
        "kvasir.chunk": 1, "kvasir.deadline": 0, "store": "all",
    });
    let child = config;
    let mut none = state(544, 65536);
    none["mamba_cache_mode"] = json!("none");
    let engine = json!({
        "kv_transfer_config": {"kv_connector": "MultiConnector", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"connectors": [child]}},
        "architectures": ["Mamba2ForCausalLM"],
        "device": "cpu",
        "multiprocessing": true,
        "enable_chunked_prefill": false,
        "use_replayssm": true,
        "prefill_context_parallel_size": 2,
        "max_num_batched_tokens": 9000,
        "max_model_len": 1 << 20,
        "speed": "fast",
        // The states of one block do not fit a pool of 16 MiB; a chunk of the attention layers does.
        "groups": [none, state(544, 16 << 20), full(640, 81920)],
    });
    let output = doctor(
        &["--json", "--engine", "-", "--socket", "/elsewhere/k.sock"],
        engine.to_string().as_bytes(),
    );
    assert_eq!(output.code, Some(1));
    let found = output.findings();
    let order = ["refused", "silent", "slow", "note"];
    let place = |severity: &str| order.iter().position(|known| *known == severity).unwrap();
    assert!(
        found.is_sorted_by_key(|(severity, _)| place(severity)),
        "{found:?}"
    );
    let mut names: Vec<&str> = found.iter().map(|(_, name)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let expected = [
        "bad_setting",
        "block_size_reset",
        "chunk_size",
        "chunked_prefill_off",
        "connector_module",
        "kv_role",
        "load_failure_policy",
        "long_chunk",
        "mamba2_steps",
        "near_coprime",
        "no_snapshots",
        "object_too_large",
        "other_socket",
        "prefill_context_parallel",
        "replayssm",
        "server_away",
        "servers_differ",
        "several_connectors",
        "small_pool",
        "transfer_field",
        "uneven_spans",
        "unknown_setting",
        "unprefixed_setting",
        "unread_fields",
    ];
    assert_eq!(names, expected, "{}", output.stdout);
    // For people: the same, a line each.
    let text = doctor(
        &["--engine", "-", "--socket", "/elsewhere/k.sock"],
        engine.to_string().as_bytes(),
    );
    assert_eq!(text.code, Some(1));
    assert_eq!(text.stdout.lines().count(), found.len());
    for (line, (severity, name)) in text.stdout.lines().zip(&found) {
        assert!(line.starts_with(severity) && line.contains(name), "{line}");
    }
}

/// Where every block ends a step, a state is kept wherever a request can resume.
#[test]
fn uneven_spans_do_no_harm_to_short_steps() {
    let server = ready_16();
    let mut engine = sound(server.socket());
    set(&mut engine, "/groups/0/block_size", json!(128));
    for (tokens, harm) in [(256, true), (255, false), (128, false)] {
        set(&mut engine, "/max_num_batched_tokens", json!(tokens));
        let output = examine(&engine);
        let expected: &[(String, String)] = match harm {
            true => &[("note".to_owned(), "uneven_spans".to_owned())],
            false => &[],
        };
        assert_eq!(output.findings(), expected, "{tokens}: {}", output.stdout);
    }
}

#[test]
fn of_two_connectors_the_outer_policy_counts_too() {
    let server = ready_16();
    let mut engine = sound(server.socket());
    let own = engine["kv_transfer_config"].clone();
    let outer = json!({"kv_connector": "MultiConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [own]}});
    set(&mut engine, CONFIG, outer);
    let output = examine(&engine);
    let expected = [("silent", "load_failure_policy"), ("note", "several_connectors")];
    let expected = expected.map(|(severity, name)| (severity.to_owned(), name.to_owned()));
    assert_eq!(output.findings(), expected);
    assert!(
        output.stdout.contains("a load that fails fails its request"),
        "{}",
        output.stdout
    );
}

#[test]
fn a_consumer_under_the_default_policy_does_nothing_at_all() {
    let server = ready_16();
    let mut engine = sound(server.socket());
    set(&mut engine, "/kv_transfer_config/kv_role", json!("kv_consumer"));
    remove(&mut engine, "/kv_transfer_config/kv_load_failure_policy");
    let output = examine(&engine);
    let expected = [("silent", "load_failure_policy"), ("note", "kv_role")];
    let expected = expected.map(|(severity, name)| (severity.to_owned(), name.to_owned()));
    assert_eq!(output.findings(), expected);
    assert!(
        output.stdout.contains("stores nothing either"),
        "{}",
        output.stdout
    );
}

#[test]
fn of_two_connectors_the_outer_role_is_the_engines() {
    let server = ready_16();
    for (outer, own, severities) in [
        ("kv_both", "kv_both", &["note"][..]),
        ("kv_consumer", "kv_both", &["note"]),
        ("kv_producer", "kv_both", &["silent", "note"]),
        ("kv_producer", "kv_producer", &["note", "note"]),
        ("kv_both", "kv_producer", &["note", "note"]),
    ] {
        let mut engine = sound(server.socket());
        set(&mut engine, "/kv_transfer_config/kv_role", json!(own));
        let child = engine["kv_transfer_config"].clone();
        let multi = json!({"kv_connector": "MultiConnector", "kv_role": outer, "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": [child]}});
        set(&mut engine, CONFIG, multi);
        let output = examine(&engine);
        let found: Vec<String> = output
            .findings()
            .into_iter()
            .map(|(severity, _)| severity)
            .collect();
        assert_eq!(found, severities, "{outer}, {own}: {}", output.stdout);
        assert_eq!(
            output.stdout.contains("the outer kv_role"),
            severities[0] == "silent"
        );
    }
}
