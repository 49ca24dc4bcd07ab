"""What the worker's registered tensors say about themselves; `kvasir.place_pages` says where their pages lie then.

Pages lie where the engine declares them; a tensor's inner dimensions mean nothing here. They are opaque and always whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvasir import KvasirError, layout_fingerprint, place_pages
from kvasir.vllm.geometry import Geometry, kind_of, layer_specs, tokens_per_state


class LayoutRefused(ValueError):
    """The registered tensors are not what the engine declared, or not in memory that can be served."""


@dataclasses.dataclass(frozen=True)
class Page:
    """Where one layer's pages lie: page of block b is at `offset + b * block_stride` in the region."""

    region: int
    offset: int
    block_stride: int
    page_bytes: int


@dataclasses.dataclass
class Layout:
    """A worker's KV memory."""

    regions: list[tuple[int, int]]
    """(address, bytes) of each storage."""
    num_blocks: int
    groups: dict[int, list[Page]]
    """Per cacheable KV cache group its layers in registered order."""
    kernel_blocks: dict[int, list[int | None]]
    """Per cacheable KV cache group and layer: tokens of one kernel page."""

    def object_layouts(self, geometry: Geometry) -> list[tuple[int, list[tuple[int, list[tuple[int, int, int, int]]]]]]:
        """The layouts in the form of `Client.set_memory`."""
        return [
            (
                group.index,
                [
                    (span, [dataclasses.astuple(page) for page in self.groups[kv_group]])
                    for kv_group, span in zip(group.kv_groups, group.spans)
                ],
            )
            for group in geometry.object_groups
        ]


def _first_tensor(value: Any) -> Any:
    while isinstance(value, (list, tuple)):
        value = value[0]
    return value


def _declared(kv_cache_config: Any) -> dict[str, tuple[int, int]]:
    """Layer name -> (offset of block 0, block stride) in the backing allocation."""
    places = {}
    for tensor in kv_cache_config.kv_cache_tensors:
        for index, name in enumerate(tensor.layers):
            places[name] = (tensor.offset + index * tensor.layer_stride, tensor.block_stride)
    return places


def place(kv_caches: Mapping[str, Any], kv_cache_config: Any, geometry: Geometry) -> Layout:
    """Finds the pages of every cacheable group; refuses tensors that differ from what was declared."""
    declared = _declared(kv_cache_config)
    described = json.loads(geometry.document)["groups"]
    layout = Layout([], kv_cache_config.num_blocks, {}, {})
    known: dict[int, int] = {}
    for kv_group in sorted(member for group in geometry.object_groups for member in group.kv_groups):
        spec_of = dict(layer_specs(kv_cache_config.kv_cache_groups[kv_group]))
        tensors = []
        # The layers that geometry resolved, in its order; layers that joined later share the cache of another.
        for layer in described[kv_group]["layers"]:
            name, agreed = layer["name"], layer["page_size_bytes"]
            if spec_of[name].page_size_bytes != agreed:
                raise LayoutRefused(
                    f"layer {name} of group {kv_group} has pages of {spec_of[name].page_size_bytes} bytes, and had pages "
                    f"of {agreed} when the sizes of objects were agreed on; start the engine again"
                )
            tensor = _first_tensor(kv_caches.get(name))
            if tensor is None:
                raise LayoutRefused(f"layer {name} of group {kv_group} has no registered tensor")
            if tensor.device.type != "cpu":
                raise LayoutRefused(
                    f"layer {name} lies on device {tensor.device}; this version serves KV caches in host memory only"
                )
            tensors.append((name, *_tensor(tensor, layout, known), agreed, declared.get(name)))
        try:
            placed = place_pages([size for _, size in layout.regions], layout.num_blocks, tensors)
        except KvasirError as error:
            raise LayoutRefused(f"KV cache group {kv_group}: {error}") from error
        layout.groups[kv_group] = [Page(*page) for page, _ in placed]
        layout.kernel_blocks[kv_group] = [
            _kernel_block(spec_of[name], rows) for (name, *_), (_, rows) in zip(tensors, placed)
        ]
    return layout


def _tensor(tensor: Any, layout: Layout, known: dict[int, int]) -> tuple[int, int, int, int]:
    """Region, byte inside it, rows, and bytes from row to row."""
    storage = tensor.untyped_storage()
    address = storage.data_ptr()
    if address not in known:
        known[address] = len(layout.regions)
        layout.regions.append((address, storage.nbytes()))
    stride = tensor.stride(0) * tensor.element_size()
    return known[address], tensor.data_ptr() - address, tensor.shape[0], stride


def _kernel_block(spec: Any, rows: int | None) -> int | None:
    """Tokens of one kernel page, of which a block has `rows`; None for recurrent state."""
    return None if kind_of(spec) == "mamba" else spec.block_size // (rows or 1)


def fingerprint(
    kv_cache_config: Any, geometry: Geometry, layout: Layout, attention_backend: str, isa: str, dcp: int
) -> bytes:
    """32 bytes over everything that decides the order of bytes inside the pages of this worker."""
    spans = dict(geometry.spans)
    described = json.loads(geometry.document)["groups"]
    groups = []
    for kv_group, pages in sorted(layout.groups.items()):
        entry = described[kv_group]
        spec_of = dict(layer_specs(kv_cache_config.kv_cache_groups[kv_group]))
        groups.append(
            {
                "kind": entry["kind"],
                "block_size": entry["block_size"],
                "tokens_per_block": spans[kv_group],
                "window": entry.get("window", entry.get("attention_chunk_size")),
                "layers": [
                    {
                        "page_size_bytes": page.page_bytes,
                        "dtype": layer.get("dtype", ""),
                        "tokens_per_state": tokens_per_state(spec_of[layer["name"]]),
                        "edited_by": None,
                        "kernel_block_size": kernel_block,
                    }
                    for layer, page, kernel_block in zip(entry["layers"], pages, layout.kernel_blocks[kv_group])
                ],
            }
        )
    return layout_fingerprint(
        json.dumps(
            {
                "layout": kv_cache_config.kv_cache_layout or "",
                "attention_backend": attention_backend,
                "isa": isa,
                "dcp": dcp,
                "groups": groups,
            }
        )
    )


@dataclasses.dataclass(frozen=True)
class Stage:
    """What a pipeline stage tells the others."""

    fingerprint: bytes
    shards: tuple[tuple[int, ...], ...]
    """Per object group and tensor-parallel rank what it holds."""


def combine(stages: Sequence[Stage | None]) -> bytes:
    """One fingerprint of all pipeline stages, first to last: an object holds the layers of all. None: a stage refused."""
    known = [stage for stage in stages if stage is not None]
    if len(known) < len(stages):
        raise LayoutRefused(f"pipeline stage {stages.index(None)} has refused its tensors; its own error says why")
    shards = sorted({stage.shards for stage in known})
    if len(shards) > 1:
        raise LayoutRefused(
            f"the pipeline stages hold the same KV on different tensor-parallel ranks (shards by group and rank: {shards}), so "
            "the shards of an object cannot be counted; run this model without pipeline parallelism"
        )
    if len(known) == 1:
        return known[0].fingerprint
    return hashlib.blake2b(
        b"".join(stage.fingerprint for stage in known), digest_size=32, person=b"kvasir.stages"
    ).digest()
