//! What is asked of the cache and what it answers, as values that name no connection.

use super::extent::Extent;
use super::item::{CommitOutcome, LoadItem, ObjectId, PartLocation, StoreItem};
use super::shape::DomainShape;
use super::tails::{TailList, Tails};
use crate::keys::ChunkKey;

/// Asks for the longest prefix that every object group can serve.
#[derive(Clone, Copy, Debug)]
pub struct LookupRequest<'a> {
    /// The domain.
    pub domain_seed: ChunkKey,
    /// Label of the pin.
    pub label: u64,
    /// Keys of the full chunks, in order.
    pub keys: &'a [ChunkKey],
    /// Tails.
    pub tails: &'a dyn Tails,
    /// The hit is at most this many tokens.
    pub max_tokens: u64,
    /// Tokens that the engine holds already.
    pub local_tokens: u64,
    /// Names and pins the objects; otherwise only the lengths are answered.
    pub pin: bool,
    /// Asks for the shape of the domain, with which a client can look up by itself.
    pub describe: bool,
}

/// A [`LookupRequest`] that owns what it asks about, to be sent or to be answered later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The domain.
    pub domain_seed: ChunkKey,
    /// Label of the pin.
    pub label: u64,
    /// Keys of the full chunks, in order.
    pub keys: Vec<ChunkKey>,
    /// Tails.
    pub tails: TailList,
    /// The hit is at most this many tokens.
    pub max_tokens: u64,
    /// Tokens that the engine holds already.
    pub local_tokens: u64,
    /// Names and pins the objects; otherwise only the lengths are answered.
    pub pin: bool,
    /// Asks for the shape of the domain.
    pub describe: bool,
}

impl Lookup {
    /// The request itself.
    pub fn as_request(&self) -> LookupRequest<'_> {
        LookupRequest {
            domain_seed: self.domain_seed,
            label: self.label,
            keys: &self.keys,
            tails: &self.tails,
            max_tokens: self.max_tokens,
            local_tokens: self.local_tokens,
            pin: self.pin,
            describe: self.describe,
        }
    }
}

impl From<&LookupRequest<'_>> for Lookup {
    fn from(request: &LookupRequest<'_>) -> Self {
        Self {
            domain_seed: request.domain_seed,
            label: request.label,
            keys: request.keys.to_vec(),
            tails: TailList::new(request.tails.all().into_owned()),
            max_tokens: request.max_tokens,
            local_tokens: request.local_tokens,
            pin: request.pin,
            describe: request.describe,
        }
    }
}

/// The answer to a lookup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupAnswer {
    /// Length of the prefix.
    pub hit_tokens: u64,
    /// Pin that holds all of `loads`; 0 when nothing was pinned.
    pub pin: u64,
    /// What to load, group by group in ascending order, each in token order.
    pub loads: Vec<LoadItem>,
    /// Per object group of the domain in ascending order: tokens up to which every object from 0 on is there.
    pub present_tokens: Vec<u64>,
    /// The shape, where it was asked for and all ranks have registered.
    pub shape: Option<DomainShape>,
}

/// Pins objects and asks where one part of each lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetrieveRequest {
    /// The domain.
    pub domain_seed: ChunkKey,
    /// Label of the pin.
    pub label: u64,
    /// The part.
    pub part: u16,
    /// The objects.
    pub ids: Vec<ObjectId>,
}

/// The answer to a retrieve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetrieveAnswer {
    /// Pin that holds all that is there; 0 when nothing is.
    pub pin: u64,
    /// One for each object asked for, in that order.
    pub locations: Vec<PartLocation>,
    /// The runs of all locations.
    pub extents: Vec<Extent>,
}

/// Asks for space to write into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantRequest {
    /// How much.
    pub bytes: u64,
    /// Keys of the chunks that what is to be stored hangs under, as far as it does not bring them along. Neither they
    /// nor what they hang under is evicted for it.
    pub under: Vec<ChunkKey>,
    /// For stores to come: nothing is evicted for it.
    pub ahead: bool,
}

impl GrantRequest {
    /// So many bytes for what hangs under nothing yet.
    pub fn of(bytes: u64) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }
}

/// Publishes what one step stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitRequest {
    /// The domain.
    pub domain_seed: ChunkKey,
    /// What was stored, parents before children. Each one's range of runs is inside `extents` once decoded.
    pub items: Vec<StoreItem>,
    /// The runs of all items.
    pub extents: Vec<Extent>,
    /// Tails that these items make needless.
    pub supersedes: Vec<ObjectId>,
    /// Bytes of granted space to hold afterwards.
    pub grant_bytes: u64,
}

/// The answer to a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitAnswer {
    /// One for each item.
    pub outcomes: Vec<CommitOutcome>,
    /// New space, to be added to what the client holds.
    pub granted: Vec<Extent>,
}
