//! Makes `native/include/kvasir.h` out of `native/src`, and what follows from it: where its fields lie, as assertions for C
//! and for Rust. Headers of earlier versions are in `native/abi`, and what they promised has to hold.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::abi::{self, Abi};
use crate::command::{self, cargo, program};

/// The header.
pub(crate) const HEADER: &str = "native/include/kvasir.h";
/// Where the headers of versions are kept as they were: `kvasir-1.h`.
const EARLIER: &str = "native/abi";
/// The first of them.
pub(crate) const FIRST: &str = "native/abi/kvasir-1.h";
const LAYOUT_C: &str = "native/abi/layout.h";
const LAYOUT_RUST: &str = "native/src/layout.rs";
const MADE: &str = "Made from native/include/kvasir.h by `cargo xtask codegen`; do not edit.";

/// The files, each with its text as it has to be.
pub(crate) fn generate() -> Result<Vec<(&'static str, String)>> {
    let header = header()?;
    let current = abi::read(&header).with_context(|| format!("cannot read {HEADER} back"))?;
    let earlier = earlier(&command::root().join(EARLIER))?;
    check_earlier(&current, &earlier)?;
    Ok(vec![
        (LAYOUT_C, layout_c(&current)?),
        (LAYOUT_RUST, formatted(&layout_rust(&current, &earlier)?)?),
        (HEADER, header),
    ])
}

/// The checked-in header, read.
pub(crate) fn checked_in() -> Result<Abi> {
    abi::read(&fs::read_to_string(command::root().join(HEADER))?)
}

fn header() -> Result<String> {
    let crate_directory = command::root().join("xtask/header");
    let target = command::target().join("header");
    let mut build = cargo();
    build.args(["build", "--quiet", "--locked", "--manifest-path"]);
    build.arg(crate_directory.join("Cargo.toml"));
    build.arg("--target-dir").arg(&target).env_remove("RUSTFLAGS");
    command::run(&mut build).context("cannot build the maker of the header")?;
    let mut make = program(target.join("debug/kvasir-header"));
    make.arg(command::root().join("native"));
    Ok(command::output(&mut make)? + "\n")
}

/// The headers of versions, by version.
fn earlier(directory: &Path) -> Result<Vec<(u32, Abi)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let Some(version) = name
            .strip_prefix("kvasir-")
            .and_then(|rest| rest.strip_suffix(".h"))
        else {
            continue;
        };
        let version: u32 = version
            .parse()
            .with_context(|| format!("{name} names no version"))?;
        let abi = abi::read(&fs::read_to_string(&path)?).with_context(|| format!("cannot read {name}"))?;
        if abi.version()? != version {
            bail!("{EARLIER}/{name} says that it is of version {}", abi.version()?);
        }
        found.push((version, abi));
    }
    found.sort_by_key(|(version, _)| *version);
    Ok(found)
}

/// Whether programs that were compiled with an earlier header still work.
fn check_earlier(current: &Abi, earlier: &[(u32, Abi)]) -> Result<()> {
    for (version, old) in earlier {
        let faults = abi::broken(old, current);
        if !faults.is_empty() {
            bail!(
                "native/src breaks programs that were compiled with {EARLIER}/kvasir-{version}.h:\n  {}\nadd something new \
                 instead of changing what is there, or raise the number in SONAME (native/build.rs) and begin a new list",
                faults.join("\n  ")
            );
        }
    }
    let Some((last, old)) = earlier.last() else {
        bail!("{EARLIER} has no header of a version");
    };
    let version = current.version()?;
    if version == *last {
        let additions = abi::broken(current, old);
        if !additions.is_empty() {
            bail!(
                "native/src adds to version {last} of the interface, which is in {EARLIER}/kvasir-{last}.h:\n  {}\nraise \
                 KVASIR_ABI_VERSION in native/src/values.rs, and keep the header of a version that is given out there",
                additions.join("\n  ")
            );
        }
    } else if version != last + 1 {
        bail!("KVASIR_ABI_VERSION is {version}, the last one in {EARLIER} is {last}");
    }
    Ok(())
}

