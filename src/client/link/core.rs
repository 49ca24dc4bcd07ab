//! The heart of a client: the one link to the server, and the state that callers may ask for.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::connection::{Connection, LATE, Stream};
#[cfg(feature = "cuda")]
use super::held::Held;
use super::populate::Populated;
use super::session::Session;
use super::stats::{Counters, REUSE, Stat};
use super::wake::Wake;
use super::wanted::{Registered, Wanted};
use crate::client::memory::KvMemory;
use crate::client::{ClientConfig, ClientError};
use crate::copy::CopyEngine;
use crate::index::conditions::Conditions;
use crate::index::counters::ReuseCounters;
use crate::shm::atfork::process_generation;
use crate::sync::shared::{AtomicBool, AtomicU64, Ordering};

/// The connection, if there is one.
#[derive(Debug)]
enum Link {
    Down,
    Idle(Box<Connection>),
    /// A call is under way.
    Busy,
}

#[derive(Debug)]
struct State {
    link: Link,
    /// Of the link; or of one that is down, which is read from memory only, until there is another.
    session: Option<Arc<Session>>,
    /// The connection of a server that was late. What was asked over it may be done any time until the server closes it.
    unanswered: Option<Arc<Stream>>,
    wanted: Wanted,
    /// What keeps the engine from caching, as far as the server cannot know.
    conditions: Conditions,
    /// Why there is no link, for people.
    reason: String,
    down_since: Option<Instant>,
    /// Recovery attempts begun and ended.
    attempts_begun: u64,
    attempts_ended: u64,
    last_attempt: Option<ClientError>,
    connections: u64,
    closed: bool,
    /// Connections that an operator ended.
    kicked: u64,
}

/// What becomes of reading from memory when a link goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    End,
    GoOn,
}

/// Shared by the client, its threads and its guards.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: ClientConfig,
    pub(crate) counters: Counters,
    /// Of all connections.
    pub(crate) populated: Arc<Populated>,
    /// The process that made this client, counted in forks.
    process: u64,
    state: Mutex<State>,
    /// The link became idle, came up or went down, or an attempt ended.
    changed: Condvar,
    /// Wakes the recovery thread.
    pub(crate) wake: Wake,
    /// Whether there is a recovery thread.
    pub(crate) recovers: AtomicBool,
    memory: RwLock<Option<Arc<KvMemory>>>,
    /// The generation of the healthy session; 0 while there is none.
    healthy: AtomicU64,
    /// Copies of devices that are late.
    #[cfg(feature = "cuda")]
    pub(crate) held: Held,
}

impl Core {
    /// What copies payload. Whoever asks first in a process waits some milliseconds for a measurement, so a registration does.
    pub(crate) fn engine(&self) -> CopyEngine {
        let engine = CopyEngine::detect();
        match self.config.copy_threads {
            0 => engine.with_measured_threads(),
            threads => engine.with_threads(threads),
        }
    }

    pub(crate) fn new(config: ClientConfig) -> Self {
        Self {
            config,
            counters: Counters::default(),
            populated: Arc::default(),
            process: process_generation(),
            state: Mutex::new(State {
                link: Link::Down,
                session: None,
                unanswered: None,
                wanted: Wanted::default(),
                conditions: Conditions::default(),
                reason: "not connected yet".into(),
                down_since: Some(Instant::now()),
                attempts_begun: 0,
                attempts_ended: 0,
                last_attempt: None,
                connections: 0,
                closed: false,
                kicked: 0,
            }),
            changed: Condvar::new(),
            wake: Wake::default(),
            recovers: AtomicBool::new(false),
            memory: RwLock::new(None),
            healthy: AtomicU64::new(0),
            #[cfg(feature = "cuda")]
            held: Held::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to work in a forked child, where the mappings and threads of this client do not exist.
    pub(crate) fn check_process(&self) -> Result<(), ClientError> {
        if self.is_forked_copy() {
            let reason = "this client was made before a fork; make a new one in the child";
            return Err(ClientError::unavailable(reason));
        }
        Ok(())
    }

    pub(crate) fn is_forked_copy(&self) -> bool {
        process_generation() != self.process
    }

    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.config.deadline
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Acquire) != 0 && !self.is_forked_copy()
    }

