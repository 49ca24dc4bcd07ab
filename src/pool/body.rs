//! The body of a record: where each part of an object lies. Index and directory store it alike.
//!
//! Per part, in rank order, one word `bytes << 16 | extents`, the checksum and that many extent words. The
//! first six words are in the record, the rest in chain blocks of seven words and a link.

use crate::object::Extent;
use crate::shm::mapping::{Access, Mapping, ReadWrite};

/// Body words inside a record.
pub(crate) const INLINE_WORDS: usize = 6;
/// Words of a part before its extents: one of both counts, and the checksum.
pub(crate) const BODY_HEAD_WORDS: usize = 2;
const HEAD_WORDS: usize = BODY_HEAD_WORDS;
/// Bytes of a chain block.
pub(crate) const CHAIN_BYTES: usize = 64;
/// Body words in a chain block.
pub(crate) const CHAIN_WORDS: usize = 7;
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

/// Chain blocks that a pool of `frames` frames needs at most.
pub(crate) const fn chain_blocks(frames: u32) -> u32 {
    frames / 2 + 64
}

/// Chain blocks that a body of `words` words needs.
pub(crate) const fn blocks_for(words: usize) -> usize {
    words.saturating_sub(INLINE_WORDS).div_ceil(CHAIN_WORDS)
}

/// The words of a body.
pub(crate) fn encode(parts: &[PartBody]) -> Vec<u64> {
    let mut words = Vec::with_capacity(parts.iter().map(|p| HEAD_WORDS + p.extents.len()).sum());
    for part in parts {
        debug_assert!(part.bytes <= MAX_PART_BYTES && part.extents.len() <= MAX_PART_EXTENTS);
        words.push(part.bytes << 16 | part.extents.len() as u64);
        words.push(part.checksum);
        words.extend(part.extents.iter().map(|e| e.to_word()));
    }
    words
}

/// One part of a body: its bytes, its checksum, and its runs appended to `extents`. `None` when the words are
/// not a body.
pub(crate) fn part(words: &[u64], part: u16, extents: &mut Vec<Extent>) -> Option<(u64, u64)> {
    let mut at = 0;
    for _ in 0..part {
        at += HEAD_WORDS + (words.get(at)? & 0xffff) as usize;
    }
    let (bytes, checksum, runs) = part_at(words, at)?;
    extents.extend(runs.iter().map(|w| Extent::from_word(*w)));
    Some((bytes, checksum))
}

fn part_at(words: &[u64], at: usize) -> Option<(u64, u64, &[u64])> {
    let &[head, checksum] = words.get(at..at + HEAD_WORDS)? else {
        return None;
    };
    let first = at + HEAD_WORDS;
    let runs = words.get(first..first + (head & 0xffff) as usize)?;
    Some((head >> 16, checksum, runs))
}

/// All parts of a body. `None` when the words are not a body of that many parts.
pub(crate) fn decode(words: &[u64], parts: u16) -> Option<Vec<PartBody>> {
    let mut all = Vec::with_capacity(parts.into());
    let mut at = 0;
    for _ in 0..parts {
        let (bytes, checksum, runs) = part_at(words, at)?;
        at += HEAD_WORDS + runs.len();
        all.push(PartBody {
            bytes,
            checksum,
            extents: runs.iter().map(|w| Extent::from_word(*w)).collect(),
        });
    }
    (at == words.len()).then_some(all)
}

/// What comes up in a walk through a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyPiece {
    /// A part begins that has so many runs.
    Part(usize),
    /// A run of a part.
    Run(Extent),
    /// A chain block that has been walked through.
    Block(u32),
}

/// Where a walk through a body is.
#[derive(Clone, Debug)]
pub struct BodyCursor {
    /// Words that were read and those of them that are done.
    line: [u64; CHAIN_WORDS],
    at: usize,
    filled: usize,
    /// Words that are yet to be read, and the link to them.
    left: usize,
    link: u64,
    /// The block that `line` is of.
    block: Option<u32>,
    /// Words of this part that come before its runs, and its runs.
    head: usize,
    runs: usize,
}

impl BodyCursor {
    /// Before a body: its word in the record, and its first words.
    pub fn new(body: u64, inline: &[u64; INLINE_WORDS]) -> Self {
        let words = (body & 0xffff_ffff) as usize;
        let filled = words.min(INLINE_WORDS);
        let mut line = [0; CHAIN_WORDS];
        line[..filled].copy_from_slice(&inline[..filled]);
        Self {
            line,
            at: 0,
            filled,
            left: words - filled,
            link: body >> 32,
            block: None,
            head: HEAD_WORDS,
            runs: 0,
        }
    }

    /// Chain blocks that have not come up yet.
    pub fn blocks_ahead(&self) -> usize {
        self.left.div_ceil(CHAIN_WORDS) + usize::from(self.block.is_some())
    }
}

