"""An engine's description, as `kvasir plan groups` and `kvasir doctor --engine` read it.

A running engine writes it where `kvasir.describe_file` says. Without an engine it comes from vLLM's own arguments:

    python -m kvasir.vllm.describe MODEL [ARGUMENTS OF vllm serve]

(`kvasir plan from-vllm` runs that.) vLLM resolves its configuration and makes the model without memory for its weights, so
that every layer says what it keeps; nothing is loaded and nothing started.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from kvasir.vllm import geometry, identity
from kvasir.vllm.settings import Settings

# Fields of KVTransferConfig that say what an operator gave; the others are made up where nothing is given.
_TRANSFER = ("kv_connector", "kv_connector_module_path", "kv_role", "kv_load_failure_policy", "kv_connector_extra_config")


def document(vllm_config: Any, kv_cache_config: Any, known: Mapping[str, Any] | None, source: str) -> dict[str, Any]:
    """Everything that the description holds; `known` is the identity of a registered cache."""
    import vllm
    from vllm import envs
    from vllm.platforms import current_platform

    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    scheduler = vllm_config.scheduler_config
    found: dict[str, Any] = {
        "source": source,
        "vllm": vllm.__version__,
        "model": str(model.model),
        "architectures": list(getattr(model.hf_config, "architectures", None) or ()),
        "device": current_platform.device_type,
        "multiprocessing": bool(envs.VLLM_ENABLE_V1_MULTIPROCESSING),
        "enable_prefix_caching": cache.enable_prefix_caching,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "use_replayssm": bool(getattr(cache, "use_replayssm", False)),
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": model.max_model_len,
        "prefill_context_parallel_size": getattr(parallel, "prefill_context_parallel_size", 1),
        "kv_transfer_config": _transfer(vllm_config.kv_transfer_config),
        "attention_backend": _backends(vllm_config),
    }
    if getattr(cache, "user_specified_block_size", True):
        found["block_size"] = cache.block_size
    found["identity"] = _identity(vllm_config, kv_cache_config, known)
    return found | geometry.describe(kv_cache_config, parallel.decode_context_parallel_size)


def _transfer(config: Any) -> dict[str, Any] | None:
    if config is None or config.kv_connector is None:
        return None
    given = {name: getattr(config, name, None) for name in _TRANSFER}
    return {name: value for name, value in given.items() if value is not None}


def _backends(vllm_config: Any) -> str | None:
    layers = vllm_config.compilation_config.static_forward_context.values()
    names = {layer.get_attn_backend().get_name() for layer in layers if hasattr(layer, "get_attn_backend")}
    return "+".join(sorted(names)) or None


def _identity(vllm_config: Any, kv_cache_config: Any, known: Mapping[str, Any] | None) -> dict[str, str]:
    """What engines have to have in common to share: of a registered cache all of it, else what the configuration says."""
    if known is None:
        parallel, transfer = vllm_config.parallel_config, vllm_config.kv_transfer_config
        extra = transfer.kv_connector_extra_config if transfer is not None else {}
        known = {
            "model": identity.model_name(vllm_config.model_config),
            "kv_dtype": identity.kv_dtype(vllm_config),
            "parallel_shape": _shape(parallel, kv_cache_config, extra),
        }
        try:
            known["weights_id"] = identity.weights_id(vllm_config, extra.get("kvasir.weights_id"))
        except OSError as error:
            print(f"kvasir: the weights have no identity: {error}", file=sys.stderr)
    return {
        key: value.hex() if isinstance(value, bytes) else str(value) for key, value in known.items() if value is not None
    }


def _shape(parallel: Any, kv_cache_config: Any, extra: Mapping[str, Any]) -> str | None:
    """The parallel shape as the connector makes it; None for a model that it would refuse."""
    dcp, tp = parallel.decode_context_parallel_size, parallel.tensor_parallel_size
    try:
        resolved = geometry.resolve(kv_cache_config, dcp)
    except geometry.GeometryRefused:
        return None
    shards = geometry.shards(kv_cache_config, resolved, tp, dcp)
    try:
        # Which socket it is does not matter, only how many there are and how they are named.
        sockets = Settings.from_extra({"kvasir.socket": "unnamed"} | dict(extra)).sockets
    except ValueError:
        sockets = ()
    return identity.parallel_shape(parallel, sockets[: tp * parallel.pipeline_parallel_size], shards)


def write(path: str, found: Mapping[str, Any]) -> None:
    """Writes a description, whole or not at all."""
    directory = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("w", dir=directory, prefix=".kvasir-", delete=False, encoding="utf-8") as file:
        try:
            json.dump(found, file, indent=1, default=str)
            file.write("\n")
            file.close()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def from_arguments(arguments: list[str]) -> dict[str, Any]:
    """The description of the engine that `vllm serve` would start with these arguments."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(prog="kvasir plan from-vllm"))
    parsed = parser.parse_args(arguments)
    if parsed.model_tag is not None:
        parsed.model = parsed.model_tag
    # Some defaults depend on what an engine is for.
    vllm_config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config(UsageContext.OPENAI_API_SERVER)
    groups = _groups(vllm_config)
    return document(vllm_config, SimpleNamespace(kv_cache_groups=groups), None, f"vllm serve {' '.join(arguments)}")


def _groups(vllm_config: Any) -> list[Any]:
    """The KV cache groups, by the steps in which an engine comes to them."""
    import torch
    from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import AttentionSpec
    from vllm.v1.worker.utils import customize_attention_spec
    from vllm.v1.worker.worker_base import WorkerBase

    with set_current_vllm_config(vllm_config), tempfile.TemporaryDirectory() as place:
        _one_rank_of(vllm_config.parallel_config, os.path.join(place, "store"))
        with set_default_torch_dtype(vllm_config.model_config.dtype), torch.device("meta"):
            initialize_model(vllm_config)
        current_platform.update_block_size_for_backend(vllm_config)
        register_all_kvcache_specs(vllm_config)
        specs = {}
        for name, layer in get_layers_from_vllm_config(vllm_config, AttentionLayerBase).items():
            if getattr(layer, "kv_sharing_target_layer_name", None):
                continue  # it uses another layer's
            spec = layer.get_kv_cache_spec(vllm_config)
            if isinstance(spec, AttentionSpec):
                spec = customize_attention_spec(layer.get_attn_backend(), spec)
            if spec:
                specs[name] = spec
        # As a worker would answer; the grouping of some models depends on it.
        layouts = WorkerBase.get_supported_kv_cache_layouts(SimpleNamespace(vllm_config=vllm_config))
        resolve_kv_cache_layout(vllm_config, [layouts], list(specs.values()))
        return get_kv_cache_groups(vllm_config, specs)


def _one_rank_of(parallel: Any, store: str) -> None:
    """Makes this process the first rank of an engine of that shape, all of whose layers it holds; nobody is talked to."""
    from vllm.distributed import parallel_state

    parallel_state.init_distributed_environment(1, 0, f"file://{store}", 0, "gloo")
    parallel_state.initialize_model_parallel(1, 1)
    # Layers ask their groups how finely they are split, and nothing else while they are made.
    sizes = (
        (parallel_state.get_tp_group(), parallel.tensor_parallel_size),
        (parallel_state.get_dcp_group(), parallel.decode_context_parallel_size),
    )
    for group, size in sizes:
        group.world_size = size


def main() -> int:
    """Prints the description of `vllm serve` with this program's arguments."""
    # vLLM logs to standard output, which is the answer's.
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        found = from_arguments(sys.argv[1:])
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    with answer:
        json.dump(found, answer, indent=1, default=str)
        answer.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
