//! Reading and hashing files with several threads: each takes the next part of 64 MiB and reads it from front to back.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{io, thread};

use super::files::{Digest, FileKey, Found};
use super::lock::Turn;
use super::remembered::Remembered;
use super::{Stopped, WeightsError, check, pause, unreadable};

/// Context of a file's digest.
const FILE_CONTEXT: &str = "kvasir.weights.file.1";

/// Hashed by one thread. A part of every digest, so a change needs a new context.
pub(super) const PART_BYTES: u64 = 64 << 20;

/// Read at a time: large for a disk, small enough to be still in the core's cache when it is hashed.
const BUFFER_BYTES: u64 = 1 << 20;

/// A file that was changed this recently may be changed again without its times telling: kernels count them in ticks.
const TICK: Duration = Duration::from_millis(50);

/// The same for file systems that count seconds.
const COARSE_TICK: Duration = Duration::from_millis(2100);

/// One run over the files that have no digest yet.
pub(super) struct Reading<'a> {
    pub(super) memory: &'a Remembered,
    pub(super) cancelled: &'a AtomicBool,
    pub(super) turn: Option<&'a Turn>,
    pub(super) threads: usize,
}

/// A file that is being read. Its parts are hashed by any thread; the last one makes the digest of them.
struct Book {
    /// The first of the files that are this inode.
    file: usize,
    parts: Vec<OnceLock<[u8; 32]>>,
    left: AtomicUsize,
    digest: OnceLock<[u8; 32]>,
}

impl Reading<'_> {
    /// Gives every file without a digest one; how many bytes that took.
    pub(super) fn run(&self, files: &mut [Found]) -> Result<u64, Stopped> {
        self.let_ticks_pass(files)?;
        let mut books: Vec<Book> = Vec::new();
        let mut by_key: HashMap<FileKey, usize> = HashMap::new();
        for (at, file) in files.iter().enumerate().filter(|(_, file)| file.digest.is_none()) {
            // One inode under several names is read once.
            by_key.entry(file.key).or_insert_with(|| {
                let parts = file.key.size.div_ceil(PART_BYTES).max(1) as usize;
                books.push(Book {
                    file: at,
                    parts: (0..parts).map(|_| OnceLock::new()).collect(),
                    left: AtomicUsize::new(parts),
                    digest: OnceLock::new(),
                });
                books.len() - 1
            });
        }
        let read = self.hash(files, &books)?;
        for file in files.iter_mut().filter(|file| file.digest.is_none()) {
            file.digest = books[by_key[&file.key]].digest.get().copied().map(Digest::Own);
        }
        Ok(read)
    }

    fn hash(&self, files: &[Found], books: &[Book]) -> Result<u64, Stopped> {
        let parts = books
            .iter()
            .flat_map(|book| (0..book.parts.len()).map(move |part| (book, part)));
        let parts: Vec<(&Book, usize)> = parts.collect();
        let (next, read) = (AtomicUsize::new(0), AtomicU64::new(0));
        let failed: Mutex<Option<Stopped>> = Mutex::new(None);
        let work = || {
            let mut buffer = Vec::new();
            while let Some((book, part)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                match self.part(&files[book.file], book, *part, &mut buffer) {
                    Ok(bytes) => {
                        read.fetch_add(bytes, Ordering::Relaxed);
                    }
                    Err(stopped) => {
                        // The others end with the parts that they have begun.
                        next.store(parts.len(), Ordering::Relaxed);
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.get_or_insert(stopped);
                        return;
                    }
                }
            }
        };
        thread::scope(|scope| {
            for number in 1..self.threads.min(parts.len()) {
                let name = format!("kvasir-hash-{number}");
                // Without more threads this one does it alone.
                let _ = thread::Builder::new().name(name).spawn_scoped(scope, work);
            }
            work();
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(stopped) => Err(stopped),
            None => Ok(read.into_inner()),
        }
    }

    /// Hashes one part, and with the last one makes and remembers the file's digest.
    fn part(&self, file: &Found, book: &Book, part: usize, buffer: &mut Vec<u8>) -> Result<u64, Stopped> {
        let changed = || Stopped::Changed(file.path.clone());
        let open = File::open(&file.path).map_err(|error| unreadable(&file.path, error))?;
        let metadata = open.metadata().map_err(|error| unreadable(&file.path, error))?;
        if FileKey::of(&metadata) != file.key {
            return Err(changed());
        }
        let start = part as u64 * PART_BYTES;
        let end = file.key.size.min(start + PART_BYTES);
        let mut hasher = blake3::Hasher::new();
        let mut at = start;
        while at < end {
            check(self.cancelled)?;
            buffer.resize((end - at).min(BUFFER_BYTES) as usize, 0);
            match open.read_exact_at(buffer, at) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(changed()),
                Err(error) => return Err(unreadable(&file.path, error).into()),
            }
            hasher.update(buffer);
            at += buffer.len() as u64;
            if let Some(turn) = self.turn {
                turn.tell(buffer.len() as u64);
            }
        }
        let _ = book.parts[part].set(*hasher.finalize().as_bytes());
        if book.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let now = fs::metadata(&file.path).map_err(|error| unreadable(&file.path, error))?;
            if FileKey::of(&now) != file.key {
                return Err(changed());
            }
            let digest = file_digest(file.key.size, book.parts.iter().filter_map(OnceLock::get));
            let _ = book.digest.set(digest);
            if has_settled(&file.key) {
                self.memory.put(&file.key, &digest);
            }
        }
        Ok(end - start)
    }

    /// Waits until a change of a file that was written just now would show in its times.
    fn let_ticks_pass(&self, files: &[Found]) -> Result<(), WeightsError> {
        let fresh = files.iter().filter(|file| file.digest.is_none());
        let longest = fresh
            .map(|file| until_settled(&file.key))
            .max()
            .unwrap_or_default();
        if longest > COARSE_TICK {
            return Ok(()); // a clock that is wrong; such a file is not remembered
        }
        pause(longest, self.cancelled)
    }
}

/// The digest of a file of `size` bytes from those of its parts.
pub(super) fn file_digest<'a>(size: u64, parts: impl Iterator<Item = &'a [u8; 32]>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(FILE_CONTEXT);
    hasher.update(&size.to_le_bytes());
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

fn has_settled(key: &FileKey) -> bool {
    until_settled(key).is_zero()
}

/// How long until the tick in which this file was changed is certainly over.
fn until_settled(key: &FileKey) -> Duration {
    let tick = if key.is_coarse() { COARSE_TICK } else { TICK };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let changed = Duration::from_nanos(key.changed_ns().max(0) as u64);
    (changed + tick).saturating_sub(now)
}
