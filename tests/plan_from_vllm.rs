//! `kvasir plan from-vllm` as a command: which Python it asks, with what, and what it makes of the answers. What vLLM answers is
//! tested with a real one (`python/e2e/test_describe.py`).

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use common::*;
use serde_json::{Value, json};

/// A program in Python's place that says what it was given, and ends as told.
fn python(directory: &tempfile::TempDir, script: &str) -> PathBuf {
    let path = directory.path().join("python");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

const ECHO: &str = r#"printf '{"groups": [], "source": "%s"}\n' "$*""#;

#[test]
fn what_follows_is_vllms_own() {
    let directory = tempfile::tempdir().unwrap();
    let python = python(&directory, ECHO);
    let path = python.to_str().unwrap();
    let vllm = [
        "MODEL",
        "--block-size",
        "32",
        "-tp",
        "2",
        "--json",
        "--python",
        "x",
    ];
    for command in ["from-vllm", "--from-vllm"] {
        let mut args = vec!["plan", command, "--python", path];
        args.extend(vllm);
        let (code, answer, error) = run(&args, |_| {});
        assert_eq!((code, error.as_str()), (Some(0), ""), "{command}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let expected = "-m kvasir.vllm.describe MODEL --block-size 32 -tp 2 --json --python x";
        assert_eq!(answer, json!({"groups": [], "source": expected}));
    }
    let (code, answer, error) = run(&["plan", "from-vllm", "MODEL"], |command| {
        command.env("KVASIR_PYTHON", path);
    });
    assert_eq!(code, Some(0), "{error}");
    assert!(answer.contains("describe MODEL"), "{answer}");
}

#[test]
fn failures_name_the_python_and_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let ask = |script: &str| {
        let python = python(&directory, script);
        run(
            &["plan", "from-vllm", "--python", python.to_str().unwrap(), "MODEL"],
            |_| {},
        )
    };
    let cases = [
        ("echo 'no module named vllm' >&2; exit 1", "exit status: 1"),
        (
            "echo 'unrecognized arguments' >&2; exit 2",
            "vLLM refuses these arguments",
        ),
        ("echo what", "wrote no JSON"),
        ("kill -9 $$", "signal: 9"),
    ];
    for (script, says) in cases {
        let (code, answer, error) = ask(script);
        assert_eq!((code, answer.as_str()), (Some(2), ""), "{script}");
        let last = error.lines().last().unwrap();
        assert!(
            last.starts_with("kvasir plan: ") && last.contains(says),
            "{script}: {error}"
        );
        assert!(last.contains("-m kvasir.vllm.describe"), "{error}");
    }
    let nowhere = run(
        &["plan", "from-vllm", "--python", "/nonexistent/python", "MODEL"],
        |_| {},
    );
    assert_eq!(nowhere.0, Some(2));
    assert!(
        nowhere.2.contains("/nonexistent/python") && nowhere.2.contains("--python"),
        "{}",
        nowhere.2
    );
    let (code, _, error) = run(&["plan", "from-vllm"], |_| {});
    assert_eq!(code, Some(2));
    assert!(error.contains("ARGS"), "{error}");
}

/// The description of a whole engine is one of its groups too, and nothing in it is unread.
#[test]
fn plan_groups_reads_the_description_of_an_engine() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("engine.json");
    let engine = json!({
        "source": "vllm serve MODEL", "vllm": "0.32.0", "model": "MODEL", "architectures": ["LlamaForCausalLM"],
        "device": "cpu", "multiprocessing": true, "enable_prefix_caching": true, "enable_chunked_prefill": true,
        "use_replayssm": false, "max_num_batched_tokens": 2048, "max_model_len": 4096, "block_size": 32,
        "prefill_context_parallel_size": 1, "kv_transfer_config": null, "attention_backend": "CPU_ATTN",
        "identity": {"model": "m", "kv_dtype": "bfloat16"}, "dcp": 1,
        "groups": [{"kind": "full_attention", "block_size": 32, "prefix_cacheable": true, "dcp_sharded": true,
            "layers": [{"name": "l0", "page_size_bytes": 32768, "dtype": "bfloat16"}]}],
    });
    fs::write(&file, engine.to_string()).unwrap();
    let (code, answer, error) = run(&["plan", "groups", file.to_str().unwrap(), "--json"], |_| {});
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["chunk_size"], 256);
    let (_, text, _) = run(&["plan", "groups", file.to_str().unwrap()], |_| {});
    assert!(text.contains("32.0 KiB") && text.contains("256.0 KiB"), "{text}");
}
