//! The checksum of a part, in two levels (docs/shm-layout.md, "Pool").
//!
//! A part's bytes are cut into leaves of [`LEAF_BYTES`]; the last one may be shorter. Each leaf has its XXH3-64 (seed 0). The sum of a part
//! of one leaf is that of the leaf, and of a longer one XXH3-64 over the sums of its leaves, eight bytes each, little-endian. So
//! leaves can be summed apart from each other, and in any order. Why: docs/decisions/0013-two-level-sums.md.

use std::hash::Hasher;

use twox_hash::XxHash3_64;

/// Bytes of a leaf. Part of the format: another size is another `ABI_VERSION`.
pub const LEAF_BYTES: usize = 16 << 10;

/// Leaves of a part of `bytes` bytes. A part without bytes has one, which is empty.
pub(super) fn leaves_of(bytes: u64) -> usize {
    bytes.div_ceil(LEAF_BYTES as u64).max(1) as usize
}

/// The lengths of those leaves.
pub(super) fn lengths_of(bytes: u64) -> impl Iterator<Item = usize> + Clone {
    let last = leaves_of(bytes) - 1;
    let rest = (bytes - (last * LEAF_BYTES) as u64) as usize;
    std::iter::repeat_n(LEAF_BYTES, last).chain(std::iter::once(rest))
}

/// The sum of a part from those of its leaves. Never 0, which stands for "not computed".
pub(super) fn of_leaves(sums: &[u64]) -> u64 {
    let sum = match sums {
        [only] => *only,
        sums => {
            let mut hasher = XxHash3_64::new();
            let mut bytes = [0; 512];
            for some in sums.chunks(bytes.len() / 8) {
                for (to, sum) in bytes.chunks_exact_mut(8).zip(some) {
                    to.copy_from_slice(&sum.to_le_bytes());
                }
                hasher.write(&bytes[..8 * some.len()]);
            }
            hasher.finish()
        }
    };
    sum.max(1)
}

/// The sums of a part's leaves: what a reader has to have to check the front of a part without the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafSums {
    pub(super) bytes: u64,
    pub(super) sums: Vec<u64>,
}

impl LeafSums {
    /// Of bytes that are all there.
    pub fn of(bytes: &[u8]) -> Self {
        let mut sum = Checksum::new();
        sum.update(bytes);
        sum.leaves()
    }

    /// Bytes of the part.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// One sum for each leaf, in order.
    pub fn sums(&self) -> &[u64] {
        &self.sums
    }

    /// The checksum of the part. Who got leaf sums from elsewhere compares it with the record's before believing them.
    pub fn checksum(&self) -> u64 {
        of_leaves(&self.sums)
    }

    /// Bytes at the front of this part that are those which `front` was summed from: whole leaves up to the first that differs. A
    /// shorter leaf counts only where both end with it, since nothing is known of a piece of a leaf.
    pub fn confirmed(&self, front: &Self) -> u64 {
        let pairs = self.sums.iter().zip(&front.sums);
        let equal = pairs.take_while(|(one, other)| one == other).count();
        let whole = (equal * LEAF_BYTES) as u64;
        whole.min(self.bytes).min(front.bytes)
    }
}

/// The checksum of a part whose bytes come one after the other.
#[derive(Clone, Default)]
pub struct Checksum {
    leaf: XxHash3_64,
    filled: usize,
    /// Of the leaves that more bytes follow.
    sums: Vec<u64>,
}

impl Checksum {
    /// Of no bytes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filled == LEAF_BYTES {
                self.sums.push(std::mem::take(&mut self.leaf).finish());
                self.filled = 0;
            }
            let (now, later) = bytes.split_at(bytes.len().min(LEAF_BYTES - self.filled));
            self.leaf.write(now);
            self.filled += now.len();
            bytes = later;
        }
    }

    /// The sums of the leaves.
    pub fn leaves(&self) -> LeafSums {
        let mut sums = self.sums.clone();
        sums.push(self.leaf.finish());
        let bytes = (self.sums.len() * LEAF_BYTES + self.filled) as u64;
        LeafSums { bytes, sums }
    }

    /// The checksum. Never 0, which stands for "not computed".
    pub fn value(&self) -> u64 {
        match self.sums.is_empty() {
            true => of_leaves(&[self.leaf.finish()]),
            false => self.leaves().checksum(),
        }
    }
}

#[cfg(test)]
#[path = "tests/leaf.rs"]
mod tests;
