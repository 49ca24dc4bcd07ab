//! What the documents name is there: files, sections, decisions. Sources that name a page are read too.

mod docs_support;

use std::fs;
use std::path::{Path, PathBuf};

use docs_support::*;

/// The anchor of a heading, as forges make it.
fn anchor(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let pages = pages();
    let mut faults = Vec::new();
    let mut links = 0;
    for (path, page) in &pages {
        for (at, kind, line) in lines(page) {
            if kind == Kind::Code {
                continue;
            }
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                links += 1;
                let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
                let from = path.parent().unwrap_or(Path::new(""));
                let full = if file.is_empty() {
                    root().join(path)
                } else {
                    root().join(from).join(file)
                };
                if target.contains("://") || !full.exists() {
                    faults.push(format!("{}:{at}: no {target}", path.display()));
                } else if !fragment.is_empty() {
                    let text = fs::read_to_string(&full).unwrap();
                    if !headings(&text).iter().any(|heading| anchor(heading) == fragment) {
                        faults.push(format!("{}:{at}: no heading {target}", path.display()));
                    }
                }
            }
        }
    }
    assert!(links > 30, "{links}");
    report(&faults);
}

/// Sections are named behind their page, in quotes, in documents, sources and the schema alike.
#[test]
fn pages_and_sections_that_are_named_exist() {
    let mut files = vec![PathBuf::from("Cargo.toml")];
    for directory in [
        "docs",
        "src",
        "python",
        "schema",
        "tests",
        "native",
        "xtask/src",
        "benches",
        "fuzz",
    ] {
        files_below(Path::new(directory), &mut files);
    }
    files.extend(pages().into_keys());
    let texts = ["md", "rs", "py", "pyi", "fbs", "toml"];
    files.retain(|path| {
        path.extension()
            .is_some_and(|kind| texts.iter().any(|text| kind == *text))
    });
    let mut faults = Vec::new();
    let mut named = 0;
    for path in files {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        for (before, rest) in text.match_indices("docs/").map(|(at, _)| text.split_at(at)) {
            let name: String = rest
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || "/._-".contains(*c))
                .collect();
            let Some(end) = name.find(".md") else { continue };
            let name = &name[..end + 3];
            if before.ends_with(|c: char| c.is_alphanumeric() || c == '/') && !before.ends_with("../") {
                continue;
            }
            named += 1;
            let Ok(page) = fs::read_to_string(root().join(name)) else {
                faults.push(format!("{}: no {name}", path.display()));
                continue;
            };
            let section = rest[name.len()..]
                .strip_prefix(", \"")
                .and_then(|rest| rest.split('"').next());
            if let Some(section) = section
                && !headings(&page).iter().any(|head| {
                    head.trim_start_matches(['#', ' '])
                        .replace('`', "")
                        .trim_start_matches("kvasir ")
                        == section
                })
            {
                faults.push(format!("{}: no section {section:?} in {name}", path.display()));
            }
        }
    }
    assert!(named > 60, "{named}");
    report(&faults);
}

#[test]
fn decisions_are_numbered_indexed_and_have_a_status() {
    let directory = root().join("docs/decisions");
    let index = fs::read_to_string(directory.join("README.md")).unwrap();
    let mut names: Vec<String> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "README.md")
        .collect();
    names.sort_unstable();
    for (at, name) in names.iter().enumerate() {
        let number = format!("{:04}", at + 1);
        assert!(
            name.starts_with(&format!("{number}-")),
            "{name} is number {number}"
        );
        let page = fs::read_to_string(directory.join(name)).unwrap();
        let mut lines = page.lines();
        let title = lines.next().unwrap();
        let title = title
            .strip_prefix(&format!("# {number}: "))
            .unwrap_or_else(|| panic!("{name}: {title}"));
        let status = lines.nth(1).unwrap();
        let status = status
            .strip_prefix("**Status.** ")
            .unwrap_or_else(|| panic!("{name}: {status}"));
        let superseded = status.strip_prefix("Superseded by ");
        assert!(status == "Accepted." || superseded.is_some(), "{name}: {status}");
        let word = if superseded.is_some() {
            "superseded"
        } else {
            "accepted"
        };
        let row = format!("| [{number}]({name}) | {title} | {word} |");
        assert!(index.lines().any(|line| line == row), "the index lacks {row}");
    }
    assert_eq!(
        index.matches("](0").count(),
        names.len(),
        "the index has more than there are"
    );
}
