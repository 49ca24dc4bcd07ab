//! The end of a turn: whoever has done enough lets the others go on.

use crate::cache::Turn;

/// Lets every other connection that has something to do have its turn.
pub(super) async fn next_turn(turn: &mut Turn) {
    tokio::task::yield_now().await;
    *turn = Turn::new();
}

/// Another so many steps, and the others' turn when this one is over.
pub(super) async fn spend(turn: &mut Turn, steps: u32) {
    turn.spend(steps);
    if turn.is_over() {
        next_turn(turn).await;
    }
}
