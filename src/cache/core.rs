//! The core: one owner of pool, index, pins and grants, driven by one thread of the server.
//!
//! May import everything of this module. Reading is in `read`, storing in `commit` and `grants`, making
//! space in `evict`, the books in `status`.

use std::collections::BTreeSet;

use super::api::*;
use super::credit::Credit;
use super::error::CoreError;
use super::evict::Later;
use super::index::Index;
use super::partials::Partials;
use super::pins::PinTable;
use super::records::Records;
use super::registry::Registry;
use super::slabs::{SLAB_BYTES, Slabs};
use super::{MAX_CHUNK_TOKENS, SLABS};
use crate::pool::body::{NumberPool, chain_blocks};
use crate::pool::{FRAME_BYTES, Pool, PoolConfig, Prefault, PrefaultEvent};

/// What a rank has registered.
#[derive(Clone, Debug)]
pub(super) struct RankRegistration {
    pub(super) domain: u32,
    pub(super) rank: u32,
    /// Object groups and the part of each.
    pub(super) parts: Vec<(u16, u16)>,
    pub(super) stores: bool,
    pub(super) payload_path: PayloadPath,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) info: ClientInfo,
    pub(super) attached: bool,
    pub(super) registration: Option<RankRegistration>,
    pub(super) credit: Credit,
    /// Commits made; tells which partials other ranks have passed by.
    pub(super) commits: u64,
}

/// The cache. All requests are methods; none blocks, none waits for a client.
#[derive(Debug)]
pub struct Core {
    pub(super) pool: Pool,
    pub(super) index: Index,
    pub(super) records: Records,
    pub(super) chains: NumberPool,
    /// Records that are out of the index and keep their frames for a reader.
    pub(super) limbo: BTreeSet<u32>,
    pub(super) pins: PinTable,
    pub(super) slabs: Slabs,
    pub(super) clients: Vec<Option<Client>>,
    pub(super) registry: Registry,
    pub(super) partials: Partials,
    pub(super) counters: Counters,
    /// The one size of all domains, where there is one.
    chunk_size: Option<u32>,
    /// Every size in force, that one included.
    chunk_sizes: BTreeSet<u32>,
    pub(super) boot_seq: u64,
    pub(super) publications: u64,
    pub(super) prefault_ended: bool,
    pub(super) pinned_percent: u32,
    /// What clients that have gone reported of themselves.
    pub(super) departed: ClientCounters,
    max_clients: usize,
}

impl Core {
    /// Makes an empty cache: all regions. No page of the pool is touched, and nothing that grows with it.
    ///
    /// # Errors
    /// [`CoreError::Pool`] for a size or boot sequence that cannot be, [`CoreError::Shm`] without memory,
    /// [`CoreError::InvalidArgument`] for a number of clients that cannot be.
    pub fn create(config: CoreConfig) -> Result<Self, CoreError> {
        if config.max_clients == 0 || config.max_clients > SLABS {
            return Err(CoreError::InvalidArgument {
                field: "number of clients",
                value: config.max_clients as u64,
                expected: "it must be 1 to 256",
            });
        }
        let pool = Pool::create(PoolConfig {
            bytes: config.pool_bytes,
            pool_id: config.pool_id,
            boot_seq: config.boot_seq,
        })?;
        let frames = pool.frames();
        Ok(Self {
            index: Index::create(frames)?,
            records: Records::new(frames),
            chains: NumberPool::new(chain_blocks(frames)),
            limbo: BTreeSet::new(),
            pins: PinTable::new(config.max_pins_per_client, config.max_pinned_objects_per_client),
            slabs: Slabs::create()?,
            clients: (0..SLABS).map(|_| None).collect(),
            registry: Registry::default(),
            partials: Partials::default(),
            counters: Counters::default(),
            chunk_size: None,
            chunk_sizes: BTreeSet::new(),
            boot_seq: config.boot_seq,
            publications: 0,
            prefault_ended: false,
            pinned_percent: config.max_pinned_percent_per_client,
            departed: ClientCounters::default(),
            max_clients: config.max_clients,
            pool,
        })
    }

    /// Starts the thread that makes the pool's pages present. Hand each `Ready(bytes)` to
    /// [`Core::prefaulted`] and the end of it, good or bad, to [`Core::prefault_ended`].
    ///
    /// # Errors
    /// [`CoreError::Pool`] when no thread can be started.
    pub fn start_prefault(
        &self,
        on_event: impl Fn(PrefaultEvent) + Send + 'static,
    ) -> Result<Prefault, CoreError> {
        Ok(self.pool.start_prefault(on_event)?)
    }

