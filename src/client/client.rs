//! The public calls that are one exchange, and the life of a client.

use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "cuda")]
use super::DeviceStats;
use super::config::check_wait;
use super::link::core::Core;
use super::link::exchange::ahead;
use super::link::populate::When;
use super::link::recover;
use super::link::stats::Stat;
use super::link::wanted::Wanted;
use super::lookup::lookup::{LookupAnswer, Pin};
use super::lookup::tickets::{Ticket, Tickets};
use super::memory::KvMemory;
use super::payload::request::{LoadRequest, StoreOutcome, StoreRequest};
use super::{ClientConfig, ClientError, ClientStats, Maps};
use crate::control::{ControlView, Counter, Health};
use crate::copy::CopyEngine;
use crate::index::conditions::Conditions;
use crate::index::counters::ReuseCounters;
use crate::keys::ChunkKey;
use crate::object::{ClientKind, LookupRequest, ObjectId, PayloadPath};
use crate::wire::{Negotiate, NegotiateReply, RegisterKvCache, Reply, Request};

/// A client that repairs its own connection. All methods may be called from any thread.
#[derive(Debug)]
pub struct Client {
    core: Arc<Core>,
    tickets: Arc<Tickets>,
}

impl Client {
    /// Makes a client and tries once to connect, for at most the deadline. A server that is away is not an error, nor is a
    /// process that has no descriptor or thread to spare: the client is degraded until it has.
    ///
    /// # Errors
    /// [`ClientError::InvalidArgument`] for a deadline or a heartbeat of more than [`super::MAX_WAIT`], or for a copy in
    /// [`PATH_VARIABLE`](crate::copy::PATH_VARIABLE) that there is not.
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        for (what, time) in [("deadline", config.deadline), ("heartbeat", config.heartbeat)] {
            check_wait(what, time)?;
        }
        CopyEngine::check_named().map_err(ClientError::invalid)?;
        let core = Arc::new(Core::new(config));
        if recover::ensure(&core).is_ok() {
            core.first_attempt(core.deadline());
        }
        Ok(Self {
            tickets: Arc::new(Tickets::default()),
            core,
        })
    }

    /// Connected, and everything that was negotiated and registered holds with the server that runs now.
    pub fn is_healthy(&self) -> bool {
        // Asked all the time, so this is where a thread is had that there was none for at first.
        self.core.is_healthy() || self.has_thread() && self.core.is_healthy()
    }

    /// Lookups and loads work: it is healthy, or the last server is late or dead and what it shared is read without it.
    pub fn is_readable(&self) -> bool {
        self.core.is_readable() || self.has_thread() && self.core.is_readable()
    }

    fn has_thread(&self) -> bool {
        !self.core.is_forked_copy() && !self.core.is_closed() && recover::ensure(&self.core).is_ok()
    }

    /// "healthy", or why not and what happens next.
    pub fn state_text(&self) -> String {
        self.core.state_text()
    }

    /// The configuration.
    pub fn config(&self) -> &ClientConfig {
        &self.core.config
    }

    /// The chunk size agreed on; also when a remembered negotiation was completed in the background.
    pub fn chunk_size(&self) -> Option<u64> {
        self.core.chunk_size()
    }

    /// The seed of the registered domain.
    pub fn domain_seed(&self) -> Option<ChunkKey> {
        self.core.registered().map(|registered| registered.seed)
    }

    /// What the last negotiation had to say to the engine's log.
    pub fn warnings(&self) -> Vec<String> {
        self.core.wanted().warnings
    }

    /// What tells this server's run from any other; nothing when there is no server.
    pub fn boot_id(&self) -> Option<[u8; 16]> {
        self.read_control(|control| control.boot().boot_id)
    }

    /// The server's health, as its control region says.
    pub fn server_health(&self) -> Option<Health> {
        let session = self.core.session()?;
        session.control().health().ok()
    }

    /// Reads from the server's control region; nothing when there is no server.
    pub fn read_control<T>(&self, read: impl FnOnce(&ControlView) -> T) -> Option<T> {
        self.core.session().map(|session| read(session.control()))
    }

    /// The NUMA node on which the pool lies: threads that copy do best on its processors ([`numa::run_on`](crate::shm::numa::run_on)).
    /// Nothing when it lies on several, or the kernel does not say, or there is no pool.
    pub fn pool_node(&self) -> Option<u32> {
        self.core.check_process().ok()?;
        let session = self.core.session()?;
        let present = session.control().counter(Counter::Prefaulted);
        session.pool().ok()?.node(present)
    }

    /// Agrees on the chunk size. Remembered and asked again, with the same alignment, of every server to come; one that
    /// answers another size leaves the client degraded.
    ///
    /// # Errors
    /// [`ClientError::Refused`], and then it is not remembered; [`ClientError::Unavailable`], and then it is.
    pub fn negotiate(&self, request: Negotiate) -> Result<NegotiateReply, ClientError> {
        let deadline = self.core.deadline();
        loop {
            match self.core.set_up(&Request::Negotiate(request.clone())) {
                Ok((Reply::Negotiate(reply), _)) => {
                    self.core.remember(|wanted| {
                        wanted.negotiate = Some(request);
                        wanted.chunk_size = Some(reply.chunk_size);
                        wanted.warnings.clone_from(&reply.warnings);
                    });
                    return Ok(reply);
                }
                Ok((reply, session)) => return Err(self.core.distrust(&session, &reply)),
                Err(ClientError::Unavailable { .. }) => {}
                Err(error) => return Err(error),
            }
            self.core
                .remember(|wanted| wanted.negotiate = Some(request.clone()));
            self.recover_now(deadline, |wanted| wanted.negotiate = None)?;
            let wanted = self.core.wanted();
            if let Some(chunk_size) = wanted.chunk_size {
                return Ok(NegotiateReply {
                    chunk_size,
                    warnings: wanted.warnings,
                });
            }
            // Recovered by an attempt that began before this was remembered: the connection is there to ask over.
        }
    }

    /// Registers this rank's KV caches, with the copy that this client uses, and returns the seed of its keys. Remembered as [`Client::negotiate`] is.
    ///
    /// # Errors
    /// As [`Client::negotiate`]; [`ClientError::SeedMismatch`] when the two sides would never agree on a key.
    pub fn register(&self, mut request: RegisterKvCache) -> Result<ChunkKey, ClientError> {
        let deadline = self.core.deadline();
        self.name_path(&mut request)?;
        loop {
            match self.core.set_up(&Request::RegisterKvCache(request.clone())) {
                Ok((reply, session)) => {
                    let registered = recover::confirm(request.clone(), &reply);
                    if let Err(error @ ClientError::Unavailable { .. }) = &registered {
                        self.core.degrade(&session, &error.to_string());
                    }
                    let registered = registered?;
                    let (seed, stores) = (registered.seed, registered.request.stores);
                    self.core.remember(|wanted| {
                        wanted.register = Some(request);
                        wanted.registered = Some(Arc::new(registered));
                    });
                    if stores {
                        self.first_grant();
                    }
                    return Ok(seed);
                }
                Err(ClientError::Unavailable { .. }) => {}
                Err(error) => return Err(error),
            }
            self.core
                .remember(|wanted| wanted.register = Some(request.clone()));
            self.recover_now(deadline, |wanted| wanted.register = None)?;
            let wanted = self.core.wanted();
            if let Some(registered) = wanted.registered.filter(|own| own.request == request) {
                return Ok(registered.seed);
            }
        }
    }

    /// Says which way this client's payload takes.
    fn name_path(&self, request: &mut RegisterKvCache) -> Result<(), ClientError> {
        let maps = self.core.config.maps;
        if matches!(maps, Maps::Pool | Maps::Ring) {
            request.copy_path = self.core.engine().to_string();
        }
        let on_device = self.core.memory().is_ok_and(|memory| memory.is_on_device());
        match (on_device, maps) {
            (false, Maps::Ring) => request.payload_path = PayloadPath::ShmRing,
            (false, _) => {}
            (true, Maps::Pool) => {
                request.payload_path = PayloadPath::Pinned;
                let sums = if self.core.config.checksums {
                    "on the host"
                } else {
                    "off"
                };
                request.copy_path = format!("device, checksums {sums} ({})", request.copy_path);
            }
            (true, _) => {
                return Err(ClientError::invalid(format!(
                    "memory of a device needs a client that maps the pool, this one maps {maps:?}; configure Maps::Pool"
                )));
            }
        }
        Ok(())
    }

    /// Waits for a recovery attempt that asks for what was just remembered; forgets it if a server refuses it for good.
    fn recover_now(&self, deadline: Instant, forget: impl FnOnce(&mut Wanted)) -> Result<(), ClientError> {
        self.core.check_process()?;
        recover::ensure(&self.core)?;
        let answer = self.core.attempt_now(deadline).map_err(ClientError::if_away);
        if !matches!(answer, Ok(()) | Err(ClientError::Unavailable { .. })) {
            self.core.remember(forget);
            self.core.wake.wake();
        }
        answer
    }

    /// Names the engine's KV memory, for stores and loads. Memory of a device is named before [`Client::register`], which
    /// tells the server of it; the pool is registered with the driver from then on, in the background.
    pub fn set_memory(&self, memory: KvMemory) {
        self.core.set_memory(memory);
        #[cfg(feature = "cuda")]
        self.core.use_device();
    }

    /// Takes the memory away that was named last, and waits until no copy touches it, at most so long. False: one may do so
    /// still, so the memory must not be freed; it stays named, for another try. An engine that frees its memory calls this
    /// first, and names other memory after that.
    ///
    /// # Errors
    /// [`ClientError::InvalidArgument`] for a wait of more than [`super::MAX_WAIT`].
    pub fn release_memory(&self, wait: Duration) -> Result<bool, ClientError> {
        check_wait("wait", wait)?;
        Ok(self.core.release_memory(wait))
    }

    /// What was copied from and to device memory, and how; nothing where the memory is the host's.
    #[cfg(feature = "cuda")]
    pub fn device_stats(&self) -> Option<DeviceStats> {
        self.core.device_stats()
    }

    /// Asks for the longest prefix that every object group can serve. Tails are computed only as far as the answer needs
    /// them. Without a server the answer comes from what the last one shared ([`Client::is_readable`]), or is a miss.
    ///
    /// # Errors
    /// [`ClientError::Refused`] and [`ClientError::TooManyItems`] for a request that makes no sense.
    pub fn lookup(&self, request: &LookupRequest<'_>) -> Result<LookupAnswer, ClientError> {
        self.core.lookup(request)
    }

    /// Copies the parts out of KV memory into the pool and publishes them, many in several commits: the next parts are copied while the
    /// server works on the last ones. What the index shows to be there already is not copied, nor what hangs under
    /// something that there was no room for. `supersedes` names tails that are needless afterwards. The blocks may
    /// be reused when this returns.
    ///
    /// # Errors
    /// For a mistake in any item, and then nothing was stored. [`ClientError::Refused`] for a commit that the server refused; what others of
    /// the same call brought is stored. A missing server or missing room is an outcome.
    pub fn store(
        &self,
        requests: &[StoreRequest],
        supersedes: &[ObjectId],
    ) -> Result<Vec<StoreOutcome>, ClientError> {
        self.core.store(requests, supersedes)
    }

    /// Pins the objects under `label`, copies one part of each into KV memory, checks that the bytes were the object's
    /// to the end, and releases. Per item: whether all of it was. After a false the item's blocks hold anything.
    ///
    /// # Errors
    /// For a mistake in any item, and then nothing was copied. A missing object is a false, as is a
    /// missing server while the client is not [readable](Client::is_readable).
    pub fn load(&self, label: u64, part: u16, requests: &[LoadRequest]) -> Result<Vec<bool>, ClientError> {
        self.core.load(label, part, requests)
    }

    /// Per object whether the server has it now. For stores of what may be there already: a store copies first, and only
    /// its commit is told that the object exists. Where the server cannot be asked and the client is not
    /// [readable](Client::is_readable), nothing is there.
    ///
    /// # Errors
    /// [`ClientError::TooManyItems`], [`ClientError::NoRegistration`], and [`ClientError::UnknownGroup`] or
    /// [`ClientError::InvalidArgument`] for a group or part that was not registered.
    pub fn present(&self, part: u16, ids: Vec<ObjectId>) -> Result<Vec<bool>, ClientError> {
        self.core.present(part, ids)
    }

    /// Starts a lookup, and never waits for the server. Tails are computed only as far as the answer needs them. From the
    /// mapped index the answer is there when this returns.
    ///
    /// # Errors
    /// [`ClientError::TooManyItems`] with too many tickets open.
    pub fn lookup_start(&self, request: &LookupRequest<'_>) -> Result<Ticket, ClientError> {
        self.tickets.start(&self.core, request)
    }

    /// The answer to a started lookup, waiting at most `wait` for it; `None` while it is pending. An answer ends the
    /// ticket.
    ///
    /// # Errors
    /// [`ClientError::UnknownTicket`], [`ClientError::InvalidArgument`] for a wait of more than [`super::MAX_WAIT`], and
    /// whatever [`Client::lookup`] answers.
    pub fn lookup_poll(&self, ticket: Ticket, wait: Duration) -> Result<Option<LookupAnswer>, ClientError> {
        self.tickets.poll(&self.core, ticket, wait)
    }

    /// Gives a lookup up. What it pinned, or will pin, is released; a ticket that has ended is ignored.
    pub fn lookup_cancel(&self, ticket: Ticket) {
        self.tickets.cancel(&self.core, ticket);
    }

    /// Gives pins back. Those of earlier connections ended with them and are ignored.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a pin that this connection does not hold (any more).
    pub fn release(&self, pins: &[Pin]) -> Result<(), ClientError> {
        self.core.release(pins)
    }

    /// Drops every pin that this client made under a label.
    ///
    /// # Errors
    /// [`ClientError::Refused`].
    pub fn release_label(&self, label: u64) -> Result<(), ClientError> {
        self.core.release_label(label)
    }

    /// Asks for pool space ahead of stores and returns how many bytes are held now.
    ///
    /// # Errors
    /// [`ClientError::Refused`], [`ClientError::Unavailable`].
    pub fn reserve(&self, bytes: u64) -> Result<u64, ClientError> {
        let (reply, session) = self.core.call(None, &ahead(bytes))?;
        let Reply::Grant { extents } = reply else {
            return Err(self.core.distrust(&session, &reply));
        };
        let pool = session.pool()?;
        pool.gain(extents, When::Later);
        Ok(session.granted_bytes())
    }

    /// Gives the space held for stores back.
    ///
    /// # Errors
    /// [`ClientError::Refused`].
    pub fn give_back(&self) -> Result<(), ClientError> {
        let Some(session) = self.core.session() else {
            return Ok(());
        };
        self.core.give_back(&session)
    }

    /// Drops every unpinned object of the server. False: it could not be asked.
    ///
    /// # Errors
    /// [`ClientError::Refused`].
    pub fn clear(&self) -> Result<bool, ClientError> {
        match self.core.call(None, &Request::Clear) {
            Ok((Reply::Ack, _)) => Ok(true),
            Ok((reply, session)) => Err(self.core.distrust(&session, &reply)),
            Err(ClientError::Unavailable { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The server's status document.
    ///
    /// # Errors
    /// [`ClientError::Unavailable`], [`ClientError::Refused`].
    pub fn status(&self) -> Result<String, ClientError> {
        match self.core.call(None, &Request::Status)? {
            (Reply::Status { json }, _) => Ok(json),
            (reply, session) => Err(self.core.distrust(&session, &reply)),
        }
    }

    /// Counts loads that were given up before any object was named, beside those that [`Client::load`] counts itself.
    pub fn count_failed_loads(&self, loads: u64) {
        self.core.count(Stat::FailedLoads, loads);
    }

    /// Counts tokens of requests that the engine took up or whose loads ended, beside what was counted before. They are
    /// shown by the server's status; what is counted while there is none is told to the next.
    pub fn count_reuse(&self, tokens: ReuseCounters) {
        self.core.count_reuse(tokens);
    }

    /// Counts KV that the engine has computed for the first time and that may be stored. Beside it `stored_bytes` says how much is
    /// stored more than once, as tails that grow and as what was evicted and computed again.
    pub fn count_new_kv(&self, bytes: u64) {
        self.core.count(Stat::NewBytes, bytes);
    }

    /// Says what keeps the engine from caching and only the engine knows, in place of what was said before. Status shows it
    /// beside this client.
    pub fn set_conditions(&self, conditions: Conditions) {
        if !self.core.is_forked_copy() {
            self.core.set_conditions(conditions);
        }
    }

    /// What this client counted.
    pub fn stats(&self) -> ClientStats {
        // Space of a server that has ended is nobody's.
        let granted = self
            .core
            .linked_session()
            .map_or(0, |session| session.granted_bytes());
        let degraded = self.core.degraded_now().as_millis() as u64;
        self.core
            .counters
            .snapshot(degraded, granted, &self.core.populated)
    }

    /// Ends the connection and the background threads. Later calls behave as if the server were away.
    pub fn close(&self) {
        if !self.core.is_forked_copy() {
            self.tickets.close();
            self.core.close();
        }
    }

    /// Space for the first store, so that it needs no round trip.
    fn first_grant(&self) {
        if self.core.config.kind == ClientKind::Worker
            && self.core.config.grant_bytes > 0
            && self
                .core
                .linked_session()
                .is_some_and(|session| session.granted_bytes() == 0)
        {
            // None to be had now: the store itself will ask again.
            let _ = self.reserve(self.core.config.grant_bytes);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.core.is_forked_copy() {
            // In a child the mappings are gone and their addresses may hold something else, and the threads never
            // were: leave all of it alone.
            std::mem::forget(Arc::clone(&self.core));
            return;
        }
        // The threads hold the core and end by themselves; waiting for them could take as long as a call.
        self.close();
    }
}
