//! What the client is told to store and to find: three prompts, whose keys follow from what it registers.

use crate::keys::{ChunkKey, Extras, KeyChain, KeyError};
use crate::wire::RegisterKvCache;

/// The chunk size from which the kit's server goes up to suit the client.
pub(super) const MINIMUM_CHUNK: u64 = 64;
/// Full chunks of a prompt. One alignment of tokens follows them.
pub(super) const CHUNKS: usize = 3;

/// All of a key, in hex.
pub(super) fn hex(key: &ChunkKey) -> String {
    key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    /// The client stores it and finds it again.
    First = 1,
    /// Another engine has stored it.
    Second = 2,
    /// The client stores what it loaded of the second.
    Third = 3,
}

/// All of them, by number.
pub(super) const PROMPTS: [Prompt; 3] = [Prompt::First, Prompt::Second, Prompt::Third];

impl Prompt {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::First => "the first prompt",
            Self::Second => "the second prompt",
            Self::Third => "the third prompt",
        }
    }

    /// Token `i` of the prompt (docs/conformance.md).
    pub(super) fn token(self, i: u64) -> u32 {
        ((i * 7919 + 104_729 * self as u64) % 50_000) as u32
    }
}

/// One object of a prompt: a chunk, or a front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) prompt: Prompt,
    pub(super) chunk: usize,
    pub(super) tokens: u32,
}

impl Place {
    pub(super) fn text(&self, chunk_size: u32) -> String {
        let (chunk, prompt) = (self.chunk, self.prompt.name());
        match self.tokens {
            tokens if tokens < chunk_size => {
                format!("the tail of {tokens} tokens of chunk {chunk} of {prompt}")
            }
            _ => format!("chunk {chunk} of {prompt}"),
        }
    }
}

/// The prompts with their keys, in the domain and the geometry of the client.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) seed: ChunkKey,
    pub(super) chunk_size: u32,
    pub(super) alignment: u64,
    pub(super) unit_bytes: u64,
    pub(super) group: u16,
    chains: [KeyChain; 3],
    tails: Vec<(ChunkKey, Place)>,
}

impl Script {
    pub(super) fn new(register: &RegisterKvCache, chunk_size: u32) -> Result<Self, KeyError> {
        let seed = register.domain.seed(u64::from(chunk_size))?;
        let alignment = register.required_alignment.max(1);
        let length = CHUNKS as u64 * u64::from(chunk_size) + alignment;
        let mut tails = Vec::new();
        let mut chain_of = |prompt: Prompt| {
            let tokens: Vec<u32> = (0..length).map(|i| prompt.token(i)).collect();
            let mut chain = KeyChain::new(seed, chunk_size, Extras::default())?;
            chain.extend(&tokens);
            for chunk in 0..=CHUNKS {
                let found = chain.tail_keys_at(chunk, alignment as u32).into_iter();
                tails.extend(
                    found
                        .filter(|(tokens, _)| *tokens < chunk_size)
                        .map(|(tokens, key)| {
                            let place = Place {
                                prompt,
                                chunk,
                                tokens,
                            };
                            (key, place)
                        }),
                );
            }
            Ok::<_, KeyError>(chain)
        };
        let chains = [
            chain_of(Prompt::First)?,
            chain_of(Prompt::Second)?,
            chain_of(Prompt::Third)?,
        ];
        let group = register.groups.first();
        Ok(Self {
            seed,
            chunk_size,
            alignment,
            unit_bytes: group.map_or(0, |group| group.unit_bytes),
            group: group.map_or(0, |group| group.group),
            chains,
            tails,
        })
    }

    /// Bytes of an object of so many tokens.
    pub(super) fn bytes_of(&self, tokens: u32) -> u64 {
        self.unit_bytes.saturating_mul(u64::from(tokens)) / self.alignment
    }

    /// The keys of a prompt's full chunks.
    pub(super) fn keys(&self, prompt: Prompt) -> &[ChunkKey] {
        self.chains[prompt as usize - 1].keys()
    }

    /// The tail behind the last full chunk.
    pub(super) fn last_tail(&self, prompt: Prompt) -> Option<ChunkKey> {
        self.chains[prompt as usize - 1].tail_key_at(CHUNKS, self.alignment as u32)
    }

