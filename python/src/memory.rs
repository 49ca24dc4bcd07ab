//! The engine's KV memory, given as addresses.
//!
//! Unsafe is opened here for `HostMemory::new`. The invariant is the caller's promise in `Client.set_memory`: each range is
//! one allocation that stays valid and unmoved until the client is closed. Nothing here can check that; a zero address
//! and a range beyond the address space are refused.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use kvasir::client::{ClientError, KvGroupPages, KvMemory, LayerPages, ObjectGroupPages};
use kvasir::copy::HostMemory;

/// (address, bytes).
pub(crate) type RegionArg = (usize, usize);
/// (region, offset, block stride, page bytes).
pub(crate) type LayerArg = (u16, u64, u64, u64);
/// (object group, [(tokens per block, layers)]).
pub(crate) type LayoutArg = (u16, Vec<(u64, Vec<LayerArg>)>);

/// Builds the memory that stores and loads work on.
pub(crate) fn kv_memory(
    regions: &[RegionArg],
    layouts: Vec<LayoutArg>,
    blocks: u64,
) -> Result<KvMemory, ClientError> {
    let mut memory = Vec::with_capacity(regions.len());
    for (index, &(address, bytes)) in regions.iter().enumerate() {
        let base = NonNull::new(address as *mut u8);
        let fits = bytes <= isize::MAX as usize && address.checked_add(bytes).is_some();
        let Some(base) = base.filter(|_| fits && bytes > 0) else {
            return Err(ClientError::InvalidLayout {
                reason: format!("region {index} of {bytes} bytes at address {address:#x} is no memory"),
            });
        };
        // SAFETY: the caller of `set_memory` promises that the range is one allocation, valid for reads and writes
        // from any thread until the client is closed. Python holds no Rust references into it.
        memory.push(unsafe { HostMemory::new(base, bytes) });
    }
    let groups = layouts.into_iter().map(|(group, kv_groups)| ObjectGroupPages {
        group,
        kv_groups: kv_groups.into_iter().map(kv_group).collect(),
    });
    KvMemory::new(memory, groups.collect(), blocks)
}

fn kv_group((tokens_per_block, layers): (u64, Vec<LayerArg>)) -> KvGroupPages {
    let layers = layers
        .into_iter()
        .map(|(region, offset, block_stride, page_bytes)| LayerPages {
            region,
            offset,
            block_stride,
            page_bytes,
        });
    KvGroupPages {
        tokens_per_block,
        layers: layers.collect(),
    }
}