fn layout_c(abi: &Abi) -> Result<String> {
    let mut text = format!(
        "/* {MADE} */\n\n#include <kvasir.h>\n\n#ifdef __cplusplus\n#define KVASIR_ASSERT(holds) static_assert(holds, #holds)\n\
         #else\n#define KVASIR_ASSERT(holds) _Static_assert(holds, #holds)\n#endif\n"
    );
    for (name, (size, _), fields) in abi.layouts()? {
        write!(text, "\nKVASIR_ASSERT(sizeof(struct {name}) == {size});\n")?;
        for (field, offset) in fields {
            writeln!(
                text,
                "KVASIR_ASSERT(offsetof(struct {name}, {field}) == {offset});"
            )?;
        }
    }
    Ok(text)
}

fn layout_rust(abi: &Abi, earlier: &[(u32, Abi)]) -> Result<String> {
    let mut text = format!(
        "//! Sizes and offsets, as C compilers see them. No struct has padding.\n//!\n//! {MADE}\n\nuse std::mem::offset_of;\n\n\
         use crate::input::versioned;\nuse crate::options::*;\nuse crate::values::*;\n\n\
         // The size of each struct in the first version that had it.\nversioned! {{\n"
    );
    for (name, size) in abi.growing()? {
        let mut first = size;
        for (_, old) in earlier.iter().rev() {
            let known = old.growing()?.into_iter().find(|(old, _)| *old == name);
            first = known.map_or(first, |(_, size)| size);
        }
        writeln!(text, "    {name}: {first},")?;
    }
    text += "}\n";
    for (name, (size, align), fields) in abi.layouts()? {
        write!(text, "\nconst _: () = {{\n")?;
        writeln!(
            text,
            "    assert!(size_of::<{name}>() == {size} && align_of::<{name}>() == {align});"
        )?;
        for (field, offset) in fields {
            writeln!(text, "    assert!(offset_of!({name}, {field}) == {offset});")?;
        }
        text += "};\n";
    }
    Ok(text)
}

/// Rust code as the rest of the repository is formatted.
fn formatted(code: &str) -> Result<String> {
    let path = command::target().join("header/layout.rs");
    fs::write(&path, code).with_context(|| format!("cannot write {}", path.display()))?;
    let mut format = program("rustfmt");
    format.args(["--edition", "2024", "--config-path"]);
    command::run(format.arg(command::root()).arg(&path))?;
    Ok(fs::read_to_string(&path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u32, more: &str) -> Abi {
        abi::read(&format!(
            "#define KVASIR_ABI_VERSION {version}\ntypedef struct kvasir_a {{ uint32_t struct_size; uint32_t flags; {more} }} \
             kvasir_a;\n"
        ))
        .unwrap()
    }

    #[test]
    fn what_is_added_needs_a_new_version_and_what_breaks_is_refused() {
        let earlier = [(1, header(1, ""))];
        check_earlier(&header(1, ""), &earlier).unwrap();
        check_earlier(&header(2, "uint64_t more;"), &earlier).unwrap();
        for (current, fault) in [
            (header(1, "uint64_t more;"), "raise"),
            (header(3, "uint64_t more;"), "the last one in native/abi is 1"),
        ] {
            let error = check_earlier(&current, &earlier).unwrap_err().to_string();
            assert!(error.contains(fault), "{error}");
        }
        let later = [(1, header(1, "")), (2, header(2, "uint64_t more;"))];
        let error = check_earlier(&header(3, "uint64_t other;"), &later)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("kvasir-2.h") && error.contains("field 2 was"),
            "{error}"
        );
        assert!(check_earlier(&header(1, ""), &[]).is_err());
    }

    #[test]
    fn a_struct_keeps_the_size_that_it_had_first() {
        let earlier = [(1, header(1, "")), (2, header(2, "uint64_t more;"))];
        let text = layout_rust(&header(3, "uint64_t more; uint64_t still;"), &earlier).unwrap();
        assert!(text.contains("    kvasir_a: 8,\n"), "{text}");
        assert!(text.contains("size_of::<kvasir_a>() == 24"), "{text}");
    }
}
