//! Circles of imports between the files of one module folder.
//!
//! The check follows paths: those of `use` items and those written out. A name that a folder's `mod.rs` hands on stands
//! for the file that defines it. A subfolder is one node among its neighbours and is checked by itself inside. A folder's
//! `mod.rs` only hands names on, and tests may look at anything, so neither takes part.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::paths::{self, Found, Named};
use crate::sources::Source;

/// How often a name may be handed on before the check gives up on it.
const HANDED_ON: usize = 8;

/// Files of one folder that import each other in a circle.
#[derive(Debug, PartialEq, Eq)]
struct Circle {
    /// The folder's module.
    folder: Vec<String>,
    /// Each import between members: the first of its kind.
    imports: Vec<Import>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Import {
    from: String,
    to: String,
    file: PathBuf,
    line: usize,
    /// The path as seen from the crate's root.
    path: String,
}

/// Prints every circle.
pub(crate) fn run(sources: &[Source]) -> Result<()> {
    let circles = circles(sources);
    for circle in &circles {
        eprintln!(
            "files of `{}` import each other in a circle:",
            circle.folder.join("::")
        );
        for Import {
            from,
            to,
            file,
            line,
            path,
        } in &circle.imports
        {
            eprintln!(
                "  {}:{line}: `{from}` imports `{to}` (crate::{path})",
                file.display()
            );
        }
    }
    if !circles.is_empty() {
        bail!("{} circles of files", circles.len());
    }
    Ok(())
}

/// A file of the tree with what it says.
struct File<'a> {
    source: &'a Source,
    found: Found,
    /// It has files below it, so it hands their names on.
    folder: bool,
    test: bool,
}

fn circles(sources: &[Source]) -> Vec<Circle> {
    let tree = Tree::new(sources);
    let mut folders: BTreeMap<Vec<String>, BTreeSet<Import>> = BTreeMap::new();
    for file in tree.files.values().filter(|file| !file.test) {
        for named in &file.found.named {
            let Some(target) = tree.resolve(named) else {
                continue;
            };
            let (from, to) = (&file.source.module, &target.source.module);
            let common = from.iter().zip(to).take_while(|(from, to)| from == to).count();
            // Either one is the folder's own `mod.rs` or they lie in different modules of the crate.
            if common == 0 || common == from.len() || common == to.len() {
                continue;
            }
            folders
                .entry(from[..common].to_vec())
                .or_default()
                .insert(Import {
                    from: from[common].clone(),
                    to: to[common].clone(),
                    file: file.source.file.clone(),
                    line: named.line,
                    path: named.path.join("::"),
                });
        }
    }
    folders
        .into_iter()
        .flat_map(|(folder, imports)| {
            let circle = move |imports| Circle {
                folder: folder.clone(),
                imports,
            };
            rings(imports).into_iter().map(circle)
        })
        .collect()
}

struct Tree<'a> {
    files: BTreeMap<&'a [String], File<'a>>,
}

impl<'a> Tree<'a> {
    fn new(sources: &'a [Source]) -> Self {
        let mut files: BTreeMap<&[String], File<'_>> = BTreeMap::new();
        for source in sources {
            files.insert(
                &source.module,
                File {
                    source,
                    found: paths::read(source.tokens.clone(), &source.module, false),
                    folder: sources.iter().any(|other| {
                        other.module.len() > source.module.len() && other.module.starts_with(&source.module)
                    }),
                    test: false,
                },
            );
        }
        let mut tests = BTreeSet::new();
        for (module, file) in &files {
            let declared = |child: &String| [module, &[child.clone()][..]].concat();
            tests.extend(file.found.test_modules.iter().map(declared));
        }
        for (module, file) in &mut files {
            file.test = (0..module.len()).any(|at| module[at] == "tests" || module[at].ends_with("_tests"))
                || (1..=module.len()).any(|end| tests.contains(&module[..end]));
        }
        Self { files }
    }

    /// The file that defines what a path names.
    fn resolve(&self, named: &Named) -> Option<&File<'a>> {
        let mut path = named.path.clone();
        for _ in 0..HANDED_ON {
            let (file, rest) = self.longest(&path)?;
            let Some(name) = rest.first().filter(|_| file.folder) else {
                return Some(file);
            };
            match self.handed_on(file, name) {
                Some(next) => path = [&next[..], &rest[1..]].concat(),
                None => return Some(file),
            }
        }
        None
    }

    /// The deepest file on a path, and what the path names inside it.
    fn longest<'p>(&self, path: &'p [String]) -> Option<(&File<'a>, &'p [String])> {
        (1..=path.len())
            .rev()
            .find_map(|end| Some((self.files.get(&path[..end])?, &path[end..])))
    }

    /// The path behind a name that a folder's own file imports.
    fn handed_on(&self, file: &File<'a>, name: &String) -> Option<Vec<String>> {
        let imports = &file.found.imports;
        if let Some(import) = imports.iter().find(|import| import.name.as_ref() == Some(name)) {
            return Some(import.path.clone());
        }
        let globs = imports.iter().filter(|import| import.name.is_none());
        let mut targets = globs.filter_map(|import| self.files.get(&import.path[..]));
        let target = targets.find(|target| target.found.items.contains(name))?;
        Some([&target.source.module[..], std::slice::from_ref(name)].concat())
    }
}

