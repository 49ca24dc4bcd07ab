//! Numbers of records and chain blocks: which are free.

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
