//! From described groups to spans, bytes and the required alignment.

use std::collections::HashMap;

use super::chunk::{self, MAX_CHUNK_TOKENS};
use super::error::{GeometryError, GroupFault, GroupProblem, WindowText};
use super::resolved::{ResolvedGeometry, ResolvedGroup, ResolvedLayer};
use super::{GeometryInput, GroupKind, KvGroup, LayerSpec, Ratio, RecurrentMode};

/// Resolves the groups of one worker, or lists every group that cannot be served and why.
///
/// Pages are taken at their word: an engine may pad them to any length, and they are moved whole.
pub fn resolve(input: &GeometryInput) -> Result<ResolvedGeometry, GeometryError> {
    resolve_checking(input, |_| Vec::new())
}

/// Resolves groups that a person or a script described, whose page sizes may be mistaken: every stored
/// attention page must also be a whole number of elements per slot.
pub fn resolve_described(input: &GeometryInput) -> Result<ResolvedGeometry, GeometryError> {
    resolve_checking(input, |group| page_faults(group).collect())
}

fn resolve_checking(
    input: &GeometryInput,
    further: impl Fn(&KvGroup) -> Vec<GroupFault>,
) -> Result<ResolvedGeometry, GeometryError> {
    if input.dcp == 0 {
        return Err(GeometryError::ZeroDcp);
    }
    if input.groups.is_empty() {
        return Err(GeometryError::NoGroups);
    }
    let mut problems = Vec::new();
    let mut groups = Vec::with_capacity(input.groups.len());
    for (index, group) in input.groups.iter().enumerate() {
        let mut faults = refusals(group);
        match numbers(group, input.dcp) {
            Ok(resolved) => {
                groups.push(resolved);
                faults.append(&mut further(group));
            }
            Err(mut malformed) => faults.append(&mut malformed),
        }
        problems.extend(faults.into_iter().map(|fault| GroupProblem { index, fault }));
    }
    problems.extend(sharing(&input.groups));
    if problems.is_empty() {
        return Ok(align(input.dcp, groups)?);
    }
    problems.sort_by_key(|problem| problem.index);
    // Only the way the engine was started is in the way: the numbers still answer "what would it be".
    let only_mode = problems
        .iter()
        .all(|problem| matches!(problem.fault, GroupFault::NoSnapshots { .. }));
    let would_be = if only_mode {
        align(input.dcp, groups).ok().map(Box::new)
    } else {
        None
    };
    Err(GeometryError::Groups { problems, would_be })
}

fn align(dcp: u64, groups: Vec<ResolvedGroup>) -> Result<ResolvedGeometry, chunk::ChunkError> {
    let spans: Vec<u64> = groups.iter().map(|group| group.tokens_per_block).collect();
    let required_alignment = chunk::alignment(&spans)?;
    Ok(ResolvedGeometry {
        dcp,
        groups,
        required_alignment,
    })
}

