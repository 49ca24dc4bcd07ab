//! The domain: what makes two objects comparable at all.

use super::{ChunkKey, KeyError, check_field, length_prefix};

/// Context of the domain hash. A change of the encoding below needs a new number here.
const DOMAIN_CONTEXT: &str = "kvasir.domain.1";

/// Everything two engines must share before their objects may stand for each other.
///
/// Encoding: each field in the order below as a `u32` LE byte count followed by its bytes. The chunk size that is bound
/// comes last, a field of 8 bytes, `u64` LE. Because every field carries its length, no two different sets of fields
/// encode alike.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Domain {
    /// Model name as the engine resolved it.
    pub model: String,
    /// Weights identity: an operator's string, a hub commit, or [`weights_identity`](super::weights_identity).
    pub weights_id: Vec<u8>,
    /// Element type of the KV cache, e.g. `bfloat16` or `fp8_e4m3`.
    pub kv_dtype: String,
    /// Layout fingerprint: groups, pages, order of bytes.
    pub fingerprint: Vec<u8>,
    /// How the model is split over ranks.
    pub parallel_shape: String,
}

impl Domain {
    /// The seed of every key chain in this domain under a chunk size in tokens: the key "before" chunk 0.
    pub fn seed(&self, chunk_size: u64) -> Result<ChunkKey, KeyError> {
        let chunk_size = chunk_size.to_le_bytes();
        let fields: [(&'static str, &[u8]); 6] = [
            ("model", self.model.as_bytes()),
            ("weights_id", &self.weights_id),
            ("kv_dtype", self.kv_dtype.as_bytes()),
            ("fingerprint", &self.fingerprint),
            ("parallel_shape", self.parallel_shape.as_bytes()),
            ("chunk_size", &chunk_size),
        ];
        let mut hasher = blake3::Hasher::new_derive_key(DOMAIN_CONTEXT);
        for (name, bytes) in fields {
            check_field(name, bytes)?;
            hasher.update(&length_prefix(bytes));
            hasher.update(bytes);
        }
        Ok(ChunkKey::from_bytes(*hasher.finalize().as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::MAX_FIELD_BYTES;
    use super::*;

    fn domain() -> Domain {
        Domain {
            model: "acme/tiny".into(),
            weights_id: vec![7; 32],
            kv_dtype: "bfloat16".into(),
            fingerprint: vec![9; 32],
            parallel_shape: "tp=1".into(),
        }
    }

    #[test]
    fn every_field_matters() {
        let base = domain();
        let changed = [
            Domain {
                model: "acme/tinz".into(),
                ..base.clone()
            },
            Domain {
                weights_id: vec![8; 32],
                ..base.clone()
            },
            Domain {
                kv_dtype: "float16".into(),
                ..base.clone()
            },
            Domain {
                fingerprint: vec![9; 31],
                ..base.clone()
            },
            Domain {
                parallel_shape: "tp=2".into(),
                ..base.clone()
            },
        ];
        let seed = base.seed(256).unwrap();
        let mut seeds: Vec<_> = changed.iter().map(|d| d.seed(256).unwrap()).collect();
        seeds.extend([seed, base.seed(257).unwrap()]);
        seeds.sort();
        seeds.dedup();
        assert_eq!(seeds.len(), changed.len() + 2);
    }

    #[test]
    fn a_byte_moved_across_a_field_border_changes_the_seed() {
        let left = Domain {
            model: "ab".into(),
            weights_id: b"c".to_vec(),
            ..domain()
        };
        let right = Domain {
            model: "a".into(),
            weights_id: b"bc".to_vec(),
            ..domain()
        };
        assert_ne!(left.seed(256).unwrap(), right.seed(256).unwrap());
    }

    #[test]
    fn an_absurd_field_is_refused_with_its_length() {
        let long = Domain {
            weights_id: vec![0; MAX_FIELD_BYTES + 1],
            ..domain()
        };
        assert_eq!(
            long.seed(256),
            Err(KeyError::FieldTooLong {
                field: "weights_id",
                bytes: MAX_FIELD_BYTES + 1,
                max: MAX_FIELD_BYTES
            })
        );
    }
}
