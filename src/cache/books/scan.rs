//! How far the look at all pin words is, and what waits for it.

use super::chunked::Queue;

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

/// Records that scans have found pinned, a bit for each.
///
/// Words of 64 records have the bits of the latest scan that found any of them, and of the one that did before: while a scan is
/// under way, what the last one has found is still known. A record that stays pinned is found by each.
#[derive(Debug)]
pub(crate) struct Marks {
    /// Of each 64 records a scan and its bits, and those before. All zeroes at first, so that no memory is touched before it is used.
    words: Vec<[u64; 4]>,
}

impl Marks {
    fn new(records: u32) -> Self {
        Self {
            words: vec![[0; 4]; (records as usize).div_ceil(64)],
        }
    }

    /// A scan has found a record pinned.
    pub(crate) fn mark(&mut self, record: u32, scan: u64) {
        let Some(word) = self.words.get_mut(record as usize / 64) else {
            return;
        };
        if word[0] != scan {
            *word = [scan, 0, word[0], word[1]];
        }
        word[1] |= 1 << (record % 64);
    }

    /// Whether that scan or a later one has.
    fn found(&self, record: u32, scan: u64) -> bool {
        let bit = 1 << (record % 64);
        self.words
            .get(record as usize / 64)
            .is_some_and(|&[last, bits, before, old]| {
                last >= scan && bits & bit != 0 || before >= scan && old & bit != 0
            })
    }
}

/// The state of the look.
#[derive(Debug)]
pub(crate) struct PinScan {
    pub(crate) marks: Marks,
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
            marks: Marks::new(records),
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
        self.marks.found(record, scan)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_scan_is_known_while_the_next_is_under_way() {
        let mut marks = Marks::new(200);
        for record in [0, 63, 64, 199] {
            assert!(!marks.found(record, 1));
            marks.mark(record, 5);
        }
        marks.mark(256, 5); // none of these
        assert!(!marks.found(1, 5) && !marks.found(200, 5) && !marks.found(256, 5));
        // The next finds one of the first word so far.
        marks.mark(63, 6);
        for (record, found) in [(0, [true, false]), (63, [true, true]), (64, [true, false])] {
            assert_eq!(
                [5, 6].map(|scan| marks.found(record, scan)),
                found,
                "record {record}"
            );
        }
        // And one after it the other.
        marks.mark(0, 7);
        assert!(marks.found(0, 7) && marks.found(63, 6) && !marks.found(63, 7));
        assert!(marks.found(199, 4) && !marks.found(199, 6));
    }
}
