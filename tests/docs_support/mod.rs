//! The pages of the documentation, line by line.

#![allow(dead_code, unreachable_pub)] // each test binary uses its own part of this

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The head of the table that `cargo xtask demo --all-models` prints: its cells are the program's, and a test compares them.
const PRINTED: &str = "| architecture | `--model` |";

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All pages, by their paths below the root.
pub fn pages() -> BTreeMap<PathBuf, String> {
    let mut paths: Vec<PathBuf> = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "schema/README.md",
    ]
    .iter()
    .map(PathBuf::from)
    .collect();
    files_below(Path::new("docs"), &mut paths);
    paths.retain(|path| path.extension().is_some_and(|kind| kind == "md"));
    assert!(paths.len() > 20, "{paths:?}");
    let text = |path: &PathBuf| fs::read_to_string(root().join(path)).unwrap();
    paths.iter().map(|path| (path.clone(), text(path))).collect()
}

pub fn files_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root().join(directory)).unwrap() {
        let entry = entry.unwrap();
        let path = directory.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && entry.file_name() != "target" {
            files_below(&path, found);
        } else if kind.is_file() {
            found.push(path);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Code,
    Row,
    /// A row of the table that a program prints.
    Printed,
    Heading,
    Blank,
    Prose,
}

/// The lines of a page with their numbers.
pub fn lines(page: &str) -> Vec<(usize, Kind, &str)> {
    let mut fenced = false;
    let mut printed = false;
    let mut out = Vec::new();
    for (at, line) in page.lines().enumerate() {
        let text = line.trim_start();
        let fence = text.starts_with("```");
        printed = text.starts_with(PRINTED) || printed && text.starts_with('|');
        let kind = match () {
            () if fence || fenced => Kind::Code,
            () if printed => Kind::Printed,
            () if text.starts_with('|') => Kind::Row,
            () if text.starts_with('#') => Kind::Heading,
            () if text.is_empty() => Kind::Blank,
            () => Kind::Prose,
        };
        fenced ^= fence;
        out.push((at + 1, kind, line));
    }
    assert!(!fenced, "a fence is not closed");
    out
}

pub fn headings(page: &str) -> Vec<&str> {
    let all = lines(page).into_iter();
    all.filter(|(_, kind, _)| *kind == Kind::Heading)
        .map(|(_, _, line)| line)
        .collect()
}

pub fn report(faults: &[String]) {
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}
