use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};

use super::digest::{PART_BYTES, file_digest};
use super::*;

static NEVER: AtomicBool = AtomicBool::new(false);

/// Bytes in which no two places are alike.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new_derive_key("test noise")
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

fn model() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), br#"{"hidden_size":64}"#).unwrap();
    fs::write(dir.path().join("model-1.safetensors"), noise(1, 3 << 20)).unwrap();
    fs::write(dir.path().join("model-2.bin"), noise(2, 1000)).unwrap();
    dir
}

fn options(cache: Option<&Path>) -> WeightsOptions {
    WeightsOptions {
        cache_dir: cache.map(Path::to_path_buf),
        ..WeightsOptions::default()
    }
}

fn found(path: &Path, cache: Option<&Path>) -> WeightsIdentity {
    identify_weights(path, &options(cache), &NEVER).unwrap()
}

fn identity(path: &Path) -> [u8; 32] {
    weights_identity(path, "").unwrap()
}

fn flip(path: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0u8];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

fn entries(cache: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(cache.join("weights-1")).unwrap();
    let paths = all.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_none()).collect()
}

#[test]
fn equal_models_agree_wherever_they_lie() {
    assert_eq!(identity(model().path()), identity(model().path()));
    let (real, linked) = (model(), tempfile::tempdir().unwrap());
    for name in ["config.json", "model-1.safetensors", "model-2.bin"] {
        symlink(real.path().join(name), linked.path().join(name)).unwrap();
    }
    assert_eq!(identity(real.path()), identity(linked.path()));
}

/// Twelve tensors of a shard that is longer than a part, replaced one by one.
#[test]
fn every_replaced_tensor_is_seen() {
    const TENSOR: u64 = 40 << 10;
    let dir = model();
    let path = dir.path().join("model-1.safetensors");
    let size = PART_BYTES + (2 << 20);
    fs::write(&path, noise(3, size as usize)).unwrap();
    let mut seen = vec![identity(dir.path())];
    // Off every even division of the file, and one across the end of a part.
    let mut places: Vec<u64> = (0..11).map(|i| i * size / 11 + 333_333).collect();
    places.push(PART_BYTES - TENSOR / 2);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    for (number, place) in places.into_iter().enumerate() {
        let mut old = vec![0; TENSOR as usize];
        file.read_exact_at(&mut old, place).unwrap();
        file.write_all_at(&noise(100 + number as u64, TENSOR as usize), place)
            .unwrap();
        let now = identity(dir.path());
        assert!(!seen.contains(&now), "tensor {number} at {place}");
        seen.push(now);
        file.write_all_at(&old, place).unwrap();
    }
    assert_eq!(identity(dir.path()), seen[0]);
}

#[test]
fn a_single_byte_anywhere_counts() {
    let dir = model();
    let base = identity(dir.path());
    for (name, size) in [("model-1.safetensors", 3u64 << 20), ("model-2.bin", 1000)] {
        for offset in [0, 7, size / 3, size / 2 + 1, size - 1] {
            let path = dir.path().join(name);
            flip(&path, offset);
            assert_ne!(identity(dir.path()), base, "{name} at {offset}");
            flip(&path, offset);
        }
    }
    assert_eq!(identity(dir.path()), base);
}

/// The definition at the head of the module, by another way.
#[test]
fn the_digest_is_what_is_documented() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = noise(4, PART_BYTES as usize + 5);
    fs::write(dir.path().join("a.gguf"), &bytes).unwrap();
    let parts = bytes
        .chunks(PART_BYTES as usize)
        .map(|part| *blake3::hash(part).as_bytes());
    let parts: Vec<[u8; 32]> = parts.collect();
    let file = file_digest(bytes.len() as u64, parts.iter());
    let mut input = 2u64.to_le_bytes().to_vec();
    input.extend(b"fp");
    input.extend(6u64.to_le_bytes());
    input.extend(b"a.gguf\0");
    input.extend(file);
    let options = WeightsOptions {
        overrides: "fp".to_owned(),
        threads: 3,
        ..WeightsOptions::default()
    };
    let found = identify_weights(dir.path(), &options, &NEVER).unwrap();
    assert_eq!(found.digest, blake3::derive_key("kvasir.weights.2", &input));
    assert_eq!((found.files, found.bytes_read), (1, bytes.len() as u64));
}

