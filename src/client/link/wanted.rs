//! What an engine asked for: to be asked again of every new server.

use std::sync::Arc;

use crate::client::ClientError;
use crate::geometry::ObjectKind;
use crate::keys::ChunkKey;
use crate::wire::{Negotiate, RegisterKvCache};

/// A registration that the server has confirmed.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) request: RegisterKvCache,
    pub(crate) seed: ChunkKey,
    /// Number of the domain in the index, if the server has said so.
    pub(crate) domain: Option<u32>,
    pub(crate) kept_frames_max: u64,
}

impl Registered {
    /// The kind and the unit bytes of an object group.
    pub(crate) fn group(&self, group: u16) -> Result<(ObjectKind, u64), ClientError> {
        let found = self.request.groups.iter().find(|object| object.group == group);
        found
            .map(|object| (object.kind, object.unit_bytes))
            .ok_or(ClientError::UnknownGroup {
                group,
                what: "caches",
            })
    }

    /// Checks that an object group has a part of that number.
    pub(crate) fn check_part(&self, group: u16, part: u16) -> Result<(), ClientError> {
        self.group(group)?;
        let parts = self.request.groups.iter().find(|object| object.group == group);
        match parts.map_or(0, |object| object.parts) {
            parts if part < parts => Ok(()),
            parts => Err(ClientError::invalid(format!(
                "part {part} of object group {group}, which has {parts}; name one from 0 to {}",
                parts.saturating_sub(1)
            ))),
        }
    }
}

/// What is remembered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) negotiate: Option<Negotiate>,
    /// The size agreed on: the same for the life of this process.
    pub(crate) chunk_size: Option<u64>,
    pub(crate) warnings: Vec<String>,
    pub(crate) register: Option<RegisterKvCache>,
    pub(crate) registered: Option<Arc<Registered>>,
    /// Changes whenever `negotiate` or `register` does.
    pub(crate) version: u64,
}
