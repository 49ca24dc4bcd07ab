//! Digests of files that were read once, in a directory of this user alone.
//!
//! An entry is a file of 128 bytes named by device and inode: magic, key of the file, digest, sum of all that. It appears
//! by a rename, so it is whole or not there. Entries and directory count only if this user owns them and nobody else can
//! write to them; one that is damaged, or tells of another state of its file, is as if it were not there.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use std::{env, process};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use super::files::FileKey;

/// What of the cache directory is ours; a new form of entries gets another number.
const PLACE: &str = "weights-1";

const MAGIC: [u8; 8] = *b"kvasirW1";
const SUMMED_BYTES: usize = 8 + FileKey::BYTES + 32;
const ENTRY_BYTES: usize = SUMMED_BYTES + 32;
const SUM_CONTEXT: &str = "kvasir.weights.entry.1";

/// Entries that are kept; beyond that the oldest half goes. Each is one page of disk.
const ENTRIES_MAX: usize = 16_384;

/// A temporary file of this age belongs to a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Bits of a mode with which others can write.
const OTHERS_WRITE: u32 = 0o022;

/// `KVASIR_CACHE_DIR`, or else `kvasir` below `XDG_CACHE_HOME` or `~/.cache`. `None`: there is no such place.
pub fn default_cache_dir() -> Option<PathBuf> {
    let set = |name: &str| {
        env::var_os(name)
            .filter(|value: &OsString| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(chosen) = set("KVASIR_CACHE_DIR") {
        return Some(chosen);
    }
    // Relative ones are to be ignored, as their specification says.
    let base = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    base.or_else(|| set("HOME").map(|home| home.join(".cache")))
        .map(|base| base.join("kvasir"))
}

/// The remembered digests, or nothing where they cannot be kept.
pub(super) struct Remembered {
    place: Option<PathBuf>,
    problem: Mutex<Option<String>>,
    stored: AtomicU64,
}

impl Remembered {
    /// Makes the directory if need be. A place that cannot be used is a problem that is told, not an error.
    pub(super) fn open(cache_dir: Option<&Path>) -> Self {
        let opened = match cache_dir {
            None => Err("there is no cache directory (set KVASIR_CACHE_DIR or kvasir.cache_dir)".to_owned()),
            Some(dir) => {
                usable(dir).map_err(|error| format!("the cache directory {} {error}", dir.display()))
            }
        };
        let (place, problem) = match opened {
            Ok(place) => (Some(place), None),
            Err(problem) => (None, Some(problem)),
        };
        Self {
            place,
            problem: Mutex::new(problem),
            stored: AtomicU64::new(0),
        }
    }

    /// Why something is not remembered, if so.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The digest of the file in exactly this state.
    pub(super) fn get(&self, key: &FileKey) -> Option<[u8; 32]> {
        let bytes = read_entry(&self.place.as_ref()?.join(entry_name(key)))?;
        let (summed, sum) = bytes.split_at(SUMMED_BYTES);
        let (head, digest) = summed.split_at(SUMMED_BYTES - 32);
        let fits = head == head_of(key) && sum == sum_of(summed);
        fits.then(|| digest.try_into().ok()).flatten()
    }

    /// Remembers it, in place of what was known of that inode.
    pub(super) fn put(&self, key: &FileKey, digest: &[u8; 32]) {
        let Some(place) = &self.place else { return };
        let number = self.stored.fetch_add(1, Ordering::Relaxed);
        let temporary = place.join(format!(".{}-{number}-{:x}.tmp", process::id(), key.inode));
        let mut bytes = head_of(key).to_vec();
        bytes.extend_from_slice(digest);
        let sum = sum_of(&bytes);
        bytes.extend_from_slice(&sum);
        let written =
            write_new(&temporary, &bytes).and_then(|()| fs::rename(&temporary, place.join(entry_name(key))));
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            let mut problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
            problem.get_or_insert_with(|| {
                format!("cannot write to the cache directory {}: {error}", place.display())
            });
        } else if number == 0 {
            prune(place);
        }
    }

    /// A file of this name to lock.
    pub(super) fn lock_file(&self, name: &str) -> Option<File> {
        let path = self.place.as_ref()?.join(name);
        let file = owner_only()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .ok()?;
        is_ours(&file.metadata().ok()?).then_some(file)
    }
}

/// The place for entries below `dir`, made for this user alone.
fn usable(dir: &Path) -> Result<PathBuf, String> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| format!("cannot be made: {error}"))?;
    let place = dir.join(PLACE);
    match DirBuilder::new().mode(0o700).create(&place) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(format!("cannot be used: {error}"));
        }
        _ => {}
    }
    for path in [dir, &place] {
        // The directory itself may be a link of this user's; what is in it may not.
        let looked = if path == dir {
            fs::metadata(path)
        } else {
            fs::symlink_metadata(path)
        };
        let metadata = looked.map_err(|error| format!("cannot be used: {error}"))?;
        let (owner, own) = (metadata.uid(), geteuid().as_raw());
        if !metadata.is_dir() {
            return Err(format!("cannot be used: {} is no directory", path.display()));
        }
        if owner != own || metadata.mode() & OTHERS_WRITE != 0 {
            return Err(format!(
                "is not trusted: {} belongs to user {owner} and has mode {:o}; it has to belong to user {own}, and nobody \
                 else may write to it",
                path.display(),
                metadata.mode() & 0o7777
            ));
        }
    }
    Ok(place)
}

fn is_ours(metadata: &fs::Metadata) -> bool {
    metadata.is_file() && metadata.uid() == geteuid().as_raw() && metadata.mode() & OTHERS_WRITE == 0
}

/// Neither follows a link nor waits for a pipe that lies where an entry should.
fn owner_only() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    options.mode(0o600).custom_flags(flags.bits());
    options
}

fn read_entry(path: &Path) -> Option<[u8; ENTRY_BYTES]> {
    let mut file = owner_only().read(true).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !is_ours(&metadata) || metadata.len() != ENTRY_BYTES as u64 {
        return None;
    }
    let mut bytes = [0; ENTRY_BYTES];
    file.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    owner_only()
        .write(true)
        .create_new(true)
        .open(path)?
        .write_all(bytes)
}

fn entry_name(key: &FileKey) -> String {
    format!("{:x}-{:x}", key.device, key.inode)
}

fn head_of(key: &FileKey) -> [u8; SUMMED_BYTES - 32] {
    let mut head = [0; SUMMED_BYTES - 32];
    head[..MAGIC.len()].copy_from_slice(&MAGIC);
    head[MAGIC.len()..].copy_from_slice(&key.encode());
    head
}

fn sum_of(bytes: &[u8]) -> [u8; 32] {
    blake3::derive_key(SUM_CONTEXT, bytes)
}

/// Removes what killed processes left, and the oldest entries where there are too many.
fn prune(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else { return };
    let mut kept: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in entries.flatten() {
        let Some(written) = entry
            .metadata()
            .ok()
            .and_then(|metadata| metadata.modified().ok())
        else {
            continue;
        };
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".tmp") {
            if written.elapsed().is_ok_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(entry.path());
            }
        } else if !name.ends_with(".lock") {
            kept.push((written, entry.path()));
        }
    }
    if kept.len() > ENTRIES_MAX {
        kept.sort();
        for (_, path) in kept.iter().take(kept.len() - ENTRIES_MAX / 2) {
            let _ = fs::remove_file(path);
        }
    }
}
