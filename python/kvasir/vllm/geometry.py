"""From the engine's resolved KV cache groups to Kvasir's geometry.

Specs are read by their field and class names, not by importing the engine, and only declared fields count: never a
tensor's shape, never a model's name. All arithmetic (spans, alignment, object groups, refusals) is the native
module's; one resolved value feeds negotiation, registration and copy plans.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

from kvasir import KvasirError, bind_geometry, resolve_geometry

# Spec classes by name, and the kind that geometry knows them as. A subclass is found by its nearest named ancestor;
# what is not here goes through under its own name and is refused with it.
_KINDS = {
    "SlidingWindowMLASpec": "sliding_window_mla",
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "chunked_local_attention",
    "CircularBufferSpec": "circular_buffer",
    "HiSparseHotSpec": "hisparse_hot",
    "HiSparseResidentSpec": "hisparse_resident",
    "MambaSpec": "mamba",
    "CrossAttentionSpec": "cross_attention",
    "EncoderOnlyAttentionSpec": "encoder_only_attention",
    "SinkFullAttentionSpec": "sink_full_attention",
    "RSWASpec": "reference_sliding_window",
    "MLAAttentionSpec": "mla_attention",
    "FullAttentionSpec": "full_attention",
}

FULL = "full"
CHUNKED_LOCAL = "chunked_local"
RECURRENT = "recurrent"


class GeometryRefused(ValueError):
    """The model's KV cache cannot be kept; the message lists every group that is in the way."""


@dataclasses.dataclass(frozen=True)
class ObjectGroup:
    """KV cache groups whose blocks of one chunk make one object."""

    index: int
    kind: str
    window_tokens: int
    kv_groups: tuple[int, ...]
    """KV cache groups, ascending: the order of their bytes in an object."""
    spans: tuple[int, ...]
    """Tokens per block of each of them."""
    unit_bytes: int
    """One worker's bytes for one required alignment of tokens; of a recurrent group, of one state."""

    @property
    def recurrent(self) -> bool:
        """Whether its objects are states."""
        return self.kind == RECURRENT

    def seen_from(self, end: int) -> int:
        """The first token that a request which resumes after `end` tokens can still see. Not asked of states."""
        if self.kind == FULL:
            return 0
        if self.kind == CHUNKED_LOCAL:
            return end - end % self.window_tokens
        return max(end - self.window_tokens + 1, 0)


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Everything about the model's KV cache groups that planning needs."""

    document: str
    """The input of the native functions, kept for binding."""
    alignment: int
    spans: tuple[tuple[int, int], ...]
    """(KV cache group, tokens per block), scratch groups as 0."""
    object_groups: tuple[ObjectGroup, ...]
    warnings: tuple[str, ...]

    @property
    def single_full(self) -> bool:
        """One full-attention group and nothing else: the only case with synchronous loads."""
        return len(self.spans) == 1 and len(self.object_groups) == 1 and self.object_groups[0].kind == FULL

    @property
    def recurrent(self) -> ObjectGroup | None:
        """The object group of the recurrent states, where there is one."""
        return next((group for group in self.object_groups if group.recurrent), None)

    @property
    def full(self) -> ObjectGroup | None:
        """The object group of full attention, where there is one."""
        return next((group for group in self.object_groups if group.kind == FULL), None)

    def check_chunk(self, chunk_size: int, scheduler_block_size: int | None) -> None:
        """Refuses a chunk size that some group or the scheduler could not follow."""
        for group, span in self.spans:
            if span and chunk_size % span:
                raise GeometryRefused(
                    f"the chunk size is {chunk_size} tokens, no multiple of the {span} tokens per block of group {group}"
                )
        if scheduler_block_size and chunk_size % scheduler_block_size:
            raise GeometryRefused(
                f"the chunk size is {chunk_size} tokens, no multiple of the scheduler's block of {scheduler_block_size}"
            )
        try:
            bind_geometry(self.document, chunk_size)
        except KvasirError as error:
            raise GeometryRefused(str(error)) from None


