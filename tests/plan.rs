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
    // A command that refuses its arguments may end before it reads; then the pipe is closed, which is no
    // fault.
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

fn refused(args: &[&str], stdin: &str) -> Value {
    let mut with_json = args.to_vec();
    with_json.push("--json");
    let output = kvasir(&with_json, stdin.as_bytes());
    assert_eq!(output.code, Some(2), "{args:?} {stdin}: {}", output.stdout);
    let answer = output.json();
    let error = answer["error"].clone();
    assert!(
        error["kind"].is_string() && error["message"].is_string() && error["groups"].is_array(),
        "{answer}"
    );
    // The same in one line for people, and nothing on standard output.
    let plain = kvasir(args, stdin.as_bytes());
    assert_eq!(plain.code, Some(2));
    assert_eq!(plain.stdout, "");
    assert_eq!(
        plain.stderr,
        format!("kvasir plan: {}\n", error["message"].as_str().unwrap())
    );
    assert_eq!(plain.stderr.lines().count(), 1);
    error
}

fn one_group(fields: &str) -> String {
    format!(r#"{{"dcp":1,"groups":[{{{fields}}}]}}"#)
}

const LAYERS: &str =
    r#""layers":[{"count":2,"page_size_bytes":4096,"dtype":"bfloat16","tokens_per_state":1}]"#;

#[test]
fn bad_groups_name_the_group_and_the_numbers() {
    let full = |fields: &str| one_group(&format!(r#""kind":"full_attention",{fields}"#));
    let cases = [
        (full(&format!(r#""block_size":0,{LAYERS}"#)), "block_size is 0"),
        (
            full(&format!(r#""block_size":-16,{LAYERS}"#)),
            "block_size is -16",
        ),
        (
            full(&format!(r#""block_size":16.5,{LAYERS}"#)),
            "block_size is 16.5",
        ),
        (
            full(&format!(r#""block_size":"16",{LAYERS}"#)),
            "block_size is \"16\"",
        ),
        (
            full(&format!(r#""block_size":1e40,{LAYERS}"#)),
            "block_size is 1e+40",
        ),
        (
            full(&format!(r#""block_size":18446744073709551615,{LAYERS}"#)),
            "18446744073709551615 tokens",
        ),
        (
            full(&format!(r#""block_size":8589934592,{LAYERS}"#)),
            "exceeds 16777216 tokens",
        ),
        (full(LAYERS), "block_size is missing"),
        (full(r#""block_size":16"#), "layers is missing"),
        (full(r#""block_size":16,"layers":[]"#), "no layers"),
        (full(r#""block_size":16,"layers":7"#), "layers is 7"),
        (
            full(r#""block_size":16,"layers":[7]"#),
            "layer entry 0: expected an object",
        ),
        (
            full(r#""block_size":16,"layers":[{"dtype":"int8"}]"#),
            "page_size_bytes is missing",
        ),
        (
            full(r#""block_size":16,"layers":[{"page_size_bytes":64}]"#),
            "declares no dtype",
        ),
        (
            full(r#""block_size":16,"layers":[{"page_size_bytes":64,"dtype":"bf16"}]"#),
            "unknown dtype \"bf16\"",
        ),
        (
            full(r#""block_size":16,"layers":[{"page_size_bytes":0,"dtype":"int8"}]"#),
            "page_size_bytes 0",
        ),
        (
            full(
                r#""block_size":16,"layers":[{"page_size_bytes":64,"dtype":"int8","tokens_per_state":"1/0"}]"#,
            ),
            "tokens_per_state is \"1/0\"",
        ),
        (
            full(r#""block_size":16,"layers":[{"page_size_bytes":64,"dtype":"int8","tokens_per_state":3}]"#),
            "no whole number of slots",
        ),
        (
            full(r#""block_size":16,"layers":[{"page_size_bytes":4097,"dtype":"bfloat16"}]"#),
            "4097 bytes does not factor into 16 slots of whole bfloat16 elements (2 bytes each)",
        ),
        (
            full(
                r#""block_size":256,"layers":[{"page_size_bytes":1000,"dtype":"float32","tokens_per_state":4}]"#,
            ),
            "1000 bytes does not factor into 64 slots",
        ),
        (
            full(
                r#""block_size":16,"layers":[{"count":3,"page_size_bytes":9223372036854775807,"dtype":"int8"}]"#,
            ),
            "overflow 64 bits",
        ),
        (
            one_group(&format!(r#""kind":"attention\n","block_size":16,{LAYERS}"#)),
            "unknown kind \"attention\\n\"",
        ),
        (
            one_group(&format!(r#""block_size":16,{LAYERS}"#)),
            "kind is missing",
        ),
        (
            one_group(&format!(r#""kind":"sliding_window","block_size":16,{LAYERS}"#)),
            "must give its window",
        ),
        (
            one_group(&format!(
                r#""kind":"mamba","block_size":16,"mamba_cache_mode":"most",{LAYERS}"#
            )),
            "unknown recurrent cache mode \"most\"",
        ),
        (
            full(&format!(r#""block_size":16,"prefix_cacheable":"no",{LAYERS}"#)),
            "prefix_cacheable is \"no\"",
        ),
    ];
    for (input, reason) in cases {
        let error = refused(&["groups", "-"], &input);
        assert_eq!(error["groups"][0]["index"], 0, "{input}: {error}");
        let found = error["groups"][0]["reason"].as_str().unwrap();
        assert!(found.contains(reason), "{input}: {reason:?} is not in {found:?}");
    }
}

#[test]
fn bad_documents_are_one_line() {
    let file = env!("CARGO_MANIFEST_DIR");
    for input in [
        "",
        "{",
        "[]",
        "7",
        "{}",
        r#"{"groups":{}}"#,
        r#"{"groups":[]}"#,
        r#"{"groups":[],"dcp":0}"#,
        "\u{0}",
    ] {
        refused(&["groups", "-"], input);
        refused(&["segments", "-"], input);
    }
    refused(&["groups", "-"], &"[".repeat(100_000));
    assert_eq!(refused(&["groups", file], "")["kind"], "io");
    assert_eq!(refused(&["segments", "no/such\nfile"], "")["kind"], "io");
    let good = cases("groups.json", "cases")[0]["input"].to_string();
    for size in ["0", "-1", "x", "", "1e3", "99999999999999999999", "16777217"] {
        refused(&["groups", "-", "--chunk-size", size], &good);
    }
    for dcp in ["0", "-1", "two", "18446744073709551615"] {
        refused(&["groups", "-", "--dcp", dcp], &good);
    }
}

#[test]
fn refusals_list_every_group() {
    let group = |kind: &str, more: &str| format!(r#"{{"kind":"{kind}","block_size":16,{more}{LAYERS}}}"#);
    let mixed = r#"{"kind":"mamba","block_size":16,"mamba_cache_mode":"align","layers":[
        {"page_size_bytes":64,"dtype":"int8"},{"page_size_bytes":64,"dtype":"int8","kind":"full_attention"}]}"#;
    let windows = r#"{"kind":"sliding_window","window":1024,"block_size":16,"layers":[
        {"page_size_bytes":64,"dtype":"int8"},{"page_size_bytes":64,"dtype":"int8","window":512}]}"#;
    let groups = [
        group("cross_attention", ""),
        group("full_attention", ""),
        group("mamba", r#""mamba_cache_mode":"none","#),
        mixed.to_owned(),
        windows.to_owned(),
        group("mamba", r#""mamba_cache_mode":"align","#),
    ];
    let error = refused(
        &["groups", "-"],
        &format!(r#"{{"groups":[{}]}}"#, groups.join(",")),
    );
    assert_eq!(error["kind"], "refused");
    let indices: Vec<u64> = error["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indices, [0, 2, 3, 4]);

    // Unreadable groups do not hide the others.
    let error = refused(
        &["groups", "-"],
        &format!(r#"{{"groups":[{},{},7]}}"#, groups[0], groups[1]),
    );
    let indices: Vec<u64> = error["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["index"].as_u64().unwrap())
        .collect();
    assert_eq!(
        (error["kind"].as_str().unwrap(), indices),
        ("invalid", vec![0, 2])
    );
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
fn bad_spans_are_listed_by_position() {
    let error = refused(
        &[
            "chunk",
            "--span",
            "-5",
            "--span",
            "16",
            "--span",
            "8589934592",
            "--span",
            "two",
        ],
        "",
    );
    let indices: Vec<u64> = error["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indices, [0, 2, 3]);
    assert_eq!(refused(&["chunk"], "")["kind"], "no_cacheable_group");
    assert_eq!(
        refused(&["chunk", "--span", "0"], "")["kind"],
        "no_cacheable_group"
    );
    assert_eq!(
        refused(&["chunk", "--span", "16", "--chunk-size", "0"], "")["kind"],
        "zero"
    );
    assert_eq!(
        refused(&["chunk", "--span", "16777213", "--span", "16777215"], "")["kind"],
        "too_large"
    );
    let scratch = kvasir(
        &["chunk", "--span", "640", "--span", "0", "--span", "640", "--json"],
        b"",
    );
    assert_eq!(scratch.json()["chunk_size"], 640);
}

#[test]
fn a_field_given_twice_is_refused() {
    let layer = r#"{"page_size_bytes":65536,"dtype":"bfloat16"}"#;
    for (input, key) in [
        (format!(r#"{{"groups":[{{"kind":"full_attention","block_size":16,"block_size":32,"layers":[{layer}]}}]}}"#), "block_size"),
        (format!(r#"{{"dcp":1,"groups":[{{"kind":"full_attention","block_size":16,"layers":[{layer}]}}],"dcp":1}}"#), "dcp"),
        (r#"{"groups":[{"kind":"full_attention","block_size":16,"layers":[{"dtype":"bfloat16","page_size_bytes":1,"page_size_bytes":1}]}]}"#.into(), "page_size_bytes"),
        // Also where nothing reads it, and where the two are spelt differently.
        (r#"{"groups":[],"x":{"y":[{"z":1,"\u007a":2}]}}"#.into(), "z"),
    ] {
        let error = refused(&["groups", "-"], &input);
        assert_eq!(error["kind"], "duplicate", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&format!("the field {key} is given twice")), "{message}");
        assert!(message.contains("at line 1 column"), "{message}");
    }
    let segments = r#"{"layout":"LBNHC","granule":4096,"blocks":10,"total_bytes":81920,"tensors":
        [{"n_layers":1,"offset":0,"offset":0,"layer_stride":81920,"block_stride":8192}]}"#;
    assert_eq!(refused(&["segments", "-"], segments)["kind"], "duplicate");
}

#[test]
fn fields_that_nothing_reads_are_named_in_a_warning() {
    let group = |fields: &str| {
        format!(
            r#"{{"name":"a model","note":"","groups":[{{"kind":"full_attention","block_size":16{fields},
               "layers":[{{"name":"l0","page_size_bytes":65536,"dtype":"bfloat16"}}]}}]}}"#
        )
    };
    let known = kvasir(&["groups", "-"], group("").as_bytes());
    assert_eq!((known.code, known.stderr.as_str()), (Some(0), ""));
    let misspelt = group(r#","dcp_shared":true,"source":"a dump","two\nlines":0"#);
    for json in [&["groups", "-"][..], &["groups", "-", "--json"]] {
        let output = kvasir(json, misspelt.as_bytes());
        assert_eq!(output.code, Some(0));
        assert_eq!(
            output.stderr,
            "kvasir plan: warning: nothing reads the fields groups[0].dcp_shared, groups[0].two\\nlines\n"
        );
    }
    let plain = kvasir(&["groups", "-", "--json"], group("").as_bytes());
    let warned = kvasir(&["groups", "-", "--json"], misspelt.as_bytes());
    assert_eq!(plain.json(), warned.json(), "a warning changes nothing else");
    // What is missing may be what is misspelt, so the two are said together.
    let missing = r#"{"layout":"LBNHC","granule":4096,"blocks":10,"total_bytes":81920,"tensors":
        [{"n_layer":1,"offset":0,"layer_stride":81920,"block_stride":8192}]}"#;
    let error = refused(&["segments", "-"], missing);
    assert_eq!(
        error["message"],
        "tensor 0: n_layers is missing; nothing reads the field tensors[0].n_layer"
    );
    // A whole dump of them is still one line.
    let many: String = (0..100).map(|i| format!(r#","x{i}":0"#)).collect();
    let output = kvasir(&["groups", "-"], group(&many).as_bytes());
    assert_eq!(output.stderr.lines().count(), 1);
    assert!(output.stderr.ends_with(" and 84 more\n"), "{}", output.stderr);
    // The recorded cases know no field that Kvasir does not.
    for (file, command) in [("groups.json", "groups"), ("segments.json", "segments")] {
        for case in cases(file, "cases") {
            let output = kvasir(&[command, "-", "--json"], case["input"].to_string().as_bytes());
            assert_eq!(output.stderr, "", "{}", case["name"]);
        }
    }
}

#[test]
fn bad_segments_name_the_tensor() {
    let document = |layout: &str, tensors: &str| {
        format!(r#"{{{layout}"granule":2097152,"blocks":10,"total_bytes":163840,"tensors":[{tensors}]}}"#)
    };
    let good = r#"{"n_layers":2,"offset":0,"layer_stride":81920,"block_stride":8192}"#;
    assert_eq!(
        kvasir(
            &["segments", "-"],
            document(r#""layout":"LBNHC","#, good).as_bytes()
        )
        .code,
        Some(0)
    );
    assert_eq!(refused(&["segments", "-"], &document("", good))["kind"], "layout");
    assert_eq!(
        refused(&["segments", "-"], &document(r#""layout":"LBN","#, good))["kind"],
        "layout"
    );
    assert_eq!(
        refused(&["segments", "-"], &document(r#""layout":"LBNHC","#, ""))["kind"],
        "no_tensors"
    );
    for bad in [
        r#"{"n_layers":2,"offset":0,"layer_stride":81919,"block_stride":8192}"#,
        r#"{"n_layers":2,"offset":1,"layer_stride":81920,"block_stride":8192}"#,
        r#"{"n_layers":1,"offset":8192,"layer_stride":81920,"block_stride":8192}"#,
        r#"{"n_layers":0,"offset":0,"layer_stride":81920,"block_stride":8192}"#,
        r#"{"n_layers":2,"offset":0,"layer_stride":81920,"block_stride":-1}"#,
        r#"{"n_layers":2,"offset":0,"layer_stride":81920}"#,
        r#"{"n_layers":2,"offset":0,"layer_stride":81920,"block_stride":8192,"num_heads":2}"#,
        "7",
    ] {
        let error = refused(
            &["segments", "-"],
            &document(r#""layout":"LBNHC","#, &format!("{good},{bad}")),
        );
        assert_eq!(error["groups"][0]["index"], 1, "{bad}: {error}");
    }
    let good = document(r#""layout":"LBNHC","#, good);
    for commit in ["-1", "x", "18446744073709551616"] {
        refused(&["segments", "-", "--commit", commit], &good);
    }
    let json = kvasir(
        &["segments", "-", "--json", "--commit", "99", "--no-register"],
        good.as_bytes(),
    )
    .json();
    assert_eq!(json["commits"][0]["blocks"], 10);
    assert_eq!(json["padded"]["segments"], json["segments"]);
    let table = kvasir(&["segments", "-"], good.as_bytes()).stdout;
    assert!(
        table.contains("2 segments, 163840 bytes of address space, 4194304 padded"),
        "{table}"
    );
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

#[test]
fn bad_arguments_are_answered_like_bad_input() {
    let cases: [(&[&str], &str); 7] = [
        (&[], "groups, chunk or segments"),
        (&["tokens"], "tokens"),
        (&["groups"], "FILE"),
        (&["segments"], "FILE"),
        (&["chunk", "--spam", "16"], "--spam"),
        (&["chunk", "16"], "16"),
        (&["groups", "-", "--dcp", "1", "--dcp", "2"], "--dcp"),
    ];
    for (args, reason) in cases {
        let error = refused(args, "");
        assert_eq!(error["kind"], "usage", "{args:?}");
        assert_eq!(error["groups"], json!([]), "{args:?}");
        assert!(
            error["message"].as_str().unwrap().contains(reason),
            "{args:?}: {error}"
        );
    }
    // Taken for the span's value, and asked for all the same.
    let swallowed = kvasir(&["chunk", "--span", "--json"], b"");
    assert_eq!(swallowed.code, Some(2));
    assert_eq!(swallowed.json()["error"]["groups"][0]["index"], 0);
    // Asking for help is no mistake.
    let help = kvasir(&["groups", "--help", "--json"], b"");
    assert_eq!(help.code, Some(0));
    assert!(help.stdout.contains("Usage"), "{}", help.stdout);
}
