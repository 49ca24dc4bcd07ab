//! The dependency direction of the modules in `src/`.
//!
//! A module may import only modules that stand before it in [`ORDER`]. Paths that climb out of their
//! module with `super` count like paths that start at `crate`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use proc_macro2::TokenTree;

use crate::paths;
use crate::sources::Source;

/// The modules from the bottom up.
const ORDER: [&str; 16] = [
    "geometry", "describe", "keys", "object", "sync", "shm", "control", "wire", "copy", "device", "index",
    "pool", "cache", "server", "client", "cli",
];

/// Imports that the order would allow and the design does not: the client library has to stay separable from
/// the server.
const FORBIDDEN: [(&str, &str); 3] = [("client", "pool"), ("client", "cache"), ("client", "server")];

/// Modules that the bare client is built without, and the feature that adds each.
const ADDED: [(&str, &str); 6] = [
    ("describe", "describe"),
    ("device", "cuda"),
    ("pool", "server"),
    ("cache", "server"),
    ("server", "server"),
    ("cli", "cli"),
];

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

/// Prints every import against the order.
pub(crate) fn run(sources: &[Source]) -> Result<()> {
    for source in sources.iter().filter(|source| source.file.ends_with("lib.rs")) {
        bare(source)?;
    }
    let violations = check(sources)?;
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

/// Checks that the crate's root declares what the bare client is to be without under its feature. Nothing else can then
/// name it where the feature is missing: the `clippy` step builds that.
fn bare(root: &Source) -> Result<()> {
    let mut attributes = String::new();
    let mut tokens = root.tokens.clone().into_iter();
    while let Some(token) = tokens.next() {
        match &token {
            TokenTree::Group(group) => attributes += &group.to_string(),
            TokenTree::Ident(word) if word == "mod" => {
                let name = tokens.next().map(|name| name.to_string()).unwrap_or_default();
                let added = ADDED.iter().find(|(module, _)| *module == name);
                if let Some((module, feature)) = added
                    && !attributes.contains(&format!("feature = \"{feature}\""))
                {
                    bail!(
                        "{}:{}: `mod {module}` is in the bare client; put `#[cfg(feature = \"{feature}\")]` before it",
                        root.file.display(),
                        token.span().start().line
                    );
                }
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => attributes.clear(),
            _ => {}
        }
    }
    Ok(())
}

fn check(sources: &[Source]) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for source in sources {
        let Some(module) = source.module.first() else {
            continue;
        };
        if !ORDER.contains(&module.as_str()) {
            bail!(
                "module `{module}` ({}) has no place in the order; xtask/src/layers.rs has to name it",
                source.file.display()
            );
        }
        for edge in edges(source) {
            if !allowed(module, &edge.to) {
                violations.push(Violation {
                    file: source.file.clone(),
                    line: edge.line,
                    module: module.clone(),
                    imports: edge.to,
                });
            }
        }
    }
    Ok(violations)
}

/// The modules that a file names.
fn edges(source: &Source) -> Vec<Edge> {
    let found = paths::read(source.tokens.clone(), &source.module, true);
    let outward = found.named.into_iter().filter(|named| !named.relative);
    let edge = |named: paths::Named| {
        let to = named.path.into_iter().next()?;
        Some(Edge { to, line: named.line })
    };
    let mut edges: Vec<Edge> = outward.filter_map(edge).collect();
    edges.dedup();
    edges
}

fn allowed(module: &str, imports: &str) -> bool {
    let place = |name: &str| ORDER.iter().position(|other| *other == name);
    // A path to something that is no module (a macro or a re-export at the crate's root) is not a layer.
    let (Some(from), Some(to)) = (place(module), place(imports)) else {
        return true;
    };
    to <= from && !FORBIDDEN.contains(&(module, imports))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::made_up;

    fn edges_of(text: &str, module: &[&str]) -> Vec<Edge> {
        edges(&Source {
            file: PathBuf::new(),
            module: module.iter().map(ToString::to_string).collect(),
            tokens: text.parse().unwrap(),
        })
    }

    /// What a file names that lies `depth` modules below the root.
    fn targets(text: &str, depth: usize) -> Vec<String> {
        let edges = edges_of(text, &["pool", "frames"][..depth]).into_iter();
        edges.map(|edge| edge.to).collect()
    }

    fn violations(files: &[(&str, &str)]) -> Result<Vec<Violation>> {
        check(&made_up(files))
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
            ["pool"],
            "stays inside the module"
        );
        assert_eq!(targets("use super::server::Session;", 1), ["server"]);
        assert_eq!(
            targets("mod tests { use super::*; use super::super::server; }", 1),
            ["pool", "server"]
        );
    }

    #[test]
    fn lines_are_reported() {
        let edges = edges_of("\n\nuse crate::cli::Options;", &["pool"]);
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
    fn the_root_declares_what_the_bare_client_is_without_under_its_feature() {
        let of = |text: &str| bare(&made_up(&[("lib.rs", text)])[0]);
        let gated =
            "#[cfg(all(feature = \"server\", not(loom)))] #[doc(hidden)] pub mod cache; pub mod client;";
        of(gated).unwrap();
        let error = of("#[cfg(feature = \"server\")]\npub mod pool;\n\npub mod cache;").unwrap_err();
        assert!(error.to_string().contains("lib.rs:4: `mod cache`"), "{error}");
        of("#[cfg(feature = \"cli\")] pub mod server;").unwrap_err();
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
}
