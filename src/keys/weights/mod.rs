//! What a set of weights *is*: a digest of every byte that an engine may load, found once and remembered.
//!
//! ```text
//! identity = derive_key("kvasir.weights.2", record(overrides) || for every file by name: record(name) || kind || digest)
//! kind 0     digest = derive_key("kvasir.weights.file.1", size || BLAKE3(part 0) || BLAKE3(part 1) ...), parts of 64 MiB
//! kind 1     digest = SHA-256 as the hub names the file
//! ```
//!
//! A model is a directory, or a file with the other parts of a split one. Adapters are found out the same way.
//! The only place of `keys` that does I/O; nothing here belongs on a thread that serves requests, except
//! [`weights_stamp`], [`weights_shape`] and [`remembered_weights`], which look at directories only.

mod digest;
mod files;
mod hub;
mod lock;
mod remembered;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{io, thread};

use digest::Reading;
use files::Found;
use remembered::Remembered;

pub use remembered::default_cache_dir;

/// Context of the identity. A change of what is read or how it is encoded needs a new number here.
const WEIGHTS_CONTEXT: &str = "kvasir.weights.2";

/// Context of the stamp.
const STAMP_CONTEXT: &str = "kvasir.weights.stamp.1";

/// Context of the shape.
const SHAPE_CONTEXT: &str = "kvasir.weights.shape.1";

/// How often files are hashed anew because they changed meanwhile.
const ATTEMPTS: u32 = 3;

/// Between two attempts: what writes them may be done by then.
const ATTEMPT_PAUSE: Duration = Duration::from_secs(1);

/// Fewer bytes than these are hashed without asking whether another process does it.
const SHARED_BYTES: u64 = 32 << 20;

/// Threads that hash, unless the caller says how many.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;

/// How to find an identity.
#[derive(Debug, Clone, Default)]
pub struct WeightsOptions {
    /// What the engine's flags change about the model, in any stable form.
    pub overrides: String,
    /// Where digests are remembered; see [`default_cache_dir`]. Without it every call reads everything.
    pub cache_dir: Option<PathBuf>,
    /// Threads that read and hash; 0: half of the machine's, from 2 to 8.
    pub threads: usize,
}

/// What was found out about a set of weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsIdentity {
    /// The identity.
    pub digest: [u8; 32],
    /// The files as they were: equal stamps are the same files, unchanged.
    pub stamp: WeightsStamp,
    /// How many files it covers.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// How many of those were read for it; the others were remembered, or named by the hub.
    pub bytes_read: u64,
    /// Why nothing can be remembered, if so: the next start then reads everything again.
    pub forgetful: Option<String>,
}

/// A set of files at a moment: their names, inodes, sizes and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightsStamp {
    /// Digest of all that.
    pub digest: [u8; 32],
    /// When one of them was changed last by the kernel's own account (ctime), in nanoseconds since 1970. It cannot be
    /// set back.
    pub newest_change_ns: i64,
}

/// Why weights have no identity.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file or directory cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// The kernel's word.
        source: io::Error,
    },
    /// There is nothing that looks like weights.
    #[error(
        "{0}: no file of weights (*.safetensors, *.bin, *.pt, *.gguf, ...) here: set kvasir.weights_id instead"
    )]
    NoWeights(PathBuf),
    /// More than a model has.
    #[error(
        "{path} holds more than {limit} {what}, which is no model's directory: give the model one of its own, or set \
         kvasir.weights_id"
    )]
    TooMany {
        /// The directory.
        path: PathBuf,
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// Somebody writes to them.
    #[error("{path} changed while it was read, {attempts} times: start the engine again when it is complete")]
    Changing {
        /// The file.
        path: PathBuf,
        /// How often it was read.
        attempts: u32,
    },
    /// The caller no longer wants to know.
    #[error("given up")]
    Cancelled,
}

impl WeightsError {
    /// The kind of the I/O error behind it, if there is one.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Unreadable { source, .. } => Some(source.kind()),
            _ => None,
        }
    }
}

