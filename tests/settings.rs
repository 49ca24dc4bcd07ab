//! Settings from flags, environment and file, and what is refused as no setting.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use common::*;

#[test]
fn settings_have_one_order_of_precedence() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kvasir.toml");
    fs::write(
        &file,
        "pool-size = \"1GiB\"\nchunk-size = 512\nmax-clients = 7\nsocket = \"/from/file\"\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let (code, shown, error) = run(
        &[
            "serve",
            "--config",
            file,
            "--print-config",
            "--pool-size",
            "64MiB",
        ],
        |command| {
            command
                .env("KVASIR_POOL_SIZE", "128MiB")
                .env("KVASIR_CHUNK_SIZE", "auto");
        },
    );
    assert_eq!(code, Some(0), "{error}");
    let shown: toml::Table = shown.parse().unwrap();
    let text = |name: &str| shown[name].as_str().map(str::to_owned);
    assert_eq!(text("pool-size").as_deref(), Some("64MiB"), "the flag wins");
    assert_eq!(
        text("chunk-size").as_deref(),
        Some("auto"),
        "then the environment"
    );
    assert_eq!(shown["max-clients"].as_integer(), Some(7), "then the file");
    assert_eq!(text("socket").as_deref(), Some("/from/file"));
    assert_eq!(
        text("chunk-size-policy").as_deref(),
        Some("negotiate"),
        "then the default"
    );

    // What is printed is a file that gives the same again.
    let printed = directory.path().join("printed.toml");
    fs::write(&printed, toml::to_string(&shown).unwrap()).unwrap();
    let (_, again, _) = run(
        &["serve", "--config", printed.to_str().unwrap(), "--print-config"],
        |_| {},
    );
    assert_eq!(again.parse::<toml::Table>().unwrap(), shown);
}

#[test]
fn unknown_settings_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kvasir.toml");
    fs::write(&file, "pool_size = \"1GiB\"\n").unwrap();
    let (code, _, error) = run(&["serve", "--config", file.to_str().unwrap()], |_| {});
    assert_eq!(code, Some(2));
    assert!(
        error.contains("pool_size") && error.contains("pool-size"),
        "{error}"
    );
    for args in [
        &["serve", "--pool", "1GiB"][..],
        &["serve", "--pool-size", "4PB"],
        &["serve", "--chunk-size", "many"],
        &["serve", "--max-clients", "257"],
        &["serve", "--pool-size", "1KiB"],
    ] {
        let (code, _, error) = run(args, |_| {});
        assert_eq!(code, Some(2), "{args:?}: {error}");
        assert!(!error.is_empty());
    }
}

