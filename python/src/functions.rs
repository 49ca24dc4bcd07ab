//! The module's functions: geometry, fingerprints, identities, and the test hook.

use kvasir::client::{ClientConfig, Damage, corrupt_pool};
use kvasir::copy::CopyEngine;
use kvasir::describe;
use kvasir::geometry::fingerprint::{FingerprintInput, GroupFingerprint, LayerFingerprint, fingerprint};
use kvasir::geometry::pages::{self, LayerPages, LayerTensor};
use kvasir::geometry::{
    BoundGeometry, ByteSize, GeometryError, ObjectGroup, ObjectKind, Ratio, ResolvedGeometry, object_groups,
    resolve,
};
use kvasir::object::ClientKind;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::args::DomainArg;
use crate::errors::{detached, key_error, typed};
use crate::keys::bytes;
use crate::memory::LayerArg;

/// Adds the functions to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(domain_seed, module)?)?;
    module.add_function(wrap_pyfunction!(parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(resolve_geometry, module)?)?;
    module.add_function(wrap_pyfunction!(bind_geometry, module)?)?;
    module.add_function(wrap_pyfunction!(place_pages, module)?)?;
    module.add_function(wrap_pyfunction!(layout_fingerprint, module)?)?;
    module.add_function(wrap_pyfunction!(copy_path, module)?)?;
    module.add_function(wrap_pyfunction!(version, module)?)?;
    module.add_function(wrap_pyfunction!(testing_corrupt_pool, module)?)
}

#[pyfunction]
fn domain_seed(py: Python<'_>, domain: DomainArg, chunk_size: u64) -> PyResult<Bound<'_, PyBytes>> {
    let seed = domain.domain().seed(chunk_size);
    seed.map(|seed| bytes(py, &seed))
        .map_err(|error| key_error(py, error))
}

#[pyfunction]
fn parse_size(text: &str) -> PyResult<u64> {
    let size: Result<ByteSize, String> = text.parse();
    size.map(|size| size.0).map_err(PyValueError::new_err)
}

#[pyfunction]
fn resolve_geometry(py: Python<'_>, json: &str) -> PyResult<String> {
    let resolved = resolved(py, json)?;
    let objects = object_groups(&resolved);
    let objects = objects.iter().enumerate().map(|(group, object)| {
        let unit = object
            .bytes_for_tokens(resolved.required_alignment())
            .map_err(|error| typed(py, "invalid", Vec::new(), error.to_string()))?;
        Ok(json!({
            "group": group,
            "kind": kind_name(object.kind()),
            "window_tokens": window_tokens(object.kind()),
            "kv_groups": object.groups().collect::<Vec<_>>(),
            "unit_bytes": unit,
        }))
    });
    let objects = objects.collect::<PyResult<Vec<Value>>>()?;
    let answer = json!({
        "required_alignment": resolved.required_alignment(),
        "spans": resolved.spans(),
        "has_recurrent": resolved.has_recurrent(),
        "warnings": resolved.warnings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "groups": resolved_groups(&resolved),
        "object_groups": objects,
    });
    Ok(answer.to_string())
}

#[pyfunction]
fn bind_geometry(py: Python<'_>, json: &str, chunk_size: u64) -> PyResult<String> {
    let bound = resolved(py, json)?.bind(chunk_size);
    let bound = bound.map_err(|error| {
        typed(
            py,
            "invalid",
            vec![i64::try_from(chunk_size).unwrap_or(i64::MAX)],
            error.to_string(),
        )
    })?;
    bound_json(&bound)
        .map(|answer| answer.to_string())
        .map_err(|error| typed(py, "invalid", Vec::new(), error))
}

fn bound_json(bound: &BoundGeometry) -> Result<Value, String> {
    let groups = bound.groups().iter().map(|group| {
        json!({
            "blocks_per_chunk": group.blocks_per_chunk,
            "object_bytes": group.object_bytes,
            "window_chunks": group.window_chunks,
        })
    });
    let object = |(index, object): (usize, &ObjectGroup)| -> Result<Value, String> {
        let chunk = bound.chunk_size();
        Ok(json!({
            "group": index,
            "object_bytes": object.object_bytes(chunk).map_err(|error| error.to_string())?,
            "window_chunks": object.window_chunks(chunk),
        }))
    };
    let objects = bound.objects().iter().enumerate().map(object);
    Ok(json!({
        "chunk_size": bound.chunk_size(),
        "warnings": bound.warnings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "groups": groups.collect::<Vec<_>>(),
        "object_groups": objects.collect::<Result<Vec<_>, _>>()?,
    }))
}

fn resolved(py: Python<'_>, json: &str) -> PyResult<ResolvedGeometry> {
    let input = describe::groups(json.as_bytes(), None).map_err(|error| {
        let offending = error.groups.iter().map(|(index, _)| *index as i64).collect();
        typed(py, error.kind, offending, error.message)
    })?;
    resolve(&input).map_err(|error| {
        let offending = match &error {
            GeometryError::Groups { problems, .. } => {
                problems.iter().map(|problem| problem.index as i64).collect()
            }
            _ => Vec::new(),
        };
        typed(py, error.kind(), offending, error.to_string())
    })
}

fn resolved_groups(resolved: &ResolvedGeometry) -> Vec<Value> {
    let ratio = |ratio: Ratio| json!([ratio.numerator(), ratio.denominator()]);
    let groups = resolved.groups().iter().map(|group| {
        let layers = group.layers.iter().map(|layer| {
            json!({
                "name": layer.name,
                "count": layer.count,
                "page_size_bytes": layer.page_size_bytes,
                "dtype": layer.dtype.as_ref().map(|dtype| dtype.as_str()),
                "slots_per_block": layer.slots_per_block,
                "compress_ratio": layer.compress_ratio.map(ratio),
                "shared": layer.shared,
            })
        });
        json!({
            "kind": group.kind.as_str(),
            "block_size": group.block_size,
            "tokens_per_block": group.tokens_per_block,
            "bytes_per_block": group.bytes_per_block,
            "recurrent": group.recurrent,
            "cacheable": group.cacheable,
            "window": group.window,
            "layers": layers.collect::<Vec<_>>(),
        })
    });
    groups.collect()
}

fn kind_name(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Full => "full",
        ObjectKind::Window { .. } => "sliding_window",
        ObjectKind::ChunkedLocal { .. } => "chunked_local",
        ObjectKind::Recurrent => "recurrent",
    }
}

