//! Where the socket is when nobody says.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{env, io};

use nix::unistd::geteuid;

const NAME: &str = "kvasir.sock";

/// The default path: in the user's runtime directory, else in a directory of the user's own in `/tmp`.
pub(super) fn default_path() -> PathBuf {
    let uid = geteuid();
    if let Some(directory) = env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()) {
        return PathBuf::from(directory).join(NAME);
    }
    let run = PathBuf::from(format!("/run/user/{uid}"));
    if run.is_dir() {
        return run.join(NAME);
    }
    fallback_directory().join(NAME)
}

fn fallback_directory() -> PathBuf {
    // An empty TMPDIR would name the current directory.
    let named = env::var_os("TMPDIR").filter(|value| !value.is_empty());
    named
        .map_or_else(|| PathBuf::from("/tmp"), PathBuf::from)
        .join(format!("kvasir-{}", geteuid()))
}

/// Makes the directory of the default path in `/tmp`, if that is where `path` is. Everybody can write to `/tmp`, so
/// a directory that is there already has to be this user's and closed to others.
pub(super) fn prepare_default(path: &Path) -> io::Result<()> {
    let directory = fallback_directory();
    if path.parent() != Some(&directory) {
        return Ok(());
    }
    match DirBuilder::new().mode(0o700).create(&directory) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(unusable(&directory, "cannot be made", &error)),
    }
    let found = fs::symlink_metadata(&directory)
        .map_err(|error| unusable(&directory, "cannot be looked at", &error))?;
    let own = found.is_dir() && found.uid() == geteuid().as_raw();
    if own && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} has to be a directory that only you can enter (mode 0700); remove it, or name a socket with --socket",
        directory.display()
    )))
}

/// The same error with the directory's name, and the cure.
fn unusable(directory: &Path, what: &str, error: &io::Error) -> io::Error {
    let text = format!(
        "the socket's directory {} {what}: {error}; name a socket with --socket, or set TMPDIR or XDG_RUNTIME_DIR to a \
         directory that exists",
        directory.display()
    );
    io::Error::new(error.kind(), text)
}