#[test]
fn a_misspelt_variable_is_refused_and_the_nearest_known_named() {
    for (name, meant) in [
        ("KVASIR_POOLSIZE", "KVASIR_POOL_SIZE"),
        ("KVASIR_SOCKETS", "KVASIR_SOCKET"),
        ("KVASIR_LOGLEVEL", "KVASIR_LOG_LEVEL"),
        ("KVASIR_CONF", "KVASIR_CONFIG"),
    ] {
        for args in [&["serve"][..], &["serve", "--print-config"]] {
            let (code, shown, error) = run(args, |command| {
                command.env(name, "/nowhere/x");
            });
            assert_eq!((code, shown.as_str()), (Some(2), ""), "{error}");
            let wanted = format!("{name} is no setting, did you mean {meant}?");
            assert!(error.contains(&wanted), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}

#[test]
fn a_copy_that_there_is_not_is_refused_with_those_there_are() {
    for (name, says) in [
        ("avx2", "no copy is called \"avx2\""),
        ("Portable", "avx2-4x512, avx2-8x64"),
    ] {
        for args in [&["serve"][..], &["serve", "--print-config"]] {
            let (code, shown, error) = run(args, |command| {
                command.env("KVASIR_COPY_PATH", name);
            });
            assert_eq!((code, shown.as_str()), (Some(2), ""), "{error}");
            let named = error.contains("environment variable KVASIR_COPY_PATH: ") && error.contains(says);
            assert!(named && error.lines().count() == 1, "{error}");
        }
    }
    for name in ["portable", ""] {
        let (code, _, error) = run(&["serve", "--print-config"], |command| {
            command.env("KVASIR_COPY_PATH", name);
        });
        assert_eq!(code, Some(0), "{name:?}: {error}");
    }
}

/// A server that the tests start must not stumble over what tells the tests where the program is.
#[test]
fn every_variable_of_this_repository_is_known() {
    let mut names = Vec::new();
    for directory in ["src", "tests", "benches", "xtask", "python", "fuzz"] {
        variables(&Path::new(env!("CARGO_MANIFEST_DIR")).join(directory), &mut names);
    }
    names.sort();
    names.dedup();
    for expected in ["KVASIR_SOCKET", "KVASIR_BINARY", "KVASIR_WRITE_GOLDEN"] {
        assert!(names.iter().any(|name| name == expected), "{expected}: {names:?}");
    }
    for name in &names {
        let (_, _, error) = run(&["serve", "--print-config"], |command| {
            command.env(name, "x");
        });
        assert!(!error.contains("is no setting"), "{error}");
    }
}

/// Names in the source files below `directory`, but for those that are wrong on purpose.
fn variables(directory: &Path, names: &mut Vec<String>) {
    const WRONG: [&str; 2] = ["settings.rs", "environment.rs"];
    // Here they are names of the C header.
    const HEADER: [&str; 3] = ["abi.rs", "header.rs", "native.rs"];
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            variables(&path, names);
        }
        let is_source = path.extension().is_some_and(|end| end == "rs" || end == "py");
        if !is_source || WRONG.contains(&name.as_str()) || HEADER.contains(&name.as_str()) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let parts = text.split("KVASIR_").skip(1);
        names.extend(parts.filter_map(|part| {
            let part = part.split(|c: char| !c.is_ascii_uppercase() && c != '_').next()?;
            (!part.is_empty()).then(|| format!("KVASIR_{part}"))
        }));
    }
}

#[test]
fn a_path_that_is_not_utf8_is_refused_by_its_flag() {
    let path = OsStr::from_bytes(b"/tmp/k\xff.sock");
    for name in ["--socket", "--fleet-file"] {
        for print in [true, false] {
            let (code, shown, error) = run(&["serve"], |command| {
                command.arg(name).arg(path);
                if print {
                    command.arg("--print-config");
                }
            });
            assert_eq!((code, shown.as_str()), (Some(2), ""), "{error}");
            assert!(error.contains(name) && error.contains("not UTF-8"), "{error}");
        }
    }
}

#[test]
fn an_error_in_the_file_is_one_line_with_its_place_and_what_is_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kvasir.toml");
    let path = file.to_str().unwrap();
    for (text, line, allowed) in [
        ("pool-size = 1048576\nsocket = \"\"\n", 2, "the path is empty"),
        ("fleet-file = ''\n", 1, "the path is empty"),
        ("\n\npool_size = 1\n", 3, "`pool-size`"),
        ("chunk-size = -1\n", 1, "a number of tokens or \"auto\""),
        ("# size\npool-size = \"4PB\"\n", 2, "KiB, MiB, GiB or TiB"),
        ("chunk-scope = \"engine\"\n", 1, "`server` or `model`"),
        ("max-clients = \"many\"\n", 1, "expected u32"),
        ("max-clients = 8\nmax-clients = 9\n", 2, "duplicate key"),
        ("max-clients = 8\nlog-level =\n", 2, "log-level"),
        (
            "max-clients = 8\n[server]\n",
            2,
            "unknown field `server`, expected one of `socket`",
        ),
    ] {
        fs::write(&file, text).unwrap();
        let (code, shown, error) = run(&["serve", "--print-config", "--config", path], |_| {});
        assert_eq!((code, shown.as_str()), (Some(2), ""), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{text}: {error}");
        assert!(
            error.contains(&format!("{path}, line {line} (")),
            "{text}: {error}"
        );
        assert!(error.contains(allowed), "{text}: {error}");
    }
    // As the flag.
    let (code, _, error) = run(&["serve", "--print-config", "--socket", ""], |_| {});
    assert_eq!(code, Some(2), "{error}");
}

#[test]
fn sizes_have_the_usual_spellings_wherever_they_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kvasir.toml");
    for (text, bytes) in [
        ("4GB", 4_000_000_000),
        ("1.5GiB", 3 << 29),
        ("4G", 4 << 30),
        ("4g", 4 << 30),
        ("512mib", 512 << 20),
        ("64_000kB", 64_000_000),
        ("4_294_967_296", 4u64 << 30),
    ] {
        fs::write(&file, format!("pool-size = \"{text}\"\n")).unwrap();
        let flag = run(&["serve", "--print-config", "--pool-size", text], |_| {});
        let variable = run(&["serve", "--print-config"], |command| {
            command.env("KVASIR_POOL_SIZE", text);
        });
        let from_file = run(
            &["serve", "--print-config", "--config", file.to_str().unwrap()],
            |_| {},
        );
        for (code, shown, error) in [flag, variable, from_file] {
            assert_eq!(code, Some(0), "{text}: {error}");
            let shown: toml::Table = shown.parse().unwrap();
            let size: kvasir::server::ByteSize = shown["pool-size"].as_str().unwrap().parse().unwrap();
            assert_eq!(size.0, bytes, "{text}");
        }
        let setting = format!("credit_bytes={text}");
        let (code, printed, error) = run(&["vllm-args", "--set", &setting], |_| {});
        assert_eq!(code, Some(0), "{error}");
        let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(printed["kv_connector_extra_config"]["kvasir.credit_bytes"], bytes);
    }
}