/// Identity of the weights at `path`, by every byte of every file that an engine may load: reads what is neither
/// remembered nor named by the hub, with several threads, which takes as long as reading the model does.
///
/// One process of a machine reads at a time, and the others take over what it has remembered.
///
/// # Errors
/// [`WeightsError`]; nothing is remembered of a file that could not be read whole, or that changed meanwhile.
pub fn identify_weights(
    path: &Path,
    options: &WeightsOptions,
    cancelled: &AtomicBool,
) -> Result<WeightsIdentity, WeightsError> {
    let memory = Remembered::open(options.cache_dir.as_deref());
    let mut attempt = 1;
    loop {
        match attempt_identity(path, options, &memory, cancelled) {
            Err(Stopped::Changed(_)) if attempt < ATTEMPTS => {
                attempt += 1;
                pause(ATTEMPT_PAUSE, cancelled)?;
            }
            Err(Stopped::Changed(path)) => {
                return Err(WeightsError::Changing {
                    path,
                    attempts: attempt,
                });
            }
            Err(Stopped::Error(error)) => return Err(error),
            Ok(identity) => return Ok(identity),
        }
    }
}

/// The identity of the weights at `path`, with everything read by this call and nothing remembered.
///
/// # Errors
/// As [`identify_weights`].
pub fn weights_identity(path: &Path, overrides: &str) -> io::Result<[u8; 32]> {
    let options = WeightsOptions {
        overrides: overrides.to_owned(),
        ..WeightsOptions::default()
    };
    let found = identify_weights(path, &options, &AtomicBool::new(false));
    found.map(|found| found.digest).map_err(|error| {
        let kind = error.io_kind().unwrap_or(io::ErrorKind::Other);
        io::Error::new(kind, error)
    })
}

/// The same as [`identify_weights`] if it takes no reading: all digests are remembered or named by the hub. `None`: some are not.
///
/// # Errors
/// The files cannot be looked at.
pub fn remembered_weights(
    path: &Path,
    options: &WeightsOptions,
) -> Result<Option<WeightsIdentity>, WeightsError> {
    let memory = Remembered::open(options.cache_dir.as_deref());
    let mut files = files::find(path)?;
    take_known(path, &mut files, &memory);
    Ok(identity_of(&files, options, &memory, 0))
}

/// The files of the weights at `path` as they are now. Looks at directories and inodes only.
///
/// # Errors
/// The files cannot be looked at.
pub fn weights_stamp(path: &Path) -> Result<WeightsStamp, WeightsError> {
    Ok(stamp_of(&files::find(path)?))
}

