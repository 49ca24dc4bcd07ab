//! When a client is gone, and what is taken back then.
//!
//! A closed connection ends the pins that were made over it, and nothing else. What the client may still be writing
//! or reading comes back when its lock byte is free, which the kernel sees to when the process ends. There is no
//! event for that, so it is asked: often while there is a client without a connection, and at the beat for those with one.
//!
//! What a client was granted whose payload a device copies waits for a little more ([`super::dying`]).
//!
//! A connection ends with the process that made it ([`super::peer`]), or when its client is found to have let go of its
//! lock, whoever else still has the socket. A lock that is still held means that somebody may still write: a child with a
//! copy of the descriptor, for one. Then the grants stay, and the log says so.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::leaving::Orphan;
use super::state::Server;
use crate::cache::{ClientId, CoreError};

/// A killed process closes its socket a moment before its lock, so the first look comes soon.
const FIRST_LOOK: Duration = Duration::from_millis(10);
/// Orphans that are asked about in one turn: a system call each.
const LOOKS_AT_ONCE: usize = 32;
/// A client that only lost its connection can live for long.
const LAST_LOOK: Duration = Duration::from_millis(200);

/// Clients with a connection that are asked about at one beat.
const LOOKS_PER_BEAT: usize = 64;
/// When a client without a connection has been there for so many looks, the log says it.
const LOOKS_UNTIL_SAID: u32 = 8;

/// Asks again about a client that could not be taken down, if it has to be.
pub(super) fn look_again(server: &Server, client: ClientId, gone: Result<bool, CoreError>) {
    let mut orphan = Orphan {
        client,
        failed: false,
        looks: 0,
    };
    if is_left(client.slab(), &mut orphan.failed, gone) {
        server.orphans.borrow_mut().push(orphan);
        server.orphan_added.notify_one();
    }
}

/// Whether a client has to be asked about again. It has after an error too: what it held would be lost otherwise.
fn is_left(slab: u16, failed: &mut bool, gone: Result<bool, CoreError>) -> bool {
    match gone {
        Ok(gone) => !gone,
        Err(CoreError::UnknownClient { .. }) => false,
        Err(error) => {
            if !*failed {
                warn!(slab, %error, "client could not be taken down, trying again");
            }
            *failed = true;
            true
        }
    }
}

/// Asks about clients with a connection, so many at a time and each in turn, and ends the connections of those that are
/// gone: a process that died whose socket some child has, where the process itself cannot be watched.
pub(super) fn look_at_connected(server: &Server, after: u64) -> u64 {
    let sessions = server.sessions.borrow();
    let core = server.core();
    let mut next = 0;
    for (number, info) in sessions.range(after + 1..).take(LOOKS_PER_BEAT) {
        next = *number;
        if info
            .client
            .is_some_and(|client| matches!(core.has_let_go(client), Ok(true)))
        {
            info.gone.notify_one();
        }
    }
    next
}

/// When to look next. A new orphan brings the next look forward and never puts it off.
#[derive(Debug)]
struct Schedule {
    pause: Duration,
    next: Instant,
}

impl Schedule {
    fn new(now: Instant) -> Self {
        Self {
            pause: FIRST_LOOK,
            next: now + FIRST_LOOK,
        }
    }

    fn added(&mut self, now: Instant) {
        self.pause = FIRST_LOOK;
        self.next = self.next.min(now + FIRST_LOOK);
    }

    fn looked(&mut self, now: Instant) {
        self.pause = (2 * self.pause).min(LAST_LOOK);
        self.next = now + self.pause;
    }
}

/// Asks about clients without a connection until none is left, and sleeps until there is one again.
pub(super) async fn watch_orphans(server: Rc<Server>) {
    loop {
        server.orphan_added.notified().await;
        let mut schedule = Schedule::new(Instant::now());
        while !server.orphans.borrow().is_empty() {
            tokio::select! {
                // A look that is due comes before the news, or enough news could put it off for ever.
                biased;
                () = tokio::time::sleep_until(schedule.next) => {
                    look(&server).await;
                    schedule.looked(Instant::now());
                }
                () = server.orphan_added.notified() => schedule.added(Instant::now()),
            }
        }
    }
}

/// Asks about each orphan once, some at a time. Those that are gone are taken down.
async fn look(server: &Server) {
    let mut left = server.orphans.borrow().len();
    while left > 0 {
        let mut asked: Vec<Orphan> = {
            let mut orphans = server.orphans.borrow_mut();
            let count = left.min(LOOKS_AT_ONCE).min(orphans.len());
            orphans.drain(..count).collect()
        };
        if asked.is_empty() {
            break;
        }
        left -= asked.len();
        asked.retain_mut(|orphan| {
            let gone = server.core().is_alive(orphan.client).map(|alive| !alive);
            let gone = gone.map(|gone| gone && server.dying.borrow_mut().may_take(orphan.client));
            let is_gone = matches!(gone, Ok(true));
            orphan.looks = orphan.looks.saturating_add(1);
            if orphan.looks == LOOKS_UNTIL_SAID && matches!(gone, Ok(false)) {
                info!(
                    slab = orphan.client.slab(),
                    "a client without a connection still holds its lock: it, or a child that it left, lives, and what was \
                     granted to it stays its own until that ends"
                );
            }
            let stays = is_left(orphan.client.slab(), &mut orphan.failed, gone);
            if is_gone {
                server.ends.add(orphan.client);
            }
            stays
        });
        server.orphans.borrow_mut().extend(asked);
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::ShmError;

    #[test]
    fn new_orphans_do_not_put_off_the_look_at_others() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        for ms in 0..1000 {
            schedule.added(start + Duration::from_millis(ms));
        }
        assert_eq!(schedule.next, start + FIRST_LOOK);
        let mut now = start;
        for _ in 0..10 {
            schedule.looked(now);
            now = schedule.next;
        }
        assert_eq!(schedule.pause, LAST_LOOK);
        schedule.looked(now);
        schedule.added(now);
        assert_eq!(schedule.next, now + FIRST_LOOK, "but bring it forward");
    }

    #[test]
    fn a_client_is_forgotten_only_when_it_is_gone() {
        let mut failed = false;
        assert!(is_left(3, &mut failed, Ok(false)));
        assert!(!is_left(3, &mut failed, Ok(true)));
        assert!(!failed);
        let refused = ShmError::os("fcntl", "byte 3", std::io::Error::from_raw_os_error(libc::ENOLCK));
        assert!(is_left(3, &mut failed, Err(refused.into())));
        assert!(failed);
        assert!(!is_left(
            3,
            &mut failed,
            Err(CoreError::UnknownClient { slab: 3 })
        ));
    }
}
