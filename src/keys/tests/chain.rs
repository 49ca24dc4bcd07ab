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
