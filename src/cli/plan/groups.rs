//! `kvasir plan groups`: the chunk size of a model from its resolved KV cache groups.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::input::{self, Fields, Shape, shown};
use super::{Answer, PlanError, chunk, number, read_input, table};
use crate::geometry::{
    self, BindError, BoundGeometry, Bytes, GeometryError, GeometryInput, GroupKind, KvGroup, LayerSpec,
    Ratio, ResolvedGeometry,
};

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
    let value = input::parse(bytes)?;
    let shape = match value.get(MARK_OF_AN_ENGINE) {
        Some(_) => &ENGINE,
        None => &DESCRIPTION,
    };
    let unknown = input::unknown_fields(&value, shape);
    let resolve = |value| {
        let input = read(value, dcp)?;
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

/// Reads the description of a model's groups. Every group that cannot be read is listed in one error.
pub fn parse(bytes: &[u8], dcp: Option<u64>) -> Result<GeometryInput, PlanError> {
    read(&input::parse(bytes)?, dcp)
}

/// Reads the `groups` and the `dcp` of a document that may hold more.
pub(in crate::cli) fn read(value: &Value, dcp: Option<u64>) -> Result<GeometryInput, PlanError> {
    let invalid = |reason: String| PlanError::new("invalid", reason);
    let fields = Fields::of(value).map_err(invalid)?;
    let dcp = match dcp {
        Some(dcp) => dcp,
        None => fields.number("dcp").map_err(invalid)?.unwrap_or(1),
    };
    let read = fields
        .list("groups")
        .map_err(invalid)?
        .iter()
        .map(|group| read_group(group, dcp));
    let read: Vec<Result<KvGroup, Vec<String>>> = read.collect();
    if read.iter().all(Result::is_ok) {
        return Ok(GeometryInput {
            dcp,
            groups: read.into_iter().flatten().collect(),
        });
    }
    // Some groups are unreadable; the others are still checked, so that one error lists everything.
    let mut problems = Vec::new();
    for (index, group) in read.into_iter().enumerate() {
        match group {
            Err(reasons) => problems.extend(reasons.into_iter().map(|reason| (index, reason))),
            Ok(group) => {
                if let Err(GeometryError::Groups { problems: found, .. }) =
                    geometry::resolve_described(&GeometryInput {
                        dcp,
                        groups: vec![group],
                    })
                {
                    problems.extend(
                        found
                            .into_iter()
                            .map(|problem| (index, problem.fault.to_string())),
                    );
                }
            }
        }
    }
    Err(PlanError::listing("invalid", "group", problems))
}

/// One group, or every field of it that cannot be read.
fn read_group(value: &Value, dcp: u64) -> Result<KvGroup, Vec<String>> {
    let fields = Fields::of(value).map_err(|reason| vec![reason])?;
    let mut reasons = Vec::new();
    let kind = keep(
        &mut reasons,
        fields.required_text("kind").and_then(parse_as::<GroupKind>),
    );
    let block_size = keep(&mut reasons, fields.required_number("block_size"));
    let prefix_cacheable = keep(&mut reasons, fields.flag("prefix_cacheable")).flatten();
    let dcp_sharded = keep(&mut reasons, fields.flag("dcp_sharded")).flatten();
    let mode = fields
        .text("mamba_cache_mode")
        .and_then(|mode| mode.map(parse_as).transpose());
    let recurrent_mode = keep(&mut reasons, mode).flatten();
    let window = keep(&mut reasons, read_window(fields, kind)).flatten();
    let mut layers = Vec::new();
    for (index, layer) in keep(&mut reasons, fields.list("layers"))
        .unwrap_or_default()
        .iter()
        .enumerate()
    {
        let read = read_layer(layer, kind).map_err(|reason| format!("layer entry {index}: {reason}"));
        layers.extend(keep(&mut reasons, read));
    }
    let (Some(kind), Some(block_size)) = (kind, block_size) else {
        return Err(reasons);
    };
    let prefix_cacheable = prefix_cacheable.unwrap_or(!kind.is_always_scratch());
    let scales = prefix_cacheable && !kind.is_recurrent();
    if dcp > 1 && scales && dcp_sharded.is_none() {
        reasons.push(format!(
            "dcp_sharded is missing, and with a dcp of {dcp} it decides the span"
        ));
    }
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let dcp_sharded = dcp_sharded.unwrap_or(false);
    Ok(KvGroup {
        kind,
        block_size,
        layers,
        window,
        prefix_cacheable,
        dcp_sharded,
        recurrent_mode,
    })
}

fn read_layer(value: &Value, group_kind: Option<GroupKind>) -> Result<LayerSpec, String> {
    let fields = Fields::of(value)?;
    let kind = fields.text("kind")?.map(parse_as::<GroupKind>).transpose()?;
    Ok(LayerSpec {
        name: fields.text("name")?.map(str::to_owned),
        count: fields.number("count")?.unwrap_or(1),
        page_size_bytes: fields.required_number("page_size_bytes")?,
        dtype: fields.text("dtype")?.map(parse_as).transpose()?,
        tokens_per_state: read_ratio(fields, kind.or(group_kind))?,
        kind,
        window: read_window(fields, kind.or(group_kind))?,
        shares_kv_of: fields.text("shares_kv_of")?.map(str::to_owned),
    })
}

fn read_window(fields: Fields<'_>, kind: Option<GroupKind>) -> Result<Option<u64>, String> {
    let key = if kind == Some(GroupKind::ChunkedLocal) {
        "attention_chunk_size"
    } else {
        "window"
    };
    fields.number(key)
}

fn read_ratio(fields: Fields<'_>, kind: Option<GroupKind>) -> Result<Option<Ratio>, String> {
    let Some(value) = fields.get("tokens_per_state") else {
        return Ok(None);
    };
    if kind.is_some_and(GroupKind::is_recurrent) {
        // Engines write -1 or nothing here: one state stands for all tokens before it.
        return Ok(None);
    }
    let ratio = match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64().and_then(|tokens| Ratio::new(tokens, 1)),
    };
    let expected = || {
        format!(
            "tokens_per_state is {}, expected a positive integer or \"1/4\"",
            shown(value)
        )
    };
    ratio.map(Some).ok_or_else(expected)
}

fn parse_as<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// The value, or nothing after noting the reason.
fn keep<T>(reasons: &mut Vec<String>, read: Result<T, String>) -> Option<T> {
    read.map_err(|reason| reasons.push(reason)).ok()
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
