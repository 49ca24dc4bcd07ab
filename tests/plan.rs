//! `kvasir plan` as a black box, and every recorded case of an engine's own geometry.

mod plan_support;

use kvasir::cli::plan;
use kvasir::geometry::segments::block_alignment;
use plan_support::*;
use serde_json::{Value, json};

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

#[test]
fn the_command_line_overrides_context_parallelism() {
    let cases = cases("groups.json", "cases");
    let case = |name: &str| cases.iter().find(|case| case["name"] == name).unwrap();
    let input = case("dcp2/deepseek-v3-mla")["input"].to_string();
    for (dcp, alignment) in [("1", 64), ("2", 128), ("4", 256), ("8", 512)] {
        let output = kvasir(&["groups", "-", "--json", "--dcp", dcp], input.as_bytes());
        assert_eq!(output.json()["required_alignment"], alignment);
    }
    // Whether a group is sharded decides its span, so it cannot be left open.
    let open = one_group(&format!(r#""kind":"full_attention","block_size":16,{LAYERS}"#));
    assert_eq!(kvasir(&["groups", "-"], open.as_bytes()).code, Some(0));
    let error = refused(&["groups", "-", "--dcp", "2"], &open);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("dcp_sharded is missing")
    );
}

#[test]
fn the_table_explains_the_alignment() {
    let groups = format!(
        r#"{{"groups":[{{"kind":"mamba","mamba_cache_mode":"align","block_size":544,{LAYERS}}},
        {{"kind":"full_attention","block_size":64,{LAYERS}}},
        {{"kind":"circular_buffer","block_size":8,"prefix_cacheable":false,{LAYERS}}}]}}"#
    );
    let output = kvasir(&["groups", "-", "--chunk-size", "2000"], groups.as_bytes());
    assert_eq!(output.code, Some(0));
    for part in [
        "required alignment  1088 tokens = lcm(64, 544)",
        "544 = 2^5 x 17; 2 blocks in 1088",
        "chunk size          2176 tokens = 2 x 1088",
        "scratch",
        "warning",
    ] {
        assert!(
            output.stdout.contains(part),
            "{part:?} is not in\n{}",
            output.stdout
        );
    }
}

#[test]
fn warnings_reach_both_answers() {
    let args = ["chunk", "--span", "8192", "--span", "544", "--json"];
    let output = kvasir(&args, b"");
    let warnings = output.json()["warnings"].clone();
    assert_eq!(warnings.as_array().unwrap().len(), 1);
    assert!(warnings[0].as_str().unwrap().starts_with("near-coprime"));
    assert!(kvasir(&args[..5], b"").stdout.contains("near-coprime"));
}

#[test]
fn a_file_is_read_like_standard_input() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.json");
    let input = cases("groups.json", "cases")[0]["input"].to_string();
    std::fs::write(&path, &input).unwrap();
    let from_file = kvasir(&["groups", path.to_str().unwrap(), "--json"], b"");
    assert_eq!(from_file.code, Some(0));
    assert_eq!(
        from_file.json(),
        kvasir(&["groups", "-", "--json"], input.as_bytes()).json()
    );
}
