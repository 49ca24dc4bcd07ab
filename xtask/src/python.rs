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
        let environment = Self {
            directory: command::root().join(directory),
        };
        if !works(program(environment.python()).args(["-m", "pip", "--version"])) {
            let base = interpreter()?;
            run(program(base)
                .args(["-m", "venv", "--clear"])
                .arg(&environment.directory))
            .context("cannot make a virtual environment (Debian and Ubuntu: apt-get install python3-venv)")?;
        }
        Ok(environment)
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
    if let Some(chosen) = std::env::var_os("PYTHON") {
        let chosen = PathBuf::from(chosen);
        if !serves(&chosen) {
            bail!(
                "PYTHON={} does not run, or is not Python 3.11 to 3.13",
                chosen.display()
            );
        }
        return Ok(chosen);
    }
    let mut candidates: Vec<PathBuf> = vec!["python3".into()];
    candidates.extend(MINORS.rev().map(|minor| format!("python3.{minor}").into()));
    candidates.extend(pyenv_interpreters());
    match candidates.into_iter().find(|candidate| serves(candidate)) {
        Some(found) => Ok(found),
        None => {
            bail!("no Python 3.11 to 3.13 found; install one, or name it in the PYTHON environment variable")
        }
    }
}

fn serves(python: &Path) -> bool {
    let code = format!(
        "import sys, venv, ensurepip; sys.exit(not ((3, {}) <= sys.version_info[:2] <= (3, {})))",
        MINORS.start(),
        MINORS.end()
    );
    works(program(python).args(["-c", &code]))
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

    #[test]
    fn an_interpreter_that_is_none_does_not_serve() {
        assert!(!serves(Path::new("true-but-no-python")));
        assert!(!serves(Path::new("false")));
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
