"""KV caches in device memory, which this version does not serve: refused at the start, and nothing is read from there.

Machines that run these tests have no device, so the tensors are fakes: their addresses lie in no memory at all, and
whoever touched them would end the process. A store that followed no stream of the device would copy bytes that are not
computed yet; there is none, because no store ever reads such a tensor.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Callable
from typing import Any

import pytest

from kvasir.vllm.layout import LayoutRefused
from ranks import BLOCKS, PAD, Rank
from scripted import (
    CHUNKED_SPECS, FULL_SPECS, HYBRID_SPECS, ONLY_STATE_SPECS, ONLY_WINDOW_SPECS, WINDOW_SPECS, Engine, Request, Shape,
)  # fmt: skip
from server_status import assert_nothing_held, counts, status
from test_native import Server

MODELS = {
    "full": FULL_SPECS, "window": WINDOW_SPECS, "chunked": CHUNKED_SPECS, "recurrent": HYBRID_SPECS,
    "only window": ONLY_WINDOW_SPECS, "only state": ONLY_STATE_SPECS,
}  # fmt: skip
SHAPES = {"one rank": Shape(), "two ranks": Shape(ranks=2), "pipeline": Shape(ranks=2, pp=2)}
TOKENS = 170


class FakeDevice:
    """A device by its type and its text, like the engine's own."""

    def __init__(self, name: str) -> None:
        self.type = name.partition(":")[0]
        self._name = name

    def __str__(self) -> str:
        return self._name


class FakeDeviceTensor:
    """A fake of a registered tensor in device memory."""

    def __init__(self, device: FakeDevice, offset: int, size: int, stride: int) -> None:
        self.device = device
        self.shape = (BLOCKS,)
        self._offset, self._size, self._stride = offset, size, stride

    def untyped_storage(self) -> Any:
        return types.SimpleNamespace(data_ptr=lambda: NOWHERE, nbytes=lambda: self._size)

    def data_ptr(self) -> int:
        return NOWHERE + self._offset

    def stride(self, _dimension: int) -> int:
        return self._stride

    def element_size(self) -> int:
        return 1


# The first page, which no process has.
NOWHERE = 64


class DeviceRank(Rank):
    """A worker with its tensors on a fake device. It takes the refusal as an engine that goes on without a cache would."""

    device = FakeDevice("cuda:0")
    refused: Exception | None = None

    def register(self) -> None:
        try:
            self.connector.register_kv_caches(
                {
                    name: FakeDeviceTensor(self.device, at, self.memory.nbytes, page + PAD)
                    for name, (at, page) in self.places.items()
                }
            )
        except Exception as error:
            self.refused = error

    def begin(self, metadata: Any, writes: Any, finished: set[str]) -> None:
        super().begin(metadata, writes, finished)
        assert self.connector.get_handshake_metadata() is None


def hand_over(engine: Engine) -> None:
    """As the engine does: only what workers have to say is passed on."""
    engine.scheduler.set_xfer_handshake_metadata_pp_aware(
        {
            divmod(rank.number, engine.shape.tp): said
            for rank in engine.ranks
            if (said := rank.handshake()) is not None
        }
    )


@pytest.mark.parametrize("device", ["cuda:0", "meta"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_device_memory_is_refused_at_the_start_and_the_cache_stays_off(
    server: Server, engines: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    shape: str, model: str, device: str,
) -> None:  # fmt: skip
    writer = engines(MODELS[model], "writer", shape=SHAPES[shape])
    writer.prefill(Request("w", TOKENS), steps=[64, TOKENS])
    before = assert_nothing_held(server)
    stored = counts(server)["stores"]
    assert before["objects"] > 0

    monkeypatch.setattr(DeviceRank, "device", FakeDevice(device))
    monkeypatch.setattr(Engine, "hand_over", hand_over)
    engine = engines(MODELS[model], "engine", shape=SHAPES[shape], rank_type=DeviceRank)
    for rank in engine.ranks:
        refused = rank.refused
        assert isinstance(refused, LayoutRefused)
        # The refusal is the engine's to show, so it names the layer, where it lies, and what would be served.
        assert str(refused).startswith(f"layer layer.0.0 lies on device {device};")
        assert "serves KV caches in host memory only" in str(refused)
    workers = [client for client in status(server)["clients"] if client["kind"] == "worker"]
    assert len(workers) == 2 * len(engine.ranks)
    assert sum(client["registered"] is not None for client in workers) == len(engine.ranks), "only the writer's"
    said = [
            record
            for record in caplog.records
            if record.levelno >= logging.WARNING and record.getMessage().startswith("Kvasir")
        ]
    assert [record.getMessage() for record in said] == [
        "Kvasir (scheduler): not caching: no worker has reported its layout"
    ]

    # Every hook goes on answering as a cache that is not there; what `spared` would find ends the test.
    for name in ("r", "again"):
        request = Request(name, TOKENS)
        assert engine.ask(request) == (0, False)
        engine.allocate(request, 0, more=TOKENS)
        memory = engine.snapshot()
        output = engine.step()
        assert not (output.done or output.failed or output.bad_blocks) and engine.changed(memory) == {}
        for end in (64, 128, TOKENS):
            output = engine.step({name: (request, end)})
            assert not (output.done or output.failed or output.bad_blocks)
        engine.free(name)
        assert engine.ask(request) == (0, False)
        engine.finish(request)
    # More than was offered, to a worker that has no memory named: a failed load and no copy.
    wrong = Request("wrong", TOKENS)
    engine.allocate(wrong, 64)
    memory = engine.snapshot()
    output = engine.step()
    if engine.loads_between_steps:
        assert engine.wait("wrong") == {"wrong"}
    else:
        assert output.bad_blocks == set(engine.tables["wrong"][0])
    assert engine.changed(memory) == {}
    engine.finish(wrong)
    after = assert_nothing_held(server)
    assert (after["objects"], after["incomplete"], after["domains"]) == (before["objects"], 0, before["domains"])
    assert counts(server)["stores"] == stored and counts(server)["loads"] == 0
