"""What is read from the engine's own objects, apart from its interface for connectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from vllm import __version__ as vllm_version
from vllm.config import get_current_vllm_config_or_none
from vllm.distributed.parallel_state import get_pp_group

from kvasir.vllm.layout import Stage
from kvasir.vllm.loaded import METHOD, LoadedAdapters
from kvasir.vllm.notes import Notes
from kvasir.vllm.scheduler import Scheduled


def loaded_adapters(vllm_config: Any, notes: Notes) -> LoadedAdapters | None:
    """What sees from which files this worker's adapters are loaded, if the engine serves any."""
    if getattr(vllm_config, "lora_config", None) is None:
        return None
    try:
        from vllm.lora.worker_manager import WorkerLoRAManager

        adapters = LoadedAdapters(notes)
        adapters.watch(WorkerLoRAManager)
        return adapters
    except (ImportError, AttributeError):
        notes.warn(
            "adapters", f"not caching requests with adapters: this vLLM ({vllm_version}) has no WorkerLoRAManager.{METHOD}"
        )
        return None


def transfer_config() -> Any | None:
    """The engine's own `kv_transfer_config`, where it says so: to its workers while they start."""
    config = get_current_vllm_config_or_none()
    return config.kv_transfer_config if config is not None else None


def exchange(own: Stage | None) -> list[Stage | None]:
    """What every pipeline stage says, first to last. All workers have to call it."""
    group = get_pp_group()
    stages: list[Stage | None] = [None] * group.world_size
    torch.distributed.all_gather_object(stages, own, group=group.cpu_group)
    return stages


def scheduled(output: Any) -> Iterator[Scheduled]:
    """The requests of a step."""
    counts = output.num_scheduled_tokens
    drafts = output.scheduled_spec_decode_tokens
    cached = output.scheduled_cached_reqs
    for new in output.scheduled_new_reqs:
        yield _step(new.req_id, new.num_computed_tokens, counts, drafts)
    for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens):
        yield _step(request_id, computed, counts, drafts)


def _step(request_id: str, computed: int, counts: dict[str, int], drafts: dict[str, list[int]]) -> Scheduled:
    guessed = len(drafts.get(request_id, ()))
    return Scheduled(request_id, computed, computed + counts.get(request_id, 0) - guessed, guessed == 0)


def step_ends(vllm_config: Any) -> tuple[int, int]:
    """The scheduler's block, on whose multiples steps end within a prompt, and the most tokens of a step."""
    scheduler = vllm_config.scheduler_config
    most = scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens
    if scheduler.long_prefill_token_threshold > 0 and not scheduler.long_prefill_token_threshold_adaptive:
        most = min(most, scheduler.long_prefill_token_threshold)
    return vllm_config.cache_config.block_size, most


def attention_tags(vllm_config: Any, layers: list[str]) -> tuple[str, str]:
    """Names of the attention backends, and of the packing inside their pages.

    The engine's version is part of the packing: pages are opaque, and what is inside may change with a release.
    """
    context = vllm_config.compilation_config.static_forward_context
    backends, packings = set(), set()
    for name in layers:
        layer = context.get(name)
        if layer is None or not hasattr(layer, "get_attn_backend"):
            continue
        backends.add(layer.get_attn_backend().get_name())
        packings.add(str(getattr(layer, "isa", "")))
    packings.discard("")
    return "+".join(sorted(backends)) or "none", ",".join([*sorted(packings), f"vllm {vllm_version}"])
