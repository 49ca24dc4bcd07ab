//! BLAKE3 of many equally long leaves at once, in the lanes of the vector unit.
//!
//! BLAKE3 cuts its input into pieces of 1024 bytes and joins their chaining values in a binary tree. One
//! leaf of a few hundred tokens has one to three pieces, too few to fill the lanes. But the pieces of
//! *different* leaves are as independent as those of one: piece `p` of sixteen leaves goes through the
//! lanes together (they share the counter `p`), and so do the parent nodes at equal places in their trees.
//! The result is `blake3::hash` of each leaf, bit for bit; only the order of the work differs.
//!
//! This needs `blake3::platform`, which is public but hidden from the documentation, so the crate is
//! pinned to an exact version (`docs/decisions/0002-blake3-lanes.md`).

use blake3::hazmat::HasherExt;
use blake3::platform::Platform;
use blake3::{BLOCK_LEN, CHUNK_LEN as PIECE_LEN, IncrementCounter, OUT_LEN};

/// Leaves per batch: the widest vector unit that blake3 knows has sixteen lanes.
const LANES: usize = 16;

/// Longest leaf that goes through the lanes with others. A longer one fills them with its own pieces, which
/// `blake3::hash` does by itself; at this length the gain was still 1.3 times (`benches/hash.rs`).
const LANES_LEAF_LEN_MAX: usize = 16 * PIECE_LEN;

/// The initial chaining value of BLAKE3's plain hash mode (section 2.2 of its paper).
const IV: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

// Domain flags of the compression function (table 3 of the paper).
const CHUNK_START: u8 = 1 << 0;
const CHUNK_END: u8 = 1 << 1;
const PARENT: u8 = 1 << 2;
const ROOT: u8 = 1 << 3;

/// Appends `blake3::hash` of every `leaf_len` bytes of `bytes` to `out`.
///
/// # Panics
///
/// If `leaf_len` is 0 or `bytes` is not a whole number of leaves.
pub fn hash_leaves(bytes: &[u8], leaf_len: usize, out: &mut Vec<[u8; 32]>) {
    assert!(
        leaf_len > 0 && bytes.len().is_multiple_of(leaf_len),
        "whole leaves only"
    );
    let leaves = bytes.len() / leaf_len;
    out.reserve(leaves);
    let platform = Platform::detect();
    // A short leaf that does not end on a block has no part that the lanes could do.
    let has_lane_work = leaf_len >= PIECE_LEN || leaf_len.is_multiple_of(BLOCK_LEN);
    if leaves < 2 || !has_lane_work || leaf_len > LANES_LEAF_LEN_MAX || platform.simd_degree() == 1 {
        out.extend(
            bytes
                .chunks_exact(leaf_len)
                .map(|leaf| *blake3::hash(leaf).as_bytes()),
        );
        return;
    }
    hash_in_lanes(platform, bytes, leaf_len, out);
}

/// [`hash_leaves`] where the lanes have work to do.
fn hash_in_lanes(platform: Platform, bytes: &[u8], leaf_len: usize, out: &mut Vec<[u8; 32]>) {
    let mut batch = Batch::new(platform, leaf_len);
    for leaves in bytes.chunks(leaf_len * LANES) {
        batch.hash(leaves, out);
    }
}

/// Working memory for up to [`LANES`] leaves.
struct Batch {
    platform: Platform,
    leaf_len: usize,
    /// Pieces of one leaf, the last one possibly short.
    pieces: usize,
    /// Chaining values, `pieces` per leaf and leaf after leaf, so that siblings are neighbours.
    cvs: Vec<u8>,
    /// Where the lanes put their results before they are spread over `cvs`.
    lane_out: [u8; LANES * OUT_LEN],
}