    /// The first `bytes` bytes of the pool are present now and may be granted.
    ///
    /// # Errors
    /// [`CoreError::Pool`] when the books are wrong.
    pub fn prefaulted(&mut self, bytes: u64) -> Result<(), CoreError> {
        Ok(self.pool.prefaulted(bytes)?)
    }

    /// No more of the pool will become present: from now on space is made by evicting. (Before, a store that
    /// is ahead of the prefault gets less credit rather than somebody's objects.)
    pub fn prefault_ended(&mut self) {
        self.prefault_ended = true;
    }

    /// A slab for a new client.
    ///
    /// # Errors
    /// [`CoreError::LimitExceeded`] when there are too many.
    pub fn open_client(&mut self, info: ClientInfo) -> Result<ClientId, CoreError> {
        let open = self.clients.iter().flatten().count();
        let slab = (open < self.max_clients).then(|| self.slabs.open()).flatten();
        let (slab, nonce) = slab.ok_or(CoreError::LimitExceeded {
            what: "clients",
            asked: open as u64 + 1,
            limit: self.max_clients as u64,
        })?;
        let id = ClientId { slab, nonce };
        self.clients[usize::from(slab)] = Some(Client {
            id,
            info,
            attached: false,
            registration: None,
            credit: Credit::default(),
            commits: 0,
        });
        Ok(id)
    }

    /// The descriptors for the HelloReply of a client that maps the pool.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`], [`CoreError::Shm`] when descriptors have run out.
    pub fn regions(&self, client: ClientId) -> Result<ClientRegions, CoreError> {
        self.client(client)?;
        let (slabs, liveness) = self.slabs.descriptors()?;
        Ok(ClientRegions {
            index: self.index.read_only()?,
            index_bytes: self.index.bytes(),
            epochs: self.pool.epochs.read_only()?,
            epochs_bytes: self.pool.epochs.bytes(),
            slabs,
            slab_offset: u64::from(client.slab) * SLAB_BYTES as u64,
            slab_bytes: SLAB_BYTES as u64,
            liveness,
            liveness_bytes: SLABS as u64,
            pool: self.pool.descriptor()?,
            pool_bytes: self.pool.bytes(),
        })
    }

    /// Checks that the client holds its lock byte; needed before grant and commit.
    ///
    /// # Errors
    /// [`CoreError::NotAttached`], [`CoreError::UnknownClient`], [`CoreError::Shm`].
    pub fn attach(&mut self, client: ClientId) -> Result<(), CoreError> {
        self.client(client)?;
        if !self.slabs.is_locked(client.slab)? {
            return Err(CoreError::NotAttached { slab: client.slab });
        }
        self.client_mut(client)?.attached = true;
        Ok(())
    }

    /// Whether a client that has attached no longer holds its lock byte: it is gone, whoever has its connection.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`], [`CoreError::Shm`].
    pub fn has_let_go(&self, client: ClientId) -> Result<bool, CoreError> {
        Ok(self.client(client)?.attached && !self.slabs.is_locked(client.slab)?)
    }

    /// The connection is closed: drops the pins it made in the request form. Slab and grants stay.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`].
    pub fn disconnected(&mut self, client: ClientId) -> Result<(), CoreError> {
        self.client(client)?;
        for record in self.pins.end_client(client) {
            self.records.unpin(record);
        }
        Ok(())
    }

    /// Whether the client is gone: its lock byte is free, and everything it held has been taken back. False:
    /// it lives on without its connection and may still write its grants; ask again later.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`], [`CoreError::Shm`]; [`CoreError::Pool`] when the books are wrong.
    pub fn client_gone(&mut self, client: ClientId) -> Result<bool, CoreError> {
        self.client(client)?;
        if self.slabs.is_locked(client.slab)? {
            return Ok(false);
        }
        self.disconnected(client)?;
        self.unregister(client)?;
        let credit = self.client_mut(client)?.credit.take_all();
        let freed = self.pool.free_granted(&credit);
        self.departed.add(&self.slabs.counters(client.slab));
        // Whatever that said, nothing of the credit is left to ask for again.
        self.slabs.close(client.slab);
        self.clients[usize::from(client.slab)] = None;
        freed?;
        Ok(true)
    }

    /// Records the chunk size of all domains. The same size again is fine.
    ///
    /// # Errors
    /// [`CoreError::InvalidArgument`] for 0, more than a chunk can have, or another size than before.
    pub fn set_chunk_size(&mut self, tokens: u32) -> Result<(), CoreError> {
        if self.chunk_sizes.iter().any(|bound| *bound != tokens) {
            return Err(wrong_chunk_size(tokens, "another size is bound already"));
        }
        self.add_chunk_size(tokens)?;
        self.chunk_size = Some(tokens);
        self.pool.directory.set_chunk_size(tokens);
        Ok(())
    }

