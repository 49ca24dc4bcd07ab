//! What came with a hello reply.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use crate::client::ClientError;
use crate::wire::{HelloReply, Region, RegionKind};

/// The descriptors of a hello reply, in the order of its regions.
pub(crate) struct Regions<'a> {
    pub(crate) hello: &'a HelloReply,
    pub(crate) descriptors: VecDeque<OwnedFd>,
}

impl Regions<'_> {
    /// Boot sequence of the server that sent them.
    pub(crate) fn boot_seq(&self) -> u64 {
        self.hello.boot_seq
    }

    /// The region of one kind; those before it in the reply are not wanted and closed.
    pub(crate) fn take(&mut self, kind: RegionKind) -> Result<(Region, OwnedFd), ClientError> {
        loop {
            let at = self.hello.regions.len() - self.descriptors.len();
            let (Some(region), Some(fd)) = (self.hello.regions.get(at), self.descriptors.pop_front()) else {
                return Err(ClientError::unavailable(format!(
                    "the server sent no {kind:?} region"
                )));
            };
            if region.kind == kind {
                return Ok((*region, fd));
            }
        }
    }
}

pub(crate) fn length(region: &Region) -> Result<usize, ClientError> {
    let bytes = region.bytes;
    usize::try_from(bytes).map_err(|_| ClientError::unavailable(format!("a region of {bytes} bytes")))
}
