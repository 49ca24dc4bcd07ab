//! The golden vectors: the contract that other implementations, and later versions of this one, must meet.
//!
//! `tests/data/keys/golden.json` holds inputs and expected keys; `tests/keys_golden.py` checks the same file
//! without this crate. With `KVASIR_BLESS=1` in the environment the expected values are written anew, which
//! is right only together with a new context string.

use serde::{Deserialize, Serialize};

use super::{ChunkKey, Extras, KeyChain, MmItem};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/keys/golden.json");

#[derive(Serialize, Deserialize)]
struct Golden {
    about: String,
    cases: Vec<Case>,
}

#[derive(Serialize, Deserialize)]
struct Case {
    name: String,
    domain: Domain,
    tokens: Tokens,
    mm_items: Vec<Item>,
    lora_hex: Option<String>,
    salt_hex: Option<String>,
    seed: String,
    keys: Vec<String>,
    tails: Vec<Tail>,
}

#[derive(Serialize, Deserialize)]
struct Domain {
    model: String,
    weights_id_hex: String,
    kv_dtype: String,
    fingerprint_hex: String,
    parallel_shape: String,
    chunk_size: u64,
}

/// Token `i` is `(i * mul + add) % modulus`, computed without wrapping.
#[derive(Serialize, Deserialize)]
struct Tokens {
    count: u64,
    mul: u64,
    add: u64,
    modulus: u64,
}

#[derive(Serialize, Deserialize)]
struct Item {
    identifier_hex: String,
    start: u64,
    length: u64,
}

#[derive(Serialize, Deserialize)]
struct Tail {
    chunk: usize,
    tokens: u32,
    key: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd hex string {text:?}");
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex"))
        .collect()
}

fn key_hex(key: &ChunkKey) -> String {
    hex(key.as_bytes())
}

impl Case {
    fn chain(&self) -> (ChunkKey, KeyChain) {
        let seed = crate::keys::Domain {
            model: self.domain.model.clone(),
            weights_id: unhex(&self.domain.weights_id_hex),
            kv_dtype: self.domain.kv_dtype.clone(),
            fingerprint: unhex(&self.domain.fingerprint_hex),
            parallel_shape: self.domain.parallel_shape.clone(),
        }
        .seed(self.domain.chunk_size)
        .unwrap();
        let item = |item: &Item| MmItem {
            identifier: unhex(&item.identifier_hex),
            start: item.start,
            length: item.length,
        };
        let extras = Extras {
            mm_items: self.mm_items.iter().map(item).collect(),
            lora: self.lora_hex.as_deref().map(unhex),
            salt: self.salt_hex.as_deref().map(unhex),
        };
        let Tokens {
            count,
            mul,
            add,
            modulus,
        } = self.tokens;
        let tokens: Vec<u32> = (0..count).map(|i| ((i * mul + add) % modulus) as u32).collect();
        let mut chain = KeyChain::new(seed, self.domain.chunk_size as u32, extras).unwrap();
        chain.extend(&tokens);
        (seed, chain)
    }

    fn bless(&mut self) {
        let (seed, chain) = self.chain();
        self.seed = key_hex(&seed);
        self.keys = chain.keys().iter().map(key_hex).collect();
        for tail in &mut self.tails {
            tail.key = key_hex(&chain.tail_key_at(tail.chunk, tail.tokens).expect("tail in range"));
        }
    }

    fn check(&self) {
        let (seed, chain) = self.chain();
        assert_eq!(key_hex(&seed), self.seed, "{}: seed", self.name);
        let keys: Vec<_> = chain.keys().iter().map(key_hex).collect();
        assert_eq!(keys, self.keys, "{}: keys", self.name);
        for Tail { chunk, tokens, key } in &self.tails {
            let got = chain.tail_key_at(*chunk, *tokens).map(|key| key_hex(&key));
            assert_eq!(
                got.as_ref(),
                Some(key),
                "{}: {tokens} tokens of chunk {chunk}",
                self.name
            );
        }
    }
}

#[test]
fn golden_vectors_hold() {
    let text = std::fs::read_to_string(PATH).expect("golden.json is checked in");
    let mut golden: Golden = serde_json::from_str(&text).expect("golden.json parses");
    if std::env::var_os("KVASIR_BLESS").is_some_and(|value| !value.is_empty()) {
        golden.cases.iter_mut().for_each(Case::bless);
        std::fs::write(PATH, serde_json::to_string_pretty(&golden).unwrap() + "\n").unwrap();
    }
    // A file that lost its cases would pass the loop below.
    let sizes: std::collections::BTreeSet<_> = golden.cases.iter().map(|c| c.domain.chunk_size).collect();
    assert!(
        [16, 256, 544, 640].iter().all(|size| sizes.contains(size)),
        "chunk sizes {sizes:?}"
    );
    assert!(
        golden
            .cases
            .iter()
            .all(|case| !case.keys.is_empty() && !case.tails.is_empty())
    );
    golden.cases.iter().for_each(Case::check);
}
