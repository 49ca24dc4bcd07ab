//! What the server asks of the core and what it is told: plain values, no behaviour.

use crate::object::{ClientKind, GroupRegistration, PayloadPath};
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::index::conditions::Conditions;
use crate::index::counters::{ClientCounters, ReuseCounters};
use crate::keys::ChunkKey;
use crate::pool::MemoryConfig;

/// A client for as long as its slab is its own. Never equal to an earlier client of the same slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    pub(super) slab: u16,
    pub(super) nonce: u64,
}

impl ClientId {
    /// The client's pin slab; also the byte of the liveness file that it locks.
    pub fn slab(self) -> u16 {
        self.slab
    }
}

/// A client as it introduces itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientInfo {
    /// One serving engine; equal in its scheduler and all its ranks.
    pub engine_instance: [u8; 16],
    /// What it is.
    pub kind: ClientKind,
    /// Free text for status.
    pub name: String,
}

/// Sizes and limits of a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreConfig {
    /// Bytes of the pool, rounded down to whole frames.
    pub pool_bytes: u64,
    /// Which life of the pool this is, from 1; at most 20 bits.
    pub boot_seq: u64,
    /// Identity of the pool.
    pub pool_id: [u8; 16],
    /// What the pool is made of.
    pub memory: MemoryConfig,
    /// Clients at a time, at most [`SLABS`](super::SLABS).
    pub max_clients: usize,
    /// Pins that one client may hold in the request form.
    pub max_pins_per_client: usize,
    /// Objects that all pins of one client may name, each as often as it is pinned.
    pub max_pinned_objects_per_client: usize,
    /// Of the pool, in percent, what all pins of one client may keep from eviction.
    pub max_pinned_percent_per_client: u32,
}

impl Default for CoreConfig {
    fn default() -> Self {
        Self {
            pool_bytes: 4 << 30,
            boot_seq: 1,
            pool_id: [0; 16],
            memory: MemoryConfig::default(),
            max_clients: super::SLABS,
            max_pins_per_client: 1 << 16,
            max_pinned_objects_per_client: 1 << 20,
            max_pinned_percent_per_client: 25,
        }
    }
}

/// The descriptors and sizes that one client gets. Each descriptor is meant to be sent and then closed here.
#[derive(Debug)]
pub struct ClientRegions {
    /// Index, a read-only description.
    pub index: OwnedFd,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Epochs, a read-only description.
    pub epochs: OwnedFd,
    /// Bytes of the epochs region.
    pub epochs_bytes: u64,
    /// Pin arena; the client maps its own slab only.
    pub slabs: OwnedFd,
    /// First byte of the client's slab in the arena.
    pub slab_offset: u64,
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Liveness file, a description of the client's own. The server keeps none of it once this is closed.
    pub liveness: OwnedFd,
    /// Bytes of the liveness file.
    pub liveness_bytes: u64,
    /// Pool.
    pub pool: OwnedFd,
    /// Bytes of the pool.
    pub pool_bytes: u64,
}

/// What one rank registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Seed of the domain's keys, computed by the server from the domain's fields.
    pub domain_seed: ChunkKey,
    /// The rank.
    pub rank: u32,
    /// Number of ranks that register this domain with this server. Lookups answer 0 until all have.
    pub world_size: u32,
    /// Tokens that every boundary is a multiple of.
    pub required_alignment: u64,
    /// The size of the domain's chunks: one that is in force, and part of what the seed was made from.
    pub chunk_size: u32,
    /// The object groups that this rank holds a part of.
    pub groups: Vec<GroupRegistration>,
    /// How its payload moves.
    pub payload_path: PayloadPath,
    /// False for a rank that only reads parts that a lower rank stores.
    pub stores: bool,
}

/// Bytes of the pool by class: `free + used + granted + quarantined = total`; the other two overlap them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// All.
    pub total: u64,
    /// Present in memory and fit to be granted.
    pub prefaulted: u64,
    /// Neither used nor granted nor quarantined.
    pub free: u64,
    /// Objects, visible or kept for a reader.
    pub used: u64,
    /// Granted space of clients and incomplete objects.
    pub granted: u64,
    /// Not to be touched until a client of an earlier boot is gone.
    pub quarantined: u64,
    /// Used and held by a reader.
    pub pinned: u64,
}

/// Counters since the core was made. `hit + miss = requested`.
///
/// The three are in units of the domain's required alignment. A lookup requests as many units as it named
/// keys for, at most `max_tokens / alignment`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lookups answered.
    pub lookups: u64,
    /// Units asked for.
    pub requested: u64,
    /// Units of the prefixes answered.
    pub hit: u64,
    /// The rest.
    pub miss: u64,
    /// Objects published.
    pub stored_objects: u64,
    /// Bytes of their parts.
    pub stored_bytes: u64,
    /// Objects that lost their place to others, to `clear` or by being discarded.
    pub evicted_objects: u64,
    /// Objects that a reader found to hold other bytes than were stored.
    pub discarded_objects: u64,
    /// Items that found no place in the index, and grants for waiting stores that found no space at all.
    pub dropped_stores: u64,
    /// Incomplete objects that ended without becoming an object.
    pub ended_incomplete: u64,
    /// Lookups and retrieves that promised less than was there: the client's pins may not keep more.
    pub shortened: u64,
}

/// One client, for status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientStatus {
    /// Who.
    pub id: ClientId,
    /// As it introduced itself.
    pub info: ClientInfo,
    /// Whether its lock byte was seen held.
    pub attached: bool,
    /// How its payload moves.
    pub payload_path: PayloadPath,
    /// Rank and domain when it has registered.
    pub registered: Option<(u32, ChunkKey)>,
    /// Bytes of granted space and of its parts of incomplete objects.
    pub granted: u64,
    /// Bytes of `granted` that are parts of incomplete objects.
    pub incomplete: u64,
    /// Pins it holds in the request form.
    pub pins: u64,
    /// How long it has held the oldest of them.
    pub oldest_pin: Option<Duration>,
    /// Words of its slab that pin a record.
    pub pin_words: u64,
    /// Bytes that both keep from eviction.
    pub kept: u64,
    /// Its own counters, as it reports them.
    pub reported: ClientCounters,
    /// What keeps it from caching, as it says.
    pub conditions: Conditions,
}

/// What engines of one domain reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainReuse {
    /// Seed of the domain; none for engines that have not named one, and for what is no longer kept apart.
    pub domain: Option<ChunkKey>,
    /// Name of its model, as its ranks registered it.
    pub model: String,
    /// The figures.
    pub tokens: ReuseCounters,
}

/// The state of the core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreStatus {
    /// Bytes by class.
    pub pool: PoolStatus,
    /// Visible objects.
    pub objects: u64,
    /// Objects that are out of the index but kept for a reader.
    pub limbo: u64,
    /// Objects some of whose parts are missing.
    pub incomplete: u64,
    /// Domains known.
    pub domains: u64,
    /// Counters.
    pub counters: Counters,
    /// All clients.
    pub clients: Vec<ClientStatus>,
    /// What all clients report of themselves, those that have gone included.
    pub reported: ClientCounters,
    /// The tokens of `reported`, by domain.
    pub reuse: Vec<DomainReuse>,
}
