//! Regenerates `src/wire/generated.rs` from `schema/`, and the C header from `native/src`.
//!
//! `schema/envelope.fbs` includes all other files, and one Rust file with everything comes out. What other languages
//! need is checked on the way: a verifier for what each side of a connection sends.
//! The compiler is the pinned one of `xtask/flatc`; it is built when first needed, with cmake and a C++ compiler.
//! The result is checked in, so nobody else needs either.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::{self, cargo, program, works};
use crate::header;
use crate::python::Environment;

/// Arguments of `cargo xtask codegen`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Change nothing; fail if the checked-in code is not what the schema gives
    #[arg(long)]
    pub(crate) check: bool,
}

const ROOT_SCHEMA: &str = "schema/envelope.fbs";
const GENERATED: &str = "src/wire/generated.rs";
/// The files with a root, and the function that a generator makes for roots only.
const ROOTS: [(&str, &str); 2] = [
    ("request", "VerifySizePrefixedRequestBuffer"),
    ("reply", "VerifySizePrefixedReplyBuffer"),
];
const HEADER: &str = "// @generated from schema/*.fbs by `cargo xtask codegen`; do not edit.\n\n";

/// Regenerates the code, or with `check` compares it with what is checked in.
pub(crate) fn run(check: bool) -> Result<()> {
    let mut files = vec![(GENERATED, generate()?)];
    files.extend(header::generate()?);
    for (name, fresh) in files {
        let checked_in = command::root().join(name);
        if check {
            compare(name, &fresh, fs::read_to_string(&checked_in).ok().as_deref())?;
            continue;
        }
        fs::write(&checked_in, fresh).with_context(|| format!("cannot write {name}"))?;
        println!("{name}");
    }
    Ok(())
}

/// The code that the schema gives, formatted like the rest of the repository.
fn generate() -> Result<String> {
    let root = command::root();
    let work = command::target().join("codegen");
    fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    let compiler = compiler()?;
    check_roots(&compiler, &work)?;
    let mut flatc = program(&compiler);
    flatc
        .args(["--rust", "--gen-all", "--filename-suffix", "", "-I"])
        .arg(root.join("schema"));
    flatc.arg("-o").arg(&work).arg(root.join(ROOT_SCHEMA));
    command::run(&mut flatc)?;
    let path = work.join("envelope.rs");
    let text = fs::read_to_string(&path).with_context(|| format!("flatc wrote no {}", path.display()))?;
    fs::write(&path, format!("{HEADER}{text}"))?;
    let mut format = program("rustfmt");
    format
        .args(["--edition", "2024", "--config-path"])
        .arg(&root)
        .arg(&path);
    command::run(&mut format)?;
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Whether C++, which has verifiers for roots only, gets one for each side's frames.
fn check_roots(compiler: &Path, work: &Path) -> Result<()> {
    let schema = command::root().join("schema");
    for (name, verifier) in ROOTS {
        let mut flatc = program(compiler);
        flatc.arg("--cpp").arg("-I").arg(&schema).arg("-o").arg(work);
        command::run(flatc.arg(schema.join(format!("{name}.fbs"))))?;
        let path = work.join(format!("{name}_generated.h"));
        let text = fs::read_to_string(&path).with_context(|| format!("flatc wrote no {}", path.display()))?;
        if !text.contains(verifier) {
            bail!("schema/{name}.fbs gives no {verifier}: it has no root_type");
        }
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
    // Unoptimized: that compiles sooner, and one run over a small schema is all it has to do.
    build.args(["build", "--quiet", "--locked", "--manifest-path"]);
    build
        .arg(crate_directory.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target);
    build
        .env("CMAKE", cmake()?)
        .env("CMAKE_TOOLCHAIN_FILE", crate_directory.join("lean.cmake"));
    build.env_remove("RUSTFLAGS");
    command::run(&mut build).context("cannot build the flatbuffers compiler")?;
    Ok(target.join("debug/kvasir-flatc"))
}

/// cmake: the system's, or one from the Python registry in a small environment of its own.
pub(crate) fn cmake() -> Result<PathBuf> {
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

/// An error that names the first line in which the checked-in code is not the fresh one.
fn compare(name: &str, fresh: &str, checked_in: Option<&str>) -> Result<()> {
    let advice = "run `cargo xtask codegen` and commit the result";
    let Some(checked_in) = checked_in else {
        bail!("{name} is not there; {advice}")
    };
    if fresh == checked_in {
        return Ok(());
    }
    let same = fresh
        .lines()
        .zip(checked_in.lines())
        .take_while(|(new, old)| new == old)
        .count();
    bail!(
        "{name} is not what its sources give, from line {} on; {advice}",
        same + 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_code_is_no_drift() {
        compare("x.rs", "a\nb\n", Some("a\nb\n")).unwrap();
    }

    #[test]
    fn drift_is_an_error_that_says_where() {
        let error = compare("x.rs", "a\nb\nc\n", Some("a\nx\nc\n"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("from line 2 on"), "{error}");
        let error = compare("x.rs", "a\nb\n", Some("a\n")).unwrap_err().to_string();
        assert!(error.contains("from line 2 on"), "{error}");
        assert!(
            compare("x.rs", "a\n", Some("a")).is_err(),
            "the end of the file counts"
        );
    }

    #[test]
    fn missing_code_is_drift() {
        assert!(
            compare("x.rs", "a\n", None)
                .unwrap_err()
                .to_string()
                .contains("not there")
        );
    }
}
