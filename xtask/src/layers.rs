//! The dependency direction of the modules in `src/`.
//!
//! A module may import only modules that stand before it in [`ORDER`]. The check reads tokens, not text, so a
//! path inside a macro call counts and one inside a comment or a string does not. Paths that climb out of their module with `super`
//! count like paths that start at `crate`.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};

use crate::command;

/// The modules from the bottom up.
const ORDER: [&str; 14] = [
    "geometry", "keys", "object", "sync", "shm", "control", "wire", "copy", "pool", "index", "cache",
    "server", "client", "cli",
];

/// Imports that the order would allow and the design does not: the client library has to stay separable from
/// the server.
const FORBIDDEN: [(&str, &str); 2] = [("client", "cache"), ("client", "server")];

/// An import that breaks the order.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    file: PathBuf,
    line: usize,
    module: String,
    imports: String,
}

/// A path from one module to another, found in a file.
#[derive(Debug, PartialEq, Eq)]
struct Edge {
    to: String,
    line: usize,
}

/// Checks the repository's `src/`.
pub(crate) fn run() -> Result<()> {
    let violations = check(&command::root().join("src"))?;
    if violations.is_empty() {
        return Ok(());
    }
    for violation in &violations {
        eprintln!(
            "{}:{}: `{}` imports `{}`, which lies above it",
            violation.file.display(),
            violation.line,
            violation.module,
            violation.imports,
        );
    }
    bail!(
        "{} imports against the order {}",
        violations.len(),
        ORDER.join(" < ")
    )
}

fn check(src: &Path) -> Result<Vec<Violation>> {
    let mut files = Vec::new();
    rust_files(src, &mut files)?;
    files.sort();
    let mut violations = Vec::new();
    for file in files {
        let path = module_path(src, &file);
        let Some(module) = path.first() else { continue };
        if !ORDER.contains(&module.as_str()) {
            bail!(
                "module `{module}` ({}) has no place in the order; xtask/src/layers.rs has to name it",
                file.display()
            );
        }
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let tokens = TokenStream::from_str(&text)
            .map_err(|error| anyhow::anyhow!("cannot read {} as Rust: {error}", file.display()))?;
        for edge in edges(tokens, path.len()) {
            if !allowed(module, &edge.to) {
                violations.push(Violation {
                    file: file.clone(),
                    line: edge.line,
                    module: module.clone(),
                    imports: edge.to,
                });
            }
        }
    }
    Ok(violations)
}

fn allowed(module: &str, imports: &str) -> bool {
    let place = |name: &str| ORDER.iter().position(|other| *other == name);
    // A path to something that is no module (a macro or a re-export at the crate's root) is not a layer.
    let (Some(from), Some(to)) = (place(module), place(imports)) else {
        return true;
    };
    to <= from && !FORBIDDEN.contains(&(module, imports))
}

fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// The module that a file is: `src/pool/frames.rs` is `[pool, frames]`; the crate roots are the empty path.
fn module_path(src: &Path, file: &Path) -> Vec<String> {
    let relative = file.strip_prefix(src).expect("the file was found under src");
    let mut path: Vec<String> = relative
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if path.last().is_some_and(|last| last == "mod") {
        path.pop();
    }
    if path.len() == 1 && matches!(path[0].as_str(), "lib" | "main") {
        path.clear();
    }
    path
}

/// The modules that a file's tokens name. `depth` is how many `super` lead from the file's module to the root.
fn edges(tokens: TokenStream, depth: usize) -> Vec<Edge> {
    let mut found = Vec::new();
    walk(tokens.into_iter().collect(), depth, &mut found);
    found
}

fn walk(tokens: Vec<TokenTree>, depth: usize, found: &mut Vec<Edge>) {
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(word) if word == "mod" => {
                // An inline module: its body is one step further from the root.
                if let (Some(TokenTree::Ident(_)), Some(TokenTree::Group(body))) =
                    (tokens.get(at + 1), tokens.get(at + 2))
                {
                    walk(body.stream().into_iter().collect(), depth + 1, found);
                    at += 2;
                }
            }
            TokenTree::Ident(word) if word == "crate" => heads(&tokens, at + 1, found),
            TokenTree::Ident(word) if word == "super" && !follows_path(&tokens, at) => {
                let (levels, next) = climb(&tokens, at);
                if levels == depth {
                    heads(&tokens, next, found);
                }
            }
            TokenTree::Group(group) => walk(group.stream().into_iter().collect(), depth, found),
            _ => {}
        }
        at += 1;
    }
}

/// Records what follows `crate` or the last `super`: one name, or the first name of each entry in braces.
fn heads(tokens: &[TokenTree], at: usize, found: &mut Vec<Edge>) {
    let Some(at) = after_colons(tokens, at) else {
        return;
    };
    match tokens.get(at) {
        Some(TokenTree::Ident(name)) => record(name, found),
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let mut first = true;
            for token in group.stream() {
                match &token {
                    TokenTree::Ident(name) if first => record(name, found),
                    _ => {}
                }
                first = matches!(&token, TokenTree::Punct(mark) if mark.as_char() == ',');
            }
        }
        _ => {}
    }
}

