//! Weights identity: tells two sets of weights apart without reading all of them.
//!
//! The only file of this module that does I/O.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Context of the identity. A change of what is read or how it is encoded needs a new number here.
const WEIGHTS_CONTEXT: &str = "kvasir.weights.1";

/// Bytes of one sample.
const SAMPLE_BYTES: u64 = 64 << 10;

/// Samples between the one at the start and the one at the end.
const INNER_SAMPLES: u64 = 64;

/// Longest safetensors header that is hashed in full.
const HEADER_BYTES_MAX: u64 = 64 << 20;

/// Configuration files that decide what the weights mean. `config.json` is required.
const CONFIG_FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "quantization_config.json",
    "quantize_config.json",
];

/// Name endings of weight files.
const WEIGHT_SUFFIXES: [&str; 4] = [".safetensors", ".bin", ".pt", ".gguf"];

/// Identity of the model in `dir`: BLAKE3 over its configuration, the caller's `overrides` (what the
/// engine's flags change about the model, in any stable form), and for every weight file its name, size,
/// header, and 64 KiB at the start, the end and 64 even positions between.
///
/// Files of up to about 4 MiB are covered byte for byte; a change in a larger one that keeps its size and
/// misses every sample is not seen, which is why a hub commit or an explicit identity is preferred.
///
/// Fails if `config.json` is missing, if there is no weight file, or if a file cannot be read.
pub fn weights_identity(dir: &Path, overrides: &str) -> io::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new_derive_key(WEIGHTS_CONTEXT);
    for name in CONFIG_FILES {
        match fs::read(dir.join(name)) {
            Ok(bytes) => {
                record(&mut hasher, name.as_bytes());
                record(&mut hasher, &bytes);
            }
            Err(err) if err.kind() == io::ErrorKind::NotFound && name != CONFIG_FILES[0] => {}
            Err(err) => return Err(at(&dir.join(name), err)),
        }
    }
    // An empty record cannot be a file's name, so it ends the list above unambiguously.
    record(&mut hasher, b"");
    record(&mut hasher, overrides.as_bytes());
    for path in weight_files(dir)? {
        hash_weight_file(&mut hasher, &path).map_err(|err| at(&path, err))?;
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Weight files directly in `dir`, sorted by name.
fn weight_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(|err| at(dir, err))? {
        let path = entry.map_err(|err| at(dir, err))?.path();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        // Follows links: a hub snapshot is a directory of links into a blob store.
        if WEIGHT_SUFFIXES
            .iter()
            .any(|suffix| name.ends_with(suffix.as_bytes()))
            && path.is_file()
        {
            files.push(path);
        }
    }
    if files.is_empty() {
        let why = "no *.safetensors, *.bin, *.pt or *.gguf file here: set kvasir.weights_id instead";
        return Err(at(dir, io::Error::new(io::ErrorKind::NotFound, why)));
    }
    files.sort();
    Ok(files)
}

fn hash_weight_file(hasher: &mut blake3::Hasher, path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    record(hasher, path.file_name().unwrap_or_default().as_encoded_bytes());
    record(hasher, &size.to_le_bytes());
    let safetensors = path.extension().is_some_and(|ext| ext == "safetensors");
    let mut buffer = Vec::new();
    let header_len = if safetensors {
        safetensors_header_len(&file, size)?
    } else {
        SAMPLE_BYTES.min(size)
    };
    read_range(&file, 0, header_len, &mut buffer)?;
    record(hasher, &buffer);
    for offset in sample_offsets(size) {
        read_range(&file, offset, SAMPLE_BYTES.min(size), &mut buffer)?;
        record(hasher, &buffer);
    }
    Ok(())
}

/// Bytes of the length word and the JSON header after it, bounded by the file and by [`HEADER_BYTES_MAX`].
fn safetensors_header_len(file: &File, size: u64) -> io::Result<u64> {
    let mut word = [0u8; 8];
    if size < word.len() as u64 {
        return Ok(size);
    }
    file.read_exact_at(&mut word, 0)?;
    let header = u64::from_le_bytes(word).min(HEADER_BYTES_MAX);
    Ok((header + word.len() as u64).min(size))
}

/// Where the samples of a file start: evenly spread, the first at 0 and the last ending with the file.
fn sample_offsets(size: u64) -> impl Iterator<Item = u64> {
    let span = u128::from(size.saturating_sub(SAMPLE_BYTES));
    // At most `span`, so the result fits 64 bits.
    (0..=INNER_SAMPLES + 1).map(move |i| (span * u128::from(i) / u128::from(INNER_SAMPLES + 1)) as u64)
}

fn read_range(file: &File, offset: u64, len: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.resize(len as usize, 0);
    file.read_exact_at(buffer, offset)
}

