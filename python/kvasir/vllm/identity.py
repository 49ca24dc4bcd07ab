"""Which model and weights the bytes belong to, and how the model is split over ranks."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvasir import weights_identity, weights_shape


def engine_instance(vllm_config: Any) -> bytes:
    """16 bytes that all processes of one engine share, and no other engine."""
    return hashlib.blake2b(str(vllm_config.kv_transfer_config.engine_id).encode(), digest_size=16).digest()


def model_name(model_config: Any) -> str:
    """The model's name on the hub, or for local files its architecture, with what flags change about its values.

    A path says nothing: the same files may be mounted elsewhere, and it is the weights' identity that
    tells them apart.
    """
    name = model_config.model
    if os.path.exists(name):
        name = "+".join(getattr(model_config.hf_config, "architectures", None) or ["model"])
    return f"{name}|{_overrides(model_config)}"


def _overrides(model_config: Any) -> str:
    parts = [
        f"dtype={str(model_config.dtype).removeprefix('torch.')}",
        f"quantization={getattr(model_config, 'quantization', None)}",
    ]
    overrides = getattr(model_config, "hf_overrides", None)
    if callable(overrides):
        # Code cannot be compared, but its effect can: the configuration that came out.
        overrides = model_config.hf_config.to_json_string()
    elif isinstance(overrides, dict) and overrides:
        overrides = json.dumps(overrides, sort_keys=True, default=str)
    if overrides:
        parts.append(f"overrides={overrides}")
    parts += _other_flags(model_config)
    parts += _foreign_config(model_config)
    parts += _rope(model_config)
    return ";".join(parts)


# Flags that change what is computed from the same files.
_MODEL_FLAGS = (
    "quantization_config", "disable_sliding_window", "config_format", "model_class_overrides", "model_impl",
    "code_revision",
)  # fmt: skip
_MEDIA_FLAGS = (
    "mm_processor_kwargs", "media_io_kwargs", "mm_encoder_attn_dtype", "mm_encoder_fp8_scale_path", "video_pruning_rate",
    "video_pruning_method",
)  # fmt: skip
# What they are where nobody has set them.
_UNSET: tuple[Any, ...] = (None, False, 0, "", "auto", "evs", {}, [])


def _other_flags(model_config: Any) -> list[str]:
    media = getattr(model_config, "multimodal_config", None)
    given = [(name, getattr(model_config, name, None)) for name in _MODEL_FLAGS]
    given += [(name, getattr(media, name, None)) for name in _MEDIA_FLAGS]
    return [
        f"{name}={json.dumps(_plain(value), sort_keys=True, default=str)}" for name, value in given if value not in _UNSET
    ]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value.value if isinstance(value, enum.Enum) else value


def _foreign_config(model_config: Any) -> list[str]:
    """The configuration, where it does not lie beside the weights and so is not covered by their identity."""
    if not _has_foreign_config(model_config):
        return []
    resolved = _as_dict(getattr(model_config, "hf_config", None))
    # Where it was read from says nothing about values.
    fields = {key: value for key, value in resolved.items() if key not in ("_name_or_path", "_commit_hash")}
    text = json.dumps(fields, sort_keys=True, default=str)
    return [f"config={hashlib.sha256(text.encode()).hexdigest()}"]


def _has_foreign_config(model_config: Any) -> bool:
    path = getattr(model_config, "hf_config_path", None)
    return bool(path) and path != model_config.model


def _rope(model_config: Any) -> list[str]:
    """What decides how a scaled rotary embedding turns the keys.

    With long rope the engine's longest context chooses between two sets of factors, for all positions. Names of kinds
    are left out: engines rewrite them while they load the model, and then roles would disagree.
    """
    rotations = list(_scaled_rotations(_as_dict(getattr(model_config, "hf_config", None))))
    if not rotations:
        return []
    # "auto" is fitted to memory after the model was built for the longest context of its configuration.
    fitted = getattr(model_config, "original_max_model_len", None) == -1
    longest = "auto" if fitted else getattr(model_config, "max_model_len", None)
    originals = sorted({str(original) for original in rotations if original is not None})
    return [f"max_model_len={longest}", f"original_max_position_embeddings={','.join(originals)}"]


def _scaled_rotations(config: dict[str, Any]) -> Iterator[Any]:
    """The trained context length (or None) beside every scaled rotary embedding, nested configurations included."""
    for key, value in config.items():
        if not isinstance(value, dict):
            continue
        if key in ("rope_scaling", "rope_parameters"):
            # One for all layers, or one per kind of layer.
            for rope in (value, *(inner for inner in value.values() if isinstance(inner, dict))):
                if rope.get("rope_type", rope.get("type", "default")) not in ("default", None):
                    yield rope.get("original_max_position_embeddings")
                    yield config.get("original_max_position_embeddings")
        else:
            yield from _scaled_rotations(value)


def _as_dict(config: Any) -> dict[str, Any]:
    return config.to_dict() if hasattr(config, "to_dict") else dict(getattr(config, "__dict__", {}))


@dataclasses.dataclass(frozen=True)
class LocalWeights:
    """Weights that have to be read to know what they are."""

    path: str
    overrides: str
    """What flags make of them."""


def weights_parts(vllm_config: Any, chosen: str | None) -> list[bytes | LocalWeights]:
    """What tells one set of weights from another: the operator's word, the hub's commit, or the files themselves; of a
    model with a draft model, which has KV of its own, for both.

    Raises OSError where nothing tells it.
    """
    if chosen is not None:
        return [chosen.encode()]
    model_config, load_config = vllm_config.model_config, vllm_config.load_config
    parts = [_part(vllm_config, model_config, load_config)]
    speculative = getattr(vllm_config, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    if draft is not None:
        own = _part(vllm_config, draft, getattr(speculative, "draft_load_config", None) or load_config)
        # Of layers that predict several tokens, the draft is a part of the model.
        parts += [own] if own != parts[0] else []
    return parts


def _part(vllm_config: Any, model_config: Any, load_config: Any) -> bytes | LocalWeights:
    if str(getattr(load_config, "load_format", "auto")).endswith("dummy"):
        # Made up by the engine; nobody else has them.
        return b"dummy:" + engine_instance(vllm_config)
    loaded = _loaded(load_config)
    elsewhere = getattr(model_config, "model_weights", "")
    if elsewhere and elsewhere != model_config.model:
        raise FileNotFoundError(f"the weights are at {elsewhere}, where they cannot be read: set \"kvasir.weights_id\"")
    if os.path.exists(model_config.model):
        return LocalWeights(model_config.model, ";".join([_overrides(model_config), *loaded]))
    if _has_foreign_config(model_config):
        # The commit in the configuration is that of another repository.
        revision = getattr(model_config, "revision", None) or ""
        commit = revision if re.fullmatch("[0-9a-f]{40}", revision) else None
    else:
        commit = getattr(model_config.hf_config, "_commit_hash", None)
    if commit:
        return ";".join([f"{model_config.model}@{commit}", *loaded]).encode()
    raise FileNotFoundError(
        f"{model_config.model} is neither a directory nor a hub model of a known commit: set \"kvasir.weights_id\""
    )


# Ways to load that read the model's own files.
_FROM_FILES = frozenset((
    "auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "pt", "npcache", "mistral", "gguf", "bitsandbytes",
    "sharded_state", "runai_streamer", "runai_streamer_sharded",
))  # fmt: skip

# Settings of loaders that say how fast and not what.
_WITHOUT_INFLUENCE = frozenset((
    "enable_multithread_load", "num_threads", "enable_weights_track", "concurrency", "memory_limit", "distributed",
))  # fmt: skip


def _loaded(load_config: Any) -> list[str]:
    """Which of a model's files the engine loads and what it makes of them, where that is not the usual."""
    load_format = str(getattr(load_config, "load_format", "auto"))
    if load_format not in _FROM_FILES:
        raise FileNotFoundError(
            f"the load format {load_format!r} need not read the model's files: set \"kvasir.weights_id\""
        )
    extra = getattr(load_config, "model_loader_extra_config", None) or {}
    if not isinstance(extra, Mapping):
        raise FileNotFoundError("the loader's extra configuration is not plain: set \"kvasir.weights_id\"")
    extra = {key: value for key, value in extra.items() if key not in _WITHOUT_INFLUENCE}
    found = [] if load_format == "auto" else [f"load_format={load_format}"]
    return found + ([f"loader={json.dumps(extra, sort_keys=True, default=str)}"] if extra else [])