fn record(name: &Ident, found: &mut Vec<Edge>) {
    found.push(Edge {
        to: name.to_string(),
        line: name.span().start().line,
    });
}

/// How many `super` stand in a row from `at`, and where the path goes on.
fn climb(tokens: &[TokenTree], mut at: usize) -> (usize, usize) {
    let mut levels = 1;
    while let Some(next) = after_colons(tokens, at + 1) {
        match tokens.get(next) {
            Some(TokenTree::Ident(word)) if word == "super" => {
                levels += 1;
                at = next;
            }
            _ => break,
        }
    }
    (levels, at + 1)
}

/// Whether the token at `at` continues a path (`super::super`), and so was counted already.
fn follows_path(tokens: &[TokenTree], at: usize) -> bool {
    at >= 2 && after_colons(tokens, at - 2) == Some(at)
}

/// The position after a `::` at `at`.
fn after_colons(tokens: &[TokenTree], at: usize) -> Option<usize> {
    let colon =
        |index: usize| matches!(tokens.get(index), Some(TokenTree::Punct(mark)) if mark.as_char() == ':');
    (colon(at) && colon(at + 1)).then_some(at + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str, depth: usize) -> Vec<String> {
        edges(text.parse().unwrap(), depth)
            .into_iter()
            .map(|edge| edge.to)
            .collect()
    }

    fn violations(files: &[(&str, &str)]) -> Result<Vec<Violation>> {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        check(directory.path())
    }

    #[test]
    fn use_and_inline_paths_and_groups_are_seen() {
        assert_eq!(targets("use crate::pool::Frame;", 1), ["pool"]);
        assert_eq!(
            targets("use crate::{keys::Key, pool::{Frame, cache}, shm};", 1),
            ["keys", "pool", "shm"]
        );
        assert_eq!(
            targets("fn f() -> crate::wire::Error { crate::server::go() }", 1),
            ["wire", "server"]
        );
    }

    #[test]
    fn macros_count_and_comments_and_strings_do_not() {
        assert_eq!(targets("fn f() { assert!(crate::server::up()); }", 1), ["server"]);
        assert_eq!(
            targets(
                "/// See [`crate::server`].\n// crate::cli::x\nfn f() { g(\"crate::cli::x\"); }",
                1
            ),
            [""; 0]
        );
    }

    #[test]
    fn climbing_out_with_super_counts() {
        assert_eq!(targets("use super::super::server::Session;", 2), ["server"]);
        assert_eq!(
            targets("use super::server::Session;", 2),
            [""; 0],
            "stays inside the module"
        );
        assert_eq!(targets("use super::server::Session;", 1), ["server"]);
        assert_eq!(
            targets("mod tests { use super::*; use super::super::server; }", 1),
            ["server"]
        );
    }

    #[test]
    fn lines_are_reported() {
        let edges = edges("\n\nuse crate::cli::Options;".parse().unwrap(), 1);
        assert_eq!(
            edges,
            [Edge {
                to: "cli".into(),
                line: 3
            }]
        );
    }

    #[test]
    fn a_lower_module_that_imports_a_higher_one_is_found() {
        let found = violations(&[
            ("lib.rs", "pub mod pool; pub mod server;"),
            ("pool/mod.rs", "mod frames;"),
            (
                "pool/frames.rs",
                "use crate::shm::Region;\nuse crate::server::Session;",
            ),
            ("server/mod.rs", "use crate::pool::Pool;"),
        ])
        .unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].module.as_str(), found[0].imports.as_str(), found[0].line),
            ("pool", "server", 2)
        );
    }

    #[test]
    fn the_client_may_not_import_the_server() {
        let found = violations(&[("client/mod.rs", "use crate::{cache::Index, server::Session};")]).unwrap();
        let found: Vec<&str> = found.iter().map(|violation| violation.imports.as_str()).collect();
        assert_eq!(found, ["cache", "server"]);
    }

    #[test]
    fn the_crate_roots_and_a_module_itself_are_free() {
        let found = violations(&[
            ("main.rs", "fn main() { crate::cli::run(); }"),
            ("sync.rs", "use crate::sync::atomic::AtomicU64;"),
        ]);
        assert_eq!(found.unwrap(), []);
    }

    #[test]
    fn a_module_without_a_place_is_an_error() {
        let error = violations(&[("helpers.rs", "")]).unwrap_err();
        assert!(error.to_string().contains("`helpers`"), "{error}");
    }

    #[test]
    fn this_repository_keeps_the_order() {
        assert_eq!(check(&command::root().join("src")).unwrap(), []);
    }
}