/// The numbers of one group, or everything that is malformed about it.
fn numbers(group: &KvGroup, dcp: u64) -> Result<ResolvedGroup, Vec<GroupFault>> {
    let mut faults = Vec::new();
    let recurrent = group.kind.is_recurrent();
    let tokens_per_block = span(group, dcp, &mut faults);
    if group.kind.needs_window() && group.prefix_cacheable && group.window.unwrap_or(0) == 0 {
        faults.push(GroupFault::MissingWindow { kind: group.kind });
    }
    if group.layers.is_empty() {
        faults.push(GroupFault::NoLayers);
    }
    let mut bytes_per_block = Some(0_u64);
    let mut layers = Vec::with_capacity(group.layers.len());
    for (index, layer) in group.layers.iter().enumerate() {
        let slots_per_block = slots(group, index, layer, &mut faults);
        if layer.shares_kv_of.is_none() {
            let entry_bytes = layer.page_size_bytes.checked_mul(layer.count);
            let sum = bytes_per_block
                .zip(entry_bytes)
                .and_then(|(sum, bytes)| sum.checked_add(bytes));
            if bytes_per_block.is_some() && sum.is_none() {
                faults.push(GroupFault::BytesOverflow { layer: index });
            }
            bytes_per_block = sum;
        }
        layers.push(ResolvedLayer {
            name: layer.name.clone(),
            count: layer.count,
            page_size_bytes: layer.page_size_bytes,
            dtype: layer.dtype.clone(),
            slots_per_block: slots_per_block.unwrap_or(0),
            compress_ratio: (!recurrent).then(|| layer.tokens_per_state.unwrap_or(Ratio::ONE)),
            shared: layer.shares_kv_of.is_some(),
        });
    }
    let (true, Some(bytes_per_block)) = (faults.is_empty(), bytes_per_block) else {
        return Err(faults);
    };
    Ok(ResolvedGroup {
        kind: group.kind,
        block_size: group.block_size,
        tokens_per_block,
        bytes_per_block,
        recurrent,
        cacheable: group.prefix_cacheable,
        window: group.window,
        recurrent_mode: group.recurrent_mode.filter(|_| recurrent),
        layers,
    })
}

/// Tokens of one block id: attention shards scale with context parallelism, state and replicas do not.
fn span(group: &KvGroup, dcp: u64, faults: &mut Vec<GroupFault>) -> u64 {
    if group.block_size == 0 {
        faults.push(GroupFault::ZeroBlockSize);
    }
    if !group.prefix_cacheable {
        return 0;
    }
    if group.kind.is_always_scratch() {
        faults.push(GroupFault::CacheableScratch { kind: group.kind });
    }
    let shards = if group.dcp_sharded && !group.kind.is_recurrent() {
        dcp
    } else {
        1
    };
    let span = group
        .block_size
        .checked_mul(shards)
        .filter(|&span| span <= MAX_CHUNK_TOKENS);
    span.unwrap_or_else(|| {
        faults.push(GroupFault::SpanTooLarge {
            block_size: group.block_size,
            shards,
        });
        0
    })
}

/// Slots of one layer entry, after checking the entry's own fields.
fn slots(group: &KvGroup, index: usize, layer: &LayerSpec, faults: &mut Vec<GroupFault>) -> Option<u64> {
    if layer.count == 0 {
        faults.push(GroupFault::ZeroCount { layer: index });
    }
    if layer.page_size_bytes == 0 && layer.shares_kv_of.is_none() {
        faults.push(GroupFault::ZeroPage { layer: index });
    }
    if layer.dtype.is_none() && !group.kind.is_always_scratch() {
        faults.push(GroupFault::MissingDtype { layer: index });
    }
    if group.kind.is_recurrent() {
        return Some(1);
    }
    let ratio = layer.tokens_per_state.unwrap_or(Ratio::ONE);
    let slots = ratio.states_for(group.block_size);
    if slots.is_none() {
        faults.push(GroupFault::SlotsNotWhole {
            layer: index,
            block_size: group.block_size,
            ratio,
        });
    }
    slots
}

/// Pages of a group, sound otherwise, that do not factor.
fn page_faults(group: &KvGroup) -> impl Iterator<Item = GroupFault> + '_ {
    group.layers.iter().enumerate().filter_map(|(index, layer)| {
        let slots = layer
            .tokens_per_state
            .unwrap_or(Ratio::ONE)
            .states_for(group.block_size)?;
        page_fault(group, index, layer, slots)
    })
}

