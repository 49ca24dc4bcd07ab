//! Python interpreters, virtual environments and the project's wheel.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::{self, output, program, run, works};

/// Interpreters that work have one of these versions: the oldest that the wheel supports up to the newest that
/// vLLM 0.32 does.
const MINORS: std::ops::RangeInclusive<u32> = 11..=13;

/// A virtual environment.
#[derive(Debug, Clone)]
pub(crate) struct Environment {
    directory: PathBuf,
}

impl Environment {
    /// The environment in a directory, made if it is not there.
    pub(crate) fn ensure(directory: &Path) -> Result<Self> {
        let environment = Self::at(directory);
        if !works(program(environment.python()).args(["-m", "pip", "--version"])) {
            let base = interpreter()?;
            run(program(base)
                .args(["-m", "venv", "--clear"])
                .arg(&environment.directory))
            .context("cannot make a virtual environment (Debian and Ubuntu: apt-get install python3-venv)")?;
        }
        Ok(environment)
    }

    /// The environment that is in a directory.
    pub(crate) fn at(directory: &Path) -> Self {
        Self {
            directory: command::root().join(directory),
        }
    }

    /// Its interpreter.
    pub(crate) fn python(&self) -> PathBuf {
        self.binary("python")
    }

    /// A command that a package put there.
    pub(crate) fn binary(&self, name: &str) -> PathBuf {
        self.directory.join("bin").join(name)
    }

    /// Where it is.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// `pip install` with these arguments.
    pub(crate) fn pip_install<I, S>(&self, arguments: I) -> Result<()>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<std::ffi::OsStr>,
    {
        let mut pip = program(self.python());
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        run(pip.args(arguments))
    }

    /// Whether a package of this version (or with this local version appended) is installed.
    pub(crate) fn has(&self, package: &str, version: &str) -> bool {
        let code = format!("import importlib.metadata as m; print(m.version({package:?}))");
        output(program(self.python()).args(["-c", &code]))
            .is_ok_and(|found| found == version || found.starts_with(&format!("{version}+")))
    }

