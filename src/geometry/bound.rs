//! A resolved geometry with its chunk size: the sizes that registration, admission and copy plans share.

use super::chunk::{self, MAX_CHUNK_TOKENS, Warning};
use super::error::BindError;
use super::object::{ObjectGroup, blocks_of, object_groups};
use super::resolved::{ResolvedGeometry, ResolvedGroup};
use super::window::{self, ObjectKind};

/// One group under a bound chunk size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BoundGroup {
    /// Block ids per chunk; 0 for scratch.
    pub blocks_per_chunk: u64,
    /// One worker's bytes of a full chunk: all blocks, one state for recurrent groups, 0 for scratch.
    pub object_bytes: u64,
    /// Most trailing chunks a resume can need; none for full attention and scratch.
    pub window_chunks: Option<u64>,
}

/// All groups under a bound chunk size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundGeometry {
    chunk_size: u64,
    groups: Vec<BoundGroup>,
    objects: Vec<ObjectGroup>,
    warnings: Vec<Warning>,
}

impl BoundGeometry {
    /// Chunk size in tokens.
    pub fn chunk_size(&self) -> u64 {
        self.chunk_size
    }

    /// Groups by index.
    pub fn groups(&self) -> &[BoundGroup] {
        &self.groups
    }

    /// Object groups by index.
    pub fn objects(&self) -> &[ObjectGroup] {
        &self.objects
    }

    /// What a user should hear about.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

impl ResolvedGeometry {
    /// Sizes under `chunk` tokens, which must be a multiple of the required alignment.
    pub fn bind(&self, chunk: u64) -> Result<BoundGeometry, BindError> {
        if chunk == 0 || chunk > MAX_CHUNK_TOKENS {
            return Err(BindError::OutOfRange { chunk });
        }
        let alignment = self.required_alignment();
        if !chunk.is_multiple_of(alignment) {
            return Err(BindError::Misaligned {
                chunk,
                alignment,
                spans: self.spans(),
            });
        }
        let groups = self
            .groups()
            .iter()
            .enumerate()
            .map(|(index, group)| bind_group(index, group, chunk));
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        let objects = object_groups(self);
        for object in &objects {
            object.object_bytes(chunk)?;
        }
        let mut warnings = self.warnings();
        if self.has_recurrent() {
            warnings.extend(chunk::long_recurrent_chunk(chunk, alignment));
        }
        Ok(BoundGeometry {
            chunk_size: chunk,
            groups,
            objects,
            warnings,
        })
    }
}

fn bind_group(index: usize, group: &ResolvedGroup, chunk: u64) -> Result<BoundGroup, BindError> {
    let Some(kind) = ObjectKind::of(group) else {
        return Ok(BoundGroup {
            blocks_per_chunk: 0,
            object_bytes: 0,
            window_chunks: None,
        });
    };
    let blocks_per_chunk = blocks_of(index, group.tokens_per_block, chunk)?;
    let blocks = if group.recurrent { 1 } else { blocks_per_chunk };
    let bytes_per_block = group.bytes_per_block;
    let too_large = BindError::ObjectTooLarge {
        group: index,
        bytes_per_block,
        blocks,
    };
    Ok(BoundGroup {
        blocks_per_chunk,
        object_bytes: bytes_per_block.checked_mul(blocks).ok_or(too_large)?,
        window_chunks: window::window_chunks(kind, chunk),
    })
}