def kind_of(spec: Any) -> str:
    """The geometry kind of a spec, by the names of its class and ancestors."""
    for ancestor in type(spec).__mro__:
        if ancestor.__name__ in _KINDS:
            return _KINDS[ancestor.__name__]
    return type(spec).__name__


def layer_specs(group: Any) -> Iterator[tuple[str, Any]]:
    """(layer name, its own spec) in registered order; a collection of per-layer specs is taken apart."""
    spec = group.kv_cache_spec
    collection = getattr(spec, "kv_cache_specs", None)
    for name in group.layer_names:
        # A layer that joined the group after the specs were collected shares another layer's cache.
        own = collection.get(name) if collection is not None else spec
        if own is not None:
            yield name, own


def dtype_name(spec: Any) -> str | None:
    """Element types of a page as geometry spells them."""
    parts = getattr(spec, "dtypes", None) or [getattr(spec, "dtype", None)]
    names = [str(part).removeprefix("torch.") for part in parts if part is not None]
    return "+".join(names) or None


def _window(spec: Any) -> dict[str, int]:
    kind = kind_of(spec)
    if kind == "chunked_local_attention":
        return {"attention_chunk_size": spec.attention_chunk_size}
    if kind in ("sliding_window", "sliding_window_mla"):
        # The engine keeps these tokens beyond the window because it may compute them again.
        return {"window": spec.sliding_window + getattr(spec, "extra_retained_tokens", 0)}
    return {}


def _layer(name: str, spec: Any) -> dict[str, Any]:
    layer: dict[str, Any] = {"name": name, "kind": kind_of(spec), "page_size_bytes": spec.page_size_bytes}
    dtype = dtype_name(spec)
    if dtype is not None:
        layer["dtype"] = dtype
    ratio = tokens_per_state(spec)
    if ratio is not None:
        layer["tokens_per_state"] = f"{ratio[0]}/{ratio[1]}"
    return layer | _window(spec)


def tokens_per_state(spec: Any) -> tuple[int, int] | None:
    """Declared slot compression as (numerator, denominator); None for recurrent state and where nothing is declared."""
    if kind_of(spec) == "mamba" or not hasattr(spec, "dtype"):
        return None
    ratio = getattr(spec, "tokens_per_state", 1)
    return ratio.numerator, ratio.denominator


def describe(kv_cache_config: Any, dcp: int) -> dict[str, Any]:
    """The groups as the input document of the native geometry functions."""
    groups = []
    for group in kv_cache_config.kv_cache_groups:
        layers = list(layer_specs(group))
        first = layers[0][1] if layers else group.kv_cache_spec
        entry = {
            "kind": kind_of(first),
            "block_size": group.kv_cache_spec.block_size,
            "prefix_cacheable": bool(group.kv_cache_spec.prefix_cacheable)
            and getattr(group, "enable_kv_transfer", True),
            "dcp_sharded": bool(group.kv_cache_spec.dcp_sharded),
            "layers": [_layer(name, spec) for name, spec in layers],
        }
        mode = getattr(first, "mamba_cache_mode", None)
        if mode is not None:
            entry["mamba_cache_mode"] = mode
        groups.append(entry | _window(first))
    return {"dcp": dcp, "groups": groups}


def shards(kv_cache_config: Any, geometry: Geometry, tp: int, dcp: int) -> tuple[tuple[int, ...], ...]:
    """Per object group which bytes each tensor-parallel rank holds: ranks with one number hold the same of its objects.

    What hangs under full attention is told apart as finely as that is at least. So whoever stores a part of it stores a
    part of everything under it, and an object is never complete before the one that it hangs under.
    """
    held = [_held(kv_cache_config, group, tp, dcp) for group in geometry.object_groups]
    full = [own for own, group in zip(held, geometry.object_groups) if group.kind == FULL]
    return tuple(
        _numbered([own] if group.kind == FULL else [*full, own])
        for own, group in zip(held, geometry.object_groups)
    )