    /// What a key names.
    pub(super) fn find(&self, key: &ChunkKey) -> Option<Place> {
        let full = PROMPTS.iter().find_map(|&prompt| {
            let chunk = self.keys(prompt).iter().position(|other| other == key)?;
            let tokens = self.chunk_size;
            Some(Place {
                prompt,
                chunk,
                tokens,
            })
        });
        full.or_else(|| {
            let found = self.tails.iter().find(|(other, _)| other == key);
            found.map(|(_, place)| *place)
        })
    }

    /// The key of the chunk before.
    pub(super) fn parent_of(&self, place: &Place) -> Option<ChunkKey> {
        let before = place.chunk.checked_sub(1)?;
        self.keys(place.prompt).get(before).copied()
    }

    /// Which mistake gives a wrong key, if it is one of the usual ones.
    pub(super) fn mistake(&self, key: &ChunkKey) -> Option<String> {
        PROMPTS.into_iter().find_map(|prompt| {
            let mut own_leaves = [0; 32];
            (0..CHUNKS).find_map(|chunk| {
                let first = chunk as u64 * u64::from(self.chunk_size);
                let tokens = || (first..first + u64::from(self.chunk_size)).map(|i| prompt.token(i));
                let hash = |bytes: Vec<u8>| *blake3::hash(&bytes).as_bytes();
                let leaf = hash(tokens().flat_map(u32::to_le_bytes).collect());
                let big = hash(tokens().flat_map(u32::to_be_bytes).collect());
                let wide = hash(
                    tokens()
                        .flat_map(|token| u64::from(token).to_le_bytes())
                        .collect(),
                );
                let parent = match chunk.checked_sub(1) {
                    Some(before) => *self.keys(prompt)[before].as_bytes(),
                    None => *self.seed.as_bytes(),
                };
                let join = |one: [u8; 32], other: [u8; 32]| hash([one, other].concat());
                let unseeded = join(own_leaves, leaf);
                own_leaves = unseeded;
                let mistakes = [
                    (leaf, "the hash of the tokens alone, without what comes before"),
                    (hash(leaf.to_vec()), "made without the key before, or the seed"),
                    (join(leaf, parent), "made with leaf and parent in the wrong order"),
                    (join(parent, big), "made of big-endian tokens"),
                    (join(parent, wide), "made of tokens of 8 bytes"),
                    (unseeded, "made from a seed of zeroes"),
                ];
                let found = mistakes.into_iter().find(|(wrong, _)| wrong == key.as_bytes());
                found.map(|(_, why)| format!("which is {why} (chunk {chunk} of {})", prompt.name()))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::ObjectKind;
    use crate::object::{GroupRegistration, PayloadPath};
    use crate::wire::Domain;

    fn script() -> Script {
        let register = RegisterKvCache {
            domain: Domain {
                model: "m".into(),
                ..Domain::default()
            },
            rank: 0,
            world_size: 1,
            required_alignment: 16,
            spans: vec![],
            groups: vec![GroupRegistration {
                group: 5,
                kind: ObjectKind::Full,
                parts: 1,
                part: 0,
                unit_bytes: 100,
            }],
            layers: 0,
            blocks: 0,
            payload_path: PayloadPath::ShmDirect,
            stores: true,
            copy_path: String::new(),
        };
        Script::new(&register, 64).unwrap()
    }

    #[test]
    fn every_key_of_the_prompts_has_its_place() {
        let script = script();
        for prompt in PROMPTS {
            for (chunk, key) in script.keys(prompt).iter().enumerate() {
                let place = script.find(key).unwrap();
                assert_eq!((place.prompt, place.chunk, place.tokens), (prompt, chunk, 64));
                assert_eq!(
                    script.parent_of(&place).as_ref(),
                    chunk.checked_sub(1).map(|c| &script.keys(prompt)[c])
                );
                assert_eq!(script.mistake(key), None);
            }
            let tail = script.find(&script.last_tail(prompt).unwrap()).unwrap();
            assert_eq!(
                (tail.chunk, tail.tokens, script.bytes_of(tail.tokens)),
                (3, 16, 100)
            );
        }
        assert_eq!(script.find(&ChunkKey::from_bytes([1; 32])), None);
    }

    #[test]
    fn usual_mistakes_are_called_by_name() {
        let script = script();
        let tokens: Vec<u8> = (64..128)
            .flat_map(|i| Prompt::First.token(i).to_le_bytes())
            .collect();
        let leaf = ChunkKey::from_bytes(*blake3::hash(&tokens).as_bytes());
        let why = script.mistake(&leaf).unwrap();
        assert!(
            why.contains("the tokens alone") && why.contains("chunk 1 of the first"),
            "{why}"
        );
    }
}