#[test]
fn size_name_place_configuration_and_overrides_count() {
    let base = model();
    let mut seen = vec![identity(base.path())];
    let mut differs = |change: &dyn Fn(&Path)| {
        let dir = model();
        change(dir.path());
        let now = identity(dir.path());
        assert!(!seen.contains(&now));
        seen.push(now);
    };
    differs(&|dir| fs::write(dir.join("model-2.bin"), noise(2, 1001)).unwrap());
    differs(&|dir| fs::rename(dir.join("model-2.bin"), dir.join("model-3.bin")).unwrap());
    differs(&|dir| fs::write(dir.join("config.json"), br#"{"hidden_size":65}"#).unwrap());
    for name in [
        "quantize_config.json",
        "hf_quant_config.json",
        "model.safetensors.index.json",
        "params.json",
        "preprocessor_config.json",
        "modeling_tiny.py",
        "extra.pth",
        "adapter_config.json",
    ] {
        differs(&|dir| fs::write(dir.join(name), b"{}").unwrap());
    }
    differs(&|dir| {
        fs::create_dir(dir.join("encoder")).unwrap();
        fs::write(dir.join("encoder/model.safetensors"), b"{}").unwrap();
    });
    differs(&|dir| {
        let elsewhere = model();
        symlink(elsewhere.keep(), dir.join("projector")).unwrap();
    });
    let flags = WeightsOptions {
        overrides: "quantization=fp8".to_owned(),
        ..WeightsOptions::default()
    };
    let flagged = identify_weights(base.path(), &flags, &NEVER).unwrap();
    assert!(!seen.contains(&flagged.digest));
}

#[test]
fn what_changes_no_value_does_not_count() {
    let dir = model();
    let base = identity(dir.path());
    for name in [
        "README.md",
        "tokenizer.json",
        "tokenizer_config.json",
        "optimizer.pt",
        "rng_state_0.pth",
        ".gitattributes",
        "train.log",
    ] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    for name in ["original", "checkpoint-500", ".cache", "runs"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("events.out"), name).unwrap();
    }
    for name in ["original", "checkpoint-500", ".cache"] {
        fs::write(dir.path().join(name).join("model.bin"), name).unwrap();
    }
    symlink(dir.path(), dir.path().join("itself")).unwrap();
    symlink("nowhere", dir.path().join("dangling.txt")).unwrap();
    assert_eq!(identity(dir.path()), base);
}

#[test]
fn a_model_in_one_file_goes_by_its_content_and_its_other_parts() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, seed| fs::write(dir.path().join(name), noise(seed, 5000)).unwrap();
    write("tiny.gguf", 1);
    write("unrelated.gguf", 2);
    let one = identity(&dir.path().join("tiny.gguf"));
    write("unrelated.gguf", 3);
    assert_eq!(identity(&dir.path().join("tiny.gguf")), one);
    write("other.gguf", 1);
    assert_eq!(
        identity(&dir.path().join("other.gguf")),
        one,
        "its name says nothing"
    );
    flip(&dir.path().join("tiny.gguf"), 4000);
    assert_ne!(identity(&dir.path().join("tiny.gguf")), one);

    write("big-00001-of-00002.gguf", 4);
    write("big-00002-of-00002.gguf", 5);
    write("big-00003-of-00003.gguf", 6);
    let split = found(&dir.path().join("big-00001-of-00002.gguf"), None);
    assert_eq!(split.files, 2);
    flip(&dir.path().join("big-00003-of-00003.gguf"), 0);
    assert_eq!(
        found(&dir.path().join("big-00002-of-00002.gguf"), None).digest,
        split.digest
    );
    flip(&dir.path().join("big-00002-of-00002.gguf"), 0);
    assert_ne!(
        identity(&dir.path().join("big-00001-of-00002.gguf")),
        split.digest
    );
    write("mmproj-f16.gguf", 7);
    assert_eq!(found(&dir.path().join("big-00001-of-00002.gguf"), None).files, 3);
    assert_eq!(found(&dir.path().join("other.gguf"), None).files, 2);
}

