//! Programs and disk space, looked at before something is fetched or compiled for minutes.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::command::{self, output, program, works};

/// What the checks and tests take in `target` besides the vLLM environment: debug and release builds and loom.
const TARGET_BYTES: u64 = 6_000_000_000;

/// A program: how it is asked, and its name with how to get it.
type Needed = (&'static [&'static str], &'static str);

/// Programs that the checks call and that a toolchain may lack.
const PROGRAMS: [Needed; 3] = [
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

/// Programs that `cargo xtask install` calls: they make one object of the static library.
const OF_INSTALL: [Needed; 3] = [
    (
        &["ld", "--version"],
        "ld (Debian and Ubuntu: apt-get install binutils)",
    ),
    (
        &["objcopy", "--version"],
        "objcopy (Debian and Ubuntu: apt-get install binutils)",
    ),
    (
        &["ar", "--version"],
        "ar (Debian and Ubuntu: apt-get install binutils)",
    ),
];

/// Programs that the step `native` calls besides those.
const OF_NATIVE: [Needed; 7] = [
    (
        &["nm", "--version"],
        "nm (Debian and Ubuntu: apt-get install binutils)",
    ),
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
];

/// Refuses where a program is missing that `cargo xtask install` would call after minutes of compiling.
pub(crate) fn install() -> Result<()> {
    missing_of(&OF_INSTALL)
}

/// Refuses where a program is missing that some check would call minutes later; `native` says whether that step is one of them.
pub(crate) fn programs(native: bool) -> Result<()> {
    missing_of(&of_checks(native))
}

fn of_checks(native: bool) -> Vec<Needed> {
    let more: [&[Needed]; 2] = match native {
        true => [&OF_INSTALL, &OF_NATIVE],
        false => [&[], &[]],
    };
    [&PROGRAMS[..], more[0], more[1]].concat()
}

fn missing_of(programs: &[Needed]) -> Result<()> {
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
        let absent: Needed = (&["kvasir-no-such-program", "--version"], "one (get it)");
        let broken: Needed = (&["false"], "another");
        let error = missing_of(&[absent, (&["true"], "true"), broken])
            .unwrap_err()
            .to_string();
        assert_eq!(error, "missing on this machine: one (get it), another");
    }

    /// What `install.rs` and `native.rs` call by name is asked for beforehand, and in one list.
    #[test]
    fn programs_that_are_called_are_looked_for() {
        let (install, checks) = (&OF_INSTALL[..], of_checks(true));
        let named = |needed: &[Needed], name: &str| needed.iter().any(|(words, _)| words[0] == name);
        let called = |source: &'static str| {
            let code = source.split("#[cfg(test)]").next().unwrap_or_default();
            let calls = code.split("program(\"").skip(1);
            calls.filter_map(|rest| rest.split('"').next())
        };
        for name in called(include_str!("install.rs")) {
            assert!(named(install, name), "{name}");
        }
        // `timeout` is of every Linux.
        for name in called(include_str!("native.rs")).filter(|name| *name != "timeout") {
            assert!(named(&checks, name), "{name}");
        }
        assert!(
            ["cargo", "c++", "ld", "gcc"]
                .iter()
                .all(|name| named(&checks, name))
        );
        assert!(!named(&of_checks(false), "gcc"));
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
