//! What is done for a complete object before it becomes visible: its words in the chain blocks, the epochs of its
//! frames.
//!
//! Nobody looks at either before the record names them, so they are written piece by piece. What was taken for it is
//! the incomplete object's until then, and goes with it.

use super::part::Part;
use crate::index::body::{BODY_HEAD_WORDS, CHAIN_WORDS, INLINE_WORDS, blocks_for};
use crate::object::Extent;

/// What a chain block holds: a link, and words.
type Line = [u64; CHAIN_WORDS + 1];

/// How far an object is prepared.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    /// Its incarnation.
    pub(crate) number: u64,
    /// The first words of its body.
    pub(crate) inline: [u64; INLINE_WORDS],
    /// Chain blocks that were taken, in order.
    pub(crate) blocks: Vec<u32>,
    /// Words of the body, and those that are written.
    pub(crate) words: usize,
    written: usize,
    /// The line of the last block.
    line: Line,
    filled: usize,
    /// The next part, and its next word.
    at: (usize, usize),
    /// What is left of a run whose frames are given their epoch.
    run: Option<Extent>,
    /// Frames and bytes so far.
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

/// What is to be done next.
pub(crate) enum Next {
    /// These frames are given their epoch.
    Epochs(Extent),
    /// The last line goes to this block.
    Line(u32, Line),
    /// A block is taken.
    Block,
    /// Nothing.
    Done,
}

impl Prepared {
    /// Nothing of an object of these parts.
    pub(crate) fn new(number: u64, parts: &[Part]) -> Self {
        let words = parts
            .iter()
            .map(|part| BODY_HEAD_WORDS + part.body.extents.len())
            .sum();
        Self {
            number,
            inline: [0; INLINE_WORDS],
            blocks: Vec::with_capacity(blocks_for(words)),
            words,
            written: 0,
            line: [0; CHAIN_WORDS + 1],
            filled: 0,
            at: (0, 0),
            run: None,
            frames: 0,
            bytes: 0,
        }
    }

    /// One movement on; of a run at most so many frames at once.
    pub(crate) fn next(&mut self, parts: &[Part], most: u32) -> Next {
        loop {
            if let Some(run) = self.run.take() {
                let count = run.count.min(most);
                self.run = (count < run.count).then(|| Extent::new(run.frame + count, run.count - count));
                self.frames += u64::from(count);
                return Next::Epochs(Extent::new(run.frame, count));
            }
            let spilled = self.written.saturating_sub(INLINE_WORDS);
            if self.written == self.words {
                return self
                    .flush(None)
                    .map_or(Next::Done, |(block, line)| Next::Line(block, line));
            }
            if self.written >= INLINE_WORDS && spilled == self.blocks.len() * CHAIN_WORDS {
                return Next::Block;
            }
            if let Some((word, run)) = self.word(parts) {
                match self.written < INLINE_WORDS {
                    true => self.inline[self.written] = word,
                    false => {
                        self.filled += 1;
                        self.line[self.filled] = word;
                    }
                }
                self.written += 1;
                self.run = run;
            } else {
                debug_assert!(false, "{} of {} words", self.written, self.words);
                self.words = self.written;
            }
        }
    }

    /// Goes on in this block. The line that leads to it, if there is one, is complete now.
    pub(crate) fn take(&mut self, block: u32) -> Option<(u32, Line)> {
        let line = self.flush(Some(block));
        self.blocks.push(block);
        line
    }

    fn flush(&mut self, next: Option<u32>) -> Option<(u32, Line)> {
        let block = *self.blocks.last().filter(|_| self.filled > 0)?;
        let mut line = std::mem::replace(&mut self.line, [0; CHAIN_WORDS + 1]);
        line[0] = next.map_or(0, |next| u64::from(next) + 1);
        self.filled = 0;
        Some((block, line))
    }

    /// The next word, and the run that it names.
    fn word(&mut self, parts: &[Part]) -> Option<(u64, Option<Extent>)> {
        let body = &parts.get(self.at.0)?.body;
        let word = self.at.1;
        self.at.1 += 1;
        if self.at.1 == BODY_HEAD_WORDS + body.extents.len() {
            self.at = (self.at.0 + 1, 0);
        }
        Some(match word {
            0 => {
                self.bytes += body.bytes;
                (body.bytes << 16 | body.extents.len() as u64, None)
            }
            1 => (body.checksum, None),
            run => {
                let run = *body.extents.get(run - BODY_HEAD_WORDS)?;
                (run.to_word(), Some(run))
            }
        })
    }
}