/// A page whose bytes cannot be slots of whole elements. Scratch and shared pages are never moved.
fn page_fault(group: &KvGroup, index: usize, layer: &LayerSpec, slots: u64) -> Option<GroupFault> {
    let recurrent = layer.kind.unwrap_or(group.kind).is_recurrent();
    if recurrent || !group.prefix_cacheable || layer.shares_kv_of.is_some() {
        return None;
    }
    let dtype = layer.dtype.as_ref()?;
    let element_bytes = dtype.element_bytes()?;
    // No page can hold more slots than 64 bits of bytes.
    let whole = slots
        .checked_mul(element_bytes)
        .is_some_and(|unit| layer.page_size_bytes.is_multiple_of(unit));
    (!whole).then(|| GroupFault::PageNotWhole {
        layer: index,
        page_size_bytes: layer.page_size_bytes,
        slots,
        dtype: dtype.clone(),
        element_bytes,
    })
}

/// What a layer needs of a prefix, as a comparable value.
fn need(kind: GroupKind, window: Option<u64>) -> WindowText {
    match (kind, window) {
        (GroupKind::SlidingWindow | GroupKind::SlidingWindowMla, Some(tokens)) => WindowText::Sliding(tokens),
        (GroupKind::ChunkedLocal, Some(tokens)) => WindowText::Chunked(tokens),
        // A window that a full-attention group declares is a hint to its kernel; its blocks are all kept.
        _ => WindowText::Whole,
    }
}

/// Everything about one group that no server could serve.
fn refusals(group: &KvGroup) -> Vec<GroupFault> {
    let mut faults = Vec::new();
    let mut kinds: Vec<GroupKind> = group.layers.iter().filter_map(|layer| layer.kind).collect();
    kinds.push(group.kind);
    if kinds.contains(&GroupKind::CrossAttention) {
        faults.push(GroupFault::CrossAttention);
    }
    if kinds.contains(&GroupKind::EncoderOnly) {
        faults.push(GroupFault::EncoderOnly);
    }
    if !group.prefix_cacheable {
        return faults;
    }
    let mode = group.recurrent_mode.unwrap_or(RecurrentMode::None);
    if kinds.iter().any(|kind| kind.is_recurrent()) && !mode.keeps_block_boundaries() {
        faults.push(GroupFault::NoSnapshots { mode });
    }
    let group_window = need(group.kind, group.window);
    for (index, layer) in group.layers.iter().enumerate() {
        let kind = layer.kind.unwrap_or(group.kind);
        let layer_window = need(kind, layer.window.or(group.window));
        if kind.is_recurrent() != group.kind.is_recurrent() {
            faults.push(GroupFault::MixedRecurrent {
                layer: index,
                layer_kind: kind,
                group_kind: group.kind,
            });
        } else if layer_window != group_window {
            faults.push(GroupFault::DifferingWindows {
                layer: index,
                layer_window,
                group_window,
            });
        }
    }
    faults
}

/// Shared layers belong to their owner: a second claim or a missing owner is a problem.
fn sharing(groups: &[KvGroup]) -> Vec<GroupProblem> {
    let mut problems = Vec::new();
    let mut owners: HashMap<&str, usize> = HashMap::new();
    for (index, _, layer) in entries(groups) {
        let Some(name) = layer.name.as_deref().filter(|_| layer.shares_kv_of.is_none()) else {
            continue;
        };
        if let Some(&other) = owners.get(name) {
            let fault = GroupFault::DuplicateLayer {
                name: name.to_owned(),
                other,
            };
            problems.push(GroupProblem { index, fault });
        } else {
            owners.insert(name, index);
        }
    }
    for (index, at, layer) in entries(groups) {
        let Some(owner) = layer.shares_kv_of.as_deref() else {
            continue;
        };
        if !owners.contains_key(owner) {
            let fault = GroupFault::UnknownOwner {
                layer: at,
                owner: owner.to_owned(),
            };
            problems.push(GroupProblem { index, fault });
        }
    }
    problems
}

/// Every layer entry with its group's index and its own.
fn entries(groups: &[KvGroup]) -> impl Iterator<Item = (usize, usize, &LayerSpec)> {
    groups.iter().enumerate().flat_map(|(index, group)| {
        group
            .layers
            .iter()
            .enumerate()
            .map(move |(at, layer)| (index, at, layer))
    })
}
