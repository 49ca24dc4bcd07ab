//! `kvasir plan` as a black box, and every recorded case of an engine's own geometry.

use std::io::Write;
use std::process::{Command, Stdio};

use kvasir::cli::plan;
use kvasir::geometry::segments::block_alignment;
use serde_json::{Value, json};

fn cases(file: &str, list: &str) -> Vec<Value> {
    let path = format!("{}/tests/data/geometry/{file}", env!("CARGO_MANIFEST_DIR"));
    let value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    value[list].as_array().unwrap().clone()
}

struct Output {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Output {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: stdout {:?} stderr {:?}", self.stdout, self.stderr))
    }
}

fn kvasir(args: &[&str], stdin: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvasir"))
        .arg("plan")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its arguments may end before it reads; then the pipe is closed, which is no fault.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let output = child.wait_with_output().unwrap();
    Output {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Whether the engine was started so that nothing of a recurrent group can be restored.
fn keeps_no_snapshots(input: &Value) -> bool {
    input["groups"]
        .as_array()
        .unwrap()
        .iter()
        .any(|group| group["mamba_cache_mode"] == "none")
}

/// Compares an answer with a recorded case; `chunk` is the size expected for the minimum that was asked.
fn check_groups(name: &str, input: &Value, expect: &Value, chunk: &Value, answer: &Value) {
    assert_eq!(
        answer["required_alignment"], expect["required_alignment"],
        "{name}"
    );
    assert_eq!(answer["chunk_size"], *chunk, "{name}");
    let groups = answer["groups"].as_array().unwrap();
    let expected = expect["groups"].as_array().unwrap();
    assert_eq!(groups.len(), expected.len(), "{name}");
    for (index, (found, wanted)) in groups.iter().zip(expected).enumerate() {
        let given = &input["groups"][index];
        for (field, value) in wanted.as_object().unwrap() {
            assert_eq!(found[field], *value, "{name}, group {index}, {field}");
        }
        let recurrent = given["kind"] == "mamba";
        assert_eq!(found["kind"], given["kind"], "{name}, group {index}");
        assert_eq!(found["recurrent"], json!(recurrent), "{name}, group {index}");
        assert_eq!(
            found["cacheable"], given["prefix_cacheable"],
            "{name}, group {index}"
        );
        let window = if given["kind"] == "chunked_local_attention" {
            "attention_chunk_size"
        } else {
            "window"
        };
        assert_eq!(found["window"], given[window], "{name}, group {index}");
        let (bytes, tokens) = (
            wanted["bytes_per_block"].as_u64().unwrap(),
            wanted["tokens_per_block"].as_u64().unwrap(),
        );
        let object = match (tokens, recurrent) {
            (0, _) => 0,
            (_, true) => bytes,
            (_, false) => bytes * chunk.as_u64().unwrap() / tokens,
        };
        assert_eq!(found["object_bytes"], json!(object), "{name}, group {index}");
    }
}

#[test]
fn every_recorded_model_resolves_exactly_at_every_minimum() {
    let cases = cases("groups.json", "cases");
    assert!(cases.len() >= 71, "the case file lost cases");
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let input = serde_json::to_vec(&case["input"]).unwrap();
        for (minimum, chunk) in case["expect"]["chunk_size_by_minimum"].as_object().unwrap() {
            let answer = plan::groups::answer(&input, minimum.parse().unwrap(), None);
            let answer = match answer {
                Ok(answer) => {
                    assert!(
                        !keeps_no_snapshots(&case["input"]),
                        "{name} cannot be served, yet was not refused"
                    );
                    answer.json
                }
                // Refused, but the numbers are there and exact.
                Err(error) => {
                    assert!(keeps_no_snapshots(&case["input"]), "{name}: {error}");
                    assert_eq!(error.kind, "refused", "{name}");
                    error.to_json()
                }
            };
            check_groups(name, &case["input"], &case["expect"], chunk, &answer);
        }
    }
}

#[test]
fn the_binary_answers_every_recorded_model() {
    for case in cases("groups.json", "cases") {
        let name = case["name"].as_str().unwrap();
        let output = kvasir(&["groups", "-", "--json"], case["input"].to_string().as_bytes());
        let code = if keeps_no_snapshots(&case["input"]) { 2 } else { 0 };
        assert_eq!(output.code, Some(code), "{name}: {}", output.stderr);
        let chunk = &case["expect"]["chunk_size_by_minimum"]["256"];
        check_groups(name, &case["input"], &case["expect"], chunk, &output.json());
    }
}

/// Recorded segment offsets: all of them, or the first, second and last.
fn check_offsets(name: &str, expect: &Value, found: &Value) {
    let offsets: Vec<&Value> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|segment| &segment["offset"])
        .collect();
    if let Some(all) = expect["segment_offsets"].as_array() {
        assert_eq!(offsets, all.iter().collect::<Vec<_>>(), "{name}");
    } else {
        let some = expect["segment_offsets_first_second_last"].as_array().unwrap();
        assert_eq!(
            vec![offsets[0], offsets[1], *offsets.last().unwrap()],
            some.iter().collect::<Vec<_>>(),
            "{name}"
        );
    }
}

