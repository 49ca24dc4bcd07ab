//! Credit: the space that clients may write into before they commit.
//!
//! May import everything of this module.

use super::api::ClientId;
use super::core::Core;
use super::error::CoreError;
use super::evict::Need;
use crate::pool::{Extent, Owner, frames_for};

impl Core {
    /// Grants space to write into: up to `bytes`, rounded up to whole frames. Less, and maybe nothing, when
    /// the credit limit is reached or no space can be made: what cannot be stored is dropped, not awaited.
    ///
    /// One client holds at most half of the pool, all together three quarters, but each may have one object
    /// of every group it has registered.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::NotAttached`], [`CoreError::UnknownClient`].
    pub fn grant(&mut self, client: ClientId, bytes: u64) -> Result<Vec<Extent>, CoreError> {
        self.require_chunk_size()?;
        self.attached(client)?;
        self.grant_frames(client, frames_for(bytes), Need::Now)
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
        let wanted = frames.min(self.credit_room(client)?);
        if wanted == 0 {
            return Ok(Vec::new());
        }
        self.make_space(wanted, need)?;
        let given = wanted.min(self.pool.grantable());
        if given == 0 {
            self.counters.dropped_stores += u64::from(need == Need::Now);
            return Ok(Vec::new());
        }
        let extents = self.pool.grant(client.slab, given)?.unwrap_or_default();
        let credit = &mut self.client_mut(client)?.credit;
        for extent in &extents {
            credit.add(*extent);
        }
        Ok(extents)
    }

    /// Frames that a client may still be granted.
    fn credit_room(&self, client: ClientId) -> Result<u64, CoreError> {
        let total = u64::from(self.pool.frames());
        let entry = self.client(client)?;
        let held = entry.credit.frames();
        let all: u64 = self.clients.iter().flatten().map(|c| c.credit.frames()).sum();
        let usual = (total / 2)
            .saturating_sub(held)
            .min((total * 3 / 4).saturating_sub(all));
        let one_chunk = self.chunk_frames(client)?.saturating_sub(held);
        Ok(usual.max(one_chunk))
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
