//! Regenerates `src/wire/generated/` from `schema/`.
//!
//! `schema/kvasir.fbs` is the root: it includes the other files, and one Rust file with everything comes out. The
//! compiler is the pinned one of `xtask/flatc`; it is built when first needed, with cmake and a C++ compiler. The result
//! is checked in, so nobody else needs either.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::{self, cargo, program, works};
use crate::python::Environment;

/// Arguments of `cargo xtask codegen`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Change nothing; fail if the checked-in code is not what the schema gives
    #[arg(long)]
    pub(crate) check: bool,
}

const ROOT_SCHEMA: &str = "schema/kvasir.fbs";
const GENERATED: &str = "src/wire/generated";
const HEADER: &str = "// @generated from schema/*.fbs by `cargo xtask codegen`; do not edit.\n\n";

/// Regenerates the code, or with `check` compares it with what is checked in.
pub(crate) fn run(check: bool) -> Result<()> {
    let root = command::root();
    let fresh = command::target().join("codegen");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).with_context(|| format!("cannot empty {}", fresh.display()))?;
    }
    fs::create_dir_all(&fresh).with_context(|| format!("cannot make {}", fresh.display()))?;
    generate(&root, &fresh)?;
    let checked_in = root.join(GENERATED);
    if check {
        return compare(&fresh, &checked_in);
    }
    fs::create_dir_all(&checked_in).with_context(|| format!("cannot make {}", checked_in.display()))?;
    for name in names(&fresh)? {
        fs::copy(fresh.join(&name), checked_in.join(&name))
            .with_context(|| format!("cannot write {GENERATED}/{name}"))?;
        println!("{GENERATED}/{name}");
    }
    Ok(())
}

fn generate(root: &Path, directory: &Path) -> Result<()> {
    let schema = root.join(ROOT_SCHEMA);
    if !schema.exists() {
        bail!(
            "{} is not there; it has to include every other schema file",
            schema.display()
        );
    }
    let mut flatc = program(compiler()?);
    flatc.args(["--rust", "--gen-all", "-I"]).arg(root.join("schema"));
    flatc.arg("-o").arg(directory).arg(schema);
    command::run(&mut flatc)?;
    for name in names(directory)? {
        let path = directory.join(&name);
        let text = fs::read_to_string(&path)?;
        fs::write(&path, format!("{HEADER}{text}"))?;
        let mut format = program("rustfmt");
        format
            .args(["--edition", "2024", "--config-path"])
            .arg(command::root())
            .arg(&path);
        command::run(&mut format)?;
    }
    Ok(())
}

/// The path of the flatbuffers compiler, built if need be.
fn compiler() -> Result<PathBuf> {
    let crate_directory = command::root().join("xtask/flatc");
    if !works(program("c++").arg("--version")) {
        command::install_system_package("g++", "the flatbuffers compiler needs a C++ compiler to build")?;
    }
    let target = command::target().join("flatc");
    let mut build = cargo();
    build.args(["build", "--quiet", "--locked", "--release", "--manifest-path"]);
    build
        .arg(crate_directory.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target);
    build
        .env("CMAKE", cmake()?)
        .env("CMAKE_TOOLCHAIN_FILE", crate_directory.join("lean.cmake"));
    build.env_remove("RUSTFLAGS");
    command::run(&mut build).context("cannot build the flatbuffers compiler")?;
    Ok(target.join("release/kvasir-flatc"))
}

/// cmake: the system's, or one from the Python registry in a small environment of its own.
fn cmake() -> Result<PathBuf> {
    if works(program("cmake").arg("--version")) {
        return Ok("cmake".into());
    }
    let tools = Environment::ensure(&command::target().join("tools"))?;
    let cmake = tools.binary("cmake");
    if !works(program(&cmake).arg("--version")) {
        tools.pip_install(["cmake>=3.30,<5"])?;
    }
    Ok(cmake)
}

/// An error that lists every file in which two directories of generated code differ.
fn compare(fresh: &Path, checked_in: &Path) -> Result<()> {
    let mut all = names(fresh)?;
    if checked_in.exists() {
        // `mod.rs` is written by hand: it says which lints generated code is spared.
        all.extend(names(checked_in)?.into_iter().filter(|name| name != "mod.rs"));
    }
    all.sort();
    all.dedup();
    let read = |directory: &Path, name: &str| fs::read(directory.join(name)).ok();
    let drifted: Vec<&String> = all
        .iter()
        .filter(|name| read(fresh, name) != read(checked_in, name))
        .collect();
    if drifted.is_empty() {
        return Ok(());
    }
    bail!(
        "{GENERATED} is not what schema/ gives ({drifted:?}); run `cargo xtask codegen` and commit the result"
    )
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        directory
    }

    #[test]
    fn equal_code_is_no_drift() {
        let fresh = directory(&[("kvasir_generated.rs", "a")]);
        let checked_in = directory(&[("kvasir_generated.rs", "a"), ("mod.rs", "by hand")]);
        compare(fresh.path(), checked_in.path()).unwrap();
    }

    #[test]
    fn changed_missing_and_surplus_files_are_drift() {
        let fresh = directory(&[("same.rs", "a"), ("changed.rs", "new"), ("missing.rs", "b")]);
        let checked_in = directory(&[("same.rs", "a"), ("changed.rs", "old"), ("surplus.rs", "c")]);
        let error = compare(fresh.path(), checked_in.path()).unwrap_err().to_string();
        for name in ["changed.rs", "missing.rs", "surplus.rs"] {
            assert!(error.contains(name), "{error}");
        }
        assert!(!error.contains("same.rs"), "{error}");
    }
}
