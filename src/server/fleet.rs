//! `--fleet-file`: several servers agree on a chunk size through a file that the first of them makes.
//!
//! The record is written and synchronised as a file without a name and then linked to its name, which fails if the
//! name is taken: whoever links first has decided, nobody ever sees half a record, and nothing is left behind by a
//! server that dies on the way. It is never changed; whoever wants another size removes it while no server runs.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::libc::{O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_TMPFILE};
use nix::unistd::{geteuid, linkat};

use crate::control::DomainId;
use crate::geometry::chunk::MAX_CHUNK_TOKENS;

/// First line of a record: what it is, and the version of what follows.
const HEADER: &str = "kvasir-fleet 1";
/// More than any record has.
const MAX_RECORD_BYTES: u64 = 256;

/// Why a record cannot be read, made or trusted.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// A path without a file name.
    #[error("fleet file {} does not name a file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A call failed.
    #[error("fleet file {}: {call}: {source}{}", path.display(), advice(source))]
    Io {
        /// The path.
        path: PathBuf,
        /// The call.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not one that a server of this user made.
    #[error(
        "fleet file {} is not a record that can be trusted: {what}; if no server of the fleet runs, remove it",
        path.display()
    )]
    Untrusted {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file system takes too long.
    #[error(
        "fleet file {}: its file system does not answer within {waited_ms} ms; try again, or use a local file system",
        path.display()
    )]
    NoAnswer {
        /// The path.
        path: PathBuf,
        /// How long it was waited for.
        waited_ms: u128,
    },
    /// Another server was faster, with another size.
    #[error(
        "fleet file {} holds chunks of {recorded} tokens, this server has selected {selected}; restart this server \
         to take the fleet's size, or remove the file while no server of the fleet runs",
        path.display()
    )]
    Differs {
        /// The path.
        path: PathBuf,
        /// The size in the record.
        recorded: u32,
        /// The size of this server.
        selected: u32,
    },
}

fn advice(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(nix::libc::ELOOP) => "; it must not be a symbolic link",
        Some(nix::libc::EOPNOTSUPP) => "; use a local file system, for example a directory under /run",
        _ => "",
    }
}

/// The record of one binding domain, or of a server with one size.
#[derive(Debug)]
pub(super) struct FleetFile {
    path: PathBuf,
    domain: Option<DomainId>,
}

