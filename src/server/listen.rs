//! The socket path: who may have it, and when a name that is there may be taken away.
//!
//! A lock file beside the socket decides between servers. With the lock held, a socket that refuses connections is
//! the leftover of a dead one and is removed; anything else that is there stays, and the server does not start.

use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, socket};
use nix::sys::stat::{Mode, fchmod};

use super::config::MAX_SOCKET_PATH_BYTES;
use super::name_watch::Named;
use crate::shm::ShmError;
use crate::shm::lock_file::{LockAttempt, LockFile};

/// Why a server cannot have its path.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address structure has no room for it.
    #[error(
        "socket path {} has {bytes} bytes, the system allows {MAX_SOCKET_PATH_BYTES}; use a shorter path",
        path.display()
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// The directory is not there.
    #[error("socket path {}: directory {} does not exist; create it", path.display(), parent.display())]
    NoParent {
        /// The path.
        path: PathBuf,
        /// The directory.
        parent: PathBuf,
    },
    /// What should be the directory is something else.
    #[error("socket path {}: {} is not a directory", path.display(), parent.display())]
    ParentNotDirectory {
        /// The path.
        path: PathBuf,
        /// What is in its place.
        parent: PathBuf,
    },
    /// The path is a directory.
    #[error("socket path {} is a directory; name a file in it, for example {}/kvasir.sock", path.display(), path.display())]
    IsDirectory {
        /// The path.
        path: PathBuf,
    },
    /// The path is a file of another kind, which is not ours to remove.
    #[error("socket path {} exists and is not a socket; use another path, or remove it yourself", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A server that lives has it.
    #[error(
        "another server is running on {}{}; stop it first or use another path",
        path.display(),
        pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The path.
        path: PathBuf,
        /// The process, if it is known.
        pid: Option<u32>,
    },
    /// The lock file could not be used.
    #[error("lock file of the socket: {0}")]
    Lock(#[from] ShmError),
    /// Another call failed.
    #[error("socket path {}: {call}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The call.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A path that this process listens on, and the lock that says so.
#[derive(Debug)]
pub(crate) struct SocketName {
    path: PathBuf,
    /// Device and inode of the socket: a name that has become another file is not ours to remove.
    identity: (u64, u64),
    lock: LockFile,
}

/// Takes the path and listens on it, with access for this user only.
///
/// # Errors
/// [`ListenError`], with nothing changed except that a dead server's socket may be gone.
pub(crate) fn listen(path: &Path) -> Result<(UnixListener, SocketName), ListenError> {
    check_name(path)?;
    let failed = |call| {
        move |source| ListenError::Io {
            path: path.to_owned(),
            call,
            source,
        }
    };
    let lock = match LockFile::acquire(&lock_path(path))? {
        LockAttempt::Taken(lock) => lock,
        LockAttempt::Held { holder_pid } => {
            return Err(ListenError::InUse {
                path: path.to_owned(),
                pid: holder_pid,
            });
        }
    };
    match prepare(path).and_then(|()| bind_private(path).map_err(failed("bind"))) {
        Ok(listener) => {
            let named = fs::symlink_metadata(path).map_err(failed("stat"))?;
            let identity = (named.dev(), named.ino());
            let path = path.to_owned();
            Ok((listener, SocketName { path, identity, lock }))
        }
        Err(error) => {
            // The lock is still held, so nobody else has come to rely on a file made just now.
            let _ = lock.give_up();
            Err(error)
        }
    }
}

impl SocketName {
    /// The names that have to stay while the server lives.
    pub(super) fn names(&self) -> Vec<Named> {
        let socket = Named {
            what: "the socket",
            path: self.path.clone(),
            identity: self.identity,
        };
        let lock = self.lock.identity().ok().map(|identity| Named {
            what: "the socket's lock file",
            path: self.lock.path().to_owned(),
            identity,
        });
        std::iter::once(socket).chain(lock).collect()
    }

    /// Takes the socket's name away, so that no new client finds it. The lock stays.
    ///
    /// # Errors
    /// What the system said.
    pub(crate) fn remove_socket(&self) -> io::Result<()> {
        match fs::symlink_metadata(&self.path) {
            Ok(named) if (named.dev(), named.ino()) == self.identity => fs::remove_file(&self.path),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes both names away and gives up the lock: the next server may start.
    ///
    /// # Errors
    /// [`ListenError::Io`] or [`ListenError::Lock`].
    pub(crate) fn remove(self) -> Result<(), ListenError> {
        self.remove_socket().map_err(|source| ListenError::Io {
            path: self.path.clone(),
            call: "unlink",
            source,
        })?;
        Ok(self.lock.remove()?)
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// What can be said about a path without touching anything.
fn check_name(path: &Path) -> Result<(), ListenError> {
    let bytes = path.as_os_str().as_bytes().len();
    if bytes > MAX_SOCKET_PATH_BYTES {
        return Err(ListenError::TooLong {
            path: path.to_owned(),
            bytes,
        });
    }
    if path.is_dir() {
        return Err(ListenError::IsDirectory {
            path: path.to_owned(),
        });
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let (path, parent) = (path.to_owned(), parent.to_owned());
    match fs::metadata(&parent) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(ListenError::ParentNotDirectory { path, parent }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(ListenError::NoParent { path, parent }),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(ListenError::ParentNotDirectory { path, parent })
        }
        Err(source) => Err(ListenError::Io {
            path,
            call: "stat",
            source,
        }),
    }
}

/// With the lock held: removes what a dead server left, refuses everything else.
fn prepare(path: &Path) -> Result<(), ListenError> {
    let failed = |call| {
        move |source| ListenError::Io {
            path: path.to_owned(),
            call,
            source,
        }
    };
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("stat")(error)),
    };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket {
            path: path.to_owned(),
        });
    }
    let in_use = || ListenError::InUse {
        path: path.to_owned(),
        pid: None,
    };
    match probe(path) {
        // Something listens that does not take our lock; whatever it is, it lives.
        Ok(()) => Err(in_use()),
        // It listens, and more wait to be accepted than its queue holds.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(in_use()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed("unlink"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("connect")(error)),
    }
}

/// Connects without waiting: a listener whose queue is full would keep us for as long as it does not accept.
fn probe(path: &Path) -> io::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    Ok(connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?)
}

