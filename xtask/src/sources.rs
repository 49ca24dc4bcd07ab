//! The Rust files of a tree, read as tokens.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use proc_macro2::TokenStream;

/// One file.
pub(crate) struct Source {
    pub(crate) file: PathBuf,
    /// The module that it is: `src/pool/frames.rs` is `[pool, frames]`; the crate's roots are the empty path.
    pub(crate) module: Vec<String>,
    pub(crate) tokens: TokenStream,
}

/// Reads every Rust file below `src`, in the order of their names.
pub(crate) fn read(src: &Path) -> Result<Vec<Source>> {
    let mut files = Vec::new();
    rust_files(src, &mut files)?;
    files.sort();
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let tokens = TokenStream::from_str(&text)
            .map_err(|error| anyhow!("cannot read {} as Rust: {error}", file.display()))?;
        let module = module_path(src, &file);
        Ok(Source { file, module, tokens })
    };
    files.into_iter().map(read).collect()
}

fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

fn module_path(src: &Path, file: &Path) -> Vec<String> {
    let relative = file.strip_prefix(src).expect("the file was found under src");
    let mut path: Vec<String> = relative
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if path.last().is_some_and(|last| last == "mod") {
        path.pop();
    }
    if path.len() == 1 && matches!(path[0].as_str(), "lib" | "main") {
        path.clear();
    }
    path
}

/// A tree of made-up files for the tests of the checks.
#[cfg(test)]
pub(crate) fn made_up(files: &[(&str, &str)]) -> Vec<Source> {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    read(directory.path()).unwrap()
}
