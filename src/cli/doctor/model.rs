//! Traps of the engine's own settings together with what its model needs.

use super::Report;
use super::engine::Engine;
use crate::cli::plan::PlanError;
use crate::describe::key_shown;
use crate::geometry::{
    self, GeometryError, GroupFault, RecurrentMode, ResolvedGeometry, ResolvedGroup, Warning,
};

/// What the CPU engine's block size is reset to where none is given.
const CPU_BLOCK_TOKENS: u64 = 128;

/// The geometry of the groups, where it is known; also where only the engine's settings keep the model from being
/// served.
pub(super) fn check(engine: &Engine<'_>, report: &mut Report) -> Result<Option<ResolvedGeometry>, PlanError> {
    check_engine(engine, report);
    let geometry = resolve(engine, report)?;
    check_prefix_caching(engine, report);
    check_steps(engine, geometry.as_ref(), report);
    if let Some(geometry) = &geometry {
        check_spans(engine, geometry, report);
    }
    Ok(geometry)
}

fn check_engine(engine: &Engine<'_>, report: &mut Report) {
    match engine.device {
        Some("cpu") => {}
        Some(device) => report.refused(
            "device_memory",
            format_args!(
                "device is {}: Kvasir refuses a KV cache in device memory at start; this version serves the \
                 CPU engine",
                key_shown(device)
            ),
        ),
        None => report.unchecked("device: not given"),
    }
    if let Some(ranks @ 2..) = engine.prefill_context_parallel_size {
        report.silent(
            "prefill_context_parallel",
            format_args!(
                "prefill_context_parallel_size is {ranks}, under which nothing is cached; set it to 1"
            ),
        );
    }
    if engine.use_replayssm == Some(true) {
        report.refused(
            "replayssm",
            "use_replayssm is true, which vLLM refuses beside any KV connector; set it to false",
        );
    }
}

fn resolve(engine: &Engine<'_>, report: &mut Report) -> Result<Option<ResolvedGeometry>, PlanError> {
    let Some(groups) = &engine.groups else {
        report.unchecked(
            "model: no groups were given, so neither its chunk size nor what it needs of the pool is known",
        );
        return Ok(None);
    };
    match geometry::resolve_described(groups) {
        Ok(geometry) => Ok(Some(geometry)),
        Err(GeometryError::Groups { problems, would_be })
            if problems.iter().all(|problem| problem.fault.is_refusal()) =>
        {
            for problem in &problems {
                let name = match problem.fault {
                    GroupFault::NoSnapshots { .. } => "no_snapshots",
                    _ => "group_refused",
                };
                report.refused(name, problem);
            }
            Ok(would_be.map(|geometry| *geometry))
        }
        Err(GeometryError::Chunk(error)) => {
            report.refused("no_chunk_size", error);
            Ok(None)
        }
        Err(error) => Err(PlanError::new(error.kind(), error)),
    }
}

fn check_prefix_caching(engine: &Engine<'_>, report: &mut Report) {
    let recurrent = engine.is_recurrent();
    if engine.enable_prefix_caching == Some(false) {
        match recurrent {
            Some(true) => report.refused(
                "prefix_caching_off",
                "enable_prefix_caching is false, so vLLM keeps no recurrent state at block boundaries and nothing can \
                 be restored; set it to true",
            ),
            Some(false) => report.note(
                "prefix_caching_off",
                "enable_prefix_caching is false: every hit is copied from Kvasir, also one that the engine has just \
                 computed; set it to true to keep the engine's own hits",
            ),
            None => report.note(
                "prefix_caching_off",
                "enable_prefix_caching is false, which is refused for a model with recurrent state; give the groups \
                 to have that checked, or set it to true",
            ),
        }
    } else if recurrent == Some(true) && engine.enable_chunked_prefill == Some(false) {
        report.refused(
            "chunked_prefill_off",
            "enable_chunked_prefill is false, which vLLM refuses where recurrent state is kept for prefix caching; set \
             it to true",
        );
    }
}

