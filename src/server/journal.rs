//! Lines of the log that a peer can cause, so many of each kind and no more.
//!
//! Whoever connects in a loop, or sends what is refused in a loop, gets his answers; the log says it often enough to
//! be understood, and how much it left out.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use tracing::{debug, error, info, warn};

use super::session::{Known, SessionInfo, client_kind, one_line};
use crate::object::ClientKind;
use crate::wire::{ErrorCode, WireError};

/// Lines of one kind that may come at once: all clients of a full server, coming, registering and going.
const CLIENT_LINES: u32 = 3 * 256;
/// The same for refusals, of which the first ones tell.
const REFUSAL_LINES: u32 = 64;
/// Once those are used up, a line of each kind so often.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// What a line is about. Each kind has its own allowance, so that one cannot hide the other.
#[derive(Clone, Copy)]
enum Kind {
    Client,
    Refusal,
    Internal,
}

/// How many lines may still be said.
#[derive(Debug)]
struct Allowance {
    most: u32,
    left: u32,
    refilled: Instant,
    left_out: u64,
}

impl Allowance {
    fn new(most: u32, now: Instant) -> Self {
        Self {
            most,
            left: most,
            refilled: now,
            left_out: 0,
        }
    }

    /// Whether a line may be said; if so, how many were not since the last one.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let earned = now.saturating_duration_since(self.refilled).as_nanos() / LINE_EVERY.as_nanos();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(earned).min(self.most);
            self.refilled += LINE_EVERY * earned.min(self.most);
            if self.left == self.most {
                self.refilled = now;
            }
        }
        if self.left == 0 {
            self.left_out += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// The lines about peers.
pub(super) struct Journal(RefCell<[Allowance; 3]>);

impl Journal {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let allowance = |most| Allowance::new(most, now);
        Self(RefCell::new([
            allowance(CLIENT_LINES),
            allowance(REFUSAL_LINES),
            allowance(REFUSAL_LINES),
        ]))
    }

    fn may_say(&self, kind: Kind) -> bool {
        let (kind, what) = match kind {
            Kind::Client => (0, "clients that came and went"),
            Kind::Refusal => (1, "refusals"),
            Kind::Internal => (2, "internal errors"),
        };
        let left_out = self.0.borrow_mut()[kind].take(Instant::now());
        if let Some(lines) = left_out.filter(|lines| *lines > 0) {
            warn!(lines, "lines about {what} were left out, there were too many");
        }
        left_out.is_some()
    }

    /// A peer has said hello.
    pub(super) fn came(&self, session: &SessionInfo) {
        let (pid, kind, name) = introduced(session);
        if session.kind == ClientKind::Tool {
            debug!(pid, kind, name, "client connected");
        } else if self.may_say(Kind::Client) {
            let slab = session.client.map(|client| client.slab());
            info!(pid, kind, name, slab, "client connected");
        }
    }

    /// A client has registered its KV caches.
    pub(super) fn registered(&self, session: &SessionInfo) {
        if self.may_say(Kind::Client) {
            let (pid, kind, name) = introduced(session);
            let registered = session.registered_text();
            info!(pid, kind, name, registered, "client registered");
        }
    }

    /// A peer that had said hello is gone.
    pub(super) fn went(&self, session: &SessionInfo, why: &str) {
        let (pid, kind, name) = introduced(session);
        if session.kind == ClientKind::Tool {
            debug!(pid, kind, name, why, "client left");
        } else if self.may_say(Kind::Client) {
            let registered = session.registered_text();
            info!(pid, kind, name, registered, why, "client left");
        }
    }

    /// An operator ends a client: the process that asked, and what became of it.
    pub(super) fn kicked(&self, by: u32, known: &Known, outcome: &str) {
        if self.may_say(Kind::Client) {
            let (pid, number, name) = (known.pid, known.number, one_line(&known.name));
            warn!(by, number, pid, name, outcome, "an operator ended a client");
        }
    }

    /// A connection without a hello, or one that was closed because of what the peer did.
    pub(super) fn closed(&self, pid: u32, why: &str) {
        if self.may_say(Kind::Refusal) {
            info!(pid, why, "connection closed");
        }
    }

    /// A request, or a whole connection, was refused.
    pub(super) fn refused(&self, pid: u32, refusal: &WireError) {
        let kind = match refusal.code {
            ErrorCode::Internal => Kind::Internal,
            _ => Kind::Refusal,
        };
        if !self.may_say(kind) {
            return;
        }
        let (code, numbers) = (refusal.code, &refusal.numbers);
        let why = one_line(&refusal.message);
        match code {
            ErrorCode::Internal => error!(pid, ?code, why, "a request failed in this server"),
            // Something that a person has to mend.
            ErrorCode::BindingListenerFailed | ErrorCode::Exhausted => {
                warn!(pid, ?code, ?numbers, why, "refused");
            }
            _ => info!(pid, ?code, ?numbers, why, "refused"),
        }
    }
}

fn introduced(session: &SessionInfo) -> (u32, &'static str, String) {
    (session.pid, client_kind(session.kind), one_line(&session.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_lines_is_cut_and_counted_and_ends() {
        let start = Instant::now();
        let mut allowance = Allowance::new(4, start);
        let said: Vec<_> = (0..10).map(|_| allowance.take(start)).collect();
        assert_eq!(said[..4], [Some(0); 4]);
        assert_eq!(said[4..], [None; 6]);
        // One line for each period that has passed, the first of them with what is missing.
        let later = start + 2 * LINE_EVERY + LINE_EVERY / 2;
        assert_eq!([later; 3].map(|at| allowance.take(at)), [Some(6), Some(0), None]);
        // Half a period was over already.
        assert_eq!(allowance.take(start + 3 * LINE_EVERY), Some(1));
        // Never more at once than at the start, however long it was quiet.
        let much_later = start + 1_000_000 * LINE_EVERY;
        let said = (0..10).filter(|_| allowance.take(much_later).is_some());
        assert_eq!(said.count(), 4);
    }

    /// The log that something makes.
    fn log_of(something: impl FnOnce()) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(file.reopen().unwrap())
            .finish();
        tracing::subscriber::with_default(log, something);
        std::fs::read_to_string(file.path()).unwrap()
    }

    /// Nobody else sees the cause of a failure inside: the peer is told to look here.
    #[test]
    fn a_refusal_has_its_cause_and_the_level_of_who_has_to_mend_it() {
        for (code, level) in [
            (ErrorCode::Internal, "ERROR"),
            (ErrorCode::Exhausted, "WARN"),
            (ErrorCode::BindingListenerFailed, "WARN"),
            (ErrorCode::IncompatibleChunkSize, "INFO"),
        ] {
            let refusal = WireError::new(code, "dup failed: os error 24", [24]);
            let log = log_of(|| Journal::new().refused(4711, &refusal));
            let name = format!("{code:?}");
            for part in [level, name.as_str(), "dup failed: os error 24", "pid=4711"] {
                assert!(log.contains(part), "{part}: {log}");
            }
        }
    }

    #[test]
    fn a_name_stays_in_its_line() {
        assert_eq!(one_line("a\nERROR \u{1b}[2J b"), "a\u{fffd}ERROR \u{fffd}[2J b");
    }
}
