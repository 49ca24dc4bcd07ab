//! How far the look at all pin words is, and what waits for it.

use super::chunked::{Chunked, Queue};

/// An object that is out of the index, and nobody has looked yet whether a reader holds it.
#[derive(Debug)]
pub(crate) struct Condemned {
    pub(crate) record: u32,
    /// What it hung under. That cannot go before this one is decided about: whatever is condemned later is decided
    /// about later.
    pub(crate) parent: Option<u32>,
    /// Scans that had begun by then. Only a later one tells.
    pub(crate) after: u64,
}

/// Where the look is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Stage {
    #[default]
    Idle,
    /// Reads pin words: of this slab from this word on, up to the mark that was found there.
    Words { slab: usize, word: usize, high: usize },
    /// Lets records go again that no word pins any more.
    Parked { from: u32 },
    /// Decides about what was condemned.
    Condemned,
    /// Frees what only a word has held in limbo.
    LetGo { from: u32 },
}

/// The state of the look.
#[derive(Debug)]
pub(crate) struct PinScan {
    /// By record: the last scan that found a word that pins it. Takes memory as pins come up.
    pub(crate) marks: Chunked<u64>,
    /// Scans that have begun, whose words have been read, and from which everything has followed.
    pub(crate) begun: u64,
    pub(crate) read: u64,
    pub(crate) swept: u64,
    pub(crate) stage: Stage,
    pub(crate) condemned: Queue<Condemned>,
    /// The next of a chain in limbo from whose end one after another goes.
    pub(crate) follows: Option<u32>,
}

impl PinScan {
    /// Nothing has been looked at, of so many records.
    pub(crate) fn new(records: u32) -> Self {
        Self {
            marks: Chunked::new(0, records),
            begun: 0,
            read: 0,
            swept: 0,
            stage: Stage::Idle,
            condemned: Queue::default(),
            follows: None,
        }
    }

    /// The next scan to begin. One that is under way is of no use: it may have read words that have changed since.
    pub(crate) fn next(&self) -> u64 {
        self.begun + 1
    }

    /// Whether that scan, or a later one, has found a record pinned.
    pub(crate) fn found(&self, record: u32, scan: u64) -> bool {
        *self.marks.get(record) >= scan
    }

    /// Objects that nobody has decided about.
    pub(crate) fn undecided(&self) -> usize {
        self.condemned.len()
    }

    /// Puts an object that was taken out of the index and hangs under nothing now where it is decided about.
    pub(crate) fn condemn(&mut self, record: u32, parent: Option<u32>) {
        self.condemned.push(Condemned {
            record,
            parent,
            after: self.begun,
        });
    }
}
