//! Decomposing strided tensors into contiguous runs of bytes per block.

use super::{LayerTensors, MAX_PLANES, Plane, TensorDesc, ViewError};

/// Refuses descriptions that contradict themselves, before any rule looks at them.
pub(super) fn check(layer: &LayerTensors) -> Result<(), ViewError> {
    if layer.tensors.is_empty() || layer.num_blocks == 0 {
        return Err(ViewError::Empty {
            layer: layer.layer.clone(),
            tensors: layer.tensors.len(),
            blocks: layer.num_blocks,
        });
    }
    let declared = [
        ("page_size_bytes", layer.page_size_bytes),
        ("block_size", layer.block_size),
        ("real_page_bytes", layer.real_page_bytes.unwrap_or(1)),
    ];
    for (tensor, desc) in layer.tensors.iter().enumerate() {
        let zero = declared
            .iter()
            .find(|(_, value)| *value == 0)
            .map(|(field, _)| format!("{field} is 0"));
        if let Some(reason) = zero.or_else(|| fault(desc)) {
            return Err(ViewError::Malformed {
                layer: layer.layer.clone(),
                tensor,
                reason,
            });
        }
    }
    Ok(())
}

fn fault(tensor: &TensorDesc) -> Option<String> {
    let rank = tensor.shape.len();
    if rank != tensor.strides.len() {
        return Some(format!("{rank} dimensions but {} strides", tensor.strides.len()));
    }
    if tensor.block_dim >= rank {
        return Some(format!(
            "block dimension {} of a tensor of rank {rank}",
            tensor.block_dim
        ));
    }
    if tensor.itemsize == 0 {
        return Some("itemsize is 0".to_owned());
    }
    if tensor.shape.contains(&0) {
        return Some(format!("shape {:?} is empty", tensor.shape));
    }
    // Bounds once, so that later arithmetic on positions inside the tensor cannot overflow.
    let mut end = tensor.offset.checked_add(tensor.itemsize);
    for (&extent, &stride) in tensor.shape.iter().zip(&tensor.strides) {
        end = end.and_then(|end| end.checked_add((extent - 1).checked_mul(stride)?));
    }
    match end {
        Some(end) if end <= tensor.storage_bytes => None,
        Some(end) => Some(format!(
            "it ends at byte {end} of a storage of {} bytes",
            tensor.storage_bytes
        )),
        None => Some("its end overflows 64 bits".to_owned()),
    }
}

/// Bytes of one index of a tensor's block dimension, as runs by offset; none where strides overlap.
fn runs(tensor: &TensorDesc) -> Result<Vec<(u64, u64)>, Reason> {
    let dims = tensor.shape.iter().zip(&tensor.strides).enumerate();
    let mut dims: Vec<(u64, u64)> = dims
        .filter(|&(dim, (&extent, _))| dim != tensor.block_dim && extent > 1)
        .map(|(_, (&extent, &stride))| (stride, extent))
        .collect();
    dims.sort_unstable();
    let mut bytes = tensor.itemsize;
    let mut span = bytes;
    let mut starts = vec![0_u64];
    for (stride, extent) in dims {
        if stride < span {
            return Err(Reason::Overlap { stride, span });
        }
        if stride == bytes && starts.len() == 1 {
            bytes *= extent;
        } else {
            if extent.saturating_mul(starts.len() as u64) > MAX_PLANES {
                return Err(Reason::TooMany);
            }
            starts = (0..extent)
                .flat_map(|index| starts.iter().map(move |start| start + index * stride))
                .collect();
        }
        span += (extent - 1) * stride;
    }
    Ok(starts.into_iter().map(|start| (start, bytes)).collect())
}

enum Reason {
    Overlap { stride: u64, span: u64 },
    TooMany,
}

/// The kernel's pages of a layer: for every index of the block dimension, runs of bytes. Runs of tensors that
/// follow each other at the same stride are joined, so keys and values that alternate make one plane.
pub(super) fn kernel_planes(layer: &LayerTensors) -> Result<Vec<Plane>, ViewError> {
    let mut planes: Vec<Plane> = Vec::new();
    for (index, tensor) in layer.tensors.iter().enumerate() {
        let found = runs(tensor).map_err(|reason| match reason {
            Reason::TooMany => ViewError::TooManyPlanes {
                layer: layer.layer.clone(),
            },
            Reason::Overlap { stride, span } => ViewError::Malformed {
                layer: layer.layer.clone(),
                tensor: index,
                reason: format!(
                    "a stride of {stride} bytes overlaps the {span} bytes of the dimensions inside it"
                ),
            },
        })?;
        for (start, bytes) in found {
            let plane = Plane {
                storage: tensor.storage,
                storage_bytes: tensor.storage_bytes,
                offset: tensor.offset + start,
                block_stride: tensor.strides[tensor.block_dim],
                bytes,
            };
            match planes.last_mut() {
                Some(last) if follows(last, &plane) => last.bytes += plane.bytes,
                _ => planes.push(plane),
            }
        }
    }
    if planes.len() as u64 > MAX_PLANES {
        return Err(ViewError::TooManyPlanes {
            layer: layer.layer.clone(),
        });
    }
    Ok(planes)
}

fn follows(last: &Plane, next: &Plane) -> bool {
    let joined = last.bytes + next.bytes;
    (last.storage, last.block_stride) == (next.storage, next.block_stride)
        && last.offset + last.bytes == next.offset
        // Two dense planes that touch end to end are not one page.
        && joined <= last.block_stride
}

/// Bytes of one block over planes. Every plane lies inside a storage, so only absurd counts could overflow.
pub(super) fn total(planes: &[Plane]) -> u64 {
    planes
        .iter()
        .fold(0, |sum, plane| sum.saturating_add(plane.bytes))
}