/// Where the steps of the CPU engine end.
fn check_steps(engine: &Engine<'_>, geometry: Option<&ResolvedGeometry>, report: &mut Report) {
    // Without prefix caching no state is kept, wherever the steps end.
    if !engine.is_on_cpu() || engine.enable_prefix_caching == Some(false) {
        return;
    }
    let state_every = geometry.and_then(|geometry| state_spans(geometry).max());
    if let Some(span) = state_every {
        let resets = engine.block_size.is_none() && !CPU_BLOCK_TOKENS.is_multiple_of(span);
        match engine.multiprocessing {
            Some(true) if resets => report.silent(
                "block_size_reset",
                format_args!(
                    "the CPU engine in several processes without a block_size resets it to {CPU_BLOCK_TOKENS} tokens, \
                     while recurrent state is kept every {span}: few or no prefixes can be resumed, from the engine's \
                     own cache either; give block_size (for example 32)"
                ),
            ),
            None if resets => report.unchecked("multiprocessing: not given, so whether the block size is reset"),
            _ => {}
        }
    }
    let Some(architecture) = engine.mamba2 else { return };
    let advice = |block: &str| {
        format!(
            "{architecture} fails on the CPU engine (IndexError) in a step that crosses a block boundary; set \
             max_num_batched_tokens to {block}"
        )
    };
    match (state_every.or(engine.block_size), engine.max_num_batched_tokens) {
        (Some(block), Some(tokens)) if tokens <= block => {}
        (Some(block), Some(tokens)) => report.refused(
            "mamba2_steps",
            format_args!(
                "max_num_batched_tokens is {tokens} at a block size of {block}: {}",
                advice(&format!("{block}"))
            ),
        ),
        (Some(block), None) => report.refused(
            "mamba2_steps",
            format_args!(
                "max_num_batched_tokens is not given: {}",
                advice(&format!("{block}"))
            ),
        ),
        (None, None) => report.refused(
            "mamba2_steps",
            format_args!(
                "neither block_size nor max_num_batched_tokens is given: {}",
                advice("the block size (for example 128 for both)")
            ),
        ),
        (None, Some(_)) => report.unchecked(
            "max_num_batched_tokens: has to be the block size, and neither block_size nor groups are given",
        ),
    }
}

fn check_spans(engine: &Engine<'_>, geometry: &ResolvedGeometry, report: &mut Report) {
    for warning in geometry.warnings() {
        if matches!(warning, Warning::NearCoprime { .. }) {
            report.slow(
                "near_coprime",
                format_args!("{warning}; choose block sizes with a larger common divisor"),
            );
        }
    }
    let alignment = geometry.required_alignment();
    // Steps that are shorter than two blocks all end with one.
    let every_block = |span: u64| {
        engine
            .max_num_batched_tokens
            .is_some_and(|tokens| tokens < 2 * span)
    };
    let uneven = |span: &u64| *span < alignment && !every_block(*span);
    if let Some(span) = state_spans(geometry).min().filter(uneven) {
        report.note(
            "uneven_spans",
            format_args!(
                "recurrent state is kept every {span} tokens and every group can resume only at multiples of \
                 {alignment}: a prompt's first run may end at the one and not at the other, so that hits may begin only \
                 with the third run; set max_num_batched_tokens to {span}, so that every block ends a step"
            ),
        );
    }
}

/// Tokens between the states of each recurrent group that keeps any.
fn state_spans(geometry: &ResolvedGeometry) -> impl Iterator<Item = u64> + '_ {
    let keeps = |group: &&ResolvedGroup| {
        let mode = group.recurrent_mode.unwrap_or(RecurrentMode::None);
        group.cacheable && group.recurrent && mode.keeps_block_boundaries()
    };
    geometry
        .groups()
        .iter()
        .filter(keeps)
        .map(|group| group.tokens_per_block)
}
