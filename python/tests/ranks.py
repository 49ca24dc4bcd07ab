"""One worker of a scripted engine: a real connector, and KV tensors in memory of its own."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

import fake_vllm  # noqa: F401  (before the connector)
from kvasir.vllm.connector import KvasirConnector
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

BLOCKS = 128
PAD = 32


# What a forward pass writes: (prompt, KV cache group, place in the prompt, block).
Write = tuple[int, int, int, int]


@dataclasses.dataclass
class Step:
    """What a worker says at the end of a step."""

    finished: set[str]
    failed: set[str]
    bad_blocks: set[int]
    report: Any


class _Tensor:
    """A fake of a registered tensor: a view of one layer's pages in a storage."""

    def __init__(self, memory: np.ndarray, offset: int, blocks: int, stride: int) -> None:
        self.device = types.SimpleNamespace(type="cpu")
        self.shape = (blocks,)
        self._memory, self._offset, self._stride = memory, offset, stride

    def untyped_storage(self) -> Any:
        return types.SimpleNamespace(data_ptr=lambda: self._memory.ctypes.data, nbytes=lambda: self._memory.nbytes)

    def data_ptr(self) -> int:
        return self._memory.ctypes.data + self._offset

    def stride(self, _dimension: int) -> int:
        return self._stride

    def element_size(self) -> int:
        return 1


class Rank:
    """One worker and its KV tensors. Pages lie `PAD` bytes apart, which nobody may touch."""

    def __init__(self, config: Any, kv_config: Any, number: int, held: Sequence[Sequence[int]]) -> None:
        self.number = number
        self._held = held
        """Per group, what of the model's KV it holds; the same on ranks that hold the same bytes."""
        self.kv_config = kv_config
        self.connector = KvasirConnector(config, KVConnectorRole.WORKER, kv_config)
        size = 0
        self.places: dict[str, tuple[int, int]] = {}
        for group in kv_config.kv_cache_groups:
            page = group.kv_cache_spec.page_size_bytes
            for name in group.layer_names:
                self.places[name] = (size, page)
                size += (page + PAD) * BLOCKS
        self.memory = np.full(size, 0xEE, dtype=np.uint8)
        self._groups = [list(group.layer_names) for group in kv_config.kv_cache_groups]
        kv_config.kv_cache_tensors = [
            types.SimpleNamespace(layers=[name], offset=offset, layer_stride=0, block_stride=page + PAD)
            for name, (offset, page) in self.places.items()
        ]

    def register(self) -> None:
        self.connector.register_kv_caches(
            {name: _Tensor(self.memory, at, BLOCKS, page + PAD) for name, (at, page) in self.places.items()}
        )

    def handshake(self) -> Any:
        return self.connector.get_handshake_metadata()

    def close(self) -> None:
        self.connector.shutdown()

    def begin(self, metadata: Any, writes: Sequence[Write], finished: set[str]) -> None:
        """One step, with the hooks in the engine's order."""
        worker = self.connector
        worker.handle_preemptions(metadata)
        worker.bind_connector_metadata(metadata)
        worker.start_load_kv(None)
        self.fill(writes)
        worker.wait_for_save()
        results = worker.get_transfer_results(finished)
        assert results.failed_recving <= results.finished_recving and not results.finished_sending
        self._step = Step(
            results.finished_recving,
            results.failed_recving,
            worker.get_block_ids_with_load_errors(),
            worker.build_connector_worker_meta(),
        )
        worker.clear_connector_metadata()

    def end(self) -> Step:
        """What came of it. Ranks in processes of their own run it until here."""
        return self._step

    def copy(self) -> np.ndarray:
        return self.memory.copy()

    def fill(self, writes: Sequence[Write]) -> None:
        for prompt, group, place, block in writes:
            for page, bytes_ in zip(self.pages(group, block), self.pattern(prompt, group, place)):
                page[:] = bytes_

    def has(self, writes: Sequence[Write]) -> bool:
        """Whether every one of these blocks has the bytes that a forward pass would have written."""
        return all(
            (page == bytes_).all()
            for prompt, group, place, block in writes
            for page, bytes_ in zip(self.pages(group, block), self.pattern(prompt, group, place))
        )

    def pages(self, group: int, block: int) -> list[np.ndarray]:
        found = []
        for name in self._groups[group]:
            offset, page = self.places[name]
            start = offset + block * (page + PAD)
            found.append(self.memory[start : start + page])
        return found

    def pattern(self, prompt: int, group: int, index: int) -> list[np.ndarray]:
        """The bytes of a group's block at a place of a prompt."""
        draw = np.random.default_rng([prompt, group, index, *self._held[group]])
        return [draw.integers(1, 255, page.size, dtype=np.uint8) for page in self.pages(group, 1)]

    def changed(self, before: np.ndarray) -> dict[int, set[int]]:
        """Blocks with other bytes than before, per group. No byte between the pages may differ."""
        differs = self.memory != before
        found: dict[int, set[int]] = {}
        for group, names in enumerate(self._groups):
            for name in names:
                offset, page = self.places[name]
                rows = differs[offset : offset + (page + PAD) * BLOCKS].reshape(BLOCKS, page + PAD)
                assert not rows[:, page:].any(), f"bytes between pages of {name} were written"
                found.setdefault(group, set()).update(np.flatnonzero(rows[:, :page].any(axis=1)).tolist())
        return found
