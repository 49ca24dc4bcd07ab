//! Lookups that run while the caller does something else.
//!
//! One helper thread per client, started by the first ticket. A ticket that is given up releases what its lookup pins.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::lookup::LookupAnswer;
use crate::client::ClientError;
use crate::client::config::check_wait;
use crate::client::link::core::Core;
use crate::object::{Lookup, LookupRequest};

/// Names a lookup that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Most tickets that may be open at one time.
const MAX_TICKETS: usize = 65536;

type Answer = Result<LookupAnswer, ClientError>;

#[derive(Debug, Default)]
struct State {
    last: u64,
    queue: VecDeque<(u64, Lookup)>,
    /// Open tickets; nothing while pending.
    open: HashMap<u64, Option<Answer>>,
    helper: bool,
    closed: bool,
}

impl State {
    /// A ticket whose answer is there already.
    fn answered(&mut self, answer: LookupAnswer) -> Ticket {
        self.last += 1;
        self.open.insert(self.last, Some(Ok(answer)));
        Ticket(self.last)
    }
}

/// The open tickets of a client.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    state: Mutex<State>,
    /// A lookup was queued or answered.
    changed: Condvar,
}

impl Tickets {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.queue.clear();
        self.changed.notify_all();
    }
}

/// What [`crate::client::Client`] does with its tickets.
impl Tickets {
    pub(crate) fn start(
        self: &Arc<Self>,
        core: &Arc<Core>,
        request: &LookupRequest<'_>,
    ) -> Result<Ticket, ClientError> {
        core.check_process()?;
        let mut state = self.state();
        if state.open.len() >= MAX_TICKETS {
            return Err(ClientError::TooManyItems {
                given: state.open.len() + 1,
                limit: MAX_TICKETS,
            });
        }
        if !state.closed
            && let Some(answer) = core.lookup_local(request)
        {
            return Ok(state.answered(answer));
        }
        if !state.helper && !state.closed {
            let (core, tickets) = (Arc::clone(core), Arc::clone(self));
            let helper = std::thread::Builder::new().name("kvasir-lookup".into());
            // Without one there is nobody to ask the server, which is as good as having none; the next ticket tries again.
            state.helper = helper.spawn(move || answer_all(&core, &tickets)).is_ok();
        }
        if state.closed || !state.helper {
            return Ok(state.answered(LookupAnswer::degraded()));
        }
        state.last += 1;
        let ticket = state.last;
        state.open.insert(ticket, None);
        state.queue.push_back((ticket, Lookup::from(request)));
        self.changed.notify_all();
        Ok(Ticket(ticket))
    }

    pub(crate) fn poll(
        &self,
        core: &Core,
        ticket: Ticket,
        wait: Duration,
    ) -> Result<Option<LookupAnswer>, ClientError> {
        core.check_process()?;
        check_wait("wait", wait)?;
        let until = Instant::now() + wait;
        let mut state = self.state();
        loop {
            match state.open.get(&ticket.0) {
                None => return Err(ClientError::UnknownTicket { ticket: ticket.0 }),
                Some(Some(_)) => break,
                Some(None) => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.open.remove(&ticket.0).flatten().transpose()
    }

    pub(crate) fn cancel(&self, core: &Arc<Core>, ticket: Ticket) {
        if core.check_process().is_err() {
            return;
        }
        let removed = self.state().open.remove(&ticket.0);
        if let Some(Some(Ok(answer))) = removed {
            release(core, &answer);
        }
    }
}

/// The helper thread: answers lookups in order until the client is closed.
fn answer_all(core: &Arc<Core>, tickets: &Tickets) {
    loop {
        let Some((ticket, request)) = next(tickets) else {
            return;
        };
        let answer = core.lookup(&request.as_request());
        let mut state = tickets.state();
        let given_up = match state.open.get_mut(&ticket) {
            Some(slot) => {
                *slot = Some(answer);
                None
            }
            None => Some(answer),
        };
        tickets.changed.notify_all();
        drop(state);
        if let Some(Ok(answer)) = given_up {
            release(core, &answer);
        }
    }
}

/// The next lookup that somebody still waits for; nothing once the client is closed.
fn next(tickets: &Tickets) -> Option<(u64, Lookup)> {
    let mut state = tickets.state();
    loop {
        if state.closed {
            for slot in state.open.values_mut().filter(|slot| slot.is_none()) {
                *slot = Some(Ok(LookupAnswer::degraded()));
            }
            tickets.changed.notify_all();
            return None;
        }
        match state.queue.pop_front() {
            Some((ticket, request)) if state.open.contains_key(&ticket) => return Some((ticket, request)),
            Some(_) => {}
            None => {
                state = tickets
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner)
            }
        }
    }
}

fn release(core: &Arc<Core>, answer: &LookupAnswer) {
    if let Some(pin) = answer.pin {
        // A pin that is unknown by now needs no release.
        let _ = core.release(&[pin]);
    }
}
