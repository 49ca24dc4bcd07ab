//! Turns of the server's one thread.
//!
//! A turn is a number of steps, not a time: what it comes to is the same on every machine and in every run, so tests
//! can count it. A step stands for a few cache misses (a record looked at, a frame freed), half a microsecond at the
//! worst; work of more steps than a turn has stops, others are served, and it goes on where it stopped.

/// Steps in one turn. An ordinary lookup takes more than 96 and is to be one turn, of 20 us; kinds whose steps miss
/// the caches count more of them, so that 128 stay well below the 100 us that a turn may take.
pub(crate) const TURN_STEPS: u32 = 128;

/// What is left of a turn.
#[derive(Debug)]
pub struct Turn {
    left: u32,
    #[cfg(test)]
    spent: u32,
}

impl Turn {
    /// A whole turn.
    pub fn new() -> Self {
        Self {
            left: TURN_STEPS,
            #[cfg(test)]
            spent: 0,
        }
    }

    /// A turn of so many steps.
    #[cfg(test)]
    pub(crate) fn of(steps: u32) -> Self {
        Self {
            left: steps,
            spent: 0,
        }
    }

    /// A turn without an end, for callers that nobody waits behind: tests, benches, tools.
    pub fn endless() -> Self {
        Self {
            left: u32::MAX,
            #[cfg(test)]
            spent: 0,
        }
    }

    /// Counts steps that were made.
    pub fn spend(&mut self, steps: u32) {
        #[cfg(test)]
        {
            self.spent = self.spent.saturating_add(steps);
        }
        if self.left != u32::MAX {
            self.left = self.left.saturating_sub(steps);
        }
    }

    /// Steps that were made of a whole turn, or more where the last ones went beyond it.
    #[cfg(test)]
    pub(crate) fn spent(&self) -> u32 {
        self.spent
    }

    /// Whether it is somebody else's turn.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }
}

impl Default for Turn {
    fn default() -> Self {
        Self::new()
    }
}