/// The chain blocks of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainArea {
    /// Offset of block 0.
    pub base: usize,
    /// Number of blocks.
    pub blocks: u32,
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
    ) -> Result<(), crate::shm::ShmError> {
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
    ) -> Result<(), crate::shm::ShmError> {
        mapping.store_words(self.at(block), line)
    }

    /// Goes on with a walk. The inner one is `None` at the end; the outer one when the words are not a body.
    pub(crate) fn next_piece<A: Access>(
        self,
        mapping: &Mapping<A>,
        cursor: &mut BodyCursor,
    ) -> Option<Option<BodyPiece>> {
        loop {
            if cursor.at == cursor.filled {
                if let Some(block) = cursor.block.take() {
                    return Some(Some(BodyPiece::Block(block)));
                }
                if cursor.left == 0 {
                    let whole = cursor.runs == 0 && cursor.head == HEAD_WORDS;
                    return whole.then_some(None);
                }
                let block = u32::try_from(cursor.link.checked_sub(1)?).ok();
                let block = block.filter(|b| *b < self.blocks)?;
                let mut line = [0; CHAIN_WORDS + 1];
                mapping.load_words(self.at(block), &mut line).ok()?;
                let filled = cursor.left.min(CHAIN_WORDS);
                cursor.line.copy_from_slice(&line[1..]);
                (cursor.at, cursor.filled, cursor.left) = (0, filled, cursor.left - filled);
                (cursor.link, cursor.block) = (line[0], Some(block));
            }
            let word = cursor.line[cursor.at];
            cursor.at += 1;
            let is_run = cursor.head == 0;
            match cursor.head {
                HEAD_WORDS => {
                    (cursor.head, cursor.runs) = (HEAD_WORDS - 1, (word & 0xffff) as usize);
                    return Some(Some(BodyPiece::Part(cursor.runs)));
                }
                0 => cursor.runs -= 1,
                _ => cursor.head -= 1,
            }
            if cursor.head == 0 && cursor.runs == 0 {
                cursor.head = HEAD_WORDS;
            }
            if is_run {
                return Some(Some(BodyPiece::Run(Extent::from_word(word))));
            }
        }
    }

    /// Reads the words of a body: `body` is the record's body word, `inline` its first words.
    ///
    /// Relaxed loads: the caller checks afterwards that the record has not changed. `None` when a link
    /// leads outside of the area, which only a record that is being changed can have.
    pub(crate) fn read<A: Access>(
        self,
        mapping: &Mapping<A>,
        body: u64,
        inline: &[u64; INLINE_WORDS],
        words: &mut Vec<u64>,
    ) -> Option<()> {
        let count = (body & 0xffff_ffff) as usize;
        if blocks_for(count) > self.blocks as usize {
            return None;
        }
        words.clear();
        words.extend_from_slice(&inline[..count.min(INLINE_WORDS)]);
        let mut link = body >> 32;
        while words.len() < count {
            let block = u32::try_from(link.checked_sub(1)?)
                .ok()
                .filter(|b| *b < self.blocks)?;
            let mut line = [0; CHAIN_WORDS + 1];
            mapping.load_words(self.at(block), &mut line).ok()?;
            let take = (count - words.len()).min(CHAIN_WORDS);
            words.extend_from_slice(&line[1..=take]);
            link = line[0];
        }
        Some(())
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

    fn at(self, block: u32) -> usize {
        self.base + block as usize * CHAIN_BYTES
    }
}

/// Numbers that are free to use: the lowest never used one, or the one freed last.
#[derive(Debug, Default)]
pub(crate) struct NumberPool {
    freed: Vec<u32>,
    next: u32,
    total: u32,
}

impl NumberPool {
    /// Numbers `0..total`, all free.
    pub(crate) fn new(total: u32) -> Self {
        Self {
            // Room that is not touched before it is used, and never moves: a move of millions of numbers takes long.
            freed: Vec::with_capacity(total as usize),
            next: 0,
            total,
        }
    }

    /// Takes one.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.freed.pop().or_else(|| {
            let number = (self.next < self.total).then_some(self.next)?;
            self.next += 1;
            Some(number)
        })
    }

    /// Gives one back.
    pub(crate) fn put(&mut self, number: u32) {
        debug_assert!(number < self.next);
        self.freed.push(number);
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.next as usize - self.freed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Memfd, OwnerAccess};

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

    #[test]
    fn a_broken_chain_is_refused() {
        let memfd = Memfd::create("body", 1 << 16, OwnerAccess::Read).unwrap();
        let mapping = memfd.map().unwrap();
        let area = ChainArea {
            base: 4096,
            blocks: 16,
        };
        let mut words = Vec::new();
        // A link of 0, a link behind the area, more words than the area can hold.
        for body in [9, 17 << 32 | 9, 1 << 32 | 0xffff_ffff] {
            let inline = [0; INLINE_WORDS];
            assert!(area.read(&mapping, body, &inline, &mut words).is_none());
        }
        // A cycle ends after as many words as the record claims.
        mapping.store_words(4096, &[1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        assert!(
            area.read(&mapping, 1 << 32 | 100, &[0; INLINE_WORDS], &mut words)
                .is_some()
        );
        assert_eq!(words.len(), 100);
    }
}
