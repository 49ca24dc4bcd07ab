//! `kvasir plan groups`: the chunk size of a model from its resolved KV cache groups.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::shape::{Shape, unknown_fields};
use super::{Answer, PlanError, chunk, number, read_input, table};
use crate::describe;
use crate::geometry::{self, BindError, BoundGeometry, Bytes, GeometryError, Ratio, ResolvedGeometry};

/// What a description may hold; docs/geometry.md says what it means.
const DESCRIPTION: Shape = Shape {
    fields: &["dcp"],
    lists: &[("groups", &GROUP)],
};
/// What an engine's description may hold, as `kvasir doctor` reads it; docs/operations.md says what it means.
pub(in crate::cli) const ENGINE: Shape = Shape {
    fields: &[
        "kv_transfer_config",
        "architectures",
        "device",
        "multiprocessing",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "use_replayssm",
        "block_size",
        "max_num_batched_tokens",
        "max_model_len",
        "prefill_context_parallel_size",
        "dcp",
        "vllm",
        "model",
        "attention_backend",
        "identity",
    ],
    lists: &[("groups", &GROUP)],
};
/// Of a whole engine's description only the groups count here.
const MARK_OF_AN_ENGINE: &str = "kv_transfer_config";
pub(in crate::cli) const GROUP: Shape = Shape {
    fields: &[
        "kind",
        "block_size",
        "prefix_cacheable",
        "dcp_sharded",
        "window",
        "attention_chunk_size",
        "mamba_cache_mode",
    ],
    lists: &[("layers", &LAYER)],
};
const LAYER: Shape = Shape {
    fields: &[
        "name",
        "count",
        "page_size_bytes",
        "dtype",
        "tokens_per_state",
        "kind",
        "window",
        "attention_chunk_size",
        "shares_kv_of",
    ],
    lists: &[],
};

/// Arguments of `kvasir plan groups`.
#[derive(Debug, Args)]
pub struct GroupsArgs {
    /// JSON description of the model's KV cache groups, or - for standard input; `kvasir plan from-vllm` writes it
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    /// Least chunk size in tokens
    #[arg(
        long,
        value_name = "TOKENS",
        default_value = "256",
        allow_hyphen_values = true
    )]
    chunk_size: String,
    /// Decode context parallel size; overrides the file's
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    dcp: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &GroupsArgs) -> Result<Answer, PlanError> {
    let minimum = number("--chunk-size", &args.chunk_size)?;
    let dcp = args
        .dcp
        .as_deref()
        .map(|text| number("--dcp", text))
        .transpose()?;
    answer(&read_input(&args.file)?, minimum, dcp)
}

/// The geometry of the groups described in `bytes`, under a minimum chunk size and perhaps another context
/// parallel size than the description's.
pub fn answer(bytes: &[u8], minimum: u64, dcp: Option<u64>) -> Result<Answer, PlanError> {
    let value = describe::json(bytes)?;
    let shape = match value.get(MARK_OF_AN_ENGINE) {
        Some(_) => &ENGINE,
        None => &DESCRIPTION,
    };
    let unknown = unknown_fields(&value, shape);
    let resolve = |value| {
        let input = describe::read_groups(value, dcp)?;
        geometry::resolve_described(&input).map_err(|error| refusal(error, minimum))
    };
    let answer = resolve(&value).and_then(|resolved| {
        let bound = bind(&resolved, minimum)?;
        Ok(Answer {
            json: to_json(&resolved, &bound),
            text: to_text(&resolved, &bound, minimum),
            unknown_fields: Vec::new(),
        })
    });
    super::with_unknown_fields(answer, unknown)
}

fn bind(resolved: &ResolvedGeometry, minimum: u64) -> Result<BoundGeometry, PlanError> {
    let size = geometry::chunk::resolve_chunk(resolved.required_alignment(), minimum);
    resolved
        .bind(size.map_err(chunk::chunk_error)?)
        .map_err(|error| match error {
            BindError::ObjectTooLarge { group, .. } => {
                PlanError::listing("too_large", "group", vec![(group, error.to_string())])
            }
            _ => PlanError::new("invalid", error),
        })
}

fn refusal(error: GeometryError, minimum: u64) -> PlanError {
    let mut plan = PlanError::new(error.kind(), &error);
    if let GeometryError::Groups { problems, would_be } = error {
        plan.groups = problems
            .iter()
            .map(|problem| (problem.index, problem.fault.to_string()))
            .collect();
        let answer = would_be.and_then(|resolved| {
            bind(&resolved, minimum)
                .ok()
                .map(|bound| to_json(&resolved, &bound))
        });
        plan.would_be = answer;
    }
    plan
}

fn to_json(resolved: &ResolvedGeometry, bound: &BoundGeometry) -> Value {
    let ratio = |ratio: Option<Ratio>| match ratio {
        None => Value::Null,
        Some(ratio) if ratio.denominator() == 1 => json!(ratio.numerator()),
        Some(ratio) => json!(ratio.to_string()),
    };
    let groups = resolved
        .groups()
        .iter()
        .zip(bound.groups())
        .map(|(group, sizes)| {
            let layers = group.layers.iter().map(|layer| {
            json!({"slots_per_block": layer.slots_per_block, "compress_ratio": ratio(layer.compress_ratio)})
        });
            json!({
                "kind": group.kind.as_str(),
                "tokens_per_block": group.tokens_per_block,
                "bytes_per_block": group.bytes_per_block,
                "recurrent": group.recurrent,
                "cacheable": group.cacheable,
                "window": group.window,
                "object_bytes": sizes.object_bytes,
                "layers": layers.collect::<Vec<_>>(),
            })
        });
    json!({
        "groups": groups.collect::<Vec<_>>(),
        "required_alignment": resolved.required_alignment(),
        "chunk_size": bound.chunk_size(),
        "warnings": bound.warnings().iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn to_text(resolved: &ResolvedGeometry, bound: &BoundGeometry, minimum: u64) -> String {
    let dash = || "-".to_owned();
    let rows = resolved
        .groups()
        .iter()
        .zip(bound.groups())
        .enumerate()
        .map(|(index, (group, sizes))| {
            let layers: u64 = group
                .layers
                .iter()
                .map(|layer| layer.count)
                .fold(0, u64::saturating_add);
            vec![
                index.to_string(),
                group.kind.to_string(),
                layers.to_string(),
                if group.cacheable {
                    group.tokens_per_block.to_string()
                } else {
                    "scratch".to_owned()
                },
                Bytes(group.bytes_per_block).to_string(),
                group.window.map_or_else(dash, |window| window.to_string()),
                if group.cacheable {
                    Bytes(sizes.object_bytes).to_string()
                } else {
                    dash()
                },
            ]
        });
    let headings = [
        "group",
        "kind",
        "layers",
        "tokens/block",
        "size/block",
        "window",
        "size/chunk",
    ];
    let mut text = table::render(&headings, 2, &rows.collect::<Vec<_>>());
    text.push('\n');
    text.push_str(&chunk::explain(
        &resolved.spans(),
        resolved.required_alignment(),
        minimum,
        bound.chunk_size(),
    ));
    chunk::push_warnings(&mut text, bound.warnings());
    text
}
