//! Where an engine's KV pages lie, and how block lists become copy plans.
//!
//! Bytes of a part (docs/shm-layout.md, "Pool"): KV cache group by KV cache group, in each block by block in token order,
//! inside a block layer by layer in registered order, whole pages without padding.

#[cfg(feature = "cuda")]
use std::sync::Arc;

use super::ClientError;
#[cfg(feature = "cuda")]
use super::device::pages::DevicePages;
use super::extents::ExtentCursor;
use crate::copy::{HostMemory, Span, SummedPlan};
#[cfg(feature = "cuda")]
use crate::device::{EngineMemory, PlanMemory};
use crate::geometry::pages;
pub use crate::geometry::pages::LayerPages;

/// The block that engines use as filler: never read, never written.
pub(crate) const NULL_BLOCK: i64 = 0;

/// One KV cache group: layers that share a block table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroupPages {
    /// Tokens that one block id spans.
    pub tokens_per_block: u64,
    /// Layers in registered order.
    pub layers: Vec<LayerPages>,
}

impl KvGroupPages {
    fn block_bytes(&self) -> u64 {
        // No overflow: `KvMemory::new` has checked every page to lie in memory, and the sum.
        self.layers.iter().map(|layer| layer.page_bytes).sum()
    }
}

/// One object group and the KV cache groups whose bytes make up its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectGroupPages {
    /// Its number.
    pub group: u16,
    /// Its KV cache groups in ascending order.
    pub kv_groups: Vec<KvGroupPages>,
}

/// How many blocks of a group's list an object of some tokens has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    /// As many as the tokens fill.
    Tokens(u64),
    /// One: a recurrent state.
    State,
}

impl ObjectGroupPages {
    /// Blocks of KV cache group `kv_group` in an object; nothing if they would not be whole.
    pub(crate) fn blocks(&self, kv_group: usize, holding: Holding) -> Option<u64> {
        match holding {
            Holding::State => Some(1),
            Holding::Tokens(tokens) => {
                let per_block = self.kv_groups[kv_group].tokens_per_block;
                (tokens > 0 && tokens.is_multiple_of(per_block)).then(|| tokens / per_block)
            }
        }
    }

    /// Whether every block that is not null holds something in an object whose tokens before `held_from` are holes.
    ///
    /// That is the end of the longest hole of all KV cache groups, so the block that reaches beyond it is held, whatever its
    /// own group's holes are.
    pub(crate) fn avoids_holes(&self, lists: &[Vec<i64>], held_from: u64) -> bool {
        self.kv_groups.iter().zip(lists).all(|(kv_group, list)| {
            let first = list.iter().position(|block| *block != NULL_BLOCK);
            first.is_none_or(|at| (at as u64 + 1).saturating_mul(kv_group.tokens_per_block) > held_from)
        })
    }

    /// The first token from which on no block is null.
    pub(crate) fn held_from(&self, lists: &[Vec<i64>]) -> u64 {
        let ends = self.kv_groups.iter().zip(lists).map(|(kv_group, list)| {
            let holes = list.iter().rposition(|block| *block == NULL_BLOCK);
            holes.map_or(0, |last| {
                (last as u64 + 1).saturating_mul(kv_group.tokens_per_block)
            })
        });
        ends.max().unwrap_or(0)
    }

    /// Bytes of one part; nothing if the tokens are not whole blocks or the number is absurd.
    pub(crate) fn part_bytes(&self, holding: Holding) -> Option<u64> {
        let mut total = 0_u64;
        for (index, kv_group) in self.kv_groups.iter().enumerate() {
            let blocks = self.blocks(index, holding)?;
            total = total.checked_add(kv_group.block_bytes().checked_mul(blocks)?)?;
        }
        Some(total)
    }
}

/// Most bytes of one page: as many zeroes are held for null blocks.
const PAGE_BYTES_MAX: u64 = 1 << 30;

/// Where the pages lie.
#[derive(Debug)]
enum Place {
    /// In memory of the host: the engine's regions, then one of zeroes for null blocks.
    Host(Vec<HostMemory>),
    #[cfg(feature = "cuda")]
    Device(Arc<DevicePages>),
}

/// An engine's KV memory: regions and where the pages of each object group lie in them.
#[derive(Debug)]
pub struct KvMemory {
    place: Place,
    /// Regions of the engine. The one after them is of zeroes, for null blocks.
    count: u16,
    groups: Vec<ObjectGroupPages>,
    blocks: u64,
}

