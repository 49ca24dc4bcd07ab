//! A request's work, turn by turn.

use super::answer::Answer;
use super::state::Server;
use super::turns::next_turn;
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
