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
#[path = "tests/chain.rs"]
mod tests;