impl KvMemory {
    /// Checks that every page of every block lies in its region and that no two pages of a KV cache group share a byte.
    ///
    /// # Errors
    /// [`ClientError::InvalidLayout`] with the first layer that does not fit.
    pub fn new(
        mut regions: Vec<HostMemory>,
        groups: Vec<ObjectGroupPages>,
        blocks: u64,
    ) -> Result<Self, ClientError> {
        let bytes: Vec<u64> = regions.iter().map(|region| region.len() as u64).collect();
        let (count, zeroes) = check(&bytes, &groups, blocks)?;
        regions.push(zeroes);
        Ok(Self {
            place: Place::Host(regions),
            count,
            groups,
            blocks,
        })
    }

    /// The same for pages in device memory: regions are the segments, in their order. Copies go between them and the pool,
    /// which is registered with the driver for that (docs/gpu.md).
    ///
    /// # Errors
    /// As [`Self::new`], and [`ClientError::Device`] with what the driver says.
    #[cfg(feature = "cuda")]
    pub fn on_device(
        memory: EngineMemory,
        groups: Vec<ObjectGroupPages>,
        blocks: u64,
    ) -> Result<Self, ClientError> {
        let bytes: Vec<u64> = memory.segments().iter().map(PlanMemory::bytes).collect();
        let (count, zeroes) = check(&bytes, &groups, blocks)?;
        Ok(Self {
            place: Place::Device(Arc::new(DevicePages::new(memory, zeroes)?)),
            count,
            groups,
            blocks,
        })
    }

    /// Number of blocks of the engine's block-id space.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// All regions of the host, the one of zeroes last. None where the pages are in device memory.
    pub(crate) fn regions(&self) -> &[HostMemory] {
        match &self.place {
            Place::Host(regions) => regions,
            #[cfg(feature = "cuda")]
            Place::Device(_) => &[],
        }
    }

    /// The pages in device memory.
    #[cfg(feature = "cuda")]
    pub(crate) fn device(&self) -> Option<&Arc<DevicePages>> {
        match &self.place {
            Place::Host(_) => None,
            Place::Device(pages) => Some(pages),
        }
    }

    /// Whether the pages are in device memory.
    pub(crate) fn is_on_device(&self) -> bool {
        match &self.place {
            Place::Host(_) => false,
            #[cfg(feature = "cuda")]
            Place::Device(_) => true,
        }
    }

    pub(crate) fn group(&self, group: u16) -> Result<&ObjectGroupPages, ClientError> {
        let found = self.groups.iter().find(|object| object.group == group);
        found.ok_or(ClientError::UnknownGroup {
            group,
            what: "memory",
        })
    }

    /// Refuses ids outside the block-id space and, unless `fronts` are allowed, lists that are not whole.
    pub(crate) fn check_blocks(
        &self,
        item: usize,
        object: &ObjectGroupPages,
        holding: Holding,
        lists: &[Vec<i64>],
        fronts: bool,
    ) -> Result<(), ClientError> {
        if lists.len() != object.kv_groups.len() {
            return Err(ClientError::invalid(format!(
                "item {item}: {} block lists for object group {}, which has {} KV cache groups",
                lists.len(),
                object.group,
                object.kv_groups.len()
            )));
        }
        for (kv_group, list) in lists.iter().enumerate() {
            let tokens = match holding {
                Holding::Tokens(tokens) => tokens,
                Holding::State => 0,
            };
            let given = list.len() as u64;
            let expected = object.blocks(kv_group, holding).unwrap_or(0);
            if given > expected || (!fronts && given < expected) || expected == 0 {
                return Err(ClientError::BlockCount {
                    item,
                    kv_group,
                    given,
                    expected,
                    tokens,
                });
            }
            if let Some(&id) = list.iter().find(|&&id| id < 0 || id as u64 >= self.blocks) {
                let blocks = self.blocks;
                return Err(ClientError::BlockOutOfRange { item, id, blocks });
            }
        }
        Ok(())
    }

    /// Appends the pieces that bring a part's bytes from KV memory into the extents under `cursor`. Null blocks become
    /// zeroes. The lists have passed [`Self::check_blocks`].
    pub(crate) fn gather(
        &self,
        plan: &mut SummedPlan,
        object: &ObjectGroupPages,
        lists: &[Vec<i64>],
        cursor: &mut ExtentCursor<'_>,
    ) {
        let zeroes = self.count;
        for (kv_group, list) in object.kv_groups.iter().zip(lists) {
            for &block in list {
                for layer in &kv_group.layers {
                    let from = match block {
                        NULL_BLOCK => Span::new(zeroes, 0),
                        block => layer.page(block),
                    };
                    cursor.advance(layer.page_bytes, |done, pool, len| {
                        plan.push(Span::new(from.region, from.offset + done), Some(pool), len);
                    });
                }
            }
        }
        plan.end_part();
    }

