//! The keys of one request, grown as its tokens arrive.

use std::fmt;

use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};

use super::leaves::hash_leaves;
use super::{ChunkKey, Extras, KeyError, buffers};

/// Context of a leaf with extra keys. A change of the encoding in [`Extras`] needs a new number here.
const EXTRA_CONTEXT: &str = "kvasir.extra.1";

/// Bytes of one token in the hashed form.
const TOKEN_BYTES: usize = size_of::<u32>();

/// The chain of chunk keys over a growing token sequence.
///
/// Every token is hashed once for the full chunk that holds it. The tokens are kept, since a lookup asks
/// for the key of any front of any chunk after its last full hit.
#[derive(Clone)]
pub struct KeyChain {
    seed: ChunkKey,
    chunk_size: u32,
    extras: Extras,
    extra_context: ContextKey,
    /// All tokens as `u32` LE: exactly the bytes that are hashed.
    token_bytes: Vec<u8>,
    /// Keys of the full chunks.
    keys: Vec<ChunkKey>,
}

impl KeyChain {
    /// An empty chain in the domain of `seed`, cut every `chunk_size` tokens.
    ///
    /// `chunk_size` has to be the one that went into the seed.
    pub fn new(seed: ChunkKey, chunk_size: u32, extras: Extras) -> Result<Self, KeyError> {
        if chunk_size == 0 {
            return Err(KeyError::ZeroChunkSize);
        }
        Ok(Self {
            seed,
            chunk_size,
            extras: extras.normalise()?,
            extra_context: hash_derive_key_context(EXTRA_CONTEXT),
            token_bytes: Vec::new(),
            keys: Vec::new(),
        })
    }

    /// Appends tokens and computes the keys of the chunks that they complete.
    pub fn extend(&mut self, tokens: &[u32]) {
        if self.token_bytes.capacity() == 0 {
            self.token_bytes = buffers::take(tokens.len() * TOKEN_BYTES);
        }
        self.token_bytes.reserve(tokens.len() * TOKEN_BYTES);
        self.token_bytes
            .extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        let leaf_len = self.leaf_len();
        let (done, full) = (self.keys.len(), self.token_bytes.len() / leaf_len);
        if full == done {
            return;
        }
        let mut leaves = Vec::new();
        hash_leaves(
            &self.token_bytes[done * leaf_len..full * leaf_len],
            leaf_len,
            &mut leaves,
        );
        self.keys.reserve(leaves.len());
        let mut parent = self.keys.last().copied().unwrap_or(self.seed);
        let mut scratch = Vec::new();
        for (index, leaf) in leaves.into_iter().enumerate() {
            parent = self.key(parent, leaf, done + index, self.chunk_size, &mut scratch);
            self.keys.push(parent);
        }
    }

    /// Keys of the full chunks, in order.
    pub fn keys(&self) -> &[ChunkKey] {
        &self.keys
    }

    /// Number of tokens appended so far.
    pub fn len_tokens(&self) -> usize {
        self.token_bytes.len() / TOKEN_BYTES
    }

    /// Tokens per full chunk.
    pub fn chunk_size(&self) -> u32 {
        self.chunk_size
    }

    /// The key that comes before chunk `chunk_index`: the seed for chunk 0. `None` past the chunk that
    /// follows the last full one.
    pub fn parent_of(&self, chunk_index: usize) -> Option<ChunkKey> {
        match chunk_index.checked_sub(1) {
            None => Some(self.seed),
            Some(previous) => self.keys.get(previous).copied(),
        }
    }

    /// The key of the first `tokens` tokens of chunk `chunk_index`, whether or not that chunk is full.
    ///
    /// `None` if `tokens` is 0, more than a chunk, or more than the sequence has there.
    pub fn tail_key_at(&self, chunk_index: usize, tokens: u32) -> Option<ChunkKey> {
        let parent = self.parent_of(chunk_index)?;
        let front = self
            .chunk_bytes(chunk_index)
            .get(..tokens as usize * TOKEN_BYTES)?;
        if front.is_empty() {
            return None;
        }
        let leaf = *blake3::hash(front).as_bytes();
        Some(self.key(parent, leaf, chunk_index, tokens, &mut Vec::new()))
    }