#[test]
fn errors_name_the_path_and_the_cure() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), b"{}").unwrap();
    let error = identify_weights(dir.path(), &options(None), &NEVER).unwrap_err();
    assert!(error.to_string().contains("kvasir.weights_id"), "{error}");
    let error = identify_weights(&dir.path().join("nowhere"), &options(None), &NEVER).unwrap_err();
    assert_eq!(error.io_kind(), Some(io::ErrorKind::NotFound));
    assert!(error.to_string().contains("nowhere"), "{error}");
    symlink("gone", dir.path().join("model.safetensors")).unwrap();
    let error = identify_weights(dir.path(), &options(None), &NEVER).unwrap_err();
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    fs::write(dir.path().join("model.safetensors"), b"w").unwrap();
    let error = identify_weights(dir.path(), &options(None), &AtomicBool::new(true)).unwrap_err();
    assert!(matches!(error, WeightsError::Cancelled), "{error}");
}

// What is remembered

#[test]
fn a_second_start_reads_nothing_and_a_changed_file_alone_is_read_again() {
    let (dir, cache) = (model(), tempfile::tempdir().unwrap());
    let first = found(dir.path(), Some(cache.path()));
    assert_eq!((first.bytes_read, first.forgetful.clone()), (first.bytes, None));
    assert_eq!(
        remembered_weights(dir.path(), &options(Some(cache.path())))
            .unwrap()
            .map(|one| one.digest),
        Some(first.digest)
    );
    let again = found(dir.path(), Some(cache.path()));
    assert_eq!(
        (again.digest, again.stamp, again.bytes_read),
        (first.digest, first.stamp, 0)
    );
    assert_eq!(again.stamp, weights_stamp(dir.path()).unwrap());

    // Same size, and its time set back: the kernel's own account tells.
    let path = dir.path().join("model-2.bin");
    let before = fs::metadata(&path).unwrap();
    flip(&path, 500);
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(before.modified().unwrap())
        .unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mtime_nsec(), before.mtime_nsec());
    assert_eq!(
        remembered_weights(dir.path(), &options(Some(cache.path()))).unwrap(),
        None
    );
    let changed = found(dir.path(), Some(cache.path()));
    assert_ne!((changed.digest, changed.stamp), (first.digest, first.stamp));
    assert_eq!(changed.bytes_read, 1000);
    assert_eq!(changed.digest, identity(dir.path()));
    assert_eq!(entries(cache.path()).len(), 3, "one entry for each inode");
}

#[test]
fn a_damaged_entry_is_as_if_it_were_not_there() {
    let (dir, cache) = (model(), tempfile::tempdir().unwrap());
    let first = found(dir.path(), Some(cache.path()));
    let inode = fs::metadata(dir.path().join("model-2.bin")).unwrap().ino();
    let of_it = |path: &PathBuf| path.to_string_lossy().ends_with(&format!("-{inode:x}"));
    let entry = entries(cache.path()).into_iter().find(of_it).unwrap();
    let whole = fs::read(&entry).unwrap();
    assert_eq!(whole.len(), 128);
    let damages: Vec<Vec<u8>> = (0..whole.len())
        .map(|at| {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            damaged
        })
        .chain([Vec::new(), whole[..127].to_vec(), [&whole[..], b"x"].concat()])
        .collect();
    for damaged in damages {
        fs::write(&entry, damaged).unwrap();
        let again = found(dir.path(), Some(cache.path()));
        assert_eq!((again.digest, again.bytes_read), (first.digest, 1000));
    }
    assert_eq!(
        found(dir.path(), Some(cache.path())).bytes_read,
        0,
        "and it is made anew"
    );
}

/// What others can write proves nothing, and is not waited for.
#[test]
fn entries_of_others_are_not_trusted() {
    let (dir, cache) = (model(), tempfile::tempdir().unwrap());
    let first = found(dir.path(), Some(cache.path()));
    let all = entries(cache.path());
    let read_again = |what: &str| {
        let again = found(dir.path(), Some(cache.path()));
        assert_eq!(
            (again.digest, again.bytes_read),
            (first.digest, first.bytes),
            "{what}"
        );
    };
    for path in &all {
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
    }
    read_again("writable by all");
    for path in &all {
        let moved = path.with_extension("moved");
        fs::rename(path, &moved).unwrap();
        symlink(&moved, path).unwrap();
    }
    read_again("links");
    for path in &all {
        fs::remove_file(path).unwrap();
        mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    }
    read_again("pipes");
    if geteuid().is_root() {
        for path in &all {
            chown(path, Some(12345), None).unwrap();
        }
        read_again("another user's");
    }
    assert_eq!(found(dir.path(), Some(cache.path())).bytes_read, 0);
}

