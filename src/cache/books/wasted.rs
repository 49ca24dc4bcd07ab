//! What is no object any more and is yet to become free.

use super::incomplete::Incomplete;
use super::part::Part;
use crate::index::body::BodyCursor;
use crate::object::Extent;
use crate::pool::PoolError;

/// Where its runs are found.
#[derive(Debug)]
pub(crate) enum Runs {
    /// In the directory.
    Body(Box<BodyCursor>),
    /// In the parts that have come, from this run of this part on. Blocks may have been taken for it to be published.
    Parts {
        parts: Vec<Part>,
        at: (usize, usize),
        blocks: Vec<u32>,
    },
}

/// One such record.
#[derive(Debug)]
pub(crate) struct Waste {
    pub(crate) record: u32,
    pub(crate) runs: Runs,
    /// Its frames still have epochs. Readers look at the first frame of a part only, so all of them lose theirs before
    /// any becomes free.
    pub(crate) epochs: bool,
    /// What is left of a run.
    pub(crate) run: Option<Extent>,
    pub(crate) freed: Result<(), PoolError>,
}

impl Waste {
    /// An object that was out of the index.
    pub(crate) fn of_object(record: u32, body: BodyCursor) -> Self {
        Self {
            record,
            runs: Runs::Body(Box::new(body)),
            epochs: true,
            run: None,
            freed: Ok(()),
        }
    }

    /// An object that was incomplete.
    pub(crate) fn of_incomplete(incomplete: Incomplete) -> Self {
        let record = incomplete.record;
        let (parts, blocks) = incomplete.into_rest();
        Self {
            record,
            epochs: blocks.is_some(),
            runs: Runs::Parts {
                parts,
                at: (0, 0),
                blocks: blocks.unwrap_or_default(),
            },
            run: None,
            freed: Ok(()),
        }
    }
}
