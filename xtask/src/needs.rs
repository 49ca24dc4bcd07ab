//! Disk space, looked at before something large is made.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::command::{self, output, program, works};

/// What the checks and tests take in `target` besides the vLLM environment: debug and release builds and loom.
const TARGET_BYTES: u64 = 6_000_000_000;

/// Programs that the checks call and that a toolchain may lack: how each is asked, and how to get it.
const PROGRAMS: [(&[&str], &str); 3] = [
    (
        &["cargo", "fmt", "--version"],
        "cargo fmt (rustup component add rustfmt)",
    ),
    (
        &["cargo", "clippy", "--version"],
        "cargo clippy (rustup component add clippy)",
    ),
    (
        &["c++", "--version"],
        "c++ (Debian and Ubuntu: apt-get install g++; it compiles the schema compiler)",
    ),
];

/// Programs that the step `native` calls besides, and how to get them.
const OF_NATIVE: [(&[&str], &str); 7] = [
    (
        &["gcc", "--version"],
        "gcc (Debian and Ubuntu: apt-get install gcc)",
    ),
    (
        &["g++", "--version"],
        "g++ (Debian and Ubuntu: apt-get install g++)",
    ),
    (
        &["clang", "--version"],
        "clang (Debian and Ubuntu: apt-get install clang)",
    ),
    (
        &["clang++", "--version"],
        "clang++ (Debian and Ubuntu: apt-get install clang)",
    ),
    (
        &["valgrind", "--version"],
        "valgrind (Debian and Ubuntu: apt-get install valgrind)",
    ),
    (
        &["pkg-config", "--version"],
        "pkg-config (Debian and Ubuntu: apt-get install pkg-config)",
    ),
    (
        &["objcopy", "--version"],
        "objcopy (Debian and Ubuntu: apt-get install binutils)",
    ),
];

/// Refuses where a program is missing that the step `native` calls.
pub(crate) fn native() -> Result<()> {
    missing_of(&OF_NATIVE)
}

/// Refuses where a program is missing that some check would call minutes later.
pub(crate) fn programs() -> Result<()> {
    missing_of(&PROGRAMS)
}

fn missing_of(programs: &[(&[&str], &str)]) -> Result<()> {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|(words, _)| !works(program(words[0]).args(&words[1..])))
        .map(|(_, how)| *how)
        .collect();
    if !missing.is_empty() {
        bail!("missing on this machine: {}", missing.join(", "));
    }
    Ok(())
}

/// Refuses where less than `needed` bytes are free for `what` in a directory, which need not be there yet; `option` names another.
pub(crate) fn disk(python: &Path, directory: &Path, needed: u64, what: &str, option: &str) -> Result<()> {
    let free = free(python, directory)?;
    if free < needed {
        bail!(
            "{what} takes about {} of disk in {}, where {} are free; make room, or name another place with {option}",
            shown(needed),
            directory.display(),
            shown(free)
        );
    }
    Ok(())
}

/// The same for the build directory, unless earlier builds are there to be used again.
pub(crate) fn target(python: &Path) -> Result<()> {
    let target = command::target();
    if target.join("debug").is_dir() && target.join("release").is_dir() {
        return Ok(());
    }
    disk(
        python,
        &target,
        TARGET_BYTES,
        "building and testing",
        "CARGO_TARGET_DIR",
    )
}

/// Free bytes for this user where a directory is or will be.
fn free(python: &Path, directory: &Path) -> Result<u64> {
    let there = directory
        .ancestors()
        .find(|ancestor| ancestor.exists())
        .with_context(|| format!("nothing of {} exists", directory.display()))?;
    let code = "import shutil, sys; print(shutil.disk_usage(sys.argv[1]).free)";
    let said = output(program(python).args(["-c", code]).arg(there))?;
    said.parse()
        .with_context(|| format!("{said:?} is no number of bytes"))
}

fn shown(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::interpreter;

    #[test]
    fn everything_that_is_missing_is_named_at_once() {
        missing_of(&[(&["true"], "true")]).unwrap();
        let absent: (&[&str], &str) = (&["kvasir-no-such-program", "--version"], "one (get it)");
        let broken: (&[&str], &str) = (&["false"], "another");
        let error = missing_of(&[absent, (&["true"], "true"), broken])
            .unwrap_err()
            .to_string();
        assert_eq!(error, "missing on this machine: one (get it), another");
    }

    #[test]
    fn too_little_disk_is_refused_with_both_numbers() {
        let python = interpreter().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("not/there/yet");
        disk(&python, &place, 1, "a file", "--venv").unwrap();
        let error = disk(&python, &place, u64::MAX, "a file", "--venv")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("a file takes about 18446744073.7 GB of disk in "),
            "{error}"
        );
        assert!(
            error.contains("GB are free; make room, or name another place with --venv"),
            "{error}"
        );
    }
}
