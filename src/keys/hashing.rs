//! Hash tables of keys.
//!
//! A key is a hash already, so a table needs no second one over it: its own bytes are folded into a word. But whoever speaks the
//! protocol chooses the bytes of the keys that it names, and could choose a million that fold alike. So they are folded with
//! numbers that are random in each process and that nobody is told: which keys fall together cannot be known beforehand, and no
//! answer says it. All 32 bytes count, so that keys with equal beginnings do not fall together either.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers that go into a fold: one for each word of a key, and one for what is not a key's.
type Seeds = [u64; 5];

/// How tables of [`ChunkKey`](super::ChunkKey) and of what begins with one are hashed.
#[derive(Clone, Copy, Debug)]
pub struct KeyHashing {
    seeds: Seeds,
}

impl Default for KeyHashing {
    fn default() -> Self {
        // Each number is there or not, and nobody waits for another thread: a child that was forked meanwhile would do so for ever.
        static SEEDS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];
        let mut random = None;
        let seeds = std::array::from_fn(|number| match SEEDS[number].load(Ordering::Relaxed) {
            0 => {
                // What the standard library has from the kernel, which nobody learns from what this gives.
                let own = random
                    .get_or_insert_with(RandomState::new)
                    .hash_one(number)
                    .max(1);
                match SEEDS[number].compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => own,
                    Err(first) => first,
                }
            }
            seed => seed,
        });
        Self { seeds }
    }
}

impl BuildHasher for KeyHashing {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher {
            seeds: self.seeds,
            state: 0,
        }
    }
}

/// The hash of one key.
#[derive(Clone, Copy, Debug)]
pub struct KeyHasher {
    seeds: Seeds,
    state: u64,
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for bytes in bytes.chunks(32) {
            let mut words = [0; 4];
            for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_le_bytes(whole);
            }
            let seeds = &self.seeds;
            let first = fold(words[0] ^ seeds[0], words[1] ^ seeds[1]);
            let second = fold(words[2] ^ seeds[2], words[3] ^ seeds[3]);
            // Together, and folded once more: what comes of one fold alone is spread unevenly for one pair of numbers in a hundred.
            self.state = fold(self.state ^ first ^ second.rotate_left(32), seeds[4]);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.state = fold(self.state ^ word, self.seeds[4]);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(word.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

/// The two halves of a product: each bit of it depends on bits of both.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::Hash;

    use super::*;
    use crate::keys::ChunkKey;

    const SEEDS: Seeds = [
        0x9E37_79B9_7F4A_7C15,
        0xD1B5_4A32_D192_ED03,
        0x8CB9_2BA7_2F3D_8DD7,
        0xABC9_8388_FB8F_AC03,
        0xE703_7ED1_A0B4_28DB,
    ];

    fn with(seeds: Seeds) -> KeyHashing {
        KeyHashing { seeds }
    }

    /// How many names fall in the fullest of as many places as there are names, by the low bits and by the high ones: a table
    /// uses both.
    fn fullest<T: Hash>(hashing: KeyHashing, names: &[T]) -> usize {
        assert!(names.len().is_power_of_two());
        let bits = names.len().trailing_zeros();
        let fullest = |place: fn(u64, u32) -> usize| {
            let mut places = vec![0; names.len()];
            for name in names {
                places[place(hashing.hash_one(name), bits)] += 1;
            }
            places.into_iter().max().unwrap_or_default()
        };
        fullest(|hash, bits| (hash & ((1 << bits) - 1)) as usize)
            .max(fullest(|hash, bits| (hash >> (64 - bits)) as usize))
    }

    /// Sets of keys that differ in eight bytes only, the first of which is this one.
    fn differing_from(at: usize, count: u64) -> Vec<ChunkKey> {
        let key = |number: u64| {
            let mut bytes = [0xA5; 32];
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
            ChunkKey::from_bytes(bytes)
        };
        (0..count).map(key).collect()
    }

    /// Whatever the random numbers of a process are. No table may be slow in one process of a hundred.
    #[test]
    fn keys_are_spread_evenly_with_any_numbers() {
        for numbers in 0..200_u64 {
            let number = |place: u64| with(SEEDS).hash_one([numbers, place]) | 1 << (place % 64);
            let hashing = with(std::array::from_fn(|place| number(place as u64)));
            for at in [0, 16, 24] {
                let fullest = fullest(hashing, &differing_from(at, 1024));
                assert!(
                    fullest <= 16,
                    "{fullest} of the keys that differ from byte {at} on, numbers {numbers}"
                );
            }
        }
    }

    #[test]
    fn keys_with_equal_beginnings_do_not_fall_together() {
        for at in [0, 4, 8, 16, 20, 24] {
            for hashing in [with(SEEDS), KeyHashing::default()] {
                let keys = differing_from(at, 4096);
                // Of 4096 in 4096 places one has about 7.
                let fullest = fullest(hashing, &keys);
                assert!(
                    fullest <= 16,
                    "{fullest} of the keys that differ from byte {at} on"
                );
            }
        }
    }

    #[test]
    fn groups_of_one_key_do_not_fall_together() {
        let key = ChunkKey::from_bytes([7; 32]);
        let names: Vec<(ChunkKey, u16)> = (0..4096).map(|group| (key, group)).collect();
        assert!(fullest(with(SEEDS), &names) <= 16);
    }

    /// Who knew the numbers of one process could choose keys that all fall together there; in the next they are keys like any.
    #[test]
    fn what_falls_together_in_one_process_does_not_in_another() {
        let key = |number: u64| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&SEEDS[0].to_le_bytes());
            bytes[8..16].copy_from_slice(&number.to_le_bytes());
            ChunkKey::from_bytes(bytes)
        };
        let keys: Vec<ChunkKey> = (0..4096).map(key).collect();
        assert_eq!(fullest(with(SEEDS), &keys), 4096);
        let mut others = SEEDS;
        others[0] ^= 1 << 40;
        assert!(fullest(with(others), &keys) <= 16);
        assert!(fullest(KeyHashing::default(), &keys) <= 16);
    }

    #[test]
    fn a_process_has_one_set_of_numbers_and_they_are_not_known() {
        let key = ChunkKey::from_bytes([1; 32]);
        let hash = KeyHashing::default().hash_one(key);
        assert_eq!(hash, KeyHashing::default().hash_one(key));
        assert_ne!(hash, with(SEEDS).hash_one(key));
        let seeds: HashSet<u64> = KeyHashing::default().seeds.into_iter().collect();
        assert_eq!(seeds.len(), SEEDS.len());
    }
}
