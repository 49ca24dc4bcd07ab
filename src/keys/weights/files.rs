//! Which files make up a set of weights, and what tells a changed one.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{WeightsError, unreadable};

/// Files of weights by the end of their names, whatever the engine loads from them.
const WEIGHTS: [&str; 12] = [
    "bin",
    "ckpt",
    "gguf",
    "h5",
    "msgpack",
    "npy",
    "npz",
    "pkl",
    "pt",
    "pth",
    "safetensors",
    "tensors",
];

/// What decides what weights mean: configurations, indexes of shards, code of the model.
const MEANINGS: [&str; 5] = ["json", "py", "toml", "yaml", "yml"];

/// Files that change no KV value: prompts reach the cache as token ids, and a training's leftovers are not loaded.
const WITHOUT_INFLUENCE: [&str; 13] = [
    "added_tokens.json",
    "chat_template.json",
    "optimizer.bin",
    "optimizer.pt",
    "scaler.pt",
    "scheduler.pt",
    "special_tokens_map.json",
    "tekken.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "trainer_state.json",
    "training_args.bin",
    "vocab.json",
];

/// A directory beside the weights with the same ones in the form of their publisher. Engines leave it out.
const ORIGINAL: &str = "original";

/// Directories below one another.
const DEPTH_MAX: usize = 8;

/// Files of one model. The largest on the hub have a few hundred.
const FILES_MAX: usize = 16_384;

/// Entries of its directories, so that a model in somebody's home directory is refused in time.
const ENTRIES_MAX: usize = 262_144;

/// One file.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// What it is called below the model's directory.
    pub(super) name: Vec<u8>,
    pub(super) path: PathBuf,
    /// It holds weights, and not what they mean.
    pub(super) weights: bool,
    pub(super) key: FileKey,
    pub(super) digest: Option<Digest>,
}

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Digest {
    /// Hashed here.
    Own([u8; 32]),
    /// As the hub names it.
    Hub([u8; 32]),
}

/// A file's content at a moment, as far as the kernel tells: any write moves `ctime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FileKey {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileKey {
    pub(super) const BYTES: usize = 56;

    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Its bytes where it is remembered.
    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let words = [
            self.device,
            self.inode,
            self.size,
            self.modified.0 as u64,
            self.modified.1 as u64,
            self.changed.0 as u64,
            self.changed.1 as u64,
        ];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// When it was changed last, in nanoseconds since 1970.
    pub(super) fn changed_ns(&self) -> i64 {
        self.changed
            .0
            .saturating_mul(1_000_000_000)
            .saturating_add(self.changed.1)
    }

    /// Whether the file system may count whole seconds only.
    pub(super) fn is_coarse(&self) -> bool {
        self.changed.1 == 0
    }
}

/// The files of the weights at `path`, sorted by name.
pub(super) fn find(path: &Path) -> Result<Vec<Found>, WeightsError> {
    let metadata = fs::metadata(path).map_err(|error| unreadable(path, error))?;
    let mut files = if metadata.is_dir() {
        let mut walk = Walk {
            root: path,
            entries: 0,
            files: Vec::new(),
        };
        walk.directory(path, b"", &mut vec![(metadata.dev(), metadata.ino())])?;
        walk.files
    } else {
        single(path, &metadata)?
    };
    if !files.iter().any(|file| file.weights) {
        return Err(WeightsError::NoWeights(path.to_path_buf()));
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(files)
}

struct Walk<'a> {
    root: &'a Path,
    entries: usize,
    files: Vec<Found>,
}

impl Walk<'_> {
    /// `above`: the directories that this one lies in, itself included, so that a link to one of them ends the walk.
    fn directory(
        &mut self,
        path: &Path,
        prefix: &[u8],
        above: &mut Vec<(u64, u64)>,
    ) -> Result<(), WeightsError> {
        if above.len() > DEPTH_MAX {
            return Err(self.too_many("directories in one another", DEPTH_MAX));
        }
        for entry in fs::read_dir(path).map_err(|error| unreadable(path, error))? {
            let entry = entry.map_err(|error| unreadable(path, error))?;
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                return Err(self.too_many("directory entries", ENTRIES_MAX));
            }
            self.entry(&entry, prefix, above)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        entry: &fs::DirEntry,
        prefix: &[u8],
        above: &mut Vec<(u64, u64)>,
    ) -> Result<(), WeightsError> {
        let (own, path) = (entry.file_name(), entry.path());
        let kind = entry.file_type().map_err(|error| unreadable(&path, error))?;
        let weights = holds_weights(&own);
        let wanted = weights || holds_meaning(&own);
        // The kind decides whether it is worth a look: most files are neither weights nor directories.
        if own.as_bytes().starts_with(b".") || (kind.is_file() && !wanted) {
            return Ok(());
        }
        // Follows links: a hub's snapshot is a directory of links, and shards may lie on another disk.
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(_) if !wanted => return Ok(()),
            Err(error) => return Err(unreadable(&path, error)),
        };
        let name = [prefix, own.as_bytes()].concat();
        let place = (metadata.dev(), metadata.ino());
        if metadata.is_dir() && !is_left_out(&own) && !above.contains(&place) {
            above.push(place);
            self.directory(&path, &[&name, &b"/"[..]].concat(), above)?;
            above.pop();
        } else if metadata.is_file() && wanted {
            if self.files.len() == FILES_MAX {
                return Err(self.too_many("files", FILES_MAX));
            }
            self.files.push(found(name, path, weights, &metadata));
        }
        Ok(())
    }

    fn too_many(&self, what: &'static str, limit: usize) -> WeightsError {
        let path = self.root.to_path_buf();
        WeightsError::TooMany { path, what, limit }
    }
}