    /// Keys of the fronts of chunk `chunk_index` at every multiple of `alignment` tokens, longest first:
    /// the order in which a lookup probes the chunk after its last full hit.
    ///
    /// If the chunk is full and a multiple of `alignment`, the first entry is its own key. Empty if the
    /// sequence has less than `alignment` tokens there, or if `alignment` is 0. The chunk is hashed once,
    /// however many lengths there are.
    pub fn tail_keys_at(&self, chunk_index: usize, alignment: u32) -> Vec<(u32, ChunkKey)> {
        let (Some(parent), true) = (self.parent_of(chunk_index), alignment > 0) else {
            return Vec::new();
        };
        let mut hasher = blake3::Hasher::new();
        let mut scratch = Vec::new();
        let mut tokens = 0;
        let mut keys: Vec<_> = self
            .chunk_bytes(chunk_index)
            .chunks_exact(alignment as usize * TOKEN_BYTES)
            .map(|step| {
                tokens += alignment;
                let leaf = *hasher.update(step).finalize().as_bytes();
                (tokens, self.key(parent, leaf, chunk_index, tokens, &mut scratch))
            })
            .collect();
        keys.reverse();
        keys
    }

    /// Keys of the partial chunk at the end of the sequence, as [`tail_keys_at`](Self::tail_keys_at) gives
    /// them. Empty if the sequence ends on a chunk.
    pub fn tail_keys(&self, alignment: u32) -> Vec<(u32, ChunkKey)> {
        self.tail_keys_at(self.keys.len(), alignment)
    }

    fn leaf_len(&self) -> usize {
        self.chunk_size as usize * TOKEN_BYTES
    }

    /// The bytes of chunk `chunk_index`, as many as there are.
    fn chunk_bytes(&self, chunk_index: usize) -> &[u8] {
        let leaf_len = self.leaf_len();
        let start = chunk_index.saturating_mul(leaf_len).min(self.token_bytes.len());
        let end = start.saturating_add(leaf_len).min(self.token_bytes.len());
        &self.token_bytes[start..end]
    }

    /// The key of a chunk of `tokens` tokens whose tokens hash to `leaf`.
    fn key(
        &self,
        parent: ChunkKey,
        leaf: [u8; 32],
        chunk_index: usize,
        tokens: u32,
        scratch: &mut Vec<u8>,
    ) -> ChunkKey {
        if self.extras.is_empty() {
            return parent.child(&leaf);
        }
        let start = chunk_index as u64 * u64::from(self.chunk_size);
        self.extras.encode(start, start + u64::from(tokens), scratch);
        if scratch.is_empty() {
            return parent.child(&leaf);
        }
        let mut hasher = blake3::Hasher::new_from_context_key(&self.extra_context);
        hasher.update(&leaf).update(scratch);
        parent.child(hasher.finalize().as_bytes())
    }
}

impl Drop for KeyChain {
    fn drop(&mut self) {
        buffers::give(std::mem::take(&mut self.token_bytes));
    }
}