    /// Records the chunk size of some domains, beside those of others. The same size again is fine.
    ///
    /// # Errors
    /// [`CoreError::InvalidArgument`] for 0, more than a chunk can have, or when one size holds for all domains.
    pub fn add_chunk_size(&mut self, tokens: u32) -> Result<(), CoreError> {
        if tokens == 0 || u64::from(tokens) > MAX_CHUNK_TOKENS {
            return Err(wrong_chunk_size(tokens, "it must be 1 to 16777216 tokens"));
        }
        if self.chunk_size.is_some_and(|bound| bound != tokens) {
            return Err(wrong_chunk_size(tokens, "another size is bound already"));
        }
        self.chunk_sizes.insert(tokens);
        Ok(())
    }

    /// Registers one rank, and returns the number of its domain and how many frames its pins may keep. A rank of an
    /// engine that registers again ends the engine's partials: whatever it stored before may never be completed.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::UnknownClient`], and those of the layout:
    /// [`CoreError::InvalidArgument`], [`CoreError::InvalidGroup`], [`CoreError::RegistrationConflict`],
    /// [`CoreError::ObjectTooLarge`], [`CoreError::LimitExceeded`]. Nothing has changed then.
    pub fn register(
        &mut self,
        client: ClientId,
        registration: &Registration,
    ) -> Result<(u32, u64), CoreError> {
        self.require_chunk_size()?;
        if !self.chunk_sizes.contains(&registration.chunk_size) {
            let size = registration.chunk_size;
            return Err(wrong_chunk_size(size, "it must be one that was negotiated"));
        }
        let instance = self.client(client)?.info.engine_instance;
        let domain = self.registry.register(registration, self.pool.frames())?;
        let same_rank = |c: &&Client| {
            let rank = c.registration.as_ref().map(|r| r.rank);
            c.info.engine_instance == instance && (c.id == client || rank == Some(registration.rank))
        };
        let again = self
            .clients
            .iter()
            .flatten()
            .any(|c| same_rank(&c) && c.registration.is_some());
        if again {
            self.end_instance(&instance)?;
        }
        let new = RankRegistration {
            domain,
            rank: registration.rank,
            parts: registration.groups.iter().map(|g| (g.group, g.part)).collect(),
            stores: registration.stores,
            payload_path: registration.payload_path,
        };
        if let Some(old) = self.client_mut(client)?.registration.replace(new) {
            self.registry.unregister(old.domain);
        }
        Ok((domain, self.kept_frames_max(self.domain(domain)?)))
    }

    /// Drops the client's registration and its engine's partials. Objects stay. Fine when there is none.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`]; [`CoreError::Pool`] when the books are wrong.
    pub fn unregister(&mut self, client: ClientId) -> Result<(), CoreError> {
        let entry = self.client_mut(client)?;
        let instance = entry.info.engine_instance;
        if let Some(old) = entry.registration.take() {
            self.end_instance(&instance)?;
            self.registry.unregister(old.domain);
        }
        Ok(())
    }

    /// Bytes of the pool, in whole frames.
    pub fn pool_bytes(&self) -> u64 {
        u64::from(self.pool.frames()) * FRAME_BYTES
    }

    /// Nothing is cached before some chunk size is in force.
    pub(super) fn require_chunk_size(&self) -> Result<(), CoreError> {
        if self.chunk_sizes.is_empty() {
            return Err(CoreError::NotNegotiated);
        }
        Ok(())
    }

    pub(super) fn client(&self, id: ClientId) -> Result<&Client, CoreError> {
        let client = self.clients.get(usize::from(id.slab)).and_then(Option::as_ref);
        client
            .filter(|c| c.id == id)
            .ok_or(CoreError::UnknownClient { slab: id.slab })
    }

    pub(super) fn client_mut(&mut self, id: ClientId) -> Result<&mut Client, CoreError> {
        let client = self
            .clients
            .get_mut(usize::from(id.slab))
            .and_then(Option::as_mut);
        client
            .filter(|c| c.id == id)
            .ok_or(CoreError::UnknownClient { slab: id.slab })
    }

    /// A client that may hold credit.
    pub(super) fn attached(&self, id: ClientId) -> Result<&Client, CoreError> {
        let client = self.client(id)?;
        if !client.attached {
            return Err(CoreError::NotAttached { slab: id.slab });
        }
        Ok(client)
    }

    fn end_instance(&mut self, instance: &[u8; 16]) -> Result<(), CoreError> {
        for key in self.partials.of_instance(instance) {
            self.end_partial(&key, Later::Welcome)?;
        }
        self.partials.forget_ended(instance);
        Ok(())
    }
}

fn wrong_chunk_size(tokens: u32, expected: &'static str) -> CoreError {
    CoreError::InvalidArgument {
        field: "chunk size",
        value: tokens.into(),
        expected,
    }
}
