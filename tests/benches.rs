//! The benches as `cargo bench` runs them: which arguments lead to comparisons, and that nothing else is run beside them.

use std::path::Path;

use report::Asked;

#[path = "../benches/report/mod.rs"]
mod report;

fn asked(args: &str) -> Asked {
    Asked::of(args.split_whitespace().map(str::to_owned))
}

#[test]
fn comparisons_are_made_where_criterion_measures() {
    for args in [
        "--bench",
        "--bench --save-baseline a",
        "--save-baseline=a --bench",
        "--bench -s a --sample-size 10 --warm-up-time 0.1",
        "--bench --color never --noplot --quick --verbose",
        "--bench copy",
        "--bench ratios",
        "--bench --exact copy/ratios",
    ] {
        assert!(asked(args).wants("copy/ratios"), "{args}");
    }
    for args in [
        "",
        "--test",
        "--bench --test",
        "--bench --list",
        "--bench --list --format terse",
        "--bench --load-baseline a",
        "--bench --load-baseline=a",
        "--bench --profile-time 5",
        "--bench transfer",
        "--bench --exact copy",
    ] {
        assert!(!asked(args).wants("copy/ratios"), "{args}");
    }
}

/// `cargo bench -- --save-baseline a` hands criterion's flags to every target that is benched.
#[test]
fn only_benches_are_benched() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for package in [".", "python", "xtask"] {
        let manifest = std::fs::read_to_string(root.join(package).join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let mut targets: Vec<&toml::Value> = manifest.get("lib").into_iter().collect();
        if let Some(programs) = manifest.get("bin") {
            targets.extend(programs.as_array().unwrap());
        }
        assert!(
            !targets.is_empty(),
            "{package}: targets that cargo finds by itself are benched"
        );
        for target in targets {
            let benched = target.get("bench").and_then(toml::Value::as_bool);
            assert_eq!(benched, Some(false), "{package}: {target}");
        }
        for bench in manifest
            .get("bench")
            .and_then(toml::Value::as_array)
            .into_iter()
            .flatten()
        {
            assert_eq!(bench["harness"].as_bool(), Some(false), "{bench}");
        }
    }
}

/// Ratios that nobody writes down are for people only.
#[test]
fn every_bench_that_prints_a_comparison_writes_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches");
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "rs") {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        if source.contains("println!(") {
            assert!(
                source.contains("Report::new(") && source.contains(".finish()"),
                "{path:?}"
            );
        }
        assert!(source.contains("Criterion"), "{path:?} ignores criterion's flags");
    }
}
