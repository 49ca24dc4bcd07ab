//! The body of a record: where each part of an object lies. Index and directory store it alike. This is how it is
//! read; the server writes it.
//!
//! Per part, in rank order, one word `bytes << 16 | extents`, the checksum and that many extent words. The
//! first six words are in the record, the rest in chain blocks of seven words and a link.

use crate::object::Extent;
use crate::shm::mapping::{Access, Mapping};

/// Body words inside a record.
pub(crate) const INLINE_WORDS: usize = 6;
/// Words of a part before its extents: one of both counts, and the checksum.
pub(crate) const BODY_HEAD_WORDS: usize = 2;
/// Bytes of a chain block.
pub(crate) const CHAIN_BYTES: usize = 64;
/// Body words in a chain block.
pub(crate) const CHAIN_WORDS: usize = 7;
/// Chain blocks that a pool of `frames` frames needs at most.
pub(crate) const fn chain_blocks(frames: u32) -> u32 {
    frames / 2 + 64
}

/// Chain blocks that a body of `words` words needs.
pub(crate) const fn blocks_for(words: usize) -> usize {
    words.saturating_sub(INLINE_WORDS).div_ceil(CHAIN_WORDS)
}

/// What comes up in a walk through a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyPiece {
    /// A part begins that has so many bytes in so many runs.
    Part {
        /// Its bytes.
        bytes: u64,
        /// Its runs.
        runs: usize,
    },
    /// The checksum of that part.
    Checksum(u64),
    /// A run of a part.
    Run(Extent),
    /// A chain block that has been walked through.
    Block(u32),
}

/// Where a walk through a body is.
#[derive(Clone, Debug)]
pub(crate) struct BodyCursor {
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
    pub(crate) fn new(body: u64, inline: &[u64; INLINE_WORDS]) -> Self {
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
            head: BODY_HEAD_WORDS,
            runs: 0,
        }
    }

    /// Chain blocks that have not come up yet.
    pub(crate) fn blocks_ahead(&self) -> usize {
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

    /// Goes on with a walk. The inner one is `None` at the end; the outer one when the words are not a body.
    pub(crate) fn next_piece<A: Access>(
        self,
        mapping: &Mapping<A>,
        cursor: &mut BodyCursor,
    ) -> Option<Option<BodyPiece>> {
        if cursor.at == cursor.filled {
            if let Some(block) = cursor.block.take() {
                return Some(Some(BodyPiece::Block(block)));
            }
            if cursor.left == 0 {
                let whole = cursor.runs == 0 && cursor.head == BODY_HEAD_WORDS;
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
            BODY_HEAD_WORDS => {
                (cursor.head, cursor.runs) = (BODY_HEAD_WORDS - 1, (word & 0xffff) as usize);
                return Some(Some(BodyPiece::Part {
                    bytes: word >> 16,
                    runs: cursor.runs,
                }));
            }
            0 => cursor.runs -= 1,
            _ => cursor.head -= 1,
        }
        if cursor.head == 0 && cursor.runs == 0 {
            cursor.head = BODY_HEAD_WORDS;
        }
        Some(Some(match is_run {
            true => BodyPiece::Run(Extent::from_word(word)),
            false => BodyPiece::Checksum(word),
        }))
    }

    pub(crate) fn at(self, block: u32) -> usize {
        self.base + block as usize * CHAIN_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Memfd, OwnerAccess};

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
