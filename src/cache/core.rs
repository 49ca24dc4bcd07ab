//! The core: one owner of pool, index, pins and grants, driven by one thread of the server.

use crate::object::PayloadPath;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::api::*;
use super::books::guarded::Guards;
use super::books::incomplete::IncompleteObjects;
use super::books::index::Index;
use super::books::pins::PinTable;
use super::books::registry::Registry;
use super::books::reuse::ReuseByDomain;
use super::books::scan::PinScan;
use super::books::share::Granted;
use super::books::slabs::Slabs;
use super::books::tree::Tree;
use super::books::wasted::Waste;
use super::error::CoreError;
use super::{MAX_CHUNK_TOKENS, SLABS};
use crate::cache::books::numbers::NumberPool;
use crate::index::body::chain_blocks;
use crate::index::counters::ClientCounters;
use crate::index::slab::SLAB_BYTES;
use crate::keys::ChunkKey;
use crate::object::FRAME_BYTES;
use crate::pool::{Backing, Pool, PoolConfig, Prefault, PrefaultEvent};
use crate::shm::numa::Placement;
use crate::shm::{Mapping, ReadWrite};

/// What a rank has registered.
#[derive(Clone, Debug)]
pub(crate) struct RankRegistration {
    pub(crate) domain: u32,
    pub(crate) rank: u32,
    /// Object groups and the part of each.
    pub(crate) parts: Vec<(u16, u16)>,
    pub(crate) stores: bool,
    pub(crate) payload_path: PayloadPath,
    /// How many ranks there are.
    pub(crate) world_size: u32,
    /// Another client of the engine has registered as this rank since.
    pub(crate) succeeded: bool,
}

impl RankRegistration {
    /// Of several ranks, and succeeded: what this client computes is not what the others' parts belong to.
    pub(crate) fn is_replaced(&self) -> bool {
        self.succeeded && self.world_size > 1
    }
}

/// What a client has left, of which something is yet to end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Left {
    /// A rank's place: what its engine has begun in the domain may never be completed.
    Place { domain: u32 },
    /// A place that another client has taken since, or in which nothing is stored. The engine goes on without this client,
    /// and only what the client itself has begun ends.
    Succeeded,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) info: ClientInfo,
    pub(crate) attached: bool,
    /// Whether the server copies for it: then it writes no frame itself, and is gone with its connection.
    pub(crate) served: bool,
    pub(crate) registration: Option<RankRegistration>,
    pub(crate) granted: Granted,
    /// What space that is made for it now must not take.
    pub(crate) guards: Guards,
    /// Commits made, and questions for space that were answered with none; tells which incomplete objects other ranks
    /// have passed by.
    pub(crate) commits: u64,
    /// Domain and model that its reuse counts for.
    pub(crate) reuses: Option<(ChunkKey, String)>,
    /// What it has left, as far as something is yet to end for it.
    pub(crate) left: Vec<Left>,
}

