//! `cargo xtask install`: the C header and its libraries, as others find them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::{self, cargo, program};
use crate::{header, needs};

/// Arguments of `cargo xtask install`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where to install: include/, lib/, lib/pkgconfig/ and lib/cmake/ below this directory
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// The profile to build with
    #[arg(long, default_value = "release")]
    profile: String,
}

/// Files that are copied with the version put in, and where to.
const TEMPLATES: [(&str, &str); 3] = [
    ("native/kvasir.pc.in", "lib/pkgconfig/kvasir.pc"),
    (
        "native/cmake/kvasir-config.cmake",
        "lib/cmake/kvasir/kvasir-config.cmake",
    ),
    (
        "native/cmake/kvasir-config-version.cmake",
        "lib/cmake/kvasir/kvasir-config-version.cmake",
    ),
];

/// Builds and installs.
pub(crate) fn run(options: &Options) -> Result<()> {
    needs::install()?;
    let prefix = std::path::absolute(&options.prefix)?;
    for path in into(&prefix, &options.profile)? {
        println!("{}", path.display());
    }
    Ok(())
}

/// Builds the libraries and installs everything below `prefix`. Returns what it wrote.
pub(crate) fn into(prefix: &Path, profile: &str) -> Result<Vec<PathBuf>> {
    let built = build(profile)?;
    let version = env!("CARGO_PKG_VERSION");
    let soname = soname()?;
    for directory in ["include", "lib/pkgconfig", "lib/cmake/kvasir"] {
        let path = prefix.join(directory);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    let mut written = Vec::new();
    let mut write = |name: &str, put: &dyn Fn(&Path) -> Result<()>| -> Result<()> {
        let path = prefix.join(name);
        // A library that a running program has mapped is replaced and not written over.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot replace {}", path.display()));
            }
            _ => {}
        }
        put(&path).with_context(|| format!("cannot install {}", path.display()))?;
        written.push(path);
        Ok(())
    };
    let copy = |from: PathBuf| move |to: &Path| fs::copy(&from, to).map(drop).map_err(Into::into);
    write("include/kvasir.h", &copy(command::root().join(header::HEADER)))?;
    let library = format!("libkvasir.so.{version}");
    write(&format!("lib/{library}"), &copy(built.join("libkvasir_c.so")))?;
    write(&format!("lib/{soname}"), &|to| Ok(symlink(&library, to)?))?;
    write("lib/libkvasir.so", &|to| Ok(symlink(&soname, to)?))?;
    write("lib/libkvasir.a", &|to| archive(&built.join("libkvasir_c.a"), to))?;
    for (from, to) in TEMPLATES {
        let text =
            fs::read_to_string(command::root().join(from)).with_context(|| format!("cannot read {from}"))?;
        let text = text.replace("@VERSION@", version).replace("@SONAME@", &soname);
        write(to, &|to| Ok(fs::write(to, &text)?))?;
    }
    Ok(written)
}

/// Builds the two libraries and returns their directory. Alone, since cargo unites the features of what it builds together.
fn build(profile: &str) -> Result<PathBuf> {
    let mut build = cargo();
    build.args([
        "build",
        "--package",
        "kvasir-native",
        "--lib",
        "--locked",
        "--profile",
        profile,
    ]);
    command::run(&mut build)?;
    let directory = if profile == "dev" { "debug" } else { profile };
    Ok(command::target().join(directory))
}

/// The name that programs ask the loader for.
fn soname() -> Result<String> {
    let script = command::root().join("native/build.rs");
    let text = fs::read_to_string(&script).with_context(|| format!("cannot read {}", script.display()))?;
    let name = text
        .split_once("const SONAME: &str = \"")
        .and_then(|(_, rest)| rest.split_once('"'));
    match name {
        Some((name, _)) => Ok(name.to_owned()),
        None => bail!("{} has no SONAME", script.display()),
    }
}

/// Makes a static library of one object whose only global symbols are those of the header. Rust's own has all symbols of the
/// client and of the standard library, which would clash with those of any other Rust library in the program. It also
/// has bitcode of the standard library, which other compilers' tools cannot read.
fn archive(from: &Path, to: &Path) -> Result<()> {
    let object = command::target().join("native-object.o");
    let mut link = program("ld");
    link.args(["-r", "--whole-archive"]).arg(from);
    command::run(link.arg("-o").arg(&object))?;
    let mut localize = program("objcopy");
    localize.args(["--wildcard", "--keep-global-symbol=kvasir_*"]);
    localize.args(["--remove-section=.llvmbc", "--remove-section=.llvmcmd"]);
    command::run(localize.arg(&object))?;
    let mut archive = program("ar");
    archive.arg("rcs").arg(to);
    command::run(archive.arg(&object))?;
    Ok(fs::remove_file(&object)?)
}