#[test]
fn every_recorded_reservation_is_planned_exactly() {
    let cases = cases("segments.json", "cases");
    assert!(cases.len() >= 26, "the case file lost cases");
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let expect = &case["expect"];
        let mut args = vec!["segments".to_owned(), "-".to_owned(), "--json".to_owned()];
        for commit in expect["commits"].as_array().unwrap() {
            args.extend(["--commit".to_owned(), commit["blocks"].to_string()]);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = kvasir(&args, case["input"].to_string().as_bytes());
        assert_eq!(output.code, Some(0), "{name}: {}", output.stderr);
        let answer = output.json();
        assert_eq!(answer["num_segments"], expect["num_segments"], "{name}");
        assert_eq!(
            answer["segments"].as_array().unwrap().len() as u64,
            expect["num_segments"].as_u64().unwrap()
        );
        assert_eq!(answer["block_alignment"], expect["block_alignment"], "{name}");
        assert_eq!(
            answer["padded"]["total_bytes"], expect["padded"]["total_bytes"],
            "{name}"
        );
        assert_eq!(answer["commits"], expect["commits"], "{name}");
        check_offsets(name, expect, &answer["segments"]);
        check_offsets(name, &expect["padded"], &answer["padded"]["segments"]);

        let plain = plan::segments::answer(case["input"].to_string().as_bytes(), &[1], false)
            .unwrap()
            .json;
        assert_eq!(
            plain["padded"]["segments"], answer["segments"],
            "{name}: padded although nothing is registered"
        );
        assert_eq!(
            plain["padded"]["total_bytes"], case["input"]["total_bytes"],
            "{name}"
        );
    }
}

#[test]
fn block_alignments_agree_with_the_engine() {
    for case in cases("segments.json", "alignment") {
        let strides: Vec<u64> = case["strides"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s.as_u64().unwrap())
            .collect();
        let alignment = block_alignment(&strides, case["granule"].as_u64().unwrap()).unwrap();
        assert_eq!(alignment, case["block_alignment"].as_u64().unwrap(), "{case}");
        let blocks = case["blocks"].as_u64().unwrap();
        assert_eq!(
            blocks / alignment * alignment,
            case["aligned_blocks"].as_u64().unwrap(),
            "{case}"
        );
    }
}

#[test]
fn chunk_answers_the_documented_example() {
    let args = [
        "chunk",
        "--span",
        "544",
        "--span",
        "64",
        "--chunk-size",
        "1024",
        "--json",
    ];
    let output = kvasir(&args, b"");
    assert_eq!(output.code, Some(0));
    assert_eq!(
        output.json(),
        json!({"required_alignment": 1088, "chunk_size": 1088, "warnings": []})
    );
    let text = kvasir(&args[..7], b"");
    assert_eq!(text.code, Some(0));
    assert!(
        text.stdout.contains("1088 tokens = lcm(64, 544)"),
        "{}",
        text.stdout
    );
    let default = kvasir(&["chunk", "--span", "400", "--json"], b"");
    assert_eq!(default.json()["chunk_size"], 400);
}
