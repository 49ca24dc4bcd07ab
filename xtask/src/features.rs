//! What the client library, the Python module and the C library link without the features of the server and the command line.
//!
//! An engine's process loads one of them. An event loop or a parser of flags in there would be code that an engine's operator
//! has to trust and that a security scan has to explain, for nothing.

use anyhow::{Result, bail};

use crate::command::{self, cargo};

/// What only the server and the command line need.
const OF_THE_SERVER: [&str; 6] = [
    "clap",
    "sd-notify",
    "tokio",
    "toml",
    "tracing",
    "tracing-subscriber",
];

/// What reads and writes JSON. The Python module needs it for descriptions of engines, the client alone does not.
const OF_JSON: [&str; 2] = ["serde", "serde_json"];

/// What speaks to a GPU's driver: of the client library with the feature `cuda` alone.
const OF_A_DEVICE: [&str; 2] = ["cudarc", "libloading"];

/// A build that has to stay lean.
struct Lean {
    /// Its name, for an error.
    what: &'static str,
    /// How cargo is asked for it.
    arguments: &'static [&'static str],
    /// What it must not link.
    without: &'static [&'static [&'static str]],
}

const LEAN: [Lean; 3] = [
    Lean {
        what: "the client library",
        arguments: &["--package", "kvasir", "--no-default-features"],
        without: &[&OF_THE_SERVER, &OF_JSON, &OF_A_DEVICE],
    },
    Lean {
        what: "the Python module",
        arguments: &["--package", "kvasir-python"],
        without: &[&OF_THE_SERVER, &OF_A_DEVICE],
    },
    Lean {
        what: "the C library",
        arguments: &["--package", "kvasir-native"],
        without: &[&OF_THE_SERVER, &OF_JSON],
    },
];

/// Checks what the lean builds link.
pub(crate) fn run() -> Result<()> {
    for lean in &LEAN {
        check(lean, &packages(&tree(lean.arguments)?))?;
    }
    Ok(())
}

/// What a build links on this machine, one package a line. Build scripts and tests are not part of it.
fn tree(arguments: &[&str]) -> Result<String> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--edges", "normal", "--prefix", "none"]);
    command::output(tree.args(arguments))
}

/// The names of packages in the output of `cargo tree --prefix none`: `name v1.2.3`, perhaps with more behind it.
fn packages(tree: &str) -> Vec<&str> {
    let mut names: Vec<&str> = tree
        .lines()
        .filter_map(|line| {
            let (name, version) = line.split_once(' ')?;
            version.starts_with('v').then_some(name)
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn check(lean: &Lean, packages: &[&str]) -> Result<()> {
    // A tree that was not understood holds nothing that is forbidden either.
    if !packages.contains(&"kvasir") {
        bail!("{}: cargo tree does not show kvasir itself", lean.what);
    }
    let found: Vec<&str> = lean
        .without
        .iter()
        .copied()
        .flatten()
        .copied()
        .filter(|name| packages.contains(name))
        .collect();
    if !found.is_empty() {
        bail!(
            "{} links {}; `cargo tree {} --edges normal --invert {}` says why",
            lean.what,
            found.join(", "),
            lean.arguments.join(" "),
            found[0]
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "kvasir v0.1.0 (/somewhere/kvasir)
blake3 v1.8.7
thiserror-impl v2.0.21 (proc-macro)
libc v0.2.191
libc v0.2.191 (*)

[build-dependencies]
";

    #[test]
    fn names_are_read_once_each_and_headings_are_none() {
        assert_eq!(packages(TREE), ["blake3", "kvasir", "libc", "thiserror-impl"]);
        assert_eq!(packages(""), [""; 0]);
    }

    #[test]
    fn what_is_linked_against_the_rule_is_named_with_the_build() {
        let (client, python) = (&LEAN[0], &LEAN[1]);
        check(client, &packages(TREE)).unwrap();
        let tree = format!("{TREE}tokio v1.54.1\nserde v1.0.229\ntokio-util v0.7.0\n");
        let error = check(client, &packages(&tree)).unwrap_err().to_string();
        assert!(
            error.starts_with("the client library links tokio, serde; "),
            "{error}"
        );
        // JSON is the module's own business.
        let error = check(python, &packages(&tree)).unwrap_err().to_string();
        assert!(error.starts_with("the Python module links tokio; "), "{error}");
    }

    #[test]
    fn a_tree_without_the_library_is_no_proof() {
        let error = check(&LEAN[0], &[]).unwrap_err().to_string();
        assert!(error.contains("does not show kvasir itself"), "{error}");
    }

    /// The names are those that cargo uses: with the default features each of them is found.
    #[test]
    fn the_program_links_what_the_lean_builds_do_not() {
        let tree = tree(&["--package", "kvasir"]).unwrap();
        let packages = packages(&tree);
        for name in OF_THE_SERVER.into_iter().chain(OF_JSON) {
            assert!(packages.contains(&name), "{name}");
        }
    }

    #[test]
    fn a_build_for_devices_links_what_the_lean_builds_do_not() {
        let tree = tree(&["--package", "kvasir", "--features", "cuda"]).unwrap();
        let packages = packages(&tree);
        for name in OF_A_DEVICE {
            assert!(packages.contains(&name), "{name}");
        }
    }

    #[test]
    fn this_repository_is_lean() {
        run().unwrap();
    }
}
