//! What is at a path where a server's socket is looked for.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::{fs, io};

use nix::errno::Errno;
use nix::unistd::geteuid;

/// Why nobody could be reached at `path`, after a `connect` to it failed with `error`: what is there instead, and what
/// to do. The text has the path only where the reason is about another one.
pub(crate) fn why_not(path: &Path, error: Errno) -> String {
    let own = geteuid().as_raw();
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => "it is a directory; name the socket in it".into(),
        Ok(found) if found.is_file() => {
            "it is a regular file, not a socket; name the socket of a kvasir serve".into()
        }
        Ok(found) if !found.file_type().is_socket() => {
            "it is not a socket; name the socket of a kvasir serve".into()
        }
        Ok(_) if error == Errno::EPROTOTYPE => {
            "it is a socket of another kind than a Kvasir server's; name the socket of a kvasir serve".into()
        }
        Ok(found) if found.uid() != own && matches!(error, Errno::EACCES | Errno::EPERM) => format!(
            "it is a socket of uid {}, and this process is uid {own}; run a server of your own",
            found.uid()
        ),
        Ok(_) if error == Errno::ECONNREFUSED => {
            "nobody listens on it, its server is gone; start one with kvasir serve".into()
        }
        Ok(_) => error.desc().into(),
        Err(missing) => why_not_there(path, &missing, error),
    }
}

/// The same where not even the name can be looked at.
fn why_not_there(path: &Path, missing: &io::Error, error: Errno) -> String {
    if fs::symlink_metadata(path).is_ok() {
        return "it is a link to nothing".into();
    }
    let shown = |path: &Path| path.display().to_string();
    // The first directory on the way that cannot be passed is the reason.
    let above: Vec<&Path> = path.ancestors().skip(1).collect();
    for directory in above
        .into_iter()
        .rev()
        .filter(|above| !above.as_os_str().is_empty())
    {
        match fs::metadata(directory) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return format!("{} is not a directory", shown(directory)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return format!("the directory {} does not exist", shown(directory));
            }
            Err(error) => return format!("the directory {} cannot be entered: {error}", shown(directory)),
        }
    }
    match missing.kind() {
        io::ErrorKind::NotFound => "nothing is there; start a server with kvasir serve".into(),
        io::ErrorKind::PermissionDenied => match path.parent() {
            Some(parent) => format!("the directory {} may not be entered by this user", shown(parent)),
            None => error.desc().into(),
        },
        _ => error.desc().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use super::*;

    #[test]
    fn what_is_there_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "x").unwrap();
        drop(UnixListener::bind(at("dead")).unwrap());
        let _datagram = UnixDatagram::bind(at("datagram")).unwrap();
        std::os::unix::fs::symlink(at("nowhere"), at("link")).unwrap();
        for (name, error, says) in [
            ("file", Errno::ECONNREFUSED, "a regular file"),
            ("", Errno::ECONNREFUSED, "a directory"),
            ("dead", Errno::ECONNREFUSED, "nobody listens"),
            ("datagram", Errno::EPROTOTYPE, "another kind"),
            ("link", Errno::ENOENT, "a link to nothing"),
            ("none", Errno::ENOENT, "nothing is there"),
            ("file/k.sock", Errno::ENOTDIR, "is not a directory"),
        ] {
            let text = why_not(&at(name), error);
            assert!(text.contains(says), "{name}: {text}");
        }
        // The highest directory that is missing, not the last.
        let text = why_not(&at("one/two/k.sock"), Errno::ENOENT);
        assert!(
            text.contains(&format!("{} does not exist", at("one").display())),
            "{text}"
        );
    }
}
