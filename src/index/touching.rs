//! Makes what a hit uses the most recent.

use super::budget::Budget;
use super::pins::Pins;
use super::probe::Found;

/// Parts of a step: to note one use.
const TOUCH: u32 = 2;

/// Where the loads of a full-attention group are among all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpperLoads {
    /// The first.
    pub(crate) first: usize,
    /// Those before this one are objects of chunks whose records the anchors name.
    pub(crate) known: usize,
    /// Behind the last.
    pub(crate) end: usize,
}

/// Notes uses, the least recent first: states and windows, then full attention from the end, so that what hangs under
/// something is never the more recent; last the anchor's chunks, also those that need not be loaded.
#[derive(Debug, Default)]
pub(crate) struct Touching {
    loads: usize,
    /// By place.
    upper: Vec<UpperLoads>,
    anchors: usize,
    /// Of the loads forwards, then of the loads backwards, then of the anchors backwards.
    at: usize,
}

impl Touching {
    /// Of so many loads and anchors.
    pub(crate) fn new(loads: usize, upper: Vec<UpperLoads>, anchors: usize) -> Self {
        Self {
            loads,
            upper,
            anchors,
            at: 0,
        }
    }

    /// Goes on until all is noted or the turn is over. Whether it is.
    pub(crate) fn step(
        &mut self,
        pins: &mut impl Pins,
        records: &[u32],
        anchors: &[Found],
        meter: &mut impl Budget,
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
                        self.touch(pins, records[load], meter);
                        continue;
                    }
                };
                continue;
            } else {
                anchors[self.anchors - 1 - (self.at - 2 * loads)].record
            };
            self.touch(pins, record, meter);
        }
        true
    }

    fn touch(&mut self, pins: &mut impl Pins, record: u32, meter: &mut impl Budget) {
        meter.spend(TOUCH);
        pins.touch(record);
        self.at += 1;
    }
}
