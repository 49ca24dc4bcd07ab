//! What is spent of a turn by work whose single movements are shorter than a step.

use super::turn::Turn;
use crate::index::budget::Budget;

/// Parts of a step.
const PARTS: u32 = 16;

/// Counts in sixteenths of a step, 30 ns each at the worst. What is begun of a step is spent when it goes.
pub(crate) struct Meter<'a> {
    turn: &'a mut Turn,
    parts: u32,
}

impl<'a> Meter<'a> {
    /// Nothing is spent yet.
    pub(crate) fn new(turn: &'a mut Turn) -> Self {
        Self { turn, parts: 0 }
    }
}

impl Budget for Meter<'_> {
    fn spend(&mut self, parts: u32) {
        self.parts += parts;
        if self.parts >= PARTS {
            self.turn.spend(self.parts / PARTS);
            self.parts %= PARTS;
        }
    }

    fn is_over(&self) -> bool {
        self.turn.is_over()
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        self.turn.spend(u32::from(self.parts > 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::turn::TURN_STEPS;

    #[test]
    fn small_movements_add_up_to_a_turn() {
        let mut turn = Turn::new();
        let mut meter = Meter::new(&mut turn);
        let mut made = 0;
        while !meter.is_over() {
            meter.spend(3);
            made += 3;
        }
        assert_eq!(made / PARTS, TURN_STEPS);
        drop(meter);
        let mut turn = Turn::new();
        for _ in 0..TURN_STEPS {
            assert!(!turn.is_over());
            Meter::new(&mut turn).spend(1);
        }
        assert!(turn.is_over(), "what is begun counts");
    }
}