fn window_tokens(kind: ObjectKind) -> u64 {
    match kind {
        ObjectKind::Window { tokens } | ObjectKind::ChunkedLocal { tokens } => tokens,
        ObjectKind::Full | ObjectKind::Recurrent => 0,
    }
}

/// (name, region, byte of the first tensor, its rows, bytes from row to row, bytes of a page, what was declared).
type TensorArg = (String, u16, u64, u64, u64, u64, Option<(u64, u64)>);

/// A layer's pages, and the kernel pages of one of its blocks.
type Placed = (LayerArg, Option<u64>);

#[pyfunction]
fn place_pages(
    py: Python<'_>,
    regions: Vec<u64>,
    num_blocks: u64,
    layers: Vec<TensorArg>,
) -> PyResult<Vec<Placed>> {
    let refused = |error: pages::PagesError| typed(py, "InvalidLayout", Vec::new(), error.to_string());
    let name = |index: usize| format!("layer {}", layers[index].0);
    let mut placed: Vec<LayerPages> = Vec::with_capacity(layers.len());
    let mut answer = Vec::with_capacity(layers.len());
    for (index, &(_, region, offset, rows, row_stride, page_bytes, declared)) in layers.iter().enumerate() {
        let tensor = LayerTensor {
            region,
            offset,
            rows,
            row_stride,
            page_bytes,
            declared,
        };
        let pages = tensor.pages(&name(index), num_blocks).map_err(refused)?;
        placed.push(pages);
        let place = (region, offset, pages.block_stride, page_bytes);
        answer.push((place, tensor.kernel_pages(num_blocks)));
    }
    pages::check(&placed, &regions, num_blocks, name).map_err(refused)?;
    Ok(answer)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerJson {
    page_size_bytes: u64,
    dtype: String,
    tokens_per_state: Option<(u64, u64)>,
    edited_by: Option<String>,
    kernel_block_size: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupJson {
    kind: String,
    block_size: u64,
    tokens_per_block: u64,
    window: Option<u64>,
    layers: Vec<LayerJson>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FingerprintJson {
    layout: String,
    attention_backend: String,
    #[serde(default)]
    isa: String,
    dcp: u64,
    groups: Vec<GroupJson>,
}

impl From<GroupJson> for GroupFingerprint {
    fn from(group: GroupJson) -> Self {
        let layers = group.layers.into_iter().map(|layer| LayerFingerprint {
            page_size_bytes: layer.page_size_bytes,
            dtype: layer.dtype,
            tokens_per_state: layer.tokens_per_state,
            edited_by: layer.edited_by,
            kernel_block_size: layer.kernel_block_size,
        });
        Self {
            kind: group.kind,
            block_size: group.block_size,
            tokens_per_block: group.tokens_per_block,
            window: group.window,
            layers: layers.collect(),
        }
    }
}

#[pyfunction]
fn layout_fingerprint<'py>(py: Python<'py>, json: &str) -> PyResult<Bound<'py, PyBytes>> {
    let input: FingerprintJson = serde_json::from_str(json)
        .map_err(|error| PyValueError::new_err(format!("not the input of a layout fingerprint: {error}")))?;
    let input = FingerprintInput {
        layout: input.layout,
        attention_backend: input.attention_backend,
        isa: input.isa,
        dcp: input.dcp,
        groups: input.groups.into_iter().map(GroupFingerprint::from).collect(),
    };
    match fingerprint(&input) {
        Ok(fingerprint) => Ok(PyBytes::new(py, &fingerprint)),
        Err(error) => Err(typed(py, "invalid", Vec::new(), error.to_string())),
    }
}

#[pyfunction]
fn copy_path(py: Python<'_>) -> PyResult<String> {
    CopyEngine::check_named().map_err(|error| PyValueError::new_err(error.to_string()))?;
    // Who asks first waits for a measurement, which others need not.
    Ok(py.detach(|| CopyEngine::detect().path().to_string()))
}

#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

#[pyfunction]
#[pyo3(signature = (socket, seed = None, starts = None))]
fn testing_corrupt_pool(
    py: Python<'_>,
    socket: &str,
    seed: Option<u64>,
    starts: Option<Vec<Vec<u8>>>,
) -> PyResult<u64> {
    let damage = seed.map_or(Damage::OneBit, Damage::Noise);
    let config = ClientConfig::new(socket, ClientKind::Tool, "corrupt-pool", [0; 16]);
    let chosen = |frame: &[u8]| {
        starts
            .as_ref()
            .is_none_or(|starts| starts.iter().any(|start| frame.starts_with(start)))
    };
    detached(py, || corrupt_pool(config, damage, chosen))
}
