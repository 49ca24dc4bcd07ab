//! Digests that the hub has already given a file: the SHA-256 by which it names large files.
//!
//! The hub's own tools leave them in two places, and write both after the file they tell of:
//!
//! ```text
//! CACHE/models--A--B/snapshots/COMMIT/FILE -> ../../blobs/SHA256          in its cache
//! DIR/.cache/huggingface/download/FILE.metadata: commit, SHA256, time     beside a download to a directory
//! ```
//!
//! They count as long as the file has not been changed since, by the kernel's own account. Small files go by another
//! hash there and are read.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::files::{FileKey, Found};

/// Longest record beside a download that is looked at.
const RECORD_BYTES_MAX: u64 = 4096;

/// Hex digits of a commit.
const COMMIT_DIGITS: usize = 40;

/// The file's SHA-256, where the hub's tools say it.
pub(super) fn digest_of(root: &Path, file: &Found) -> Option<[u8; 32]> {
    by_link(file).or_else(|| by_record(root, file))
}

fn by_link(file: &Found) -> Option<[u8; 32]> {
    let link = fs::symlink_metadata(&file.path).ok()?;
    if !link.is_symlink() || file.key.changed_ns() > changed_ns(&link) {
        return None;
    }
    let blob = fs::canonicalize(&file.path).ok()?;
    let digest = sha256(blob.file_name()?.as_bytes())?;
    let blobs = blob.parent()?;
    let repository = blobs.parent()?;
    if blobs.file_name()? != "blobs" {
        return None;
    }
    let place = fs::canonicalize(file.path.parent()?).ok()?;
    let inside = place.strip_prefix(repository).ok()?;
    let mut steps = inside.iter();
    let is_snapshot = steps.next()? == "snapshots" && is_hex(steps.next()?.as_bytes(), COMMIT_DIGITS);
    is_snapshot.then_some(digest)
}

fn by_record(root: &Path, file: &Found) -> Option<[u8; 32]> {
    let own = Path::new(std::ffi::OsStr::from_bytes(&file.name));
    // A link leads to a file that others may write under another name, of which the record does not tell.
    if file.name.is_empty() || !fs::symlink_metadata(&file.path).ok()?.is_file() {
        return None;
    }
    let mut path = root
        .join(".cache/huggingface/download")
        .join(own)
        .into_os_string();
    path.push(".metadata");
    let record = File::open(path).ok()?;
    let metadata = record.metadata().ok()?;
    if !metadata.is_file() || file.key.changed_ns() > changed_ns(&metadata) {
        return None;
    }
    let mut text = String::new();
    record.take(RECORD_BYTES_MAX).read_to_string(&mut text).ok()?;
    let mut lines = text.lines();
    is_hex(lines.next()?.as_bytes(), COMMIT_DIGITS).then_some(())?;
    sha256(lines.next()?.trim_matches('"').as_bytes())
}

fn changed_ns(metadata: &fs::Metadata) -> i64 {
    FileKey::of(metadata).changed_ns()
}

fn is_hex(text: &[u8], digits: usize) -> bool {
    text.len() == digits
        && text
            .iter()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte))
}

fn sha256(text: &[u8]) -> Option<[u8; 32]> {
    if !is_hex(text, 64) {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}
