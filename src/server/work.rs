//! A request's work, turn by turn.

use super::answer::Answer;
use super::state::Server;
use crate::cache::{Progress, Turn, Work};
use crate::wire::WireError;

/// Does a request's work, turn by turn; between two of them other connections are served.
pub(super) async fn work<W: Work>(
    server: &Server,
    mut work: W,
    turn: &mut Turn,
) -> Result<W::Answer, WireError> {
    loop {
        let progress = work.step(&mut server.core(), turn);
        match progress.map_err(|e| e.to_wire())? {
            Progress::Done(answer) => return Ok(answer),
            Progress::More => next_turn(turn).await,
        }
    }
}

/// Lets every other connection that has something to do have its turn.
pub(super) async fn next_turn(turn: &mut Turn) {
    tokio::task::yield_now().await;
    *turn = Turn::new();
}
