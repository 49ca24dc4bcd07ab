//! The body of a record as the server has it: written, and walked through in pieces. How it is read: [`crate::index::body`].

use crate::index::body::{BODY_HEAD_WORDS, CHAIN_WORDS, ChainArea, INLINE_WORDS, blocks_for};
use crate::object::Extent;
use crate::shm::ShmError;
use crate::shm::mapping::{Access, Mapping, ReadWrite};

/// Extents that one part can have, by the width of its field.
pub(crate) const MAX_PART_EXTENTS: usize = 0xffff;
/// Bytes that one part can have, by the width of their field.
pub(crate) const MAX_PART_BYTES: u64 = (1 << 48) - 1;

/// One part of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartBody {
    /// Its bytes.
    pub bytes: u64,
    /// Checksum of the bytes as the writer gave it; 0 when it gave none.
    pub checksum: u64,
    /// Where they lie, filled in this order.
    pub extents: Vec<Extent>,
}

/// The words of a body.
pub(crate) fn encode(parts: &[PartBody]) -> Vec<u64> {
    let mut words = Vec::with_capacity(parts.iter().map(|p| BODY_HEAD_WORDS + p.extents.len()).sum());
    for part in parts {
        debug_assert!(part.bytes <= MAX_PART_BYTES && part.extents.len() <= MAX_PART_EXTENTS);
        words.push(part.bytes << 16 | part.extents.len() as u64);
        words.push(part.checksum);
        words.extend(part.extents.iter().map(|e| e.to_word()));
    }
    words
}

/// The part that begins at a word: bytes, checksum and words of its runs. `None` when the words are not a body.
fn part_at(words: &[u64], at: usize) -> Option<(u64, u64, &[u64])> {
    let &[head, checksum] = words.get(at..at + BODY_HEAD_WORDS)? else {
        return None;
    };
    let first = at + BODY_HEAD_WORDS;
    let runs = words.get(first..first + (head & 0xffff) as usize)?;
    Some((head >> 16, checksum, runs))
}

/// All parts of a body. `None` when the words are not a body of that many parts.
pub(crate) fn decode(words: &[u64], parts: u16) -> Option<Vec<PartBody>> {
    let mut all = Vec::with_capacity(parts.into());
    let mut at = 0;
    for _ in 0..parts {
        let (bytes, checksum, runs) = part_at(words, at)?;
        at += BODY_HEAD_WORDS + runs.len();
        all.push(PartBody {
            bytes,
            checksum,
            extents: runs.iter().map(|w| Extent::from_word(*w)).collect(),
        });
    }
    (at == words.len()).then_some(all)
}

impl ChainArea {
    /// Writes the words that do not fit in the record into the given blocks, with relaxed stores.
    ///
    /// # Errors
    /// Those of the mapping when a block is outside of it.
    pub(crate) fn write(
        self,
        mapping: &Mapping<ReadWrite>,
        words: &[u64],
        blocks: &[u32],
    ) -> Result<(), ShmError> {
        let rest = words.get(INLINE_WORDS..).unwrap_or_default();
        for (i, (chunk, &block)) in rest.chunks(CHAIN_WORDS).zip(blocks).enumerate() {
            let mut line = [0; CHAIN_WORDS + 1];
            line[0] = blocks.get(i + 1).map_or(0, |next| u64::from(*next) + 1);
            line[1..=chunk.len()].copy_from_slice(chunk);
            mapping.store_words(self.at(block), &line)?;
        }
        Ok(())
    }

    /// Writes one block: a link to the next one, which is one more than its number, and words.
    ///
    /// # Errors
    /// Those of the mapping when the block is outside of it.
    pub(crate) fn write_block(
        self,
        mapping: &Mapping<ReadWrite>,
        block: u32,
        line: &[u64; CHAIN_WORDS + 1],
    ) -> Result<(), ShmError> {
        mapping.store_words(self.at(block), line)
    }

    /// The blocks that a body occupies, in order.
    pub(crate) fn blocks_of<A: Access>(self, mapping: &Mapping<A>, body: u64) -> Option<Vec<u32>> {
        let count = blocks_for((body & 0xffff_ffff) as usize);
        let mut blocks = Vec::with_capacity(count.min(self.blocks as usize));
        let mut link = body >> 32;
        for _ in 0..count {
            let block = u32::try_from(link.checked_sub(1)?)
                .ok()
                .filter(|b| *b < self.blocks)?;
            blocks.push(block);
            link = mapping.load_only_u64(self.at(block)).ok()?.load_relaxed();
        }
        Some(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Memfd, OwnerAccess};

    /// One part of a body: its bytes, its checksum, and its runs appended to `extents`.
    fn part(words: &[u64], part: u16, extents: &mut Vec<Extent>) -> Option<(u64, u64)> {
        let mut at = 0;
        for _ in 0..part {
            at += BODY_HEAD_WORDS + (words.get(at)? & 0xffff) as usize;
        }
        let (bytes, checksum, runs) = part_at(words, at)?;
        extents.extend(runs.iter().map(|w| Extent::from_word(*w)));
        Some((bytes, checksum))
    }

    fn parts(counts: &[usize]) -> Vec<PartBody> {
        let mut frame = 0;
        counts
            .iter()
            .map(|&n| PartBody {
                bytes: n as u64 * 65000,
                checksum: n as u64 * 0x9E37,
                extents: (0..n)
                    .map(|_| {
                        frame += 2;
                        Extent::new(frame, 1)
                    })
                    .collect(),
            })
            .collect()
    }

    #[test]
    fn bodies_of_every_shape_come_back() {
        let memfd = Memfd::create("body", 1 << 16, OwnerAccess::Read).unwrap();
        let mapping = memfd.map().unwrap();
        let area = ChainArea {
            base: 4096,
            blocks: 512,
        };
        for counts in [
            &[7][..],
            &[8],
            &[14],
            &[15],
            &[1, 1, 1, 1],
            &[1, 200, 3],
            &[1; 64],
        ] {
            let body = parts(counts);
            let words = encode(&body);
            // Blocks out of order: links are followed, not numbers.
            let blocks: Vec<u32> = (0..blocks_for(words.len()) as u32).map(|b| 300 - 2 * b).collect();
            area.write(&mapping, &words, &blocks).unwrap();
            let mut inline = [0; INLINE_WORDS];
            let short = words.len().min(INLINE_WORDS);
            inline[..short].copy_from_slice(&words[..short]);
            let first = blocks.first().map_or(0, |b| u64::from(*b) + 1);
            let word = first << 32 | words.len() as u64;
            let mut read = Vec::new();
            area.read(&mapping, word, &inline, &mut read).unwrap();
            assert_eq!(decode(&read, counts.len() as u16).unwrap(), body);
            assert_eq!(area.blocks_of(&mapping, word).unwrap(), blocks);
            for (i, expected) in body.iter().enumerate() {
                let mut extents = Vec::new();
                let sums = (expected.bytes, expected.checksum);
                assert_eq!(part(&read, i as u16, &mut extents), Some(sums));
                assert_eq!(extents, expected.extents);
            }
            assert_eq!(part(&read, counts.len() as u16, &mut Vec::new()), None);
        }
    }
}