    /// Whether what needs no message works: lookups and loads.
    pub(crate) fn is_readable(&self) -> bool {
        self.is_healthy()
            || !self.is_forked_copy() && self.session().is_some_and(|session| session.is_readable())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    pub(crate) fn state_text(&self) -> String {
        let state = self.state();
        let kicks = match state.kicked {
            0 => String::new(),
            1 => "; an operator ended a connection of it (kvasir clients --kick)".to_owned(),
            kicks => format!("; an operator ended {kicks} connections of it (kvasir clients --kick)"),
        };
        self.state_alone(&state) + &kicks
    }

    fn state_alone(&self, state: &State) -> String {
        match (&state.link, state.closed) {
            _ if self.is_forked_copy() => "made before a fork: of no use in this process".into(),
            (_, true) => "closed".into(),
            (Link::Down, _) if state.session.is_some() => format!(
                "degraded: {}; lookups and loads go on from memory, stores are dropped, retrying",
                state.reason
            ),
            (Link::Down, _) => format!(
                "degraded: {}; lookups miss, stores are dropped, retrying",
                state.reason
            ),
            _ => match self.counters.total(Stat::EvictedPins) {
                0 => "healthy".into(),
                pins => format!(
                    "healthy; pin words ran out, so {pins} pins of the oldest sessions were given up: release each pin, \
                     or end its session"
                ),
            },
        }
    }

    pub(crate) fn wanted(&self) -> Wanted {
        self.state().wanted.clone()
    }

    pub(crate) fn chunk_size(&self) -> Option<u64> {
        self.state().wanted.chunk_size
    }

    pub(crate) fn registered(&self) -> Option<Arc<Registered>> {
        self.state().wanted.registered.clone()
    }

    /// The session to read from: that of the link, or the last one.
    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        self.state().session.clone()
    }

    /// The session that calls go to now.
    pub(crate) fn linked_session(&self) -> Option<Arc<Session>> {
        let state = self.state();
        let linked = !matches!(state.link, Link::Down);
        state.session.clone().filter(|_| linked)
    }

    pub(crate) fn memory(&self) -> Result<Arc<KvMemory>, ClientError> {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        memory.clone().ok_or(ClientError::NoMemory)
    }

