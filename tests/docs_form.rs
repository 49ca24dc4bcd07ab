//! The form of the documents: one short sentence per line, short cells, links that lead somewhere.
//!
//! What is judged is text alone, so the rules are rough where language is: a sentence ends with a full stop, a question
//! mark or an exclamation mark before a capital letter. Code, and what stands between backticks, counts as one word.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Characters of a line.
const LINE_MAX: usize = 200;
/// Characters of a cell of a table.
const CELL_MAX: usize = 110;
/// Words that a sentence has, but for one in ten of a page.
const WORDS: usize = 25;
/// Words that no sentence exceeds.
const WORDS_MAX: usize = 40;
/// The head of the table that `cargo xtask demo --all-models` prints: its cells are the program's, and a test compares them.
const PRINTED: &str = "| architecture | `--model` |";
/// Ends of words that end no sentence.
const ABBREVIATIONS: [&str; 3] = ["e.g.", "i.e.", "vs."];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All pages, by their paths below the root.
fn pages() -> BTreeMap<PathBuf, String> {
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

fn files_below(directory: &Path, found: &mut Vec<PathBuf>) {
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
enum Kind {
    Code,
    Row,
    /// A row of the table that a program prints.
    Printed,
    Heading,
    Blank,
    Prose,
}

/// The lines of a page with their numbers.
fn lines(page: &str) -> Vec<(usize, Kind, &str)> {
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

/// A line of prose without its mark of a list, with a `code` for each code span and links as their text.
fn plain(line: &str) -> String {
    let mut text = line.trim();
    for mark in ["- ", "* ", "> "] {
        text = text.strip_prefix(mark).unwrap_or(text);
    }
    if let Some((number, rest)) = text.split_once(". ")
        && number.chars().all(|c| c.is_ascii_digit())
    {
        text = rest;
    }
    let mut out = String::new();
    for (at, piece) in text.split('`').enumerate() {
        out += if at % 2 == 1 { "Code" } else { piece };
    }
    while let Some(middle) = out.find("](") {
        let Some(end) = out[middle..].find(')') else { break };
        out.replace_range(middle..=middle + end, "");
    }
    out.replace(['[', '!'], "")
}

/// The label in bold that a line may begin with, and what follows it.
fn without_label(text: &str) -> &str {
    let label = text.strip_prefix("**").and_then(|rest| rest.split_once("**"));
    label.map_or(text, |(_, rest)| rest.trim_start_matches([':', ' ']))
}

/// Where a sentence ends inside a line, and another begins.
fn inner_end(text: &str) -> Option<&str> {
    let mut from = 0;
    while let Some(at) = text[from..].find([' ']).map(|at| at + from) {
        let (before, after) = (&text[..at], &text[at + 1..]);
        let word = before.rsplit(' ').next().unwrap_or(before);
        let ends = before.trim_end_matches([')', '"', '*']).ends_with(['.', '?']);
        let begins = after
            .trim_start_matches(['(', '"', '*'])
            .starts_with(|c: char| c.is_uppercase());
        if ends && begins && !ABBREVIATIONS.contains(&word) {
            return Some(after);
        }
        from = at + 1;
    }
    None
}

fn begins_item(line: &str) -> bool {
    let text = line.trim_start();
    let number = text
        .split_once(". ")
        .is_some_and(|(number, _)| number.chars().all(|c| c.is_ascii_digit()));
    text.starts_with("- ") || number
}

fn words(text: &str) -> usize {
    text.split_whitespace()
        .filter(|word| word.chars().any(char::is_alphanumeric))
        .count()
}

fn report(faults: &[String]) {
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn lines_and_cells_are_short() {
    let mut faults = Vec::new();
    for (path, page) in pages() {
        for (at, kind, line) in lines(&page) {
            let length = line.chars().count();
            if length > LINE_MAX && kind != Kind::Printed {
                faults.push(format!("{}:{at}: {length} characters", path.display()));
            }
            if kind == Kind::Row {
                for cell in line
                    .replace("\\|", "I")
                    .trim_matches('|')
                    .split('|')
                    .map(str::trim)
                {
                    if cell.chars().count() > CELL_MAX {
                        faults.push(format!(
                            "{}:{at}: a cell of {}: {cell}",
                            path.display(),
                            cell.chars().count()
                        ));
                    }
                }
            }
        }
    }
    report(&faults);
}

#[test]
fn a_line_of_prose_is_a_sentence() {
    let mut faults = Vec::new();
    for (path, page) in pages() {
        let mut open: Option<usize> = None;
        for (at, kind, line) in lines(&page) {
            if kind != Kind::Prose {
                open = None;
                continue;
            }
            if let Some(before) = open.filter(|_| !begins_item(line)) {
                faults.push(format!("{}:{before}: goes on in the next line", path.display()));
            }
            let text = plain(line);
            if let Some(second) = inner_end(without_label(&text)) {
                faults.push(format!(
                    "{}:{at}: two sentences, the second: {second}",
                    path.display()
                ));
            }
            let end = text.trim_end_matches(['*', ')', '"']);
            open = (!end.ends_with(['.', ':', ';', '?'])).then_some(at);
        }
    }
    report(&faults);
}

#[test]
fn sentences_are_short() {
    let mut faults = Vec::new();
    for (path, page) in pages() {
        let mut long = Vec::new();
        let mut all = 0;
        for (at, kind, line) in lines(&page) {
            if kind == Kind::Prose {
                all += 1;
                let count = words(&plain(line));
                if count > WORDS_MAX {
                    faults.push(format!("{}:{at}: {count} words", path.display()));
                }
                if count > WORDS {
                    long.push(at);
                }
            }
        }
        if long.len() > (all / 10).max(1) {
            faults.push(format!(
                "{}: {} of {all} are long: {long:?}",
                path.display(),
                long.len()
            ));
        }
    }
    report(&faults);
}

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

fn headings(page: &str) -> Vec<&str> {
    let all = lines(page).into_iter();
    all.filter(|(_, kind, _)| *kind == Kind::Heading)
        .map(|(_, _, line)| line)
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

/// Words that once stood for what now has another (docs/words.md). Names of settings and fields keep them, as code.
#[test]
fn words_that_have_gone_stay_away() {
    let mut faults = Vec::new();
    for (path, page) in pages() {
        for (at, kind, line) in lines(&page) {
            let text = line
                .split('`')
                .step_by(2)
                .collect::<Vec<_>>()
                .join(" ")
                .to_lowercase();
            let mut words = text.split(|c: char| !c.is_alphanumeric());
            if kind != Kind::Code
                && let Some(word) =
                    words.find(|word| ["beside", "credit", "credits", "fleet", "partials"].contains(word))
            {
                faults.push(format!("{}:{at}: {word:?}", path.display()));
            }
        }
    }
    report(&faults);
}

#[test]
fn the_table_of_words_is_short_and_says_where_they_live() {
    let page = fs::read_to_string(root().join("docs/words.md")).unwrap();
    let (_, table) = page
        .split_once("| word | meaning | in the code |\n|---|---|---|\n")
        .unwrap();
    let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    assert!((30..=40).contains(&rows.len()), "{} words", rows.len());
    let mut words: Vec<&str> = rows
        .iter()
        .map(|row| row.split('|').nth(1).unwrap().trim())
        .collect();
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), rows.len(), "a word stands twice");
    // The rooms are named as they are once all have been moved into.
    let moved = ["src/object", "src/index", "src/cache/evict", "src/client/link"];
    if moved.iter().all(|folder| root().join(folder).exists()) {
        for row in rows {
            for folder in row.split('|').nth(3).unwrap().split('`').skip(1).step_by(2) {
                assert!(root().join(folder).is_dir(), "no {folder}: {row}");
            }
        }
    }
}
