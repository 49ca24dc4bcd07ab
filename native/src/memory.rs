//! Where an engine's pages lie.

#![allow(unsafe_code)] // pointers go on to `input`, on the promise that the header's rules ask for
#![allow(clippy::missing_safety_doc)] // the rules stand once, at the header's top

use std::ptr::NonNull;

use kvasir::client::{HostMemory, KvGroupPages, KvMemory, LayerPages, ObjectGroupPages};
use kvasir::wire::MAX_MESSAGE_GROUPS;

use crate::failure::{Failure, Outcome, kvasir_code};
use crate::guard::call;
use crate::input;
use crate::options::*;
use crate::table;
use crate::values::*;

/// Most regions: their indices have 16 bits, and one is the client's own.
const REGIONS_MAX: usize = u16::MAX as usize - 1;
/// Most layers of one KV cache group.
const LAYERS_MAX: usize = 1 << 16;

/// Says where the pages of this rank lie, for stores and loads. In place of what was said before, whose memory is used
/// until the calls that began before have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_set_memory(
    client: kvasir_client,
    memory: *const kvasir_memory,
) -> kvasir_code {
    call(|| {
        let client = table::clients().find(client.id)?;
        // SAFETY: the header's rules.
        let given = unsafe { memory_of(memory, "memory") }?;
        client.set_memory(KvMemory::new(given.regions, given.groups, given.blocks)?);
        Ok(())
    })
}

/// What a `kvasir_memory` says.
pub(crate) struct Given {
    pub(crate) regions: Vec<HostMemory>,
    pub(crate) groups: Vec<ObjectGroupPages>,
    pub(crate) blocks: u64,
}

/// # Safety
/// As [`input::read_struct`], for it and all that it names.
pub(crate) unsafe fn memory_of(memory: *const kvasir_memory, what: &str) -> Outcome<Given> {
    // SAFETY: the caller's promise, here and below.
    let given = unsafe { input::read_struct(memory, what) }?;
    input::check_flags(given.flags, 0, what)?;
    // SAFETY: as above; any bytes are a region.
    let regions = unsafe { input::slice(given.regions, given.region_count, REGIONS_MAX, "memory.regions") }?;
    let regions: Vec<HostMemory> = regions
        .iter()
        .enumerate()
        .map(region_of)
        .collect::<Outcome<_>>()?;
    // SAFETY: as above.
    let groups = unsafe {
        input::read_structs(
            given.groups,
            given.group_count,
            MAX_MESSAGE_GROUPS,
            "memory.groups",
        )
    }?;
    // SAFETY: as above.
    let groups = groups.iter().map(|group| unsafe { group_of(group) });
    Ok(Given {
        regions,
        groups: groups.collect::<Outcome<_>>()?,
        blocks: given.blocks,
    })
}

fn region_of((index, region): (usize, &kvasir_region)) -> Outcome<HostMemory> {
    let (address, bytes) = (region.base.addr(), region.bytes);
    let fits = usize::try_from(bytes)
        .ok()
        .filter(|bytes| (1..=isize::MAX as usize).contains(bytes) && address.checked_add(*bytes).is_some());
    let (Some(base), Some(length)) = (NonNull::new(region.base), fits) else {
        return Err(Failure::new(
            kvasir_code::InvalidLayout,
            &[index as u64, bytes, address as u64],
            format!("region {index} of {bytes} bytes at address {address:#x} is no memory"),
        ));
    };
    // SAFETY: by the header's rules the range is one allocation or mapping that is valid for reads and writes from any thread
    // until the client is closed. `kvasir_client_close` waits for every call that may copy. Rust has no reference to it.
    Ok(unsafe { HostMemory::new(base, length) })
}

unsafe fn group_of(given: &kvasir_group_memory) -> Outcome<ObjectGroupPages> {
    input::check_reserved(given.reserved, "memory.groups")?;
    // SAFETY: the caller's promise, here and below.
    let kv_groups = unsafe {
        input::read_structs(
            given.kv_groups,
            given.kv_group_count,
            MAX_MESSAGE_GROUPS,
            "memory.groups.kv_groups",
        )
    }?;
    // SAFETY: as above.
    let kv_groups = kv_groups.iter().map(|kv_group| unsafe { kv_group_of(kv_group) });
    Ok(ObjectGroupPages {
        group: given.group,
        kv_groups: kv_groups.collect::<Outcome<_>>()?,
    })
}

unsafe fn kv_group_of(given: &kvasir_kv_group) -> Outcome<KvGroupPages> {
    input::check_flags(given.flags, 0, "memory.groups.kv_groups")?;
    let what = "memory.groups.kv_groups.layers";
    // SAFETY: the caller's promise; any bytes are a layer.
    let layers = unsafe { input::slice(given.layers, given.layer_count, LAYERS_MAX, what) }?;
    let layer = |layer: &kvasir_layer| {
        input::check_reserved(layer.reserved, what)?;
        let region = u16::try_from(layer.region).map_err(|_| {
            Failure::argument_of(
                &[layer.region.into(), REGIONS_MAX as u64],
                format!(
                    "{what}: region {}, at most {REGIONS_MAX} regions are allowed",
                    layer.region
                ),
            )
        })?;
        Ok(LayerPages {
            region,
            offset: layer.offset,
            block_stride: layer.block_stride,
            page_bytes: layer.page_bytes,
        })
    };
    Ok(KvGroupPages {
        tokens_per_block: given.tokens_per_block,
        layers: layers.iter().map(layer).collect::<Outcome<_>>()?,
    })
}
