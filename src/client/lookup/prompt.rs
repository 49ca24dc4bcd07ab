//! A prompt's keys, and its tails as a lookup asks for them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::keys::KeyChain;
use crate::object::{Tail, Tails};

/// A key chain that remembers the tails that were hashed for lookups.
#[derive(Debug)]
pub struct Prompt {
    chain: KeyChain,
    /// By chunk and step.
    tails: Mutex<HashMap<(u32, u32), Vec<Tail>>>,
}

impl Prompt {
    /// A prompt with the keys of a chain.
    pub fn new(chain: KeyChain) -> Self {
        Self {
            chain,
            tails: Mutex::default(),
        }
    }

    /// Its keys.
    pub fn chain(&self) -> &KeyChain {
        &self.chain
    }

    /// Appends tokens.
    pub fn extend(&mut self, tokens: &[u32]) {
        self.chain.extend(tokens);
    }

    /// The fronts of all chunks at every multiple of `step` tokens, hashed when a lookup gets to them, and once. Nothing for
    /// steps of 0.
    pub fn tails(&self, step: u32) -> Option<PromptTails<'_>> {
        (step > 0).then_some(PromptTails { prompt: self, step })
    }
}

/// The tails of a prompt in steps of some tokens.
#[derive(Clone, Copy)]
pub struct PromptTails<'a> {
    prompt: &'a Prompt,
    step: u32,
}

impl PromptTails<'_> {
    /// The chunk behind all that have tails.
    fn end_chunk(&self) -> u32 {
        let chunks = self.prompt.chain.keys().len() as u32;
        // The one that is not full comes last.
        chunks + u32::from(self.count(chunks) > 0)
    }

    /// How many a chunk has.
    fn count(&self, chunk: u32) -> usize {
        let (chain, size) = (&self.prompt.chain, self.prompt.chain.chunk_size());
        let tokens = chain.len_tokens().saturating_sub(chunk as usize * size as usize);
        tokens.min(size as usize - 1) / self.step as usize
    }
}

impl fmt::Debug for PromptTails<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tails of {:?} in steps of {}", self.prompt.chain, self.step)
    }
}

impl Tails for PromptTails<'_> {
    fn last_chunk(&self, limit: u32) -> Option<u32> {
        let chunks = self.end_chunk().min(limit.saturating_add(1));
        (0..chunks).rev().find(|chunk| self.count(*chunk) > 0)
    }

    fn all(&self) -> Cow<'_, [Tail]> {
        let all = (0..self.end_chunk()).flat_map(|chunk| self.of(chunk).into_owned());
        Cow::Owned(all.collect())
    }

    fn of(&self, chunk: u32) -> Cow<'_, [Tail]> {
        let count = self.count(chunk);
        let mut known = self.prompt.tails.lock().unwrap_or_else(PoisonError::into_inner);
        let tails = known.entry((chunk, self.step)).or_default();
        if tails.len() != count {
            let keys = self.prompt.chain.tail_keys_at(chunk as usize, self.step);
            let tail = |(tokens, key)| Tail { key, chunk, tokens };
            // The longest come first, and the whole chunk is no tail.
            *tails = keys.into_iter().rev().take(count).map(tail).collect();
        }
        Cow::Owned(tails.clone())
    }

    fn end(&self, chunk_size: u32) -> u64 {
        let last = self.last_chunk(u32::MAX);
        last.map_or(0, |chunk| {
            u64::from(chunk) * u64::from(chunk_size) + self.count(chunk) as u64 * u64::from(self.step)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{ChunkKey, Extras};
    use crate::object::TailList;

    #[test]
    fn tails_are_those_of_the_chain_also_after_it_has_grown() {
        let chain = KeyChain::new(ChunkKey::from_bytes([3; 32]), 64, Extras::default()).unwrap();
        let mut prompt = Prompt::new(chain);
        assert!(prompt.tails(0).is_none());
        for tokens in [0..40_u32, 40..100, 100..200] {
            prompt.extend(&tokens.collect::<Vec<_>>());
            let held = prompt.chain().len_tokens() as u64;
            let tails = prompt.tails(16).unwrap();
            let listed = (0..=held as u32 / 64).flat_map(|chunk| {
                let keys = prompt.chain().tail_keys_at(chunk as usize, 16);
                keys.into_iter()
                    .filter(|(tokens, _)| *tokens < 64)
                    .map(move |(tokens, key)| Tail { key, chunk, tokens })
            });
            let listed: TailList = listed.collect();
            assert_eq!(*tails.all(), *listed.all(), "{held} tokens");
            assert_eq!(tails.end(64), listed.end(64));
            for limit in 0..5 {
                assert_eq!(tails.last_chunk(limit), listed.last_chunk(limit));
                assert_eq!(*tails.of(limit), *listed.of(limit));
            }
        }
    }
}
