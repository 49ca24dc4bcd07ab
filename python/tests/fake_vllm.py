"""A fake of the few names of vLLM and torch that the connector imports, for environments that have neither.

Importing this module puts the fakes in place, unless the real packages are there. They hold no behaviour beyond what
the connector relies on: that the base class keeps its arguments and the step's metadata. The real interface is what
`python/e2e` runs against.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import logging
import sys
import types
from typing import Any


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


@dataclasses.dataclass
class KVConnectorTransferResults:
    finished_sending: set[str] = dataclasses.field(default_factory=set)
    finished_recving: set[str] = dataclasses.field(default_factory=set)
    failed_recving: set[str] = dataclasses.field(default_factory=set)


class KVConnectorBase_V1:
    """Keeps what it is given."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        self._connector_metadata: Any = None
        self._vllm_config = vllm_config
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._kv_cache_config = kv_cache_config
        self._role = role

    def bind_connector_metadata(self, metadata: Any) -> None:
        self._connector_metadata = metadata

    def clear_connector_metadata(self) -> None:
        self._connector_metadata = None

    def handle_preemptions(self, metadata: Any) -> None:
        pass


class CacheHitSource(str, enum.Enum):
    HOST = "host"


class WorkerLoRAManager:
    """Loads nothing; that it is asked to is all that a watcher sees."""

    def _load_adapter(self, lora_request: Any) -> str:
        return f"loaded {lora_request.lora_name}"


def _plain(name: str) -> type:
    return type(name, (), {})


def _module(name: str, **names: Any) -> None:
    parent, _, child = name.rpartition(".")
    module = types.ModuleType(name)
    module.__path__ = []  # type: ignore[attr-defined]  # packages can be imported from
    module.__dict__.update(names)
    sys.modules[name] = module
    if parent:
        if parent not in sys.modules:
            _module(parent)
        setattr(sys.modules[parent], child, module)


def _install() -> None:
    _module("vllm", __version__="0.32.0-fake")
    _module("torch", distributed=types.SimpleNamespace())
    _module("vllm.config", get_current_vllm_config_or_none=lambda: None)
    _module("vllm.logger", init_logger=logging.getLogger)
    _module("vllm.distributed.parallel_state", get_pp_group=lambda: types.SimpleNamespace(world_size=1, cpu_group=None))
    _module("vllm.lora.worker_manager", WorkerLoRAManager=WorkerLoRAManager)
    _module("vllm.v1.metrics.cache_hit_source", CacheHitSource=CacheHitSource)
    _module(
        "vllm.distributed.kv_transfer.kv_connector.v1.base",
        KVConnectorBase_V1=KVConnectorBase_V1,
        KVConnectorRole=KVConnectorRole,
        KVConnectorTransferResults=KVConnectorTransferResults,
        **{
            name: _plain(name)
            for name in (
                "KVConnectorHandshakeMetadata", "KVConnectorMetadata", "KVConnectorWorkerMetadata", "SupportsHMA",
            )
        },
    )  # fmt: skip


if importlib.util.find_spec("vllm") is None:
    _install()
