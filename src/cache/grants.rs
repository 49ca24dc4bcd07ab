//! Credit: the space that clients may write into before they commit.
//!
//! May import everything of this module.

use super::api::{ClientId, GrantRequest, StoreItem};
use super::core::Core;
use super::credit::Share;
use super::error::CoreError;
use super::evict::Need;
use crate::pool::accounting::Class;
use crate::pool::{Extent, Owner, frames_for};

impl Core {
    /// Grants space for what hangs under nothing: [`Core::grant_for`] with the rest left out.
    ///
    /// # Errors
    /// As [`Core::grant_for`].
    pub fn grant(&mut self, client: ClientId, bytes: u64) -> Result<Vec<Extent>, CoreError> {
        let request = GrantRequest {
            bytes,
            ..GrantRequest::default()
        };
        self.grant_for(client, &request)
    }

    /// Grants space to write into: up to `bytes`, rounded up to whole frames. Less, and maybe nothing, when
    /// the client has its share or no space can be made: what cannot be stored is dropped, not awaited. Only while the pool is
    /// being made present may asking again help. How much one client may hold is said in `credit`.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::NotAttached`], [`CoreError::UnknownClient`].
    pub fn grant_for(
        &mut self,
        client: ClientId,
        request: &GrantRequest<'_>,
    ) -> Result<Vec<Extent>, CoreError> {
        self.require_chunk_size()?;
        self.attached(client)?;
        let frames = frames_for(request.bytes);
        if request.ahead {
            let free = frames.min(self.pool.grantable());
            let published = self.publications;
            return self.grant_frames(client, free, Need::Ahead { published });
        }
        if frames > self.pool.grantable() || self.partials.frames_of(client) > 0 {
            self.guard_chunks(client, request.under)?;
        }
        let granted = self.grant_frames(client, frames, Need::Now);
        self.unguard(client)?;
        granted
    }

    /// Space for the stores after a commit of these items, which began after so many publications.
    pub(super) fn renew(
        &mut self,
        client: ClientId,
        frames: u64,
        items: &[StoreItem],
        published: u64,
    ) -> Result<Vec<Extent>, CoreError> {
        if frames > self.pool.grantable() {
            self.guard_items(client, items)?;
        }
        let granted = self.grant_frames(client, frames, Need::Ahead { published });
        self.unguard(client)?;
        granted
    }

    /// Takes granted space back unused: all of it or, when one frame is not granted, none.
    ///
    /// # Errors
    /// [`CoreError::InvalidExtent`], [`CoreError::ExtentNotGranted`], [`CoreError::UnknownClient`].
    pub fn abort(&mut self, client: ClientId, extents: &[Extent]) -> Result<(), CoreError> {
        self.client(client)?;
        self.check_runs(extents)?;
        for extent in extents {
            self.check_granted(client, *extent)?;
        }
        self.give_back(client, extents)
    }

    pub(super) fn grant_frames(
        &mut self,
        client: ClientId,
        frames: u64,
        need: Need,
    ) -> Result<Vec<Extent>, CoreError> {
        let mut share = self.share(client)?;
        if need == Need::Now && share.in_partials > 0 && share.room(need) < frames.min(share.chunk) {
            self.end_own_stale_partials(client)?;
            share = self.share(client)?;
        }
        let wanted = frames.min(share.room(need));
        if wanted == 0 {
            return self.grant_nothing(client, need);
        }
        self.make_space(client, wanted, need)?;
        let given = wanted.min(self.pool.grantable());
        if given == 0 {
            // While the pool grows nothing is given up yet.
            self.counters.dropped_stores += u64::from(need == Need::Now && !self.is_growing());
            return self.grant_nothing(client, need);
        }
        let extents = self.pool.grant(client.slab, given)?.unwrap_or_default();
        let credit = &mut self.client_mut(client)?.credit;
        for extent in &extents {
            credit.add(*extent);
        }
        Ok(extents)
    }