def _held(kv_cache_config: Any, group: ObjectGroup, tp: int, dcp: int) -> list[Any]:
    """What each rank holds of an object group's layers.

    A layer's heads are split into as many shards as it declares, each held by a run of neighbouring ranks; where
    nothing is declared, every rank's bytes are its own. Context-parallel ranks are neighbours too, and each holds its
    own tokens of a layer whose blocks are sharded among them.
    """
    specs = [spec for member in group.kv_groups for _, spec in layer_specs(kv_cache_config.kv_cache_groups[member])]
    splits = {(getattr(spec, "max_tp_shards", None), dcp if spec.dcp_sharded else 1) for spec in specs}
    if any(not heads or tp % heads for heads, _ in splits):
        return list(range(tp))
    return [tuple((rank * heads // tp, rank % tokens) for heads, tokens in sorted(splits)) for rank in range(tp)]


def _numbered(held: Sequence[Sequence[Any]]) -> tuple[int, ...]:
    """Per rank the number of what it holds, all of it together; what appears first is 0."""
    together = list(zip(*held))
    numbers = {one: number for number, one in enumerate(dict.fromkeys(together))}
    return tuple(numbers[one] for one in together)


def _refusals(kv_cache_config: Any) -> list[str]:
    """What geometry cannot see: layers whose KV of a prefix depends on what follows it, or is kept elsewhere."""
    found = []
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        if not group.layer_names:
            found.append(
                f"this pipeline stage has no layer of group {index}, and every stage has to hold a part of every object"
            )
        if any(getattr(spec, "non_causal", False) for _, spec in layer_specs(group)):
            found.append(f"group {index} attends non-causally, so the KV of a prefix depends on the tokens after it")
        if getattr(group, "host_resident", False):
            found.append(f"group {index} is resident in host memory of the engine's own")
    return found


def resolve(kv_cache_config: Any, dcp: int = 1) -> Geometry:
    """The geometry of the engine's groups, or one error that lists every group which cannot be kept."""
    document = json.dumps(describe(kv_cache_config, dcp))
    refusals = _refusals(kv_cache_config)
    try:
        resolved = json.loads(resolve_geometry(document))
    except KvasirError as error:
        raise GeometryRefused("; ".join([str(error), *refusals])) from None
    if refusals:
        raise GeometryRefused("; ".join(refusals))
    spans = [int(span) for span in resolved["spans"]]
    return Geometry(
        document=document,
        alignment=int(resolved["required_alignment"]),
        spans=tuple(enumerate(spans)),
        object_groups=tuple(_object_group(group, spans) for group in resolved["object_groups"]),
        warnings=tuple(resolved["warnings"]),
    )


def unreached_states(kv_cache_config: Any, geometry: Geometry, block: int, step_tokens: int) -> str | None:
    """What to say of an engine whose steps may end between the boundaries that a request can resume from; None if all is well.

    A recurrent state exists only where a step ended: on multiples of the scheduler's `block`. It can be resumed only where
    the blocks of every group end, which the scheduler does not see to.
    """
    if geometry.recurrent is None or block % geometry.alignment == 0:
        return None
    if geometry.alignment % block == 0 and step_tokens < 2 * block:
        return None  # every block ends a step
    own = min(
        group.kv_cache_spec.block_size
        for group in kv_cache_config.kv_cache_groups
        if group.kv_cache_spec.prefix_cacheable
    )
    advice = (
        f"Its groups have blocks of different lengths: start it with --max-num-batched-tokens {block}, so that every block "
        "ends a step"
        if block == own
        else "The engine resets the block size when it runs in several processes without an explicit one: start it with "
        "--block-size (for example 32)"
    )
    return (
        f"the engine schedules in blocks of {block} tokens but can resume recurrent state only every "
        f"{geometry.alignment}: few or no prefixes can be resumed, from the engine's own cache either. {advice}"
    )


def _object_group(group: dict[str, Any], spans: Sequence[int]) -> ObjectGroup:
    members = tuple(int(index) for index in group["kv_groups"])
    return ObjectGroup(
        index=int(group["group"]),
        kind=group["kind"],
        window_tokens=int(group["window_tokens"] or 0),
        kv_groups=members,
        spans=tuple(spans[index] for index in members),
        unit_bytes=int(group["unit_bytes"]),
    )