/// Tokens are the user's text: only counts are printed.
impl fmt::Debug for KeyChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyChain")
            .field("seed", &self.seed)
            .field("chunk_size", &self.chunk_size)
            .field("tokens", &self.len_tokens())
            .field("chunks", &self.keys.len())
            .field("extras", &self.extras)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::MmItem;
    use super::*;
    use proptest::prelude::*;

    const SEED: ChunkKey = ChunkKey::from_bytes([0x5a; 32]);

    fn tokens(count: usize) -> Vec<u32> {
        (0..count as u32)
            .map(|i| i.wrapping_mul(2_654_435_761) % 151_936)
            .collect()
    }

    fn chain(chunk_size: u32, extras: &Extras, tokens: &[u32]) -> KeyChain {
        let mut chain = KeyChain::new(SEED, chunk_size, extras.clone()).unwrap();
        chain.extend(tokens);
        chain
    }

    /// The contract, written down once more and as plainly as possible.
    fn plain_key(parent: ChunkKey, tokens: &[u32], extras: &[u8]) -> ChunkKey {
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        let mut leaf = *blake3::hash(&bytes).as_bytes();
        if !extras.is_empty() {
            leaf = blake3::derive_key("kvasir.extra.1", &[&leaf[..], extras].concat());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(parent.as_bytes()).update(&leaf);
        ChunkKey::from_bytes(*hasher.finalize().as_bytes())
    }

    #[test]
    fn keys_chain_from_the_seed() {
        let tokens = tokens(256 * 3 + 100);
        let chain = chain(256, &Extras::default(), &tokens);
        let mut parent = SEED;
        for (i, key) in chain.keys().iter().enumerate() {
            assert_eq!(chain.parent_of(i), Some(parent));
            parent = plain_key(parent, &tokens[i * 256..(i + 1) * 256], &[]);
            assert_eq!(*key, parent, "chunk {i}");
        }
        assert_eq!(chain.keys().len(), 3);
        assert_eq!(chain.len_tokens(), 868);
        assert_eq!(chain.parent_of(3), Some(parent));
        assert_eq!(chain.parent_of(4), None);
    }

    #[test]
    fn a_zero_chunk_size_is_refused() {
        assert_eq!(
            KeyChain::new(SEED, 0, Extras::default()).err(),
            Some(KeyError::ZeroChunkSize)
        );
    }

    #[test]
    fn tail_probes_are_longest_first_at_any_chunk() {
        let tokens = tokens(544 * 2 + 100);
        let chain = chain(544, &Extras::default(), &tokens);
        let tail = chain.tail_keys(32);
        assert_eq!(tail.iter().map(|t| t.0).collect::<Vec<_>>(), [96, 64, 32]);
        for (len, key) in tail {
            let start = 2 * 544;
            assert_eq!(
                key,
                plain_key(chain.keys()[1], &tokens[start..start + len as usize], &[])
            );
            assert_eq!(chain.tail_key_at(2, len), Some(key));
        }
        let inner = chain.tail_keys_at(1, 32);
        assert_eq!(inner.len(), 17);
        assert_eq!(
            inner[0],
            (544, chain.keys()[1]),
            "the whole chunk is its own longest front"
        );
        assert_eq!(chain.tail_key_at(1, 32), Some(inner[16].1));
    }

    #[test]
    fn tails_outside_the_sequence_do_not_exist() {
        let chain = chain(16, &Extras::default(), &tokens(40));
        assert_eq!(chain.tail_key_at(2, 0), None);
        assert_eq!(chain.tail_key_at(2, 9), None);
        assert_eq!(chain.tail_key_at(1, 17), None);
        assert_eq!(chain.tail_key_at(3, 1), None);
        assert_eq!(chain.tail_key_at(usize::MAX, u32::MAX), None);
        assert!(chain.tail_keys(0).is_empty());
        assert!(chain.tail_keys(16).is_empty());
        assert!(chain.tail_keys_at(3, 1).is_empty());
        assert!(chain.tail_keys_at(usize::MAX, 1).is_empty());
        assert!(chain.tail_keys(u32::MAX).is_empty());
        assert!(
            self::chain(16, &Extras::default(), &tokens(32))
                .tail_keys(1)
                .is_empty()
        );
    }

    #[test]
    fn a_tail_ignores_items_that_start_behind_it() {
        let extras = Extras {
            mm_items: vec![MmItem {
                identifier: b"img".to_vec(),
                start: 24,
                length: 20,
            }],
            ..Extras::default()
        };
        let tokens = tokens(40);
        let with = chain(16, &extras, &tokens);
        let without = chain(16, &Extras::default(), &tokens);
        assert_eq!(with.keys()[0], without.keys()[0]);
        assert_ne!(with.keys()[1], without.keys()[1]);
        assert_eq!(with.tail_key_at(1, 8), without.tail_key_at(1, 8));
        assert_ne!(with.tail_key_at(1, 9), without.tail_key_at(1, 9));
    }

    #[test]
    fn the_position_of_an_item_inside_the_chunk_matters() {
        let at = |start| Extras {
            mm_items: vec![MmItem {
                identifier: b"img".to_vec(),
                start,
                length: 2,
            }],
            ..Extras::default()
        };
        let tokens = tokens(16);
        assert_ne!(
            chain(16, &at(3), &tokens).keys(),
            chain(16, &at(4), &tokens).keys()
        );
    }

    #[test]
    fn a_salt_changes_every_key_and_two_salts_share_none() {
        // A salt that was dropped before the external store once let tenants read each other's prefixes.
        let tokens = tokens(16 * 5 + 8);
        let salted = |salt: &[u8]| {
            let extras = Extras {
                salt: Some(salt.to_vec()),
                ..Extras::default()
            };
            let chain = chain(16, &extras, &tokens);
            let mut keys = chain.keys().to_vec();
            keys.extend((0..6).flat_map(|i| chain.tail_keys_at(i, 1)).map(|t| t.1));
            keys
        };
        let plain = chain(16, &Extras::default(), &tokens);
        let (a, b) = (salted(b"tenant-a"), salted(b"tenant-b"));
        assert!(
            a.iter()
                .all(|key| !b.contains(key) && !plain.keys().contains(key))
        );
        assert_eq!(a, salted(b"tenant-a"));
    }

    #[test]
    fn the_salt_is_hashed_in_chunk_0_only() {
        let salt = Extras {
            salt: Some(b"s".to_vec()),
            ..Extras::default()
        };
        let tokens = tokens(32);
        let salted = chain(16, &salt, &tokens);
        assert_eq!(
            salted.keys()[0],
            plain_key(SEED, &tokens[..16], &[3, 1, 0, 0, 0, b's'])
        );
        assert_eq!(salted.keys()[1], plain_key(salted.keys()[0], &tokens[16..], &[]));
    }

    #[test]
    fn a_lora_is_hashed_in_every_chunk() {
        let lora = Extras {
            lora: Some(b"L".to_vec()),
            ..Extras::default()
        };
        let tokens = tokens(40);
        let chain = chain(16, &lora, &tokens);
        let extra = [2, 1, 0, 0, 0, b'L'];
        assert_eq!(
            chain.keys()[1],
            plain_key(chain.keys()[0], &tokens[16..32], &extra)
        );
        assert_eq!(
            chain.tail_key_at(2, 8),
            Some(plain_key(chain.keys()[1], &tokens[32..], &extra))
        );
    }

    #[test]
    fn debug_shows_no_tokens() {
        let chain = chain(16, &Extras::default(), &[424_242; 20]);
        assert!(!format!("{chain:?}").contains("424242"));
    }

    proptest! {
        #[test]
        fn any_way_of_cutting_the_input_gives_the_same_chain(
            chunk_size in 1u32..70,
            cuts in proptest::collection::vec(0usize..90, 0..8),
            alignment in 1u32..9,
        ) {
            let total: usize = cuts.iter().sum();
            let tokens = tokens(total);
            let extras = Extras {
                mm_items: vec![MmItem { identifier: b"i".to_vec(), start: 40, length: 33 }],
                lora: None,
                salt: Some(b"s".to_vec()),
            };
            let whole = chain(chunk_size, &extras, &tokens);
            let mut grown = KeyChain::new(SEED, chunk_size, extras).unwrap();
            let mut at = 0;
            for cut in cuts {
                grown.extend(&tokens[at..at + cut]);
                at += cut;
            }
            prop_assert_eq!(grown.keys(), whole.keys());
            prop_assert_eq!(grown.keys().len(), total / chunk_size as usize);
            prop_assert_eq!(grown.tail_keys(alignment), whole.tail_keys(alignment));
        }

        #[test]
        fn a_full_chunk_equals_its_longest_tail(chunk_size in 1u32..40, chunks in 1usize..5) {
            let tokens = tokens(chunk_size as usize * chunks);
            let chain = chain(chunk_size, &Extras::default(), &tokens);
            for (i, key) in chain.keys().iter().enumerate() {
                prop_assert_eq!(chain.tail_key_at(i, chunk_size), Some(*key));
            }
        }
    }
}