def combined(parts: Sequence[bytes]) -> bytes:
    """One identity for several sets of weights."""
    if len(parts) == 1:
        return parts[0]
    digest = hashlib.sha256(b"kvasir.weights.parts.1")
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def weights_id(vllm_config: Any, chosen: str | None) -> bytes:
    """The identity of the engine's weights, read here and now if it comes to that: what `weights.EngineWeights` finds in
    the background.

    Raises OSError if there is none, or the files cannot be read.
    """
    parts = weights_parts(vllm_config, chosen)
    return combined([part if isinstance(part, bytes) else weights_identity(part.path, part.overrides) for part in parts])


def weights_outline(vllm_config: Any, chosen: str | None) -> bytes:
    """The same for equal weights, and known at once: of local files their names and sizes. Enough to agree on a chunk
    size, for which it need not tell any two sets apart.

    Raises OSError as `weights_id` does.
    """
    parts = weights_parts(vllm_config, chosen)
    return combined([part if isinstance(part, bytes) else weights_shape(part.path, part.overrides) for part in parts])


def counts_media(vllm_config: Any) -> bool:
    """Whether the engine names images and other media by counting them. It does when it caches none itself, and another
    engine counts from one too."""
    multimodal = getattr(vllm_config.model_config, "multimodal_config", None)
    return (
        multimodal is not None
        and getattr(multimodal, "mm_processor_cache_gb", None) == 0
        and not getattr(vllm_config.cache_config, "enable_prefix_caching", True)
    )