    pub(crate) fn set_memory(&self, memory: KvMemory) {
        *self.memory.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(memory));
    }

    /// Takes the memory away; and puts it back, unless there is other memory by then.
    pub(crate) fn take_memory(&self) -> Option<Arc<KvMemory>> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn put_memory_back(&self, memory: Arc<KvMemory>) {
        let mut place = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        place.get_or_insert(memory);
    }

    /// Changes what is remembered.
    pub(crate) fn remember(&self, change: impl FnOnce(&mut Wanted)) {
        let mut state = self.state();
        change(&mut state.wanted);
        state.wanted.version += 1;
    }

    /// How long the present outage has lasted.
    pub(crate) fn degraded_now(&self) -> Duration {
        let state = self.state();
        state.down_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    pub(crate) fn count(&self, stat: Stat, count: u64) {
        self.count_at(self.state().session.as_deref(), stat, count);
    }

    /// Counts what was done with a session. What nobody would read there any more is told to the next server.
    pub(crate) fn count_at(&self, session: Option<&Session>, stat: Stat, count: u64) {
        self.counters.add(stat, count);
        match session {
            Some(session) if !session.has_ended() => session.count(stat, count),
            _ => self.counters.hold_back(stat, count),
        }
    }

    /// Adds what requests reused.
    pub(crate) fn count_reuse(&self, tokens: ReuseCounters) {
        let state = self.state();
        for (stat, count) in REUSE.into_iter().zip(tokens.to_words()) {
            if count == 0 {
                continue;
            }
            self.count_at(state.session.as_deref(), stat, count);
        }
    }

    /// Replaces what keeps the engine from caching, for this server and those to come.
    pub(crate) fn set_conditions(&self, conditions: Conditions) {
        let mut state = self.state();
        state.conditions = conditions;
        if let Some(session) = &state.session {
            session.set_conditions(conditions);
        }
    }

    /// Takes the link for one or more exchanges, waiting for others' until the deadline. With `session`, only if that is
    /// still the one: what its frames and pins mean, no other server knows.
    pub(crate) fn take_link(
        &self,
        session: Option<&Arc<Session>>,
        deadline: Instant,
    ) -> Result<(Box<Connection>, Arc<Session>), ClientError> {
        self.check_process()?;
        let mut state = self.state();
        loop {
            match &state.link {
                Link::Down => return Err(ClientError::unavailable(&state.reason)),
                Link::Idle(_) => break,
                Link::Busy => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ClientError::unavailable(
                    "earlier calls took all the time of this one",
                ));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let Some(current) = state.session.clone() else {
            return Err(ClientError::unavailable(&state.reason));
        };
        if session.is_some_and(|session| session.generation != current.generation) {
            return Err(ClientError::unavailable("the server restarted meanwhile"));
        }
        if !current.is_current() {
            self.take_down(state, "the server restarted", Reads::End);
            return Err(ClientError::unavailable("the server restarted"));
        }
        let Link::Idle(connection) = std::mem::replace(&mut state.link, Link::Busy) else {
            return Err(ClientError::unavailable(&state.reason));
        };
        Ok((connection, current))
    }

    /// Drops the connection of `session`, if that is still the one, and wakes the recovery thread. What the server shared is read
    /// on: whether it is history, its boot word says and not its connection.
    pub(crate) fn degrade(&self, session: &Session, reason: &str) {
        self.end(session, reason, |_| true);
    }

    fn end(&self, session: &Session, reason: &str, which: impl FnOnce(&Link) -> bool) {
        let mut state = self.state();
        // Also of one that another has followed: who reads late is the first to hear of it.
        state.kicked += u64::from(session.stream.take_kicked());
        let current = state.session.as_ref().map(|session| session.generation);
        if current == Some(session.generation) && which(&state.link) {
            session.end();
            self.take_down(state, reason, Reads::GoOn);
        }
    }

    /// The server has closed the connection while no call was made over it. What it said last is why.
    pub(crate) fn hung_up(&self, session: &Session) {
        let words = match &mut self.state().link {
            Link::Idle(connection) => connection.last_words(),
            Link::Busy | Link::Down => None,
        };
        let reason = words.map_or_else(
            || "the server closed the connection".to_owned(),
            |error| format!("the server closed the connection: {error}"),
        );
        self.abandon(session, &reason);
    }

    /// The same for a link that is up still: of one that is down it is settled already what becomes of it.
    pub(crate) fn abandon(&self, session: &Session, reason: &str) {
        self.end(session, reason, |link| !matches!(link, Link::Down));
    }

    /// The same for a server that has not answered in time: its connection is of no more use, but what was asked over it may still
    /// be done. The slab stays this client's as long as the lock byte is held, and nobody gives the lock up here.
    pub(crate) fn degrade_late(&self, session: &Session) {
        let mut state = self.state();
        let current = state.session.as_ref().map(|session| session.generation);
        if current == Some(session.generation) && !matches!(state.link, Link::Down) {
            state.unanswered = Some(Arc::clone(&session.stream));
            let reads = match session.attached() {
                Some(_) => Reads::GoOn,
                None => Reads::End, // nothing is read without the server
            };
            self.take_down(state, LATE, reads);
        }
    }

    /// Ends reading without a link, if that is what `which` says of the session. Whether it was.
    pub(crate) fn end_reads(&self, which: impl FnOnce(&Session) -> bool) -> bool {
        let state = self.state();
        let ends = matches!(state.link, Link::Down) && state.session.as_deref().is_some_and(which);
        if ends {
            let reason = state.reason.clone();
            self.take_down(state, &reason, Reads::End);
        }
        ends
    }

    /// A session that ends with this goes once the state is free for others: unmapping its pool takes time.
    fn take_down(&self, mut state: MutexGuard<'_, State>, reason: &str, reads: Reads) {
        self.healthy.store(0, Ordering::Release);
        // Whoever holds a busy connection finds the link down or another generation when it comes back, and drops it.
        state.link = Link::Down;
        let goes_on = |session: &Arc<Session>| reads == Reads::GoOn && session.is_readable();
        let ended = state.session.take_if(|session| !goes_on(session));
        if let Some(session) = &ended {
            // What a late server was asked last is told by the end of the connection, which is waited for.
            match &state.unanswered {
                Some(stream) if Arc::ptr_eq(stream, &session.stream) => stream.end_requests(),
                _ => session.stream.hang_up(),
            }
        }
        state.reason = reason.to_owned();
        state.down_since.get_or_insert_with(Instant::now);
        self.changed.notify_all();
        self.wake.wake();
        drop(state);
        drop(ended);
    }

    /// Waits until a server that was late has done, or will never do, what it was asked last. A commit of then may hold what the
    /// next store hangs under, and would be missed if it came after that store.
    pub(crate) fn await_unanswered(&self, deadline: Instant) {
        let Some(stream) = self.state().unanswered.take() else {
            return;
        };
        stream.end_requests();
        let Ok(fd) = stream.fd() else { return };
        while !self.wake.hung_up(&[fd]) && !self.is_closed() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return; // a chunk may be stored twice or not at all, which is better than no store
            }
            self.wake.sleep(&[fd], left);
        }
    }

    /// Asks for a recovery attempt now and waits for one that began after the asking. What it ended with.
    pub(crate) fn attempt_now(&self, deadline: Instant) -> Result<(), ClientError> {
        let mut state = self.state();
        let asked = state.attempts_begun;
        self.wake.wake();
        loop {
            if !matches!(state.link, Link::Down) {
                return Ok(());
            }
            if state.attempts_ended > asked {
                let failed = state.last_attempt.clone();
                return Err(failed.unwrap_or_else(|| ClientError::unavailable(&state.reason)));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.closed {
                return Err(ClientError::unavailable(&state.reason));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the first attempt has ended, however it did.
    pub(crate) fn first_attempt(&self, deadline: Instant) {
        let mut state = self.state();
        while state.attempts_ended == 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The number of the connection that an attempt is about to make.
    pub(crate) fn begin_attempt(&self) -> u64 {
        let mut state = self.state();
        state.attempts_begun += 1;
        state.connections + 1
    }

    /// Puts a recovered connection into use, or gives it back if the engine asked for something else meanwhile.
    pub(crate) fn install(
        &self,
        connection: Box<Connection>,
        session: Session,
        recovered: &Wanted,
    ) -> Option<(Box<Connection>, Session)> {
        let mut state = self.state();
        if state.closed {
            return None;
        }
        if state.wanted.version != recovered.version {
            return Some((connection, session));
        }
        state.wanted = recovered.clone();
        state.connections += 1;
        let reconnected = state.connections > 1;
        let session = Arc::new(session);
        if let Some(since) = state.down_since.take() {
            self.counters
                .add(Stat::DegradedMs, since.elapsed().as_millis() as u64);
            session.count(Stat::DegradedSeconds, since.elapsed().as_secs());
        }
        session.set_conditions(state.conditions);
        for (stat, count) in self.counters.take_held_back() {
            session.count(stat, count);
        }
        self.healthy.store(session.generation, Ordering::Release);
        let late = state.session.replace(session);
        if let Some(late) = &late {
            late.stream.hang_up();
        }
        state.link = Link::Idle(connection);
        state.last_attempt = None;
        state.attempts_ended = state.attempts_begun;
        if reconnected {
            self.counters.add(Stat::Reconnects, 1);
        }
        self.changed.notify_all();
        // Others first: unmapping its pool takes time.
        drop(state);
        drop(late);
        None
    }

    /// Notes that an attempt failed.
    pub(crate) fn attempt_failed(&self, error: ClientError) {
        let mut state = self.state();
        state.reason = match &error {
            ClientError::Unavailable { reason } => reason.clone(),
            error => error.to_string(),
        };
        state.last_attempt = Some(error);
        state.attempts_ended = state.attempts_begun;
        self.changed.notify_all();
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        self.take_down(state, "the client was closed", Reads::End);
    }

    /// Takes the connection of a link back that is still the one.
    pub(crate) fn give_back_link(&self, connection: Box<Connection>, session: &Session) {
        let mut state = self.state();
        let current = state.session.as_ref().map(|session| session.generation);
        if current == Some(session.generation) && matches!(state.link, Link::Busy) {
            state.link = Link::Idle(connection);
            self.changed.notify_all();
        }
    }
}
