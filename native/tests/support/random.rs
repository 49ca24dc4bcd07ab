//! Numbers of the kinds that go wrong.

use super::CHUNK;

/// Most elements of any struct or value that a buffer holds, whatever it is.
pub const ELEMENTS: usize = 64;

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A number of the kinds that go wrong.
    pub fn number(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => self.next(),
            4 => u64::from(CHUNK),
            _ => self.below(70),
        }
    }

    /// A count that is there, or one beyond every limit.
    pub fn count(&mut self) -> usize {
        match self.below(12) {
            0 => usize::MAX,
            1 => (1 << 40) + self.below(1 << 40) as usize,
            2 => ELEMENTS,
            _ => self.below(5) as usize,
        }
    }
}