/// The cache. All requests are methods; none blocks, none waits for a client.
#[derive(Debug)]
pub struct Core {
    pub(crate) pool: Pool,
    pub(crate) index: Index,
    pub(crate) tree: Tree,
    pub(crate) chains: NumberPool,
    /// The look at what readers pin.
    pub(crate) sweep: PinScan,
    /// The slab whose touched log is read next.
    pub(crate) touched_next: usize,
    pub(crate) pins: PinTable,
    pub(crate) slabs: Slabs,
    pub(crate) clients: Vec<Option<Client>>,
    pub(crate) registry: Registry,
    pub(crate) incomplete: IncompleteObjects,
    /// What is no object any more and becomes free, one after another.
    pub(crate) waste: VecDeque<Waste>,
    pub(crate) counters: Counters,
    /// The one size of all domains, where there is one.
    chunk_size: Option<u32>,
    /// Every size in force, that one included.
    pub(crate) chunk_sizes: BTreeSet<u32>,
    pub(crate) boot_seq: u64,
    pub(crate) publications: u64,
    pub(crate) prefault_ended: bool,
    pub(crate) pinned_percent: u32,
    /// What clients that have gone reported of themselves.
    pub(crate) departed: ClientCounters,
    /// Of that, the tokens by domain.
    pub(crate) departed_reuse: ReuseByDomain,
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
            memory: config.memory,
        })?;
        let frames = pool.frames();
        Ok(Self {
            index: Index::create(frames)?,
            tree: Tree::new(frames),
            chains: NumberPool::new(chain_blocks(frames)),
            sweep: PinScan::new(frames),
            touched_next: 0,
            pins: PinTable::new(config.max_pins_per_client, config.max_pinned_objects_per_client),
            slabs: Slabs::create()?,
            clients: (0..SLABS).map(|_| None).collect(),
            registry: Registry::default(),
            incomplete: IncompleteObjects::default(),
            waste: VecDeque::new(),
            counters: Counters::default(),
            chunk_size: None,
            chunk_sizes: BTreeSet::new(),
            boot_seq: config.boot_seq,
            publications: 0,
            prefault_ended: false,
            pinned_percent: config.max_pinned_percent_per_client,
            departed: ClientCounters::default(),
            departed_reuse: ReuseByDomain::default(),
            max_clients: config.max_clients,
            pool,
        })
    }

    /// What pages the pool is made of.
    pub fn backing(&self) -> Backing {
        self.pool.backing()
    }

    /// Why the pool is not made of reserved pages although those were to be tried.
    pub fn not_reserved(&self) -> Option<&str> {
        self.pool.not_reserved()
    }

    /// From where the pool's pages come, and why they do not although they should.
    pub fn placement(&self) -> (&Placement, Option<&str>) {
        self.pool.placement()
    }

    /// Starts the threads that make the pool's pages present. Hand each `Ready(bytes)` to
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

    /// Whether more of the pool is being made present: who gets less than it asks for may ask again.
    pub fn is_growing(&self) -> bool {
        !self.prefault_ended && self.pool.prefaulted_frames() < self.pool.frames()
    }

    /// No more of the pool will become present: from now on space is made by evicting. (Before, a store that
    /// is ahead of the prefault gets less space rather than somebody's objects.)
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
            served: false,
            registration: None,
            granted: Granted::default(),
            guards: Guards::default(),
            commits: 0,
            reuses: None,
            left: Vec::new(),
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
        if !self.client(client)?.served && !self.slabs.is_locked(client.slab)? {
            return Err(CoreError::NotAttached { slab: client.slab });
        }
        self.client_mut(client)?.attached = true;
        Ok(())
    }

    /// Takes a client for whom the server copies: it has no lock byte, and is alive as long as its connection.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`].
    pub fn serve_client(&mut self, client: ClientId) -> Result<(), CoreError> {
        let entry = self.client_mut(client)?;
        (entry.served, entry.attached) = (true, true);
        Ok(())
    }

    /// The pool's bytes, for copies on behalf of clients that do not map it.
    pub fn pool_memory(&self) -> Arc<Mapping<ReadWrite>> {
        self.pool.memory()
    }

    /// Whether a client that has attached no longer holds its lock byte: it is gone, whoever has its connection.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`], [`CoreError::Shm`].
    pub fn has_let_go(&self, client: ClientId) -> Result<bool, CoreError> {
        let entry = self.client(client)?;
        Ok(entry.attached && !entry.served && !self.slabs.is_locked(client.slab)?)
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

    /// Says which domain a client looks up in, and which model that is: what it reuses counts for that one, also what
    /// it has counted before.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`].
    pub fn reuses(&mut self, client: ClientId, domain: ChunkKey, model: &str) -> Result<(), CoreError> {
        self.client_mut(client)?.reuses = Some((domain, model.to_owned()));
        Ok(())
    }

    /// Bytes of the pool, in whole frames.
    pub fn pool_bytes(&self) -> u64 {
        u64::from(self.pool.frames()) * FRAME_BYTES
    }

    /// Nothing is cached before some chunk size is in force.
    pub(crate) fn require_chunk_size(&self) -> Result<(), CoreError> {
        if self.chunk_sizes.is_empty() {
            return Err(CoreError::NotNegotiated);
        }
        Ok(())
    }

    pub(crate) fn client(&self, id: ClientId) -> Result<&Client, CoreError> {
        let client = self.clients.get(usize::from(id.slab)).and_then(Option::as_ref);
        client
            .filter(|c| c.id == id)
            .ok_or(CoreError::UnknownClient { slab: id.slab })
    }

    pub(crate) fn client_mut(&mut self, id: ClientId) -> Result<&mut Client, CoreError> {
        let client = self
            .clients
            .get_mut(usize::from(id.slab))
            .and_then(Option::as_mut);
        client
            .filter(|c| c.id == id)
            .ok_or(CoreError::UnknownClient { slab: id.slab })
    }

    /// A client that may hold granted space.
    pub(crate) fn attached(&self, id: ClientId) -> Result<&Client, CoreError> {
        let client = self.client(id)?;
        if !client.attached {
            return Err(CoreError::NotAttached { slab: id.slab });
        }
        Ok(client)
    }
}

pub(crate) fn wrong_chunk_size(tokens: u32, expected: &'static str) -> CoreError {
    CoreError::InvalidArgument {
        field: "chunk size",
        value: tokens.into(),
        expected,
    }
}
