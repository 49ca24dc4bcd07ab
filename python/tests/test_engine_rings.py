"""Engines that map neither pool nor index (`kvasir.payload_path: ring`), beside those that do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripted import Engine, Request, Shape
from server_status import assert_nothing_held, status
from test_engine_shapes import MODELS
from test_native import Server

Start = Callable[..., Engine]
TOKENS = 4 * 64
SHAPES = {"one rank": Shape(), "two ranks": Shape(ranks=2)}
PATHS = [("ring", "ring"), ("ring", "direct"), ("direct", "ring")]


def workers(server: Server) -> list[dict]:
    return [client for client in status(server)["clients"] if client["kind"] == "worker"]


@pytest.mark.parametrize("paths", PATHS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_one_engine_stored_the_other_gets_back(
    server: Server, engines: Start, shape: str, model: str, paths: tuple[str, str]
) -> None:
    def engine(name: str, path: str) -> Engine:
        return engines(MODELS[model], name, shape=SHAPES[shape], payload_path=path, lookup_wait=20.0)

    writer = engine("writer", paths[0])
    writer.prefill(Request("w", TOKENS), steps=range(64, TOKENS + 1, 64))
    assert status(server)["incomplete"] == 0 < status(server)["objects"]
    reader, request = engine("reader", paths[1]), Request("r", TOKENS + 1)
    assert reader.ask(request)[0] == TOKENS
    reader.allocate(request, TOKENS, more=1)
    reader.step()
    if reader.loads_between_steps:
        assert reader.wait("r") == set()
    assert reader.holds(request, TOKENS)
    used = [client["payload_path"] for client in workers(server)]
    assert sorted(used) == sorted(f"shm-{path}" for path in paths for _ in range(SHAPES[shape].ranks))
    for client in workers(server):
        ring = client["ring"]
        assert (ring is None) == (client["payload_path"] == "shm-direct")
        assert ring is None or ring["moves"] > 0 == status(server)["rings"]["broken"]
    reader.finish(request)
    reader.step()
    reader.step()
    assert_nothing_held(server)


def test_another_path_is_refused(server: Server, engines: Start) -> None:
    with pytest.raises(ValueError, match='payload_path.*"direct" or "ring"'):
        engines(MODELS["full"], "odd", payload_path="rings")