#[test]
fn a_cache_directory_that_cannot_be_used_is_told_and_costs_only_time() {
    let dir = model();
    let expected = identity(dir.path());
    let check = |cache: &Path, why: &str| {
        let found = found(dir.path(), Some(cache));
        assert_eq!((found.digest, found.bytes_read), (expected, found.bytes));
        let said = found.forgetful.unwrap_or_default();
        assert!(
            said.contains(why) && said.contains(&cache.display().to_string()),
            "{said}"
        );
    };
    let shared = tempfile::tempdir().unwrap();
    fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o777)).unwrap();
    check(shared.path(), "nobody else may write");
    assert_eq!(entries(shared.path()).len(), 0);

    let inner = tempfile::tempdir().unwrap();
    fs::create_dir(inner.path().join("weights-1")).unwrap();
    fs::set_permissions(inner.path().join("weights-1"), fs::Permissions::from_mode(0o770)).unwrap();
    check(inner.path(), "nobody else may write");

    let linked = tempfile::tempdir().unwrap();
    symlink(dir.path(), linked.path().join("weights-1")).unwrap();
    check(linked.path(), "no directory");

    let file = tempfile::NamedTempFile::new().unwrap();
    check(file.path(), "cannot be made");

    // Full, or a rename that is refused: nothing half is left behind.
    let full = tempfile::tempdir().unwrap();
    found(dir.path(), Some(full.path()));
    for path in entries(full.path()) {
        fs::remove_file(&path).unwrap();
        fs::create_dir_all(path.join("in the way")).unwrap();
    }
    check(full.path(), "cannot write");
    let left = fs::read_dir(full.path().join("weights-1")).unwrap();
    assert!(
        left.flatten()
            .all(|entry| !entry.file_name().to_string_lossy().ends_with(".tmp"))
    );
    assert!(found(dir.path(), None).forgetful.is_some());
}

