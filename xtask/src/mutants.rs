//! Changes that a test has to find: one fence, order or check of the protocol is undone, and the tests run that are to fail then.
//!
//! The list is `xtask/mutants.toml`. It is run in a copy of the tree with build directories of its own, so nothing that is worked
//! on is touched. Text that no longer matches is an error: whoever changes such a line changes the list.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;

use crate::command::{self, cargo, program};

/// Arguments of `cargo xtask mutants`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run these alone, by their names
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// Print the names and end
    #[arg(long)]
    list: bool,
}

const LIST: &str = "xtask/mutants.toml";
const PAGE: &str = "docs/proof.md";
/// Much longer than any of these tests takes; a test that hangs has found its change.
const PATIENCE: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutant: Vec<Mutant>,
}

/// One change.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    name: String,
    /// What it undoes.
    what: String,
    file: PathBuf,
    /// Text that is there exactly once, and what stands there instead.
    from: String,
    to: String,
    /// Tests that are to fail: `loom NAME`, `lib NAME`, or `test FILE NAME`.
    tests: Vec<String>,
    /// Why no test can fail.
    equivalent: Option<String>,
    /// Why none fails yet.
    survives: Option<String>,
}

impl Mutant {
    /// Whether some test has to fail.
    fn has_to_die(&self) -> bool {
        self.equivalent.is_none() && self.survives.is_none()
    }

    /// The text of its file with the change.
    fn apply(&self, text: &str) -> Result<String> {
        let found = text.matches(&self.from).count();
        ensure!(
            found == 1,
            "{}: its text is {found} times in {}, not once; correct {LIST}",
            self.name,
            self.file.display()
        );
        ensure!(self.from != self.to, "{}: it changes nothing", self.name);
        Ok(text.replacen(&self.from, &self.to, 1))
    }
}

/// A test, or several of one name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Test {
    Loom(String),
    Lib(String),
    File(String, String),
}

impl Test {
    fn parse(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["loom", name] => Ok(Self::Loom(name.into())),
            ["lib", name] => Ok(Self::Lib(name.into())),
            ["test", file, name] => Ok(Self::File(file.into(), name.into())),
            _ => Err(anyhow!(
                "`{text}` is none of: loom NAME, lib NAME, test FILE NAME"
            )),
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Loom(name) | Self::Lib(name) | Self::File(_, name) => name,
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loom(name) | Self::Lib(name) => f.write_str(name),
            Self::File(file, name) => write!(f, "{file}::{name}"),
        }
    }
}

/// What became of a change.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Killed(String),
    Survived,
}

fn read() -> Result<Vec<Mutant>> {
    let path = command::root().join(LIST);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {LIST}"))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<Mutant>> {
    let list: List = toml::from_str(text).with_context(|| format!("{LIST} cannot be read"))?;
    let mut names = BTreeSet::new();
    for mutant in &list.mutant {
        ensure!(
            names.insert(&mutant.name),
            "two changes are called {}",
            mutant.name
        );
        ensure!(!mutant.tests.is_empty(), "{}: it names no test", mutant.name);
        for test in &mutant.tests {
            Test::parse(test).with_context(|| mutant.name.clone())?;
        }
    }
    Ok(list.mutant)
}

