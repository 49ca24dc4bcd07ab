//! `kvasir doctor --engine A --engine B`: what keeps two engines from sharing what they store.

mod common;
mod doctor_support;

use std::path::{Path, PathBuf};

use doctor_support::*;
use serde_json::{Value, json};

struct Two {
    directory: tempfile::TempDir,
}

impl Two {
    fn file(&self, name: &str, engine: &Value) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, engine.to_string()).unwrap();
        path
    }

    fn compare(&self, one: &Value, other: &Value) -> Output {
        let (one, other) = (self.file("one.json", one), self.file("other.json", other));
        let [one, other] = [&one, &other].map(|path| path.to_str().unwrap());
        doctor(&["--json", "--engine", one, "--engine", other], b"")
    }
}

/// As a running engine writes it.
fn described(socket: &Path) -> Value {
    let mut engine = sound(socket);
    engine["vllm"] = json!("0.32.0");
    engine["attention_backend"] = json!("CPU_ATTN");
    engine["identity"] = json!({
        "model": "Qwen3_5ForCausalLM|dtype=bfloat16;quantization=None",
        "weights_id": "0a".repeat(32),
        "kv_dtype": "bfloat16",
        "parallel_shape": "tp=1,pp=1,dcp=1,pcp=1,interleave=1",
        "fingerprint": "0b".repeat(32),
    });
    engine
}

#[test]
fn engines_that_agree_have_nothing_against_each_other() {
    let server = ready_16();
    let two = Two {
        directory: tempfile::tempdir().unwrap(),
    };
    let one = described(server.socket());
    let output = two.compare(&one, &one);
    assert_eq!(output.json(), json!({"findings": [], "unchecked": []}));
    assert_eq!(output.code, Some(0));
    // What does not count: where logs go, how much is computed at a time, and another path of the same server.
    let mut other = one.clone();
    let also = server.directory().join("also.sock");
    std::os::unix::fs::symlink(server.socket(), &also).unwrap();
    set(&mut other, "/max_num_batched_tokens", json!(512));
    set(&mut other, "/groups/0/mamba_cache_mode", json!("all"));
    other.pointer_mut(EXTRA).unwrap()["kvasir.socket"] = json!(also);
    other.pointer_mut(EXTRA).unwrap()["kvasir.deadline"] = json!(2);
    let output = two.compare(&one, &other);
    assert_eq!(
        (output.code, output.findings()),
        (Some(0), vec![]),
        "{}",
        output.stdout
    );
}