fn found(name: Vec<u8>, path: PathBuf, weights: bool, metadata: &Metadata) -> Found {
    let (key, digest) = (FileKey::of(metadata), None);
    Found {
        name,
        path,
        weights,
        key,
        digest,
    }
}

fn extension(name: &OsStr) -> Option<&str> {
    Path::new(name).extension()?.to_str()
}

fn has_influence(name: &OsStr) -> bool {
    !WITHOUT_INFLUENCE.iter().any(|other| name == *other) && !name.as_bytes().starts_with(b"rng_state")
}

fn holds_weights(name: &OsStr) -> bool {
    has_influence(name) && extension(name).is_some_and(|end| WEIGHTS.contains(&end))
}

fn holds_meaning(name: &OsStr) -> bool {
    has_influence(name) && extension(name).is_some_and(|end| MEANINGS.contains(&end))
}

/// Directories that no engine loads from: the publisher's own form, and a training's earlier states.
fn is_left_out(name: &OsStr) -> bool {
    let steps = name.as_bytes().strip_prefix(b"checkpoint-");
    name == ORIGINAL || steps.is_some_and(|steps| !steps.is_empty() && steps.iter().all(u8::is_ascii_digit))
}

/// A model that is one file: with the other parts if it is one of several, and a projector beside it. What it is called
/// says nothing, which part it is does.
fn single(path: &Path, metadata: &Metadata) -> Result<Vec<Found>, WeightsError> {
    let own = path.file_name().unwrap_or_default();
    let Some(split) = Split::of(own.as_bytes()) else {
        let mut files = vec![found(Vec::new(), path.to_path_buf(), true, metadata)];
        files.extend(beside(path, |name| {
            name.starts_with(b"mmproj").then(|| name.to_vec())
        })?);
        return Ok(files);
    };
    beside(path, |name| match Split::of(name) {
        Some(other) if (other.stem, other.of) == (split.stem, split.of) => Some(other.part.to_vec()),
        _ => name.starts_with(b"mmproj").then(|| name.to_vec()),
    })
}

/// Files of weights in the directory of `path` that `named` gives a name.
fn beside(path: &Path, named: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Result<Vec<Found>, WeightsError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut files = Vec::new();
    for (at, entry) in fs::read_dir(directory)
        .map_err(|error| unreadable(directory, error))?
        .enumerate()
    {
        if at == ENTRIES_MAX {
            let (path, what, limit) = (directory.to_path_buf(), "directory entries", ENTRIES_MAX);
            return Err(WeightsError::TooMany { path, what, limit });
        }
        let entry = entry.map_err(|error| unreadable(directory, error))?;
        let own = entry.file_name();
        if !holds_weights(&own) || entry.path() == path && Split::of(own.as_bytes()).is_none() {
            continue;
        }
        if let Some(name) = named(own.as_bytes()) {
            let path = entry.path();
            let metadata = fs::metadata(&path).map_err(|error| unreadable(&path, error))?;
            files.push(found(name, path, true, &metadata));
        }
    }
    Ok(files)
}

/// `STEM-00001-of-00003.gguf`.
struct Split<'a> {
    stem: &'a [u8],
    part: &'a [u8],
    of: &'a [u8],
}

impl<'a> Split<'a> {
    fn of(name: &'a [u8]) -> Option<Self> {
        const DIGITS: usize = 5;
        let rest = name.strip_suffix(b".gguf")?;
        let (rest, of) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
        let rest = rest.strip_suffix(b"-of-")?;
        let (rest, part) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
        let stem = rest.strip_suffix(b"-")?;
        let digits = [part, of].iter().all(|text| text.iter().all(u8::is_ascii_digit));
        digits.then_some(Self { stem, part, of })
    }
}