def adapter_overrides(lora_config: Any, lora_request: Any) -> str:
    """What flags make of an adapter's files."""
    modules = getattr(lora_config, "target_modules", None)
    return ";".join([
        f"dtype={str(getattr(lora_config, 'lora_dtype', 'auto')).removeprefix('torch.')}",
        f"modules={','.join(sorted(modules)) if modules else 'all'}",
        f"3d={bool(getattr(lora_request, 'is_3d_lora_weight', False))}",
    ])


def binding_domain(vllm_config: Any, weights: bytes, spans: Iterable[int]) -> bytes:
    """What shares a chunk size on a server that keeps one per model: 32 bytes.

    All roles of an engine arrive at the same bytes. The layout fingerprint is left out: only workers know it, and only
    once the size is agreed on.
    """
    fields = [
        model_name(vllm_config.model_config).encode(),
        weights,
        kv_dtype(vllm_config).encode(),
        ",".join(str(span) for span in sorted({span for span in spans if span})).encode(),
        parallel_shape(vllm_config.parallel_config).encode(),
    ]
    digest = hashlib.sha256(b"kvasir.binding.1")
    for field in fields:
        digest.update(len(field).to_bytes(8, "little") + field)
    return digest.digest()


def parallel_shape(parallel_config: Any, sockets: Sequence[str] = (), shards: Sequence[Sequence[int]] = ()) -> str:
    """How the model is split; engines of different shapes hold different bytes per rank.

    `shards`: per object group and tensor-parallel rank what it holds, which says whose part of an object is whose. Named
    once where it is the same for all groups.

    Of several servers, which one has which ranks follows from their order, so the order belongs to the shape: else an
    engine that names them in another would find other ranks' bytes under its keys.
    """
    fields: dict[str, Any] = {
        "tp": parallel_config.tensor_parallel_size,
        "pp": parallel_config.pipeline_parallel_size,
        "dcp": parallel_config.decode_context_parallel_size,
        "pcp": getattr(parallel_config, "prefill_context_parallel_size", 1),
        # Which tokens lie in which context-parallel rank's pages.
        "interleave": getattr(parallel_config, "cp_kv_cache_interleave_size", 1),
    }
    if any(len(set(ranks)) < len(ranks) for ranks in shards):
        groups = [".".join(map(str, ranks)) for ranks in shards]
        fields["shards"] = groups[0] if len(set(groups)) == 1 else "/".join(groups)
    if len(sockets) > 1:
        fields["servers"] = hashlib.blake2b("\0".join(sockets).encode(), digest_size=8).hexdigest()
    return ",".join(f"{name}={value}" for name, value in fields.items())


def kv_dtype(vllm_config: Any) -> str:
    """Element type of the KV cache as configured, `auto` resolved to the model's."""
    declared = str(vllm_config.cache_config.cache_dtype)
    return str(vllm_config.model_config.dtype).removeprefix("torch.") if declared == "auto" else declared


EPOCH_BYTES = 16


def with_epoch(domain: Mapping[str, Any], epoch: bytes) -> dict[str, Any]:
    """The domain of weights that replaced those it was made for. An empty epoch: they are still the same."""
    if not epoch:
        return dict(domain)
    weights = hashlib.blake2b(epoch + domain["weights_id"], digest_size=32, person=b"kvasir.epoch").digest()
    return dict(domain) | {"weights_id": weights}