#[test]
fn every_difference_that_counts_is_named_with_both_values() {
    let server = ready_16();
    let elsewhere = ready_16();
    let two = Two {
        directory: tempfile::tempdir().unwrap(),
    };
    let one = described(server.socket());
    type Change<'a> = Box<dyn Fn(&mut Value) + 'a>;
    let at = |path: &'static str, value: Value| -> Change<'_> {
        Box::new(move |engine| set(engine, path, value.clone()))
    };
    let cases: Vec<(Change<'_>, [&str; 3])> = vec![
        (
            Box::new(|engine| {
                for group in [0, 1] {
                    engine["groups"][group]["block_size"] = json!(128);
                }
                engine["block_size"] = json!(128);
                engine["max_num_batched_tokens"] = json!(128);
            }),
            ["block_size of group 0", "has 256", "has 128"],
        ),
        (
            at("/groups/1/layers/0/dtype", json!("float16")),
            ["layers of group 1", "bfloat16", "float16"],
        ),
        (
            at("/identity/weights_id", json!("0c".repeat(32))),
            ["the weights", "0a0a", "0c0c"],
        ),
        (
            at("/identity/model", json!("other|")),
            ["the model's name", "Qwen3_5", "other|"],
        ),
        (
            at("/identity/kv_dtype", json!("fp8")),
            ["the KV cache's type", "bfloat16", "fp8"],
        ),
        (
            at("/identity/parallel_shape", json!("tp=2")),
            ["the parallel shape", "tp=1", "tp=2"],
        ),
        (
            at("/identity/fingerprint", json!("0d".repeat(32))),
            ["the layout", "0b0b", "0d0d"],
        ),
        (
            at("/vllm", json!("0.33.0")),
            ["vLLM's version", "0.32.0", "0.33.0"],
        ),
        (
            at("/attention_backend", json!("CPU_MLA")),
            ["the attention backend", "CPU_ATTN", "CPU_MLA"],
        ),
        (
            Box::new(|engine| engine.pointer_mut(EXTRA).unwrap()["kvasir.weights_id"] = json!("mine")),
            ["kvasir.weights_id", "has none", "mine"],
        ),
        (
            Box::new(|engine| {
                engine.pointer_mut(EXTRA).unwrap()["kvasir.socket"] = json!(elsewhere.socket())
            }),
            [
                "the server",
                server.socket().to_str().unwrap(),
                elsewhere.socket().to_str().unwrap(),
            ],
        ),
    ];
    for (change, says) in &cases {
        let mut other = one.clone();
        change(&mut other);
        if says[0].contains("of group") {
            // As it is in engines: the fingerprint is made of the groups.
            set(&mut other, "/identity/fingerprint", json!("0e".repeat(32)));
        }
        let output = two.compare(&one, &other);
        let differ = ("silent".to_owned(), "engines_differ".to_owned());
        let found: Vec<_> = output
            .findings()
            .into_iter()
            .filter(|found| *found == differ)
            .collect();
        assert_eq!(found.len(), 1, "{says:?}: {}", output.stdout);
        assert_eq!(output.code, Some(1));
        for part in says {
            assert!(
                output.stdout.contains(part),
                "{part:?} is not in {}",
                output.stdout
            );
        }
        assert!(output.stdout.contains("one.json") && output.stdout.contains("other.json"));
    }
}

#[test]
fn two_of_one_role_have_nothing_to_share() {
    let server = ready_16();
    let two = Two {
        directory: tempfile::tempdir().unwrap(),
    };
    for (role, name) in [("kv_consumer", "nobody_stores"), ("kv_producer", "nobody_loads")] {
        let mut engine = described(server.socket());
        set(&mut engine, "/kv_transfer_config/kv_role", json!(role));
        let output = two.compare(&engine, &engine);
        let wanted = ("silent".to_owned(), name.to_owned());
        assert!(output.findings().contains(&wanted), "{}", output.stdout);
        let output = two.compare(&engine, &described(server.socket()));
        let both = format!("both \\\"{role}\\\"");
        assert!(!output.stdout.contains(&both), "{}", output.stdout);
    }
}

/// What neither file says is not taken for equal.
#[test]
fn what_is_not_known_of_both_is_listed() {
    let server = ready_16();
    let two = Two {
        directory: tempfile::tempdir().unwrap(),
    };
    let mut plain = sound(server.socket());
    plain.as_object_mut().unwrap().remove("groups");
    let output = two.compare(&plain, &described(server.socket()));
    let unchecked = output.json()["unchecked"].to_string();
    for part in [
        "the weights",
        "the parallel shape",
        "KV cache groups",
        "layout of the pages",
    ] {
        assert!(unchecked.contains(part), "{part}: {unchecked}");
    }
    // Block sizes are compared even where the groups are not known.
    set(&mut plain, "/block_size", json!(32));
    let mut other = plain.clone();
    set(&mut other, "/block_size", json!(16));
    let output = two.compare(&plain, &other);
    assert!(output.stdout.contains("block_size differs"), "{}", output.stdout);
}

#[test]
fn findings_and_errors_say_which_of_the_files_they_are_about() {
    let server = ready_16();
    let two = Two {
        directory: tempfile::tempdir().unwrap(),
    };
    let one = described(server.socket());
    let mut other = one.clone();
    set(&mut other, "/device", json!("cuda"));
    let output = two.compare(&one, &other);
    let report = output.json();
    let message = report["findings"][0]["message"].as_str().unwrap();
    assert!(message.contains("other.json: device is cuda"), "{message}");
    let output = two.compare(&one, &json!({"block_size": 0}));
    assert_eq!(output.code, Some(2));
    let message = output.json()["error"]["message"].to_string();
    assert!(message.contains("other.json: block_size is 0"), "{message}");
}
