//! The commands and JSON of the documents, run against a real server.
//!
//! Every block of code says what it is: `sh` and `console` are run, `json` and `toml` are read or compared, `text` is
//! neither. A command that cannot be run here is in [`NOT_RUN`] with the reason.

mod common;
mod docs_support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::*;
use docs_support::pages;
use serde_json::{Value, json};

const OPERATIONS: &str = include_str!("../docs/operations.md");
const GEOMETRY: &str = include_str!("../docs/geometry.md");
const VLLM: &str = include_str!("../docs/vllm.md");

/// Beginnings of commands that are not run here, and why.
const NOT_RUN: [(&str, &str); 15] = [
    ("cargo xtask mutants", "builds the library many times"),
    (
        "kvasir clients",
        "shows and ends other processes; tests/clients.rs runs it",
    ),
    ("cargo xtask demo", "builds vLLM; the gate runs it"),
    ("cargo xtask bench", "measures for minutes, in a quiet hour"),
    ("cargo xtask test", "it is what runs this test"),
    (
        "kvasir conform",
        "waits for a client; tests/conform.rs runs it with several",
    ),
    (
        "cargo xtask install",
        "compiles a release build; the step `native` installs a debug one",
    ),
    (
        "cc ",
        "needs what is installed; the step `native` compiles the same with gcc and clang",
    ),
    ("cargo build", "compiles the program that is under test"),
    ("cargo test", "runs other tests"),
    ("cargo +nightly fuzz", "needs a nightly toolchain and cargo-fuzz"),
    (
        "pip install ./python",
        "compiles a release build; `cargo xtask demo` does it",
    ),
    (
        "vllm serve",
        "needs vLLM; python/e2e/test_vllm_serve.py runs it. What it substitutes is run here",
    ),
    (
        "kvasir plan from-vllm",
        "needs vLLM; tests/plan_from_vllm.rs runs it. What it substitutes is run here",
    ),
    (
        "kvasir serve",
        "runs until it is stopped; run by a test of its own",
    ),
];

/// A block of code.
struct Block {
    page: String,
    kind: String,
    text: String,
}

fn blocks() -> Vec<Block> {
    let mut found = Vec::new();
    for (path, text) in pages() {
        let page = path.display().to_string();
        let mut parts = text.split("\n```");
        parts.next();
        while let Some(block) = parts.next() {
            let (kind, text) = block.split_once('\n').unwrap_or((block, ""));
            found.push(Block {
                page: page.clone(),
                kind: kind.to_owned(),
                text: text.to_owned(),
            });
            assert!(parts.next().is_some(), "{page}: a block is not closed");
        }
    }
    found
}

/// The commands of the blocks, without their comments.
fn commands() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for block in blocks() {
        for line in block.text.lines() {
            let command = match block.kind.as_str() {
                "sh" => line,
                "console" => line.strip_prefix("$ ").unwrap_or(""),
                _ => "",
            };
            let command = command.split(" # ").next().unwrap().trim();
            if !command.is_empty() {
                found.push((block.page.clone(), command.to_owned()));
            }
        }
    }
    found
}

fn not_run(command: &str) -> bool {
    NOT_RUN
        .iter()
        .any(|(beginning, _)| command.starts_with(beginning))
}

/// The `$(...)` of a command.
fn substitutions(command: &str) -> impl Iterator<Item = &str> {
    command
        .split("$(")
        .skip(1)
        .map(|rest| rest.split(')').next().unwrap())
}

/// The `nth` JSON block after a heading.
fn example(page: &str, heading: &str) -> Value {
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, text) = section.split_once("```json\n").unwrap();
    serde_json::from_str(text.split("```").next().unwrap()).unwrap()
}

/// A directory like that of somebody who follows the documents: the program in the path, the files that the commands
/// read, and a server where commands look for one.
struct Workplace {
    directory: tempfile::TempDir,
    server: Option<std::process::Child>,
}