/// One length-prefixed record. 64-bit lengths: a configuration is not bounded by the engine.
fn record(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

fn at(path: &Path, err: io::Error) -> io::Error {
    io::Error::new(err.kind(), format!("weights identity: {}: {err}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Large enough that the samples leave gaps.
    const LARGE: usize = 9 << 20;

    fn model() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), br#"{"hidden_size":64}"#).unwrap();
        let mut safetensors = 40u64.to_le_bytes().to_vec();
        safetensors.resize(LARGE, 3);
        fs::write(dir.path().join("model-1.safetensors"), &safetensors).unwrap();
        fs::write(dir.path().join("model-2.bin"), vec![5u8; 1000]).unwrap();
        dir
    }

    fn identity(dir: &tempfile::TempDir) -> [u8; 32] {
        weights_identity(dir.path(), "").unwrap()
    }

    fn flip(dir: &tempfile::TempDir, name: &str, offset: u64) {
        let file = File::options()
            .read(true)
            .write(true)
            .open(dir.path().join(name))
            .unwrap();
        let mut byte = [0u8];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
    }

    #[test]
    fn equal_models_agree_wherever_they_lie() {
        assert_eq!(identity(&model()), identity(&model()));
        let (real, linked) = (model(), tempfile::tempdir().unwrap());
        for name in ["config.json", "model-1.safetensors", "model-2.bin"] {
            symlink(real.path().join(name), linked.path().join(name)).unwrap();
        }
        assert_eq!(identity(&real), identity(&linked));
    }

    #[test]
    fn a_changed_byte_at_every_sample_is_seen() {
        let dir = model();
        let base = identity(&dir);
        let offsets: Vec<u64> = sample_offsets(LARGE as u64).collect();
        assert_eq!(offsets.len(), 66);
        assert_eq!((offsets[0], offsets[65]), (0, LARGE as u64 - SAMPLE_BYTES));
        assert!(
            offsets.windows(2).all(|w| w[1] - w[0] > SAMPLE_BYTES),
            "the test file has gaps"
        );
        for offset in offsets.iter().flat_map(|o| [o + 8, o + SAMPLE_BYTES - 1]) {
            flip(&dir, "model-1.safetensors", offset);
            assert_ne!(identity(&dir), base, "offset {offset}");
            flip(&dir, "model-1.safetensors", offset);
        }
        assert_eq!(identity(&dir), base);
    }

    #[test]
    fn a_small_file_is_covered_whole() {
        let dir = model();
        let base = identity(&dir);
        for offset in [0, 500, 999] {
            flip(&dir, "model-2.bin", offset);
            assert_ne!(identity(&dir), base, "offset {offset}");
            flip(&dir, "model-2.bin", offset);
        }
    }

    #[test]
    fn a_header_past_the_first_sample_is_covered() {
        let dir = model();
        let file = File::options()
            .write(true)
            .open(dir.path().join("model-1.safetensors"))
            .unwrap();
        file.write_all_at(&(200_000u64).to_le_bytes(), 0).unwrap();
        let base = identity(&dir);
        let gap = SAMPLE_BYTES + 1000;
        assert!(gap < sample_offsets(LARGE as u64).nth(1).unwrap());
        flip(&dir, "model-1.safetensors", gap);
        assert_ne!(identity(&dir), base);
    }

    #[test]
    fn size_name_configuration_and_overrides_count() {
        let base = identity(&model());
        let grown = model();
        let path = grown.path().join("model-2.bin");
        fs::write(&path, vec![5u8; 1001]).unwrap();
        let renamed = model();
        fs::rename(
            renamed.path().join("model-2.bin"),
            renamed.path().join("model-3.bin"),
        )
        .unwrap();
        let configured = model();
        fs::write(configured.path().join("config.json"), br#"{"hidden_size":65}"#).unwrap();
        let quantised = model();
        fs::write(quantised.path().join("quantize_config.json"), b"{}").unwrap();
        for dir in [grown, renamed, configured, quantised] {
            assert_ne!(identity(&dir), base);
        }
        assert_ne!(weights_identity(model().path(), "rope_scaling=2").unwrap(), base);
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = model();
        fs::remove_file(dir.path().join("config.json")).unwrap();
        let err = weights_identity(dir.path(), "").unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::NotFound);
        assert!(err.to_string().contains("config.json"), "{err}");

        let empty = tempfile::tempdir().unwrap();
        fs::write(empty.path().join("config.json"), b"{}").unwrap();
        let err = weights_identity(empty.path(), "").unwrap_err();
        assert!(err.to_string().contains("kvasir.weights_id"), "{err}");
    }

    #[test]
    fn a_header_length_that_lies_is_bounded() {
        let dir = model();
        for (content, name) in [
            (&[0xff; 64][..], "a.safetensors"),
            (&[1, 2, 3][..], "b.safetensors"),
        ] {
            fs::write(dir.path().join(name), content).unwrap();
        }
        identity(&dir);
    }
}
