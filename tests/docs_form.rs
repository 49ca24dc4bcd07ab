//! The form of the documents: one short sentence per line, short cells, one word for one thing.
//!
//! What is judged is text alone, so the rules are rough where language is: a sentence ends with a full stop, a question
//! mark or an exclamation mark before a capital letter. Code, and what stands between backticks, counts as one word.

mod docs_support;

use std::fs;

use docs_support::*;

/// Characters of a line.
const LINE_MAX: usize = 200;
/// Characters of a cell of a table.
const CELL_MAX: usize = 110;
/// Words that a sentence has, but for one in ten of a page.
const WORDS: usize = 25;
/// Words that no sentence exceeds.
const WORDS_MAX: usize = 40;
/// Ends of words that end no sentence.
const ABBREVIATIONS: [&str; 3] = ["e.g.", "i.e.", "vs."];

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