#[test]
fn an_error_names_the_flag_the_variable_or_the_key_that_it_is_about() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kvasir.toml");
    let path = file.to_str().unwrap();
    // What no option takes, and what is out of its range.
    for (key, variable, value, says) in [
        ("pool-size", "KVASIR_POOL_SIZE", "4PB", "\"4PB\" is not a size"),
        (
            "pool-size",
            "KVASIR_POOL_SIZE",
            "1KiB",
            "is 1.0 KiB; it has to be between 64.0 KiB",
        ),
        (
            "max-clients",
            "KVASIR_MAX_CLIENTS",
            "many",
            "it has to be a whole number",
        ),
        (
            "max-clients",
            "KVASIR_MAX_CLIENTS",
            "257",
            "is 257; it has to be between 1 and 256",
        ),
        ("chunk-size", "KVASIR_CHUNK_SIZE", "some", "\"some\""),
        ("chunk-size", "KVASIR_CHUNK_SIZE", "0", "0 tokens is not possible"),
        ("chunk-scope", "KVASIR_CHUNK_SCOPE", "engine", "server, model"),
        (
            "log-level",
            "KVASIR_LOG_LEVEL",
            "loud",
            "error, warn, info, debug, trace",
        ),
    ] {
        let flag = format!("--{key}");
        let (code, shown, error) = run(&["serve", "--print-config"], |command| {
            command.env(variable, value);
        });
        assert_eq!((code, shown.as_str()), (Some(2), ""), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.starts_with(&format!("kvasir serve: {variable}")), "{error}");
        assert!(error.contains(says) && !error.contains(&flag), "{error}");
        // The variable is not what counts if there is a flag.
        let given = run(&["serve", "--print-config", &flag, value], |command| {
            command.env(variable, value);
        });
        assert_eq!(given.0, Some(2));
        assert!(
            given.2.contains(&flag) && !given.2.contains(variable),
            "{}",
            given.2
        );
    }
    for (line, says) in [
        ("pool-size = 1024", "pool-size in "),
        ("max-clients = 257", "max-clients in "),
        ("chunk-size = 0", "chunk-size in "),
    ] {
        fs::write(&file, line).unwrap();
        let (code, _, error) = run(&["serve", "--print-config", "--config", path], |_| {});
        assert_eq!(code, Some(2), "{error}");
        assert!(
            error.contains(&format!("{says}{path}")) && !error.contains("--"),
            "{error}"
        );
    }
}

/// Service managers and compose files set variables to nothing where somebody left them out.
#[test]
fn a_variable_that_is_empty_is_not_set() {
    let (_, plain, _) = run(&["serve", "--print-config"], |_| {});
    let variables = [
        "KVASIR_SOCKET",
        "KVASIR_POOL_SIZE",
        "KVASIR_CHUNK_SIZE",
        "KVASIR_CHUNK_SIZE_POLICY",
        "KVASIR_CHUNK_SCOPE",
        "KVASIR_FLEET_FILE",
        "KVASIR_MAX_CLIENTS",
        "KVASIR_LOG_LEVEL",
        "KVASIR_CONFIG",
        "KVASIR_PYTHON",
        "KVASIR_NO_SUCH_SETTING",
    ];
    for variable in variables {
        let (code, shown, error) = run(&["serve", "--print-config"], |command| {
            command.env(variable, "");
        });
        assert_eq!(
            (code, shown.as_str()),
            (Some(0), plain.as_str()),
            "{variable}: {error}"
        );
    }
    let server = ServerProcess::with(&["--pool-size", "1MiB"], |command| {
        command.env("NOTIFY_SOCKET", "");
    });
    assert!(!server.log().contains("WARN"), "{}", server.log());
    // Where the socket is looked for by other commands, and where there is no directory for it.
    for (name, args) in [
        ("status", &["status"][..]),
        ("clear", &["clear"]),
        ("vllm-args", &["vllm-args"]),
        ("doctor", &["doctor"]),
    ] {
        let without = run(args, |_| {});
        let empty = run(args, |command| {
            command.env("KVASIR_SOCKET", "");
        });
        assert_eq!(without, empty, "{name}");
    }
    let fallback = |value: Option<&str>| {
        run(&["serve", "--print-config"], |command| {
            command.env("XDG_RUNTIME_DIR", "");
            match value {
                Some(value) => command.env("TMPDIR", value),
                None => command.env_remove("TMPDIR"),
            };
        })
    };
    assert_eq!(fallback(Some("")), fallback(None));
}
