"""An engine whose ranks use a server each, and the servers hold different lengths of a prompt."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator

import pytest

from scripted import CHUNKED_SPECS, FULL_SPECS, HYBRID_SPECS, WINDOW_SPECS, Engine, Request, Shape, Spared
from server_status import assert_nothing_held, counts, status
from test_native import Server, client

MODELS = {"full": FULL_SPECS, "window": WINDOW_SPECS, "chunked": CHUNKED_SPECS, "recurrent": HYBRID_SPECS}
CHUNKS = 4
TOKENS = CHUNKS * 64


@pytest.fixture
def servers(tmp_path: pathlib.Path) -> Iterator[list[Server]]:
    """Two servers."""
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(2):
            place = tmp_path / str(number)
            place.mkdir()
            one = Server(str(place))
            one.start()
            stack.callback(one.kill)
            found.append(one)
        yield found


@pytest.fixture
def start(servers: list[Server], spared: Spared) -> Iterator[Callable[..., Engine]]:
    """Starts scripted engines of two ranks, the first at the first server and the second at the other."""
    with contextlib.ExitStack() as stack:

        def engine(model: str, name: str) -> Engine:
            one = Engine([server.socket for server in servers], MODELS[model], name, shape=Shape(ranks=2))
            stack.callback(one.close)
            return one

        yield engine


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shorter", [0, 1])
def test_the_shortest_hit_counts_with_its_own_windows_and_states(
    servers: list[Server], start: Callable[..., Engine], model: str, shorter: int
) -> None:
    ends = range(64, TOKENS + 1, 64)
    start(model, "writer").prefill(Request("w", TOKENS), steps=ends)
    with contextlib.closing(client(servers[shorter].socket, "tool")) as tool:
        assert tool.clear()
    stored = [counts(server)["stores"] for server in servers]
    start(model, "again").prefill(Request("a", 128), steps=[64, 128])
    # Only the one that lacks it gets it.
    again = [counts(server)["stores"] - before for server, before in zip(servers, stored)]
    assert again[shorter] > 0 == again[1 - shorter]
    objects = [status(server)["objects"] for server in servers]
    assert objects[shorter] < objects[1 - shorter]

    reader, request = start(model, "reader"), Request("r", TOKENS + 1)
    assert reader.ask(request) == (128, True)
    reader.allocate(request, 128, more=1)
    reader.step()
    assert reader.wait("r") == set()
    assert reader.holds(request, 128)
    reader.finish(request)
    for server in servers:
        assert_nothing_held(server)
