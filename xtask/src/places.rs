//! Where things of `src/` are kept, so that nobody has to look in two places.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Result, bail};
use proc_macro2::{TokenStream, TokenTree};

use crate::paths;
use crate::sources::Source;

/// Longest `mod tests { .. }` at the end of the file that it tests.
const INLINE_LINES: usize = 150;

/// The modules that may open `unsafe`.
const UNSAFE: [&str; 3] = ["shm", "copy", "device"];

/// The file that opens it for generated code.
const GENERATED: [&str; 1] = ["wire"];

/// A thing that is somewhere else than where it belongs.
#[derive(Debug, PartialEq, Eq)]
struct Misplaced {
    file: PathBuf,
    line: usize,
    module: Vec<String>,
    what: What,
}

#[derive(Debug, PartialEq, Eq)]
enum What {
    /// `x.rs` beside `x/`.
    BesideItsFolder,
    /// A file of tests that lies in no `tests` folder.
    TestFile,
    LongTests(usize),
    Unsafe,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BesideItsFolder => write!(f, "a module with files of its own is `mod.rs` in their folder"),
            Self::TestFile => write!(
                f,
                "files of unit tests lie in the folder `tests` beside what they test"
            ),
            Self::LongTests(lines) => write!(
                f,
                "{lines} lines of tests; above {INLINE_LINES} they are a file in the folder `tests`"
            ),
            Self::Unsafe => write!(f, "only {} may open unsafe", UNSAFE.join(", ")),
        }
    }
}

/// Prints everything that is misplaced.
pub(crate) fn run(sources: &[Source]) -> Result<()> {
    let all = misplaced(sources);
    for Misplaced { file, line, what, .. } in &all {
        eprintln!("{}:{line}: {what}", file.display());
    }
    if !all.is_empty() {
        bail!("{} things out of place", all.len());
    }
    Ok(())
}

fn misplaced(sources: &[Source]) -> Vec<Misplaced> {
    let mut all = Vec::new();
    for source in sources {
        let mut note = |line, what| {
            all.push(Misplaced {
                file: source.file.clone(),
                line,
                module: source.module.clone(),
                what,
            });
        };
        let in_tests = source.module.iter().any(|part| part == "tests");
        let is_head = source.file.file_name().is_some_and(|name| name == "mod.rs");
        let has_files = |path: &[String]| {
            sources
                .iter()
                .any(|other| other.module.len() > path.len() && other.module.starts_with(path))
        };
        if !source.module.is_empty() && !is_head && has_files(&source.module) {
            note(1, What::BesideItsFolder);
        }
        let name = source.module.last().map_or("", String::as_str);
        if !is_head && (name == "tests" || name.ends_with("_tests")) {
            note(1, What::TestFile);
        }
        let found = paths::read(source.tokens.clone(), &source.module, true);
        for (lines, line) in found.inline_tests {
            if lines > INLINE_LINES {
                note(line, What::LongTests(lines));
            }
        }
        for child in found
            .test_modules
            .iter()
            .filter(|child| !in_tests && *child != "tests")
        {
            let declared = [&source.module[..], std::slice::from_ref(child)].concat();
            if sources.iter().any(|other| other.module == declared) {
                note(1, What::TestFile);
            }
        }
        let may = source.module == GENERATED
            || source
                .module
                .first()
                .is_some_and(|module| UNSAFE.contains(&module.as_str()));
        if !may && let Some(line) = opens_unsafe(source.tokens.clone()) {
            note(line, What::Unsafe);
        }
    }
    all
}

/// Where a file allows unsafe code.
fn opens_unsafe(tokens: TokenStream) -> Option<usize> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Ident(word) if word == "unsafe_code" => Some(word.span().start().line),
        TokenTree::Group(group) => opens_unsafe(group.stream()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::made_up;

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize, What)> {
        let short = |misplaced: Misplaced| (misplaced.module.join("::"), misplaced.line, misplaced.what);
        misplaced(&made_up(files)).into_iter().map(short).collect()
    }

    #[test]
    fn what_is_in_its_place_is_not_named() {
        let files = [
            ("lib.rs", "mod m; mod single;"),
            ("single.rs", "\n#[cfg(test)]\nmod tests { fn f() {} }"),
            (
                "m/mod.rs",
                "mod a; #[cfg(test)] mod tests; #[cfg(all(test, loom))] #[path = \"tests/model.rs\"] mod model;",
            ),
            ("m/a.rs", "#[cfg(test)] #[path = \"tests/a.rs\"] mod tests;"),
            ("m/tests/mod.rs", "mod support;"),
            ("m/tests/support.rs", ""),
            ("m/tests/model.rs", ""),
            ("m/tests/a.rs", ""),
            ("shm/mod.rs", "#![allow(unsafe_code)]"),
        ];
        assert_eq!(found(&files), []);
    }

    #[test]
    fn a_file_beside_its_folder_is_named() {
        let files = [("m/mod.rs", ""), ("m/a.rs", "mod b;"), ("m/a/b.rs", "")];
        assert_eq!(found(&files), [("m::a".into(), 1, What::BesideItsFolder)]);
    }

    #[test]
    fn files_of_tests_outside_of_their_folder_are_named() {
        let files = [
            (
                "m/mod.rs",
                "#[cfg(all(test, loom))] mod model; #[cfg(test)] mod tests;",
            ),
            ("m/a.rs", "#[cfg(test)] #[path = \"a_tests.rs\"] mod tests;"),
            ("m/a_tests.rs", ""),
            ("m/model.rs", ""),
            ("m/tests.rs", ""),
        ];
        let names: Vec<String> = found(&files).into_iter().map(|(module, ..)| module).collect();
        assert_eq!(names, ["m::a_tests", "m", "m::tests"]);
        assert!(found(&files).iter().all(|(.., what)| *what == What::TestFile));
    }

    #[test]
    fn long_inline_tests_are_named() {
        let tests = |lines: usize| format!("\n#[cfg(test)]\nmod tests {{{}}}", "\n".repeat(lines - 1));
        let (fits, long) = (tests(INLINE_LINES), tests(INLINE_LINES + 1));
        let files = [("a.rs", fits.as_str()), ("b.rs", &long)];
        assert_eq!(
            found(&files),
            [("b".into(), 3, What::LongTests(INLINE_LINES + 1))]
        );
    }

    #[test]
    fn unsafe_elsewhere_is_named() {
        let files = [
            ("copy/a.rs", "#[allow(unsafe_code)] fn f() {}"),
            ("cli/mod.rs", "\nmod b { #![allow(unsafe_code)] }"),
        ];
        assert_eq!(found(&files), [("cli".into(), 2, What::Unsafe)]);
    }
}