impl Workplace {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, value: &Value| {
            std::fs::write(directory.path().join(name), value.to_string()).unwrap()
        };
        write("model.json", &example(GEOMETRY, "Input of `kvasir plan groups`"));
        write(
            "placement.json",
            &example(GEOMETRY, "Input of `kvasir plan segments`"),
        );
        let mut engine = example(OPERATIONS, "`kvasir doctor`");
        *engine
            .pointer_mut("/kv_transfer_config/kv_connector_extra_config/kvasir.socket")
            .unwrap() = json!(directory.path().join("kvasir.sock"));
        for name in ["engine.json", "a.json", "b.json"] {
            write(name, &engine);
        }
        Self {
            directory,
            server: None,
        }
    }

    fn command(&self, command: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).current_dir(self.directory.path());
        clear_environment(&mut shell);
        let program = Path::new(KVASIR).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        shell.env("PATH", format!("{}:{path}", program.display()));
        shell.env("XDG_RUNTIME_DIR", self.directory.path());
        shell
    }

    fn run(&self, command: &str) -> Output {
        self.command(command).output().unwrap()
    }

    fn succeeds(&self, page: &str, command: &str) -> String {
        let output = self.run(command);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{page}: {command}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("kvasir.sock")
    }

    /// Starts a server as the document says.
    fn serve(&mut self, command: &str) {
        let log = std::fs::File::create(self.directory.path().join("log")).unwrap();
        let mut shell = self.command(&format!("exec {command}"));
        self.server = Some(shell.stderr(log).spawn().unwrap());
        eventually("the server answers", || {
            let child = self.server.as_mut().unwrap();
            assert!(child.try_wait().unwrap().is_none(), "{command}: the server ended");
            std::os::unix::net::UnixStream::connect(self.directory.path().join("kvasir.sock")).is_ok()
        });
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

#[test]
fn every_block_says_what_it_is() {
    let kinds = ["sh", "console", "json", "toml", "text"];
    for block in blocks() {
        assert!(
            kinds.contains(&block.kind.as_str()),
            "{}: {:?}:\n{}",
            block.page,
            block.kind,
            block.text
        );
        let looks_like_one = |line: &str| {
            ["kvasir ", "cargo ", "vllm ", "pip "]
                .iter()
                .any(|name| line.starts_with(name))
        };
        let hidden = block.kind == "text" && block.text.lines().any(looks_like_one);
        assert!(
            !hidden,
            "{}: a command in a block of text:\n{}",
            block.page, block.text
        );
    }
}

#[test]
fn what_is_not_run_is_there() {
    for (beginning, _) in NOT_RUN {
        let there = commands()
            .iter()
            .any(|(_, command)| command.starts_with(beginning));
        assert!(there, "no page has {beginning:?} any more");
    }
}

#[test]
fn commands_run() {
    let mut place = Workplace::new();
    place.serve("kvasir serve --pool-size 64MiB");
    let mut ran = BTreeSet::new();
    for (page, command) in commands() {
        for inner in substitutions(&command) {
            let output = place.succeeds(&page, inner);
            let config: Value =
                serde_json::from_str(&output).unwrap_or_else(|e| panic!("{inner}: {e}: {output}"));
            assert_eq!(config["kv_connector"], "KvasirConnector", "{inner}");
            ran.insert(inner.to_owned());
        }
        if !not_run(&command) {
            place.succeeds(&page, &command);
            ran.insert(command);
        }
    }
    for command in [
        "kvasir status",
        "kvasir clear",
        "kvasir plan groups model.json",
        "kvasir doctor --engine engine.json",
    ] {
        assert!(ran.contains(command), "{command} was not run: {ran:?}");
    }
}

/// As written the pools are larger than a test may take: so the settings are read as written, and served with another.
#[test]
fn servers_start() {
    let mut served = 0;
    for (page, command) in commands() {
        if command.starts_with("kvasir serve") {
            let mut place = Workplace::new();
            let settings = place.succeeds(&page, &format!("{command} --print-config"));
            let size = command.split("--pool-size ").nth(1).unwrap();
            assert!(
                settings.contains(&format!("pool-size = \"{size}\"")),
                "{settings}"
            );
            place.serve(&command.replace(size, "64MiB"));
            assert!(
                place
                    .succeeds(&page, "kvasir status")
                    .contains(&*place.socket().to_string_lossy())
            );
            served += 1;
        }
    }
    assert!(served >= 2, "{served}");
}

#[test]
fn ready_is_logged_as_documented() {
    let mut texts = blocks().into_iter().filter(|block| block.kind == "text");
    let documented = texts
        .find(|block| block.text.starts_with("INFO ready "))
        .unwrap()
        .text;
    let names = |line: &str| -> Vec<String> {
        let words = line.split_whitespace().skip_while(|word| *word != "INFO");
        words
            .map(|word| word.split('=').next().unwrap().to_owned())
            .collect()
    };
    let server = ServerProcess::start();
    server.wait_log("INFO ready ");
    let log = server.log();
    let line = log.lines().find(|line| line.contains("INFO ready ")).unwrap();
    assert_eq!(names(line), names(&documented), "{line}");
}

/// Every `kvasir` command in running text exists, as far as its first argument of the user's own, and so do its flags.
#[test]
fn commands_in_sentences_exist() {
    let mut seen = 0;
    for (path, text) in pages() {
        let page = path.display();
        let spans = text.split('`').skip(1).step_by(2);
        let text = spans.filter(|span| span.starts_with("kvasir ") && !span.contains('\n'));
        for span in text {
            let words: Vec<&str> = span.split_whitespace().skip(1).collect();
            let is_name = |word: &&&str| {
                word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-')
            };
            let mut args: Vec<&str> = words.iter().take_while(is_name).copied().collect();
            args.push("--help");
            let (code, help, error) = run(&args, |_| {});
            assert_eq!(code, Some(0), "{page}: {span}: {error}");
            for flag in words.iter().filter(|word| word.starts_with("--")) {
                assert!(help.contains(flag), "{page}: {span}: no {flag}");
            }
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
}

/// A text with every number, and every size, as `N`.
fn without_numbers(text: &str) -> String {
    let words = text
        .split_whitespace()
        .filter(|word| !matches!(*word, "B" | "KiB" | "MiB" | "GiB"));
    let plain = words.map(|word| {
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            "N"
        } else {
            word
        }
    });
    plain.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_clear_says_what_is_documented() {
    let console: Vec<Block> = blocks()
        .into_iter()
        .filter(|block| block.kind == "console" && block.text.contains("kvasir clear"))
        .collect();
    let [block] = &console[..] else {
        panic!("{} blocks", console.len())
    };
    let documented: Vec<&str> = block.text.lines().collect();
    assert_eq!(documented[0], "$ kvasir clear");
    let mut place = Workplace::new();
    place.serve("kvasir serve --pool-size 64MiB");
    // Nothing stays in an empty pool; tests/clear.rs has the other half of the line.
    let freed = documented[1].split(';').next().unwrap();
    assert_eq!(
        without_numbers(&place.succeeds("", "kvasir clear")),
        without_numbers(freed)
    );
    let json: Value = serde_json::from_str(&place.succeeds("", "kvasir clear --json")).unwrap();
    let fields: BTreeSet<String> = json.as_object().unwrap().keys().cloned().collect();
    let (_, sentence) = OPERATIONS
        .split_once("`--json` prints `dropped_objects`")
        .unwrap();
    let sentence = sentence.lines().next().unwrap();
    for field in &fields {
        assert!(
            field == "dropped_objects" || sentence.contains(&format!("`{field}`")),
            "{field}: {sentence}"
        );
    }
    assert_eq!(fields.len(), 4);
}

#[test]
fn a_failure_has_the_documented_shape() {
    let documented = example(OPERATIONS, "Failures in JSON");
    let output = Workplace::new().run("kvasir status --json");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(found["error"]["kind"], documented["error"]["kind"]);
    assert_eq!(keys(&found["error"]), keys(&documented["error"]));
}

fn keys(value: &Value) -> BTreeSet<String> {
    value
        .as_object()
        .unwrap_or_else(|| panic!("{value}"))
        .keys()
        .cloned()
        .collect()
}

#[test]
fn the_connectors_configuration_is_the_documented_one() {
    let place = Workplace::new();
    let (_, text) = VLLM.split_once("```json\n").unwrap();
    let documented: Value = serde_json::from_str(text.split("```").next().unwrap()).unwrap();
    let printed = place.succeeds("docs/vllm.md", "kvasir vllm-args --socket /run/kvasir.sock");
    assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), documented);
    let servers = example(VLLM, "Several servers");
    let set = format!("kvasir vllm-args --set 'socket={}'", servers["kvasir.socket"]);
    let printed: Value = serde_json::from_str(&place.succeeds("docs/vllm.md", &set)).unwrap();
    assert_eq!(printed["kv_connector_extra_config"], servers);
}

#[test]
fn the_settings_file_is_read() {
    let place = Workplace::new();
    let toml: Vec<Block> = blocks()
        .into_iter()
        .filter(|block| block.kind == "toml")
        .collect();
    assert_eq!(toml.len(), 1);
    std::fs::write(place.directory.path().join("kvasir.toml"), &toml[0].text).unwrap();
    let settings = place.succeeds(&toml[0].page, "kvasir serve --config kvasir.toml --print-config");
    for line in toml[0].text.lines() {
        assert!(settings.lines().any(|other| other == line), "{line}: {settings}");
    }
}

/// The names in the first cells of the `nth` table after a heading.
fn documented_fields(heading: &str, nth: usize) -> BTreeSet<String> {
    let (_, section) = OPERATIONS.split_once(&format!("\n{heading}\n")).unwrap();
    let table = section.split("\n| field | meaning |").nth(nth + 1).unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|line| line.split('|').nth(1).unwrap().to_owned());
    cells
        .flat_map(|cell| {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn status_has_the_documented_fields_and_no_others() {
    let server = ServerProcess::start();
    let _worker = server.worker();
    let status = server.status();
    let mut found = BTreeSet::new();
    for (key, value) in status.as_object().unwrap() {
        match key.as_str() {
            "binding" | "pool" | "counters" => {
                found.extend(keys(value).iter().map(|inner| format!("{key}.{inner}")))
            }
            _ => _ = found.insert(key.clone()),
        }
    }
    let plain = |names: BTreeSet<String>| -> BTreeSet<String> {
        names.iter().map(|name| name.replace("[]", "")).collect()
    };
    assert_eq!(found, plain(documented_fields("## `kvasir status`", 0)));
    let client = &status["clients"][0];
    assert_eq!(keys(client), documented_fields("### Clients", 0));
    assert_eq!(keys(&client["reported"]), documented_fields("### Clients", 1));
    assert_eq!(keys(&client["reported"]), keys(&status["reported"]));
    let registered = &client["registered"];
    let mut found = keys(registered);
    assert!(found.remove("groups"));
    found.extend(
        keys(&registered["groups"][0])
            .iter()
            .map(|inner| format!("groups[].{inner}")),
    );
    assert_eq!(found, documented_fields("### Clients", 2));
    let (_, tokens) = OPERATIONS.split_once("\n### Tokens\n").unwrap();
    let (_, tokens) = tokens.split_once("| field | meaning | vLLM's metric |").unwrap();
    for key in keys(&status["tokens"]) {
        assert!(tokens.contains(&format!("`{key}`")), "{key}");
    }
}
