//! Token hashing, extra keys, domains: the public contract that names an object.
//!
//! A chunk's name is a function of what the engine computed, and of nothing else: no process seed, no
//! pointer, no clock. Two engines that agree on the domain and the tokens agree on the key.
//!
//! ```text
//! seed   = derive_key("kvasir.domain.1", model, weights, KV dtype, fingerprint, parallel shape, chunk size)
//! leaf_i = BLAKE3(tokens of chunk i as u32 LE)                      no extra keys apply to the chunk
//! leaf_i = derive_key("kvasir.extra.1", BLAKE3(tokens) || extras)   otherwise
//! key_i  = BLAKE3(key_{i-1} || leaf_i),  key_{-1} = seed
//! ```
//!
//! A tail is the same function over fewer tokens. The encodings are fixed by [`Domain`] and
//! [`Extras`]; `tests/data/keys/golden.json` pins them, and `tests/keys_golden.py` checks the same file
//! from a second implementation. Changing any of it needs a new context string.
//!
//! Pure functions, with one exception: the identities of weights come from the files of a model.

mod buffers;
mod chain;
mod domain;
mod extras;
#[cfg(test)]
#[path = "tests/golden.rs"]
mod golden;
mod hashing;
#[doc(hidden)] // what the bench of hashing calls
pub mod leaves;
mod weights;

pub use chain::KeyChain;
pub use domain::Domain;
pub use extras::{Extras, MmItem};
pub use hashing::{KeyHasher, KeyHashing};
pub use weights::{
    WeightsError, WeightsIdentity, WeightsOptions, WeightsStamp, default_cache_dir, identify_weights,
    remembered_weights, weights_identity, weights_shape, weights_stamp,
};

use std::fmt;
use std::hash::{Hash, Hasher};

/// The name of one chunk or tail object: 32 bytes that depend on the domain and every token before its end.
///
/// An object's identity is this key together with its object group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ChunkKey([u8; 32]);

impl ChunkKey {
    /// Wraps 32 bytes received from a peer or read from a record.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key's bytes, as they travel and as they are stored.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key of the chunk that follows `self` and whose leaf is `leaf`.
    pub(crate) fn child(&self, leaf: &[u8; 32]) -> Self {
        let mut input = [0u8; 64];
        input[..32].copy_from_slice(&self.0);
        input[32..].copy_from_slice(leaf);
        Self(*blake3::hash(&input).as_bytes())
    }
}

/// Without the length, which all have in common.
impl Hash for ChunkKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

impl From<[u8; 32]> for ChunkKey {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl From<ChunkKey> for [u8; 32] {
    fn from(key: ChunkKey) -> Self {
        key.0
    }
}

/// Prints the first eight bytes in hex: enough to follow one key through a log.
impl fmt::Debug for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChunkKey(")?;
        for byte in &self.0[..8] {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("..)")
    }
}

/// Why a domain or a key chain cannot be made. Messages carry lengths, never the contents of a salt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A chunk of no tokens names nothing.
    #[error("chunk size is 0 tokens: negotiate a chunk size before hashing")]
    ZeroChunkSize,
    /// A field does not fit its 32-bit length prefix.
    #[error("{field} is {bytes} bytes long, the limit is {max}: pass an identifier or a hash of it instead")]
    FieldTooLong {
        /// Which field of the domain or of the extra keys.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest that is accepted.
        max: usize,
    },
    /// A multimodal item ends beyond what a signed 64-bit position can say.
    #[error(
        "multimodal item {index} starts at token {start} and spans {length}: its end exceeds {}",
        i64::MAX
    )]
    MmItemRange {
        /// Index in [`Extras::mm_items`].
        index: usize,
        /// First token of the item.
        start: u64,
        /// Number of tokens it spans.
        length: u64,
    },
}

/// Longest byte string that may go into a hash behind a 32-bit length prefix. Far above any real identifier.
pub const MAX_FIELD_BYTES: usize = 16 << 20;

/// Refuses a field that is longer than [`MAX_FIELD_BYTES`].
fn check_field(field: &'static str, bytes: &[u8]) -> Result<(), KeyError> {
    if bytes.len() > MAX_FIELD_BYTES {
        return Err(KeyError::FieldTooLong {
            field,
            bytes: bytes.len(),
            max: MAX_FIELD_BYTES,
        });
    }
    Ok(())
}

/// The 32-bit length prefix of a field that has passed [`check_field`].
fn length_prefix(bytes: &[u8]) -> [u8; 4] {
    debug_assert!(bytes.len() <= MAX_FIELD_BYTES);
    (bytes.len() as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_a_prefix_only() {
        let key = ChunkKey::from_bytes([0xab; 32]);
        assert_eq!(format!("{key:?}"), "ChunkKey(abababababababab..)");
    }

    #[test]
    fn child_depends_on_parent_and_leaf() {
        let a = ChunkKey::from_bytes([1; 32]);
        let b = ChunkKey::from_bytes([2; 32]);
        assert_ne!(a.child(&[3; 32]), b.child(&[3; 32]));
        assert_ne!(a.child(&[3; 32]), a.child(&[4; 32]));
        let mut input = vec![1u8; 32];
        input.extend([3u8; 32]);
        assert_eq!(a.child(&[3; 32]).as_bytes(), blake3::hash(&input).as_bytes());
    }
}