impl FleetFile {
    /// The record of a domain is `PATH.` and the first half of its id in hex, beside the one without a domain.
    pub(super) fn new(path: &Path, domain: Option<&DomainId>) -> Result<Self, FleetError> {
        let named = path.file_name().is_some() && !path.as_os_str().is_empty();
        if !named {
            return Err(FleetError::NotAFile {
                path: path.to_owned(),
            });
        }
        let mut path = path.to_owned().into_os_string();
        if let Some(domain) = domain {
            path.push(".");
            path.push(hex(&domain[..16]));
        }
        Ok(Self {
            path: path.into(),
            domain: domain.copied(),
        })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The same, for errors.
    pub(super) fn place(&self) -> String {
        format!("fleet file {}", self.path.display())
    }

    /// The error when a question has taken too long.
    pub(super) fn no_answer(&self, waited: Duration) -> FleetError {
        FleetError::NoAnswer {
            path: self.path.clone(),
            waited_ms: waited.as_millis(),
        }
    }

    /// Checks that there is a place for a record.
    pub(super) fn check_place(&self) -> Result<(), FleetError> {
        let directory = self.directory();
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(O_DIRECTORY | O_CLOEXEC)
            .open(directory);
        opened.map(drop).map_err(self.failed("open its directory"))
    }

    /// The size in the record; none without a record.
    pub(super) fn read(&self) -> Result<Option<u32>, FleetError> {
        // Not blocking: the name may be a pipe's.
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)
            .open(&self.path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("open")(error)),
        };
        self.check_owner(&file)?;
        let mut text = Vec::new();
        file.take(MAX_RECORD_BYTES + 1)
            .read_to_end(&mut text)
            .map_err(self.failed("read"))?;
        self.parse(&text).map(Some)
    }

    /// Makes the record, or compares with the one that is there.
    pub(super) fn agree(&self, chunk_size: u32) -> Result<(), FleetError> {
        // Once more only if the record was removed between the two calls.
        for _ in 0..2 {
            if self.create(chunk_size)? {
                return Ok(());
            }
            match self.read()? {
                Some(recorded) if recorded == chunk_size => return Ok(()),
                Some(recorded) => {
                    return Err(FleetError::Differs {
                        path: self.path.clone(),
                        recorded,
                        selected: chunk_size,
                    });
                }
                None => {}
            }
        }
        Err(self.untrusted("it comes and goes".into()))
    }

    /// Links a new record to its name. False: the name is taken.
    fn create(&self, chunk_size: u32) -> Result<bool, FleetError> {
        let directory = self.directory();
        let mut file = OpenOptions::new()
            .write(true)
            .mode(0o600)
            .custom_flags(O_TMPFILE | O_CLOEXEC)
            .open(directory)
            .map_err(self.failed("make a file without a name"))?;
        file.write_all(self.text(chunk_size).as_bytes())
            .map_err(self.failed("write"))?;
        file.sync_all().map_err(self.failed("fsync"))?;
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = AtFlags::AT_SYMLINK_FOLLOW;
        match linkat(AT_FDCWD, unnamed.as_str(), AT_FDCWD, &self.path, flags) {
            Ok(()) => {}
            Err(nix::Error::EEXIST) => return Ok(false),
            Err(error) => return Err(self.failed("link")(error.into())),
        }
        // The record has decided already; a name that a power failure takes away decides nothing.
        let synchronised = File::open(directory).and_then(|directory| directory.sync_all());
        synchronised.map_err(self.failed("fsync of its directory"))?;
        Ok(true)
    }

    fn directory(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    /// Asked of the descriptor, so that it holds for what is read.
    fn check_owner(&self, file: &File) -> Result<(), FleetError> {
        let found = file.metadata().map_err(self.failed("fstat"))?;
        let (uid, mode, links) = (found.uid(), found.mode() & 0o7777, found.nlink());
        let what = if !found.is_file() {
            "it is not a regular file".to_owned()
        } else if uid != geteuid().as_raw() {
            format!("it belongs to user {uid}, this server runs as {}", geteuid())
        } else if mode & 0o077 != 0 {
            format!("its mode is {mode:04o}, others must have no access to it")
        } else if links != 1 {
            format!("it has {links} names instead of one")
        } else {
            return Ok(());
        };
        Err(self.untrusted(what))
    }

    fn text(&self, chunk_size: u32) -> String {
        format!(
            "{HEADER}\nchunk-size {chunk_size}\ndomain {}\n",
            self.domain_text()
        )
    }

    fn domain_text(&self) -> String {
        self.domain.map_or_else(|| "-".into(), |id| hex(&id))
    }

    fn parse(&self, bytes: &[u8]) -> Result<u32, FleetError> {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let [header, size, domain] = lines[..] else {
            return Err(self.untrusted(format!("{} bytes that are not three lines", bytes.len())));
        };
        if header != HEADER {
            return Err(self.untrusted(format!("its first line is not {HEADER:?}")));
        }
        if domain.strip_prefix("domain ") != Some(&self.domain_text()) {
            return Err(self.untrusted(format!(
                "it is another binding domain's, not that of domain {}",
                self.domain_text()
            )));
        }
        size.strip_prefix("chunk-size ")
            .and_then(|tokens| tokens.parse().ok())
            .filter(|tokens| *tokens > 0 && u64::from(*tokens) <= MAX_CHUNK_TOKENS)
            .ok_or_else(|| self.untrusted("its second line is not a chunk size".into()))
    }

    fn untrusted(&self, what: String) -> FleetError {
        FleetError::Untrusted {
            path: self.path.clone(),
            what,
        }
    }

    pub(super) fn failed(&self, call: &'static str) -> impl FnOnce(io::Error) -> FleetError + use<> {
        let path = self.path.clone();
        move |source| FleetError::Io { path, call, source }
    }
}

/// Bytes as hex digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
#[path = "tests/fleet.rs"]
mod tests;
