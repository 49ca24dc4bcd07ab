//! Input that `kvasir plan` refuses or warns of.

mod plan_support;

use plan_support::*;
use serde_json::{Value, json};

/// The groups that an error names.
fn indices(error: &Value) -> Vec<u64> {
    let groups = error["groups"].as_array().unwrap().iter();
    groups.map(|group| group["index"].as_u64().unwrap()).collect()
}

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
    assert_eq!(indices(&error), [0, 2, 3, 4]);

    // Unreadable groups do not hide the others.
    let error = refused(
        &["groups", "-"],
        &format!(r#"{{"groups":[{},{},7]}}"#, groups[0], groups[1]),
    );
    assert_eq!(
        (error["kind"].as_str().unwrap(), indices(&error)),
        ("invalid", vec![0, 2])
    );
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
    assert_eq!(indices(&error), [0, 2, 3]);
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
        table.contains("2 segments, 160.0 KiB of address space, 4.0 MiB padded"),
        "{table}"
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
