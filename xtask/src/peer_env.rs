//! The Python environment that holds the peer of the head-to-head, an LMCache server, apart from everything else.
//!
//! What the peer needs for devices that are not compared here is left out; torch is the plain build.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::command::{self, output, program};
use crate::needs;
use crate::python::Environment;

/// Where the environment is.
const DIRECTORY: &str = ".venv-peer";
const PEER: (&str, &str) = ("lmcache", "0.5.7rc2");
const TORCH: (&str, &str) = ("torch", "2.13.0");
/// Free disk that it takes: 5.1 GB stay.
const DISK_BYTES: u64 = 7_000_000_000;
/// Requirements that a server on a CPU does without.
const LEFT_OUT: [&str; 10] = [
    "awscrt",
    "cuda-python",
    "cufile-python",
    "cupy-cuda13x",
    "google-api-core",
    "google-cloud-bigtable",
    "pytest",
    "redis",
    "setuptools_scm",
    "torch",
];

/// The environment, made or completed if it has to be.
pub(crate) fn ensure() -> Result<Environment> {
    let environment = Environment::ensure(DIRECTORY.as_ref())?;
    if !environment.has(PEER.0, PEER.1) || !environment.has(TORCH.0, TORCH.1) {
        let (python, directory) = (environment.python(), environment.directory());
        needs::disk(
            &python,
            directory,
            DISK_BYTES,
            "the peer's environment",
            "a link in its place",
        )?;
        println!(
            "making the peer's environment in {} (minutes, once)",
            directory.display()
        );
        install(&environment)?;
    }
    Ok(environment)
}

/// The peer goes in last, which makes its presence the mark of a complete environment.
fn install(environment: &Environment) -> Result<()> {
    environment.pip_install(["uv"])?;
    let wheels = command::target().join("peer-wheel");
    if wheels.exists() {
        fs::remove_dir_all(&wheels).with_context(|| format!("cannot empty {}", wheels.display()))?;
    }
    fs::create_dir_all(&wheels).with_context(|| format!("cannot make {}", wheels.display()))?;
    let mut download = program(environment.python());
    download.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--pre",
        "--dest",
    ]);
    command::run(download.arg(&wheels).arg(format!("{}=={}", PEER.0, PEER.1)))?;
    let mut found = fs::read_dir(&wheels)?.flatten().map(|entry| entry.path());
    let Some(wheel) = found.find(|path| path.extension().is_some_and(|end| end == "whl")) else {
        bail!(
            "no wheel of {} {} in {} after the download",
            PEER.0,
            PEER.1,
            wheels.display()
        );
    };
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
        uv.args(["-m", "uv", "pip", "install", "--quiet", "--python"]);
        uv.arg(environment.python());
        uv
    };
    let torch = format!("{}=={}", TORCH.0, TORCH.1);
    command::run(uv().arg("--requirement").arg(&listed).arg(torch))?;
    command::run(uv().arg("--no-deps").arg(&wheel))?;
    fs::remove_dir_all(&wheels).with_context(|| format!("cannot remove {}", wheels.display()))
}