/// Names and sizes of the weights at `path`. Equal weights have equal shapes, and most others have not: enough to choose
/// a chunk size by, and there at once.
///
/// # Errors
/// The files cannot be looked at.
pub fn weights_shape(path: &Path, overrides: &str) -> Result<[u8; 32], WeightsError> {
    let mut hasher = blake3::Hasher::new_derive_key(SHAPE_CONTEXT);
    record(&mut hasher, overrides.as_bytes());
    for file in files::find(path)?.iter().filter(|file| file.weights) {
        record(&mut hasher, &file.name);
        hasher.update(&file.key.size.to_le_bytes());
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Why an attempt came to nothing.
enum Stopped {
    /// This file is no longer what it was.
    Changed(PathBuf),
    Error(WeightsError),
}

impl From<WeightsError> for Stopped {
    fn from(error: WeightsError) -> Self {
        Self::Error(error)
    }
}

fn attempt_identity(
    path: &Path,
    options: &WeightsOptions,
    memory: &Remembered,
    cancelled: &AtomicBool,
) -> Result<WeightsIdentity, Stopped> {
    let mut files = files::find(path)?;
    take_known(path, &mut files, memory);
    let mut read = 0;
    let missing = bytes_of(files.iter().filter(|file| file.digest.is_none()));
    // What small files cost is not worth a lock.
    let turn = if missing >= SHARED_BYTES {
        lock::turn(memory, path, cancelled)?
    } else {
        None
    };
    if turn.is_some() {
        // Who had the turn before may have read the same.
        take_known(path, &mut files, memory);
    }
    if files.iter().any(|file| file.digest.is_none()) {
        let reading = Reading {
            memory,
            cancelled,
            turn: turn.as_ref(),
            threads: threads(options.threads),
        };
        read = reading.run(&mut files)?;
    }
    drop(turn);
    // All of it at one moment: what was hashed first may have changed while the last was.
    let after = files::find(path)?;
    if let Some(changed) = first_difference(&files, &after) {
        return Err(Stopped::Changed(changed));
    }
    identity_of(&files, options, memory, read).ok_or_else(|| Stopped::Changed(path.to_path_buf()))
}

/// Digests that need no reading.
fn take_known(path: &Path, files: &mut [Found], memory: &Remembered) {
    for file in files.iter_mut().filter(|file| file.digest.is_none()) {
        file.digest = hub::digest_of(path, file)
            .map(files::Digest::Hub)
            .or_else(|| memory.get(&file.key).map(files::Digest::Own));
    }
}

/// The identity, once every file has a digest.
fn identity_of(
    files: &[Found],
    options: &WeightsOptions,
    memory: &Remembered,
    bytes_read: u64,
) -> Option<WeightsIdentity> {
    let mut hasher = blake3::Hasher::new_derive_key(WEIGHTS_CONTEXT);
    record(&mut hasher, options.overrides.as_bytes());
    for file in files {
        record(&mut hasher, &file.name);
        match file.digest? {
            files::Digest::Own(digest) => hasher.update(&[0]).update(&digest),
            files::Digest::Hub(digest) => hasher.update(&[1]).update(&digest),
        };
    }
    Some(WeightsIdentity {
        digest: *hasher.finalize().as_bytes(),
        stamp: stamp_of(files),
        files: files.len(),
        bytes: bytes_of(files.iter()),
        bytes_read,
        forgetful: memory.problem(),
    })
}

fn stamp_of(files: &[Found]) -> WeightsStamp {
    let mut hasher = blake3::Hasher::new_derive_key(STAMP_CONTEXT);
    for file in files {
        record(&mut hasher, &file.name);
        hasher.update(&file.key.encode());
    }
    WeightsStamp {
        digest: *hasher.finalize().as_bytes(),
        newest_change_ns: files.iter().map(|file| file.key.changed_ns()).max().unwrap_or(0),
    }
}

/// A file that is not the same in both.
fn first_difference(before: &[Found], after: &[Found]) -> Option<PathBuf> {
    let same = |(one, other): &(&Found, &Found)| one.name == other.name && one.key == other.key;
    let pairs = before.iter().zip(after);
    match pairs.clone().find(|pair| !same(pair)) {
        Some((one, _)) => Some(one.path.clone()),
        None if before.len() == after.len() => None,
        None => before
            .get(after.len())
            .or_else(|| after.get(before.len()))
            .map(|file| file.path.clone()),
    }
}

fn bytes_of<'a>(files: impl Iterator<Item = &'a Found>) -> u64 {
    files.map(|file| file.key.size).sum()
}

fn threads(chosen: usize) -> usize {
    if chosen > 0 {
        return chosen;
    }
    let machine = thread::available_parallelism().map_or(1, usize::from);
    (machine / 2).clamp(*THREADS.start(), *THREADS.end())
}

/// Waits, but no longer than the caller wants.
fn pause(time: Duration, cancelled: &AtomicBool) -> Result<(), WeightsError> {
    const SLICE: Duration = Duration::from_millis(20);
    let mut left = time;
    while !left.is_zero() {
        check(cancelled)?;
        let slice = left.min(SLICE);
        thread::sleep(slice);
        left -= slice;
    }
    check(cancelled)
}

fn check(cancelled: &AtomicBool) -> Result<(), WeightsError> {
    if cancelled.load(Ordering::Relaxed) {
        return Err(WeightsError::Cancelled);
    }
    Ok(())
}

/// One length-prefixed record.
fn record(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

fn unreadable(path: &Path, source: io::Error) -> WeightsError {
    WeightsError::Unreadable {
        path: path.to_path_buf(),
        source,
    }
}