/// Groups of nodes that reach each other, each with the first import of each pair.
fn rings(imports: BTreeSet<Import>) -> Vec<Vec<Import>> {
    let mut first: BTreeMap<(String, String), Import> = BTreeMap::new();
    for import in imports {
        first
            .entry((import.from.clone(), import.to.clone()))
            .or_insert(import);
    }
    let mut reach: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in first.keys() {
        reach.entry(from).or_default().insert(to);
    }
    loop {
        let mut grown = false;
        for node in reach.keys().copied().collect::<Vec<_>>() {
            let further: BTreeSet<&str> = reach[node]
                .iter()
                .filter_map(|next| reach.get(next))
                .flatten()
                .copied()
                .collect();
            let known = reach.get_mut(node).expect("a key of the map");
            let before = known.len();
            known.extend(further);
            grown |= known.len() > before;
        }
        if !grown {
            break;
        }
    }
    let reaches = |from: &str, to: &str| reach.get(from).is_some_and(|known| known.contains(to));
    let mut rings: BTreeMap<BTreeSet<&str>, Vec<Import>> = BTreeMap::new();
    for ((from, to), import) in &first {
        if reaches(to, from) {
            let ring = reach
                .keys()
                .copied()
                .filter(|node| reaches(from, node) && reaches(node, from));
            rings.entry(ring.collect()).or_default().push(import.clone());
        }
    }
    rings.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::made_up;

    /// The members of each circle, as `folder: from>to line`.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let text = |circle: Circle| {
            let imports: Vec<String> = circle
                .imports
                .iter()
                .map(|import| format!("{}>{}:{}", import.from, import.to, import.line))
                .collect();
            format!("{}: {}", circle.folder.join("::"), imports.join(" "))
        };
        circles(&made_up(files)).into_iter().map(text).collect()
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod m;");

    #[test]
    fn two_files_that_import_each_other_are_a_circle() {
        let files = [
            ROOT,
            ("m/mod.rs", "mod a; mod b;"),
            ("m/a.rs", "\nuse super::b::B;"),
            ("m/b.rs", "use crate::m::a::A;"),
        ];
        assert_eq!(found(&files), ["m: a>b:2 b>a:1"]);
    }

    #[test]
    fn a_longer_circle_is_found_and_what_hangs_on_it_is_not_named() {
        let files = [
            ("m/mod.rs", "mod a; mod b; mod c; mod d; mod e;"),
            ("m/a.rs", "use super::{b::B, e};"),
            ("m/b.rs", "fn f() { g(super::c::C) }"),
            ("m/c.rs", "fn f() { assert!(self::super::a::up()) }"),
            ("m/d.rs", "use super::a;"),
            ("m/e.rs", ""),
        ];
        assert_eq!(found(&files), ["m: a>b:1 b>c:1 c>a:1"]);
    }

    #[test]
    fn one_way_imports_are_none() {
        let files = [
            ("m/mod.rs", ""),
            ("m/a.rs", "use super::{b, c};"),
            ("m/b.rs", "use super::c;"),
            ("m/c.rs", ""),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn names_that_a_folder_hands_on_stand_for_the_file_that_defines_them() {
        let hands_on = [
            "mod a; mod b; pub use b::B; pub use a::A;",
            "mod a; mod b; pub use self::b::{B, C}; use crate::m::a::A;",
            "mod a; mod b; pub(crate) use b::*; pub use a::*;",
            "mod a; mod b; pub use b::Other as B; pub use a::A;",
        ];
        for head in hands_on {
            let files = [
                ("m/mod.rs", head),
                ("m/a.rs", "use super::B; pub struct A;"),
                ("m/b.rs", "use super::A; pub struct B;"),
            ];
            assert_eq!(found(&files), ["m: a>b:1 b>a:1"], "{head}");
        }
    }

    #[test]
    fn what_the_folder_itself_defines_and_what_it_imports_count_for_nothing() {
        let files = [
            (
                "m/mod.rs",
                "mod a; use a::A; use std::sync::Arc; pub struct M; impl M { fn f() { self::a::f() } }",
            ),
            ("m/a.rs", "use super::{Arc, M}; pub struct A;"),
        ];
        assert_eq!(found(&files), [""; 0]);
        // The same where the folder's file stands beside the folder.
        let files = [
            ("m/mod.rs", "mod x;"),
            ("m/x.rs", "mod a; use a::A; pub struct X;"),
            ("m/x/a.rs", "use super::X;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn a_subfolder_is_one_node_and_is_checked_inside() {
        let files = [
            ("m/mod.rs", ""),
            ("m/top.rs", "use super::sub::a::A;"),
            ("m/sub/mod.rs", "mod a; mod b;"),
            ("m/sub/a.rs", "use super::b;"),
            ("m/sub/b.rs", "use crate::m::top::Top; use super::a;"),
        ];
        assert_eq!(found(&files), ["m: sub>top:1 top>sub:1", "m::sub: a>b:1 b>a:1"]);
    }

    #[test]
    fn tests_may_look_at_anything() {
        let files = [
            (
                "m/mod.rs",
                "mod a; mod b; #[cfg(all(test, loom))] mod model; #[cfg(test)] mod tests;",
            ),
            (
                "m/a.rs",
                "use super::b::B; #[cfg(test)] use super::c; #[cfg(test)] mod tests { use super::super::b; }",
            ),
            (
                "m/b.rs",
                "#[cfg(test)] mod tests { use super::super::a::A; }\n#[cfg(test)]\nfn f() { crate::m::a::f() }",
            ),
            ("m/b_tests.rs", "use super::super::a::A;"),
            ("m/tests/mod.rs", "use super::a::A;"),
            ("m/model.rs", "use super::a;"),
            ("m/c.rs", "use super::model; use super::a;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn code_for_tests_and_more_counts() {
        for condition in ["any(test, unix)", "not(test)", "unix"] {
            let b = format!("#[cfg({condition})]\nuse super::a::A;");
            let files = [("m/mod.rs", ""), ("m/a.rs", "use super::b;"), ("m/b.rs", &b)];
            assert_eq!(found(&files), ["m: a>b:1 b>a:2"], "{condition}");
        }
    }
}
