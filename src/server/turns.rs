//! The end of a turn: whoever has done enough lets the others go on.

use std::future::{Future, poll_fn};
use std::pin::pin;

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

/// Waits for something. Whoever had to wait has a whole turn: the others had theirs meanwhile, or had nothing to do.
pub(super) async fn waiting<F: Future>(turn: &mut Turn, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            *turn = Turn::new();
        }
        polled
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_who_waits_has_a_whole_turn() {
        let mut turn = Turn::new();
        turn.spend(u32::MAX - 1);
        waiting(&mut turn, async {}).await;
        assert!(turn.is_over(), "what is there already is no pause");
        waiting(&mut turn, tokio::task::yield_now()).await;
        assert!(!turn.is_over());
    }
}