    /// Builds the project's wheel and installs it here, replacing an older build.
    pub(crate) fn install_kvasir(&self) -> Result<()> {
        let wheels = command::target().join("wheels");
        if wheels.exists() {
            fs::remove_dir_all(&wheels).with_context(|| format!("cannot empty {}", wheels.display()))?;
        }
        let mut build = program(self.python());
        build.args(["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]);
        build
            .args(["--no-deps", "--no-build-isolation", "--wheel-dir"])
            .arg(&wheels)
            .arg("./python");
        run(&mut build)?;
        let wheel = single_file(&wheels)?;
        let mut arguments: Vec<PathBuf> = ["--no-deps", "--force-reinstall"].map(PathBuf::from).into();
        arguments.push(wheel);
        self.pip_install(arguments)
    }
}

/// A Python that serves: `PYTHON` if that is set, else the first that works.
pub(crate) fn interpreter() -> Result<PathBuf> {
    if let Some(chosen) = std::env::var_os("PYTHON").filter(|python| !python.is_empty()) {
        let chosen = PathBuf::from(chosen);
        return match fault(&chosen) {
            None => Ok(chosen),
            Some(fault) => bail!("PYTHON={} {fault}", chosen.display()),
        };
    }
    let mut candidates: Vec<PathBuf> = vec!["python3".into()];
    candidates.extend(MINORS.rev().map(|minor| format!("python3.{minor}").into()));
    candidates.extend(pyenv_interpreters());
    first_that_serves(candidates)
}

fn first_that_serves(candidates: Vec<PathBuf>) -> Result<PathBuf> {
    let mut faults = Vec::new();
    for candidate in candidates {
        match fault(&candidate) {
            None => return Ok(candidate),
            // Names that are not there say nothing.
            Some(Fault::DoesNotRun) => {}
            Some(fault) => faults.push(format!("{} {fault}", candidate.display())),
        }
    }
    let wanted = format!("Python 3.{} to 3.{}", MINORS.start(), MINORS.end());
    if faults.is_empty() {
        bail!("no Python found; install {wanted}, or name it in the PYTHON environment variable");
    }
    bail!(
        "no Python serves: {}; install {wanted} with its venv module, or name it in the PYTHON environment variable",
        faults.join("; ")
    )
}

/// Why an interpreter does not serve.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    DoesNotRun,
    OtherVersion(String),
    NoVenv(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (least, most) = (MINORS.start(), MINORS.end());
        match self {
            Self::DoesNotRun => write!(f, "does not run; it has to be Python 3.{least} to 3.{most}"),
            Self::OtherVersion(version) => {
                write!(f, "is Python {version}, it has to be 3.{least} to 3.{most}")
            }
            Self::NoVenv(version) => write!(
                f,
                "(Python {version}) cannot make virtual environments (Debian and Ubuntu: apt-get install \
                 python{version}-venv)"
            ),
        }
    }
}

fn fault(python: &Path) -> Option<Fault> {
    let code = "import sys; print('%d.%d' % sys.version_info[:2])";
    let Ok(version) = output(program(python).args(["-c", code])) else {
        return Some(Fault::DoesNotRun);
    };
    let minor = version.strip_prefix("3.").and_then(|minor| minor.parse().ok());
    if !minor.is_some_and(|minor| MINORS.contains(&minor)) {
        return Some(Fault::OtherVersion(version));
    }
    // Debian leaves the second out of its python3 package.
    let can = works(program(python).args(["-c", "import venv, ensurepip"]));
    (!can).then_some(Fault::NoVenv(version))
}

/// Interpreters that pyenv holds but has not put on the path.
fn pyenv_interpreters() -> Vec<PathBuf> {
    let Ok(pyenv) = output(program("pyenv").arg("root")) else {
        return Vec::new();
    };
    let Ok(versions) = fs::read_dir(Path::new(&pyenv).join("versions")) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = versions
        .flatten()
        .map(|entry| entry.path().join("bin/python3"))
        .collect();
    found.sort();
    found.reverse();
    found
}

fn single_file(directory: &Path) -> Result<PathBuf> {
    let mut files =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    match (files.next(), files.next()) {
        (Some(file), None) => Ok(file?.path()),
        _ => bail!("expected exactly one wheel in {}", directory.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that answers as an interpreter of this version, with or without the modules for environments.
    fn played(directory: &Path, version: &str, modules: bool) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = directory.join(format!("python-{version}-{modules}"));
        let script = format!("#!/bin/sh\ncase \"$2\" in *ensurepip*) {modules};; *) echo {version};; esac\n");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn an_interpreter_that_is_none_does_not_serve() {
        assert_eq!(fault(Path::new("true-but-no-python")), Some(Fault::DoesNotRun));
        assert_eq!(fault(Path::new("false")), Some(Fault::DoesNotRun));
        let error = first_that_serves(vec!["true-but-no-python".into()]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("no Python found; install Python 3.11 to 3.13"),
            "{error}"
        );
    }

    #[test]
    fn why_no_interpreter_serves_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let played = |version, modules| played(directory.path(), version, modules);
        let (old, new, bare) = (played("3.9", true), played("3.14", true), played("3.12", false));
        let error = first_that_serves(vec![old.clone(), new, bare.clone()])
            .unwrap_err()
            .to_string();
        for said in [
            "3.9, it has to be 3.11 to 3.13",
            "is Python 3.14",
            "apt-get install python3.12-venv",
        ] {
            assert!(error.contains(said), "{error}");
        }
        assert_eq!(error.lines().count(), 1);
        let good = played("3.11", true);
        assert_eq!(first_that_serves(vec![old, bare, good.clone()]).unwrap(), good);
    }

    #[test]
    fn exactly_one_file_is_expected() {
        let directory = tempfile::tempdir().unwrap();
        assert!(single_file(directory.path()).is_err());
        fs::write(directory.path().join("a.whl"), "").unwrap();
        assert_eq!(
            single_file(directory.path()).unwrap(),
            directory.path().join("a.whl")
        );
        fs::write(directory.path().join("b.whl"), "").unwrap();
        assert!(single_file(directory.path()).is_err());
    }
}