    /// A step that could store nothing is a step all the same: partials that fill a client's share become stale by it.
    fn grant_nothing(&mut self, client: ClientId, need: Need) -> Result<Vec<Extent>, CoreError> {
        self.client_mut(client)?.commits += u64::from(need == Need::Now);
        Ok(Vec::new())
    }

    /// What a client holds, and what it is measured by.
    fn share(&self, client: ClientId) -> Result<Share, CoreError> {
        let entry = self.client(client)?;
        let clients = self.clients.iter().flatten();
        let storing = clients.filter(|c| c.registration.as_ref().is_some_and(|r| r.stores));
        let registered = entry.registration.as_ref().map(|r| r.domain);
        let domain = registered.and_then(|domain| self.registry.get(domain));
        let parts = domain.and_then(|domain| domain.groups.iter().map(|group| group.parts).max());
        Ok(Share {
            pool: self.pool.frames().into(),
            storing: storing.count() as u64,
            parts: parts.unwrap_or(1).into(),
            chunk: self.chunk_frames(client)?,
            credit: entry.credit.frames(),
            in_partials: self.partials.frames_of(client),
            all_credit: self.clients.iter().flatten().map(|c| c.credit.frames()).sum(),
            all: self.pool.books().frames(Class::Granted),
        })
    }

    /// Frames of one full chunk of everything that a client stores.
    fn chunk_frames(&self, client: ClientId) -> Result<u64, CoreError> {
        let Some(registration) = &self.client(client)?.registration else {
            return Ok(0);
        };
        let Some(domain) = self.registry.get(registration.domain) else {
            return Ok(0);
        };
        let bytes = registration.parts.iter().filter_map(|(group, part)| {
            domain
                .group(*group)?
                .part_bytes(*part, domain.chunk, domain.alignment)
        });
        Ok(bytes.map(frames_for).sum())
    }

    /// Granted frames that nobody needs any more become free.
    pub(super) fn give_back(&mut self, client: ClientId, extents: &[Extent]) -> Result<(), CoreError> {
        self.take_credit(client, extents)?;
        Ok(self.pool.free_granted(extents)?)
    }

    /// Granted frames are no longer the client's to write.
    pub(super) fn take_credit(&mut self, client: ClientId, extents: &[Extent]) -> Result<(), CoreError> {
        let credit = &mut self.client_mut(client)?.credit;
        for extent in extents {
            if !credit.remove(*extent) {
                return Err(CoreError::Broken {
                    what: "the directory grants frames that the client's credit does not have",
                    a: extent.frame.into(),
                    b: extent.count.into(),
                });
            }
        }
        Ok(())
    }

    /// Runs of a request must lie in the pool and name each frame once.
    pub(super) fn check_runs(&self, extents: &[Extent]) -> Result<(), CoreError> {
        let frames = self.pool.frames();
        let invalid = |extent, why| CoreError::InvalidExtent {
            extent,
            frames: frames.into(),
            why,
        };
        if let Some(extent) = extents.iter().find(|e| !e.is_within(frames)) {
            return Err(invalid(*extent, "is empty or outside the pool"));
        }
        let mut sorted = extents.to_vec();
        sorted.sort_unstable();
        for pair in sorted.windows(2) {
            if pair[1].frame < pair[0].frame + pair[0].count {
                return Err(invalid(pair[1], "names a frame a second time"));
            }
        }
        Ok(())
    }

    /// Every frame of a run must be in the client's grant: the directory's word, and only that.
    pub(super) fn check_granted(&self, client: ClientId, extent: Extent) -> Result<(), CoreError> {
        for frame in extent.frames() {
            match self.pool.directory.owner(frame)? {
                Owner::Granted { slab, .. } if slab == client.slab => {}
                _ => return Err(CoreError::ExtentNotGranted { frame, extent }),
            }
        }
        Ok(())
    }
}