    /// Appends the pieces that bring a part's bytes from the extents under `cursor` into KV memory. Null blocks and blocks
    /// beyond a list's end are left alone: their bytes are read for the sum only. `holding` is what the part holds; the lists have passed [`Self::check_blocks`].
    pub(crate) fn scatter(
        &self,
        plan: &mut SummedPlan,
        object: &ObjectGroupPages,
        holding: Holding,
        lists: &[Vec<i64>],
        cursor: &mut ExtentCursor<'_>,
    ) {
        for (index, (kv_group, list)) in object.kv_groups.iter().zip(lists).enumerate() {
            for &block in list {
                for layer in &kv_group.layers {
                    let to = layer.page(block.max(0));
                    cursor.advance(layer.page_bytes, |done, pool, len| {
                        let to = Span::new(to.region, to.offset + done);
                        plan.push(pool, (block != NULL_BLOCK).then_some(to), len);
                    });
                }
            }
            let held = object.blocks(index, holding).unwrap_or(0);
            let rest = held.saturating_sub(list.len() as u64) * kv_group.block_bytes();
            cursor.advance(rest, |_, pool, len| plan.push(pool, None, len));
        }
        plan.end_part();
    }
}

impl LayerPages {
    /// Where the page of a block in range lies.
    fn page(&self, block: i64) -> Span {
        Span::new(self.region, self.offset + block as u64 * self.block_stride)
    }
}

/// Checks all object groups against regions of so many bytes. The number of regions, and zeroes for the largest page.
fn check(
    regions: &[u64],
    groups: &[ObjectGroupPages],
    blocks: u64,
) -> Result<(u16, HostMemory), ClientError> {
    if blocks == 0 || i64::try_from(blocks).is_err() {
        return Err(ClientError::layout(format!(
            "{blocks} blocks; at least one is needed"
        )));
    }
    let Some(count) = u16::try_from(regions.len())
        .ok()
        .filter(|count| *count < u16::MAX)
    else {
        let given = regions.len();
        return Err(ClientError::layout(format!(
            "{given} regions; at most {} fit",
            u16::MAX - 1
        )));
    };
    let mut largest_page: u64 = 0;
    let mut seen: Vec<u16> = Vec::new();
    for object in groups {
        if seen.contains(&object.group) {
            return Err(ClientError::layout(format!(
                "object group {} twice",
                object.group
            )));
        }
        seen.push(object.group);
        largest_page = largest_page.max(check_group(object, regions, blocks)?);
    }
    if largest_page > PAGE_BYTES_MAX {
        return Err(ClientError::layout(format!(
            "a page of {largest_page} bytes; at most {PAGE_BYTES_MAX} are allowed"
        )));
    }
    Ok((count, HostMemory::zeroed(largest_page as usize).read_only()))
}

/// Checks one object group and returns its largest page.
fn check_group(object: &ObjectGroupPages, regions: &[u64], blocks: u64) -> Result<u64, ClientError> {
    let group = object.group;
    if object.kv_groups.is_empty() {
        return Err(ClientError::layout(format!(
            "object group {group} has no KV cache group"
        )));
    }
    let mut largest = 0;
    for (kv_group, pages) in object.kv_groups.iter().enumerate() {
        let at = format!("object group {group}, KV cache group {kv_group}");
        if pages.tokens_per_block == 0 || pages.layers.is_empty() {
            return Err(ClientError::layout(format!(
                "{at}: {} tokens per block and {} layers; both must be positive",
                pages.tokens_per_block,
                pages.layers.len()
            )));
        }
        pages::check(&pages.layers, regions, blocks, |layer| {
            format!("{at}, layer {layer}")
        })
        .map_err(ClientError::layout)?;
        let mut block_bytes = 0_u64;
        for layer in &pages.layers {
            largest = largest.max(layer.page_bytes);
            block_bytes = block_bytes
                .checked_add(layer.page_bytes)
                .ok_or_else(|| ClientError::layout(format!("{at}: the bytes of a block exceed 64 bits")))?;
        }
    }
    Ok(largest)
}

#[cfg(test)]
#[path = "tests/memory.rs"]
mod tests;