#[test]
fn a_file_that_is_being_written_is_refused_and_not_remembered() {
    let (dir, cache) = (model(), tempfile::tempdir().unwrap());
    let path = dir.path().join("model-2.bin");
    let done = AtomicBool::new(false);
    let error = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for offset in (0..1000).cycle() {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                flip(&path, offset);
                thread::sleep(Duration::from_millis(2));
            }
        });
        let result = identify_weights(dir.path(), &options(Some(cache.path())), &NEVER);
        done.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        result.unwrap_err()
    });
    assert!(
        matches!(error, WeightsError::Changing { attempts: 3, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("model-2.bin"), "{error}");
    let inode = fs::metadata(&path).unwrap().ino();
    assert!(
        entries(cache.path())
            .iter()
            .all(|entry| !entry.to_string_lossy().ends_with(&format!("-{inode:x}")))
    );
    assert_eq!(found(dir.path(), Some(cache.path())).digest, identity(dir.path()));
}

/// One of them reads, the others take over what it remembers.
#[test]
fn several_that_ask_at_once_read_it_once() {
    let (dir, cache) = (model(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("model-3.bin"), noise(9, 80 << 20)).unwrap();
    let all: Vec<WeightsIdentity> = thread::scope(|scope| {
        let ask = || found(dir.path(), Some(cache.path()));
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(all.iter().all(|one| one.digest == all[0].digest));
    assert_eq!(all.iter().map(|one| one.bytes_read).sum::<u64>(), all[0].bytes);
}

#[test]
fn who_holds_the_lock_and_does_nothing_is_not_waited_for() {
    let (dir, cache) = (model(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("model-3.bin"), noise(9, 40 << 20)).unwrap();
    let memory = Remembered::open(Some(cache.path()));
    let place = fs::metadata(dir.path()).unwrap();
    let file = memory
        .lock_file(&format!("{:x}-{:x}.lock", place.dev(), place.ino()))
        .unwrap();
    let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
    let started = Instant::now();
    let read = found(dir.path(), Some(cache.path()));
    assert!(
        started.elapsed() >= Duration::from_secs(2),
        "the holder was not asked for"
    );
    assert_eq!(read.bytes_read, read.bytes);
    drop(held);
}

// What the hub says

const SHA: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const COMMIT: &str = "0123456789012345678901234567890123456789";

/// A hub's cache with one model: its snapshot.
fn snapshot(root: &Path, sha: &str) -> PathBuf {
    let repository = root.join("models--acme--tiny");
    let place = repository.join("snapshots").join(COMMIT);
    fs::create_dir_all(repository.join("blobs")).unwrap();
    fs::create_dir_all(&place).unwrap();
    fs::write(repository.join("blobs").join(sha), noise(1, 5000)).unwrap();
    fs::write(repository.join("blobs").join(COMMIT), b"{}").unwrap();
    thread::sleep(Duration::from_millis(20));
    symlink(format!("../../blobs/{sha}"), place.join("model.safetensors")).unwrap();
    symlink(format!("../../blobs/{COMMIT}"), place.join("config.json")).unwrap();
    place
}

#[test]
fn the_hubs_name_of_a_file_stands_for_its_content_until_it_changes() {
    let root = tempfile::tempdir().unwrap();
    let place = snapshot(root.path(), SHA);
    let named = found(&place, None);
    assert_eq!(
        (named.files, named.bytes_read),
        (2, 2),
        "only the configuration is read"
    );
    let other = tempfile::tempdir().unwrap();
    assert_eq!(identity(&snapshot(other.path(), SHA)), named.digest);
    assert_ne!(
        identity(&snapshot(
            tempfile::tempdir().unwrap().path(),
            &SHA.replace('0', "f")
        )),
        named.digest
    );

    // Somebody writes through the link.
    thread::sleep(Duration::from_millis(20));
    flip(&place.join("model.safetensors"), 2500);
    let edited = found(&place, None);
    assert_eq!(edited.bytes_read, 5002);
    assert_ne!(edited.digest, named.digest);
}

#[test]
fn names_that_only_look_like_the_hubs_prove_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (blobs, snapshots) in [("files", "snapshots"), ("blobs", "copies")] {
        let repository = dir.path().join(format!("{blobs}-{snapshots}"));
        let place = repository.join(snapshots).join(COMMIT);
        fs::create_dir_all(repository.join(blobs)).unwrap();
        fs::create_dir_all(&place).unwrap();
        fs::write(repository.join(blobs).join(SHA), noise(1, 5000)).unwrap();
        thread::sleep(Duration::from_millis(20));
        symlink(repository.join(blobs).join(SHA), place.join("model.safetensors")).unwrap();
        assert_eq!(found(&place, None).bytes_read, 5000);
    }
    // A file that is called so, without a link.
    fs::write(dir.path().join(format!("{SHA}.bin")), noise(1, 5000)).unwrap();
    assert!(found(dir.path(), None).bytes_read >= 5000);
}

#[test]
fn a_download_to_a_directory_goes_by_its_record_until_it_changes() {
    let dir = model();
    let plain = identity(dir.path());
    let records = dir.path().join(".cache/huggingface/download");
    fs::create_dir_all(&records).unwrap();
    thread::sleep(Duration::from_millis(20));
    let record = records.join("model-1.safetensors.metadata");
    fs::write(&record, format!("{COMMIT}\n{SHA}\n1700000000.5\n")).unwrap();
    let named = found(dir.path(), None);
    assert_eq!(named.bytes - named.bytes_read, 3 << 20);
    assert_ne!(named.digest, plain);
    thread::sleep(Duration::from_millis(20));
    flip(&dir.path().join("model-1.safetensors"), 9);
    assert_eq!(found(dir.path(), None).bytes_read, named.bytes);
    for odd in [
        "",
        "x",
        &format!("{COMMIT}\n{COMMIT}\n1\n"),
        &format!("{COMMIT}\n{}\n1\n", SHA.to_uppercase()),
    ] {
        fs::write(&record, odd).unwrap();
        assert_eq!(found(dir.path(), None).bytes_read, named.bytes, "{odd:?}");
    }
}

#[test]
fn a_shape_tells_sizes_and_names_and_needs_no_reading() {
    let (dir, same) = (model(), model());
    let shape = weights_shape(dir.path(), "").unwrap();
    flip(&same.path().join("model-2.bin"), 3);
    assert_eq!(weights_shape(same.path(), "").unwrap(), shape);
    fs::write(same.path().join("model-2.bin"), noise(2, 999)).unwrap();
    assert_ne!(weights_shape(same.path(), "").unwrap(), shape);
    assert_ne!(weights_shape(dir.path(), "fp8").unwrap(), shape);
}