/// Whether all texts are where the list says, and whether the page about them names each.
pub(crate) fn check() -> Result<()> {
    let page =
        fs::read_to_string(command::root().join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    for mutant in read()? {
        let row = format!("| `{}` |", mutant.name);
        ensure!(page.contains(&row), "{PAGE} has no row of {}", mutant.name);
        let path = command::root().join(&mutant.file);
        let text = fs::read_to_string(&path);
        mutant.apply(&text.with_context(|| format!("{}: {}", mutant.name, path.display()))?)?;
    }
    Ok(())
}

/// Runs them.
pub(crate) fn run(options: &Options) -> Result<()> {
    check()?;
    let mut mutants = read()?;
    if options.list {
        mutants.iter().for_each(|mutant| println!("{}", mutant.name));
        return Ok(());
    }
    for name in &options.only {
        ensure!(
            mutants.iter().any(|mutant| mutant.name == *name),
            "no change is called {name}"
        );
    }
    mutants.retain(|mutant| options.only.is_empty() || options.only.contains(&mutant.name));
    let scratch = Scratch::make()?;
    let mut tests = BTreeSet::new();
    for test in mutants.iter().flat_map(|mutant| &mutant.tests) {
        tests.insert(Test::parse(test)?);
    }
    for test in &tests {
        match scratch.test(test)? {
            Fate::Survived => {}
            Fate::Killed(why) => bail!("without any change {test} fails: {why}"),
        }
    }
    let mut wrong = Vec::new();
    for mutant in &mutants {
        let fate = scratch.fate(mutant)?;
        let (word, is_wrong) = verdict(mutant, &fate);
        println!("{word:<10} {}: {}", mutant.name, mutant.what);
        if is_wrong {
            wrong.push(mutant.name.clone());
        }
    }
    ensure!(wrong.is_empty(), "not as listed: {}", wrong.join(", "));
    Ok(())
}

/// In a word, and whether the list says otherwise.
fn verdict(mutant: &Mutant, fate: &Fate) -> (String, bool) {
    match fate {
        Fate::Killed(by) => (format!("killed by {by};"), !mutant.has_to_die()),
        Fate::Survived if mutant.equivalent.is_some() => ("equivalent".into(), false),
        Fate::Survived => ("SURVIVED".into(), mutant.has_to_die()),
    }
}

/// A copy of the tree.
struct Scratch {
    tree: PathBuf,
    target: PathBuf,
}

impl Scratch {
    fn make() -> Result<Self> {
        let base = command::target().join("mutants");
        let scratch = Self {
            tree: base.join("tree"),
            target: base,
        };
        let listed =
            command::output(program("git").args(["ls-files", "--cached", "--others", "--exclude-standard"]))?;
        let files: BTreeSet<&Path> = listed.lines().map(Path::new).collect();
        for file in &files {
            let from = command::root().join(file);
            if from.is_file() {
                copy(&from, &scratch.tree.join(file))?;
            }
        }
        remove_others(&scratch.tree, &scratch.tree, &files)?;
        Ok(scratch)
    }

    fn fate(&self, mutant: &Mutant) -> Result<Fate> {
        let path = self.tree.join(&mutant.file);
        let text = fs::read_to_string(&path)?;
        fs::write(&path, mutant.apply(&text)?)?;
        let fate = mutant
            .tests
            .iter()
            .try_fold(Fate::Survived, |fate, test| match fate {
                Fate::Killed(_) => Ok(fate),
                Fate::Survived => self.test(&Test::parse(test)?),
            });
        fs::write(&path, text)?;
        fate.with_context(|| mutant.name.clone())
    }

    /// Builds a test, which has to succeed, and runs it.
    fn test(&self, test: &Test) -> Result<Fate> {
        let build = |more: &[&str]| {
            let mut command = cargo();
            command.current_dir(&self.tree);
            command.args([
                "test",
                "--quiet",
                "--package",
                "kvasir",
                "--locked",
                "--target-dir",
            ]);
            match test {
                Test::Loom(_) => {
                    command.arg(self.target.join("loom")).arg("--lib");
                    command
                        .env("RUSTFLAGS", "--cfg loom")
                        .env("LOOM_MAX_PREEMPTIONS", "2");
                }
                Test::Lib(_) => {
                    command.arg(self.target.join("build")).arg("--lib");
                }
                Test::File(file, _) => {
                    command.arg(self.target.join("build")).args(["--test", file]);
                }
            }
            command.args(more);
            command
        };
        // What it warns of is the change.
        command::output(&mut build(&["--no-run"])).context("it does not build")?;
        let output = self.target.join("output");
        let out = fs::File::create(&output)?;
        let mut run = build(&["--", test.name()]);
        run.stdout(out.try_clone()?).stderr(out);
        let ended = wait(&mut run)?;
        let text = String::from_utf8_lossy(&fs::read(&output)?).into_owned();
        match ended {
            None => Ok(Fate::Killed(format!("{test}, which does not end"))),
            Some(true) => {
                let ran = text
                    .lines()
                    .any(|line| line.starts_with("running ") && line != "running 0 tests");
                ensure!(ran, "no test is called {test}");
                Ok(Fate::Survived)
            }
            Some(false) => Ok(Fate::Killed(test.to_string())),
        }
    }
}

/// Whether it succeeded; nothing where it did not end.
fn wait(command: &mut Command) -> Result<Option<bool>> {
    let mut child = command.stdin(Stdio::null()).spawn()?;
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if begin.elapsed() > PATIENCE {
            // The test itself ends with its parent's pipe or is found by whoever looks; nothing waits for it.
            let _ = child.kill();
            let _ = child.wait();
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

/// Copies a file that is another one there, and keeps the time of one that is the same: it is not built again.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let fresh = fs::read(from)?;
    if fs::read(to).is_ok_and(|old| old == fresh) {
        return Ok(());
    }
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::write(to, fresh)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    Ok(())
}

/// Removes what the tree no longer has.
fn remove_others(tree: &Path, directory: &Path, files: &BTreeSet<&Path>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(tree, &path, files)?;
        } else if let Ok(file) = path.strip_prefix(tree)
            && !files.contains(file)
        {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = r#"
[[mutant]]
name = "a"
what = "the fence of a"
file = "src/a.rs"
from = 'fence();'
to = ''
tests = ["lib a::tests"]
"#;

    #[test]
    fn text_that_is_there_once_is_changed_and_any_other_is_an_error() {
        let mutant = parse(ONE).unwrap().remove(0);
        assert_eq!(mutant.apply("x(); fence(); y();").unwrap(), "x();  y();");
        for text in ["", "fence(); fence();"] {
            let error = mutant.apply(text).unwrap_err().to_string();
            assert!(
                error.contains("not once") && error.contains("src/a.rs"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_list_that_makes_no_sense_is_refused() {
        assert!(parse(&format!("{ONE}{ONE}")).is_err());
        assert!(parse(&ONE.replace("[\"lib a::tests\"]", "[]")).is_err());
        assert!(parse(&ONE.replace("lib a::tests", "a::tests")).is_err());
        assert!(parse(&ONE.replace("what", "why")).is_err());
    }

    #[test]
    fn the_verdict_is_wrong_where_the_list_says_otherwise() {
        let mut mutant = parse(ONE).unwrap().remove(0);
        let killed = Fate::Killed("a::tests".into());
        assert!(!verdict(&mutant, &killed).1);
        assert!(verdict(&mutant, &Fate::Survived).1);
        mutant.equivalent = Some("it is".into());
        assert!(verdict(&mutant, &killed).1);
        assert!(!verdict(&mutant, &Fate::Survived).1);
        mutant.equivalent = None;
        mutant.survives = Some("no test yet".into());
        assert!(!verdict(&mutant, &Fate::Survived).1);
    }

    #[test]
    fn a_file_that_is_the_same_keeps_its_time() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("sub/to"));
        fs::write(&from, "1").unwrap();
        copy(&from, &to).unwrap();
        let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        let first = time(&to);
        fs::write(&from, "1").unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(time(&to), first);
        fs::write(&from, "2").unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "2");
        let files = BTreeSet::new();
        remove_others(directory.path(), &directory.path().join("sub"), &files).unwrap();
        assert!(!to.exists());
    }
}
