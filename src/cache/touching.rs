//! Makes what a hit uses the most recent.
//!
//! May import this module's `meter`, `probe` and `records`.

use super::records::Records;
use crate::index::meter::Meter;
use crate::index::probe::Found;

/// Parts of a step: to note one use.
const TOUCH: u32 = 2;

/// Where the loads of a full-attention group are among all.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpperLoads {
    /// The first.
    pub(super) first: usize,
    /// Those before this one are objects of chunks whose records the anchors name.
    pub(super) known: usize,
    /// Behind the last.
    pub(super) end: usize,
}

/// Notes uses, the least recent first: states and windows, then full attention from the end, so that what hangs under
/// something is never the more recent; last the anchor's chunks, also those that need not be loaded.
#[derive(Debug, Default)]
pub(super) struct Touching {
    loads: usize,
    /// By place.
    upper: Vec<UpperLoads>,
    anchors: usize,
    /// Of the loads forwards, then of the loads backwards, then of the anchors backwards.
    at: usize,
}

impl Touching {
    /// Of so many loads and anchors.
    pub(super) fn new(loads: usize, upper: Vec<UpperLoads>, anchors: usize) -> Self {
        Self {
            loads,
            upper,
            anchors,
            at: 0,
        }
    }

    /// Goes on until all is noted or the turn is over. Whether it is.
    pub(super) fn step(
        &mut self,
        all: &mut Records,
        records: &[u32],
        anchors: &[Found],
        meter: &mut Meter<'_>,
    ) -> bool {
        let (loads, end) = (self.loads, 2 * self.loads + self.anchors);
        while self.at < end {
            if meter.is_over() {
                return false;
            }
            let record = if self.at < loads {
                let at = self.at;
                if let Some(upper) = self
                    .upper
                    .iter()
                    .find(|upper| (upper.first..upper.end).contains(&at))
                {
                    self.at = upper.end;
                    continue;
                }
                records[at]
            } else if self.at < 2 * loads {
                let load = 2 * loads - 1 - self.at;
                // Over what is no full attention, and over what the anchors name.
                self.at = match self.upper.iter().rfind(|upper| upper.first <= load) {
                    None => 2 * loads,
                    Some(upper) if load >= upper.end => 2 * loads - upper.end,
                    Some(upper) if load < upper.known => 2 * loads - upper.first,
                    Some(_) => {
                        self.touch(all, records[load], meter);
                        continue;
                    }
                };
                continue;
            } else {
                anchors[self.anchors - 1 - (self.at - 2 * loads)].record
            };
            self.touch(all, record, meter);
        }
        true
    }

    fn touch(&mut self, all: &mut Records, record: u32, meter: &mut Meter<'_>) {
        meter.spend(TOUCH);
        all.touch(record);
        self.at += 1;
    }
}
