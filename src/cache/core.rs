//! The core: one owner of pool, index, pins and grants, driven by the server's thread.

use super::api::*;
use super::error::CoreError;
use crate::keys::ChunkKey;
use crate::pool::{Extent, Prefault, PrefaultEvent};

/// The cache. All requests are methods; none blocks, none is safe to call from two threads at once.
#[derive(Debug)]
pub struct Core {}

#[allow(unused_variables, clippy::missing_errors_doc)]
impl Core {
    /// Makes an empty cache: all regions, no page of the pool touched.
    pub fn create(config: CoreConfig) -> Result<Self, CoreError> {
        unimplemented!()
    }
    /// Starts the background thread that makes the pool's pages present. Hand each `Ready(bytes)` to [`Core::prefaulted`] and
    /// the end of it to [`Core::prefault_ended`].
    pub fn start_prefault(
        &self,
        on_event: impl Fn(PrefaultEvent) + Send + 'static,
    ) -> Result<Prefault, CoreError> {
        unimplemented!()
    }
    /// The first `bytes` bytes of the pool are present now and may be granted.
    pub fn prefaulted(&mut self, bytes: u64) -> Result<(), CoreError> {
        unimplemented!()
    }
    /// No more of the pool will be prefaulted: space is made by evicting from now on.
    pub fn prefault_ended(&mut self) {}
    /// A slab for a new client.
    pub fn open_client(&mut self, info: ClientInfo) -> Result<ClientId, CoreError> {
        unimplemented!()
    }
    /// The descriptors for the HelloReply of a client that maps the pool.
    pub fn regions(&self, client: ClientId) -> Result<ClientRegions, CoreError> {
        unimplemented!()
    }
    /// Checks that the client holds its lock byte; needed before grant and commit.
    pub fn attach(&mut self, client: ClientId) -> Result<(), CoreError> {
        unimplemented!()
    }
    /// The connection is closed: drops the pins it made in the request form. Its slab and grants stay.
    pub fn disconnected(&mut self, client: ClientId) -> Result<(), CoreError> {
        unimplemented!()
    }
    /// Whether the client is gone: its lock byte is free, and everything it held has been taken back.
    /// False: it lives on without its connection; ask again later.
    pub fn client_gone(&mut self, client: ClientId) -> Result<bool, CoreError> {
        unimplemented!()
    }
    /// Records the bound chunk size. Once; the same size again is fine.
    pub fn set_chunk_size(&mut self, tokens: u32) -> Result<(), CoreError> {
        unimplemented!()
    }
    /// Registers one rank.
    pub fn register(&mut self, client: ClientId, registration: &Registration) -> Result<(), CoreError> {
        unimplemented!()
    }
    /// Drops the client's registration and its engine's partials. Objects stay. Fine when there is none.
    pub fn unregister(&mut self, client: ClientId) -> Result<(), CoreError> {
        unimplemented!()
    }
    /// The longest prefix that every object group can serve.
    pub fn lookup(
        &mut self,
        client: ClientId,
        request: &LookupRequest<'_>,
    ) -> Result<LookupAnswer, CoreError> {
        unimplemented!()
    }
    /// Pins objects and says where one part of each lies.
    pub fn retrieve(
        &mut self,
        client: ClientId,
        domain_seed: ChunkKey,
        session: u64,
        part: u16,
        ids: &[ObjectId],
    ) -> Result<RetrieveAnswer, CoreError> {
        unimplemented!()
    }
    /// Drops pins: all or, when one is unknown, none.
    pub fn release(&mut self, client: ClientId, pins: &[u64]) -> Result<(), CoreError> {
        unimplemented!()
    }
    /// Drops all pins of the client with this label.
    pub fn end_session(&mut self, client: ClientId, session: u64) -> Result<(), CoreError> {
        unimplemented!()
    }
    /// Grants space to write into: up to `bytes`, less when the client's credit limit or the pool has no more. May be empty.
    pub fn grant(&mut self, client: ClientId, bytes: u64) -> Result<Vec<Extent>, CoreError> {
        unimplemented!()
    }
    /// Publishes what a step stored. An error refuses the whole commit and changes nothing.
    pub fn commit(
        &mut self,
        client: ClientId,
        request: &CommitRequest<'_>,
    ) -> Result<CommitAnswer, CoreError> {
        unimplemented!()
    }
    /// Takes granted space back unused: all of it or, when one frame is not granted, none.
    pub fn abort(&mut self, client: ClientId, extents: &[Extent]) -> Result<(), CoreError> {
        unimplemented!()
    }
    /// Drops every unpinned object and all partials. Returns how many objects went.
    pub fn clear(&mut self) -> Result<u64, CoreError> {
        unimplemented!()
    }
    /// Numbers for status and for the public counters of the control region.
    pub fn status(&self) -> CoreStatus {
        unimplemented!()
    }
    /// Counters and bytes by class, without walking the clients: cheap enough to publish after every request.
    pub fn counters(&self) -> (Counters, PoolStatus) {
        unimplemented!()
    }
    /// Recomputes every total and checks every invariant. Walks everything: for tests and diagnosis.
    pub fn audit(&self) -> Result<(), CoreError> {
        unimplemented!()
    }
}