impl Batch {
    fn new(platform: Platform, leaf_len: usize) -> Self {
        let pieces = leaf_len.div_ceil(PIECE_LEN);
        let cvs = vec![0; LANES * pieces * OUT_LEN];
        Self {
            platform,
            leaf_len,
            pieces,
            cvs,
            lane_out: [0; LANES * OUT_LEN],
        }
    }

    fn hash(&mut self, leaves: &[u8], out: &mut Vec<[u8; 32]>) {
        let count = leaves.len() / self.leaf_len;
        debug_assert!(count <= LANES);
        for piece in 0..self.pieces {
            let len = PIECE_LEN.min(self.leaf_len - piece * PIECE_LEN);
            self.hash_pieces(leaves, count, piece, len);
        }
        let mut width = self.pieces;
        while width > 1 {
            width = self.join_siblings(count, width);
        }
        out.extend((0..count).map(|leaf| {
            let at = leaf * self.pieces * OUT_LEN;
            <[u8; OUT_LEN]>::try_from(&self.cvs[at..at + OUT_LEN]).expect("OUT_LEN bytes")
        }));
    }

    /// Hashes piece `piece` of every leaf, `len` bytes each, into the chaining values.
    fn hash_pieces(&mut self, leaves: &[u8], count: usize, piece: usize, len: usize) {
        /// One arm per number of blocks: the lanes take inputs whose length the type knows.
        macro_rules! by_length {
            ($($blocks:literal)*) => {
                match len {
                    $(len if len == $blocks * BLOCK_LEN => {
                        self.hash_pieces_in_lanes::<{ $blocks * BLOCK_LEN }>(leaves, count, piece);
                    })*
                    _ => self.hash_pieces_one_by_one(leaves, count, piece),
                }
            };
        }
        by_length!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);
    }

    fn hash_pieces_in_lanes<const N: usize>(&mut self, leaves: &[u8], count: usize, piece: usize) {
        let mut inputs = [&[0u8; N]; LANES];
        for (leaf, input) in leaves.chunks_exact(self.leaf_len).zip(&mut inputs) {
            *input = leaf[piece * PIECE_LEN..]
                .first_chunk()
                .expect("the piece has N bytes");
        }
        let root = if self.pieces == 1 { ROOT } else { 0 };
        self.platform.hash_many(
            &inputs[..count],
            &IV,
            piece as u64,
            IncrementCounter::No,
            0,
            CHUNK_START,
            CHUNK_END | root,
            &mut self.lane_out,
        );
        for (leaf, cv) in self.lane_out.chunks_exact(OUT_LEN).take(count).enumerate() {
            let at = (leaf * self.pieces + piece) * OUT_LEN;
            self.cvs[at..at + OUT_LEN].copy_from_slice(cv);
        }
    }

    /// A last piece that ends inside a block: blake3's public interface for subtrees does it.
    fn hash_pieces_one_by_one(&mut self, leaves: &[u8], count: usize, piece: usize) {
        debug_assert!(piece > 0, "a leaf of one piece is never a non-root subtree");
        let start = piece * PIECE_LEN;
        for (index, leaf) in leaves.chunks_exact(self.leaf_len).enumerate().take(count) {
            let cv = blake3::Hasher::new()
                .set_input_offset(start as u64)
                .update(&leaf[start..])
                .finalize_non_root();
            let at = (index * self.pieces + piece) * OUT_LEN;
            self.cvs[at..at + OUT_LEN].copy_from_slice(&cv);
        }
    }

    /// Joins neighbours among the `width` chaining values of every leaf; the last one of an odd number
    /// moves up unjoined, which gives exactly BLAKE3's left-full tree. Returns the new width.
    fn join_siblings(&mut self, count: usize, width: usize) -> usize {
        let pairs = width / 2;
        let root = if width == 2 { ROOT } else { 0 };
        for pair in 0..pairs {
            let mut inputs = [&[0u8; 2 * OUT_LEN]; LANES];
            for (leaf, input) in self.cvs.chunks_exact(self.pieces * OUT_LEN).zip(&mut inputs) {
                *input = leaf[pair * 2 * OUT_LEN..]
                    .first_chunk()
                    .expect("a pair of values");
            }
            let (lanes, no_increment) = (&inputs[..count], IncrementCounter::No);
            self.platform.hash_many(
                lanes,
                &IV,
                0,
                no_increment,
                PARENT | root,
                0,
                0,
                &mut self.lane_out,
            );
            // Value `pair` of each leaf was read by this or an earlier round, so it may be replaced.
            for (leaf, cv) in self.lane_out.chunks_exact(OUT_LEN).take(count).enumerate() {
                let at = (leaf * self.pieces + pair) * OUT_LEN;
                self.cvs[at..at + OUT_LEN].copy_from_slice(cv);
            }
        }
        if width % 2 == 1 {
            for leaf in self.cvs.chunks_exact_mut(self.pieces * OUT_LEN).take(count) {
                leaf.copy_within((width - 1) * OUT_LEN..width * OUT_LEN, pairs * OUT_LEN);
            }
        }
        width.div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(bytes: &[u8], leaf_len: usize) {
        let mut got = vec![[0xee; 32]];
        hash_leaves(bytes, leaf_len, &mut got);
        let want: Vec<[u8; 32]> = bytes
            .chunks_exact(leaf_len)
            .map(|leaf| *blake3::hash(leaf).as_bytes())
            .collect();
        assert_eq!(got[0], [0xee; 32], "appends, never overwrites");
        assert_eq!(
            &got[1..],
            &want[..],
            "leaf length {leaf_len}, {} bytes",
            bytes.len()
        );
    }

    fn bytes(len: usize, seed: u64) -> Vec<u8> {
        let mut xof = blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
        let mut out = vec![0; len];
        xof.fill(&mut out);
        out
    }

    #[test]
    fn every_block_count_and_every_border_equals_blake3() {
        let borders = (1..=48).map(|blocks| blocks * BLOCK_LEN);
        let around = [1, 2, 3, 4, 5]
            .into_iter()
            .flat_map(|p| [p * PIECE_LEN - 4, p * PIECE_LEN + 4]);
        let large = [
            LANES_LEAF_LEN_MAX - 4,
            LANES_LEAF_LEN_MAX,
            LANES_LEAF_LEN_MAX + 4,
            40_000,
        ];
        for leaf_len in borders.chain(around).chain(large).chain([1, 4, 63, 65]) {
            for leaves in [0, 1, 2, 7, 8, 16, 17, 33] {
                check(&bytes(leaf_len * leaves, leaf_len as u64), leaf_len);
            }
        }
    }

    /// Every vector unit of this machine, and the code for none.
    fn platforms() -> Vec<Platform> {
        let mut platforms = vec![Platform::portable(), Platform::detect()];
        #[cfg(target_arch = "x86_64")]
        platforms.extend(
            [Platform::sse2(), Platform::sse41(), Platform::avx2()]
                .into_iter()
                .flatten(),
        );
        platforms
    }

    #[test]
    fn lanes_of_every_width_equal_blake3() {
        for leaf_len in [64, 640, 1024, 1028, 2176, 2560, 3 * 1024, 5 * 1024 + 1, 9 * 1024] {
            let bytes = bytes(leaf_len * 21, 3);
            let want: Vec<[u8; 32]> = bytes
                .chunks_exact(leaf_len)
                .map(|leaf| *blake3::hash(leaf).as_bytes())
                .collect();
            for platform in platforms() {
                let mut got = Vec::new();
                hash_in_lanes(platform, &bytes, leaf_len, &mut got);
                assert_eq!(got, want, "leaf length {leaf_len} on {platform:?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn any_length_equals_blake3(leaf_len in 1usize..18_000, leaves in 0usize..20, seed: u64) {
            check(&bytes(leaf_len * leaves, seed), leaf_len);
        }
    }
}
