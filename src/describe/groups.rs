//! The KV cache groups of a model.

use serde_json::Value;

use super::fields::{Fields, shown};
use super::{DescriptionError, json};
use crate::geometry::{self, GeometryError, GeometryInput, GroupKind, KvGroup, LayerSpec, Ratio};

/// Reads the description of a model's groups. Every group that cannot be read is listed in one error.
pub fn parse(bytes: &[u8], dcp: Option<u64>) -> Result<GeometryInput, DescriptionError> {
    read(&json::parse(bytes)?, dcp)
}

/// Reads the `groups` and the `dcp` of a document that may hold more.
pub(crate) fn read(value: &Value, dcp: Option<u64>) -> Result<GeometryInput, DescriptionError> {
    let invalid = |reason: String| DescriptionError::new("invalid", reason);
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
    Err(DescriptionError::of_groups(problems))
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
