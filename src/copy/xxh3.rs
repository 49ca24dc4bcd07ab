//! XXH3-64 of long streams, opened up so that a copy can sum the very registers that it writes.
//!
//! The algorithm is the published one (xxHash specification, "XXH3 algorithm", inputs above 240 bytes, seed 0), and its values are
//! those of `twox-hash`, which sums everything that is not summed during a copy. A stream is a row of stripes of 64 bytes;
//! 16 stripes are a block, after which the accumulators are scrambled. The last 64 bytes of the stream are a stripe of
//! their own, whatever was summed of them before, so nobody may sum a stripe before it is known that more bytes follow.

/// Bytes that are summed together.
pub(super) const STRIPE_BYTES: usize = 64;
/// Stripes between two scrambles.
pub(super) const BLOCK_STRIPES: usize = 16;
/// Streams up to this length follow another formula.
pub(super) const SHORT_BYTES_MAX: u64 = 240;

const PRIME32_1: u64 = 0x9E37_79B1;
const PRIME32_2: u64 = 0x85EB_CA77;
const PRIME32_3: u64 = 0xC2B2_AE3D;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;
const PRIME_MIX: u64 = 0x1656_6791_9E37_79F9;

/// Where the secret of the last stripe begins, and of the end of the sum.
pub(super) const LAST_SECRET: usize = 121;
const END_SECRET: usize = 11;
/// Where the secret of a scramble begins.
pub(super) const SCRAMBLE_SECRET: usize = 128;
/// The multiplier of a scramble.
pub(super) const SCRAMBLE_PRIME: u64 = PRIME32_1;

/// The default secret of the specification.
pub(super) static SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde,
    0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79,
    0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46,
    0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb,
    0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2,
    0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c,
    0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59,
    0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3,
    0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3,
    0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8,
    0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb,
    0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// What has been summed so far: eight accumulators, and the stripe of the block that comes next.
#[derive(Debug, Clone)]
pub(super) struct Accumulators {
    pub(super) lanes: [u64; 8],
    pub(super) stripe: usize,
}

impl Accumulators {
    /// Of no stripe yet.
    pub(super) const fn new() -> Self {
        Self {
            lanes: [
                PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
            ],
            stripe: 0,
        }
    }

    /// Adds the next stripe, after which more bytes follow.
    pub(super) fn add(&mut self, stripe: &[u8; STRIPE_BYTES]) {
        self.accumulate(stripe, 8 * self.stripe);
        self.stripe += 1;
        if self.stripe == BLOCK_STRIPES {
            self.scramble();
            self.stripe = 0;
        }
    }

    /// Adds the last 64 bytes of the stream.
    pub(super) fn add_last(&mut self, last: &[u8; STRIPE_BYTES]) {
        self.accumulate(last, LAST_SECRET);
    }

    /// The sum of a stream of `len` bytes, of which the last 64 have been added.
    pub(super) fn finish(self, len: u64) -> u64 {
        let mut sum = len.wrapping_mul(PRIME64_1);
        for (index, pair) in self.lanes.chunks_exact(2).enumerate() {
            let at = END_SECRET + 16 * index;
            let product = u128::from(pair[0] ^ secret(at)) * u128::from(pair[1] ^ secret(at + 8));
            sum = sum.wrapping_add(product as u64 ^ (product >> 64) as u64);
        }
        sum ^= sum >> 37;
        sum = sum.wrapping_mul(PRIME_MIX);
        sum ^ (sum >> 32)
    }

    fn accumulate(&mut self, stripe: &[u8; STRIPE_BYTES], secret_at: usize) {
        for lane in 0..8 {
            let value = word(stripe, 8 * lane);
            let keyed = value ^ secret(secret_at + 8 * lane);
            let product = (keyed & 0xffff_ffff) * (keyed >> 32);
            self.lanes[lane ^ 1] = self.lanes[lane ^ 1].wrapping_add(value);
            self.lanes[lane] = self.lanes[lane].wrapping_add(product);
        }
    }

    fn scramble(&mut self) {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let mixed = *lane ^ (*lane >> 47) ^ secret(SCRAMBLE_SECRET + 8 * index);
            *lane = mixed.wrapping_mul(SCRAMBLE_PRIME);
        }
    }
}

fn secret(at: usize) -> u64 {
    word(&SECRET, at)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes[at..at + 8].try_into().expect("eight bytes were asked for");
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use twox_hash::XxHash3_64;

    #[test]
    fn the_sums_are_those_of_the_library() {
        let bytes: Vec<u8> = (0..5000_u32)
            .map(|i| (i.wrapping_mul(0x9e37_79b1) >> 11) as u8)
            .collect();
        for len in (SHORT_BYTES_MAX as usize + 1..1300).chain([2047, 2048, 2049, 4096, 4097, 5000]) {
            let mut sum = Accumulators::new();
            let stripes = (len - 1) / STRIPE_BYTES;
            for stripe in bytes.chunks_exact(STRIPE_BYTES).take(stripes) {
                sum.add(stripe.try_into().unwrap());
            }
            sum.add_last(bytes[len - STRIPE_BYTES..len].try_into().unwrap());
            assert_eq!(
                sum.finish(len as u64),
                XxHash3_64::oneshot(&bytes[..len]),
                "{len} bytes"
            );
        }
    }
}
