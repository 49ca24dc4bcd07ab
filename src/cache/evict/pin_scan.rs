//! The look at all pin words, and what follows from it.
//!
//! Protocol: docs/shm-layout.md, "evict".
//!
//! One scan serves everybody who waits for one, and is done in turns. That is safe: before it begins, the objects that
//! it decides about have been marked dead, and a fence stands between. A reader whose pin counts wrote its word,
//! fenced, and then found the object live; so its fence came before the scan's, and every load of that word by this
//! scan, however late, sees the pin or what the reader wrote after it was done. A reader that fenced later finds the
//! object dead and takes its word back. No reader moves a pin from one word to another without looking at the object
//! again.

use crate::cache::books::scan::Stage;
use crate::cache::books::slabs::record_of;
use crate::cache::turn::Turn;
use crate::cache::{Core, CoreError, Progress, SLABS, Work};
use crate::index::slab::PIN_WORDS;
use crate::sync::shared::{Ordering, fence};

/// Pin words that are copied at once: sixteen cache lines in a row.
const WORDS: usize = 128;
/// Words of such a copy that count as one step.
const WORDS_PER_STEP: usize = 16;
/// Records that are marked in one step: their bits may lie anywhere, but all of them are little memory.
const MARKS_PER_STEP: u32 = 8;
/// Steps of letting a record go that no word pins any more, and of putting one where it hung.
const UNPARK_STEPS: u32 = 3;
const STAY_STEPS: u32 = 2;

impl Core {
    /// Goes on until a scan of all pin words is finished, with all that follows from it. False: the turn is over.
    ///
    /// # Errors
    /// [`CoreError::Pool`] when the books are wrong.
    pub(crate) fn sweep(&mut self, turn: &mut Turn, scan: u64) -> Result<bool, CoreError> {
        while self.sweep.swept < scan {
            if turn.is_over() {
                return Ok(false);
            }
            if !self.free_waste(turn)? {
                return Ok(false);
            }
            if let Some(record) = self.sweep.follows.take() {
                self.let_go(turn, record)?;
                continue;
            }
            match self.sweep.stage {
                Stage::Idle => {
                    self.sweep.begun += 1;
                    // Pairs with the fence of a reader between its pin and its look at the record.
                    fence(Ordering::SeqCst);
                    self.sweep.stage = Stage::Words {
                        slab: 0,
                        word: 0,
                        high: self.slabs.high_water(0),
                    };
                    turn.spend(1);
                }
                Stage::Words { slab, word, high } => self.read_words(turn, slab, word, high),
                Stage::Parked { from } => self.sweep_parked(turn, from),
                Stage::Condemned => self.decide(turn)?,
                Stage::LetGo { from } => self.sweep_let_go(turn, from)?,
            }
        }
        Ok(true)
    }

    /// Does all of it at once.
    #[cfg(test)]
    pub(crate) fn sweep_now(&mut self) -> Result<(), CoreError> {
        let scan = self.sweep.next();
        self.sweep(&mut Turn::endless(), scan).map(drop)
    }

    /// The first slab in use from this one on. Its mark is read when its words are about to be: a pin that counts
    /// raised it before its reader's fence.
    fn words_of(&self, from: usize) -> Stage {
        match (from..SLABS).find(|slab| self.slabs.is_open(*slab)) {
            Some(slab) => Stage::Words {
                slab,
                word: 0,
                high: self.slabs.high_water(slab),
            },
            None => Stage::Parked { from: 0 },
        }
    }

    fn read_words(&mut self, turn: &mut Turn, slab: usize, word: usize, high: usize) {
        let total = self.pool.frames();
        let count = high.saturating_sub(word).min(WORDS);
        let mut words = [0; WORDS];
        self.slabs.load_pins(slab, word, &mut words[..count]);
        let (marks, scan) = (&mut self.sweep.marks, self.sweep.begun);
        let mut marked = 0;
        for record in words[..count].iter().filter_map(|word| record_of(*word, total)) {
            marks.mark(record, scan);
            marked += 1;
        }
        turn.spend(1 + (count / WORDS_PER_STEP) as u32 + marked / MARKS_PER_STEP);
        self.sweep.stage = match word + count < high {
            true => Stage::Words {
                slab,
                word: word + count,
                high,
            },
            false => self.words_of(slab + 1),
        };
        if let Stage::Parked { .. } = self.sweep.stage {
            // What readers read before they took their pins back was read before it goes.
            fence(Ordering::Acquire);
            self.sweep.read = scan;
        }
    }

    fn sweep_parked(&mut self, turn: &mut Turn, from: u32) {
        turn.spend(1);
        self.sweep.stage = match self.tree.parked_from(from) {
            Some(record) => {
                if !self.sweep.found(record, self.sweep.read) {
                    self.tree.unpark(record);
                    turn.spend(UNPARK_STEPS);
                }
                Stage::Parked { from: record + 1 }
            }
            None => Stage::Condemned,
        };
    }

    fn decide(&mut self, turn: &mut Turn) -> Result<(), CoreError> {
        turn.spend(1);
        let read = self.sweep.read;
        let Some(front) = self.sweep.condemned.first().filter(|front| front.after < read) else {
            self.sweep.stage = Stage::LetGo { from: 0 };
            return Ok(());
        };
        let (record, parent) = (front.record, front.parent);
        self.sweep.condemned.pop();
        turn.spend(STAY_STEPS);
        self.tree.stay_in_limbo(record, parent);
        self.let_go(turn, record)
    }

    fn sweep_let_go(&mut self, turn: &mut Turn, from: u32) -> Result<(), CoreError> {
        turn.spend(1);
        match self.tree.let_go_from(from) {
            Some(record) => {
                self.sweep.stage = Stage::LetGo { from: record + 1 };
                self.let_go(turn, record)
            }
            None => {
                self.sweep.stage = Stage::Idle;
                self.sweep.swept = self.sweep.read;
                Ok(())
            }
        }
    }

    /// Frees an object that is out of the index, unless something holds it. What it hung under is next: this may have
    /// been the last that held it.
    fn let_go(&mut self, turn: &mut Turn, record: u32) -> Result<(), CoreError> {
        if !self.tree.is_let_go(record) || self.sweep.found(record, self.sweep.read) {
            return Ok(());
        }
        self.sweep.follows = self.tree.get(record).parent;
        self.free_object(turn, record)
    }
}

/// Has what was taken out of the index, and that nobody decided about yet, decided about, and what waits to become
/// free freed.
#[derive(Debug, Default)]
pub struct Tidy {
    scan: Option<u64>,
}

impl Work for Tidy {
    type Answer = ();

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<()>, CoreError> {
        if core.sweep.undecided() == 0 {
            return Ok(match core.free_waste(turn)? {
                true => Progress::Done(()),
                false => Progress::More,
            });
        }
        let scan = *self.scan.get_or_insert(core.sweep.next());
        match core.sweep(turn, scan)? {
            true => Ok(Progress::Done(())),
            false => Ok(Progress::More),
        }
    }
}

const _: () = assert!(PIN_WORDS.is_multiple_of(WORDS));