/// Binds with mode 0600 from the first moment: Linux takes the name's mode from the socket's own, so no mask of the
/// whole process has to be changed.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let socket = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    // A server that stops before it listens leaves a name that refuses connections, which is what stale means.
    nix::sys::socket::listen(&socket, Backlog::MAXCONN)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_socket_is_private_and_both_names_go_with_it() {
        let directory = directory();
        let path = directory.path().join("k.sock");
        let (_listener, name) = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(directory.path()), ["k.sock", "k.sock.lock"]);
        name.remove().unwrap();
        assert!(names(directory.path()).is_empty());
    }

    #[test]
    fn a_second_server_is_told_who_is_first() {
        let directory = directory();
        let path = directory.path().join("k.sock");
        let (_listener, name) = listen(&path).unwrap();
        match listen(&path).unwrap_err() {
            ListenError::InUse { pid, .. } => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other}"),
        }
        assert!(UnixStream::connect(&path).is_ok());
        drop(name);
    }

    #[test]
    fn only_a_socket_that_refuses_connections_is_stale() {
        let directory = directory();
        let path = directory.path().join("k.sock");
        drop(UnixListener::bind(&path).unwrap());
        let (_listener, name) = listen(&path).unwrap();
        name.remove().unwrap();

        // A listener that knows nothing of lock files.
        let foreign = UnixListener::bind(&path).unwrap();
        assert!(matches!(listen(&path), Err(ListenError::InUse { pid: None, .. })));
        assert!(UnixStream::connect(&path).is_ok());
        drop(foreign);
        assert_eq!(
            names(directory.path()),
            ["k.sock"],
            "no lock file is left by a refused start"
        );
    }

    #[test]
    fn what_is_not_a_socket_is_left_alone() {
        let directory = directory();
        let path = directory.path().join("notes.txt");
        fs::write(&path, "mine").unwrap();
        assert!(matches!(listen(&path), Err(ListenError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert!(matches!(
            listen(directory.path()),
            Err(ListenError::IsDirectory { .. })
        ));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(listen(&link), Err(ListenError::NotASocket { .. })));
        assert!(matches!(
            listen(&path.join("k.sock")),
            Err(ListenError::ParentNotDirectory { .. })
        ));
    }

    #[test]
    fn paths_that_cannot_be_bound_say_why() {
        let directory = directory();
        let long = directory.path().join("x".repeat(120));
        match listen(&long).unwrap_err() {
            ListenError::TooLong { bytes, .. } => assert_eq!(bytes, long.as_os_str().len()),
            other => panic!("{other}"),
        }
        let nowhere = directory.path().join("none/k.sock");
        assert!(matches!(listen(&nowhere), Err(ListenError::NoParent { .. })));
    }

    #[test]
    fn a_name_that_became_another_file_is_not_removed() {
        let directory = directory();
        let path = directory.path().join("k.sock");
        let (_listener, name) = listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        name.remove().unwrap();
        assert_eq!(names(directory.path()), ["k.sock"]);
    }
}
