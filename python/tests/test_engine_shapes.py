"""Workers that split the model in other ways than by heads: each gets back exactly the bytes that it computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripted import FULL_SPECS, HYBRID_SPECS, WINDOW_SPECS, Engine, Request, Shape
from server_status import assert_nothing_held, counts, status
from test_native import Server

Start = Callable[..., Engine]

SHAPES = {
    "context parallel": Shape(ranks=2, dcp=2),
    "pipeline": Shape(ranks=2, pp=2),
    "pipeline of pairs": Shape(ranks=4, pp=2),
    "heads in common": Shape(ranks=2, replicas=2),
}
MODELS = {"full": FULL_SPECS, "window": WINDOW_SPECS, "recurrent": HYBRID_SPECS}
TOKENS = 4 * 64


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_restore_what_they_computed(server: Server, engines: Start, shape: str, model: str) -> None:
    writer = engines(MODELS[model], "writer", shape=SHAPES[shape])
    writer.prefill(Request("w", TOKENS), steps=range(64, TOKENS + 1, 64))
    assert status(server)["partials"] == 0

    reader, request = engines(MODELS[model], "reader", shape=SHAPES[shape]), Request("r", TOKENS + 1)
    assert reader.ask(request) == (TOKENS, True)
    reader.allocate(request, TOKENS, more=1)
    assert not reader.holds(request, TOKENS)
    reader.step()
    assert reader.wait("r") == set()
    assert reader.holds(request, TOKENS)
    reader.finish(request)
    assert_nothing_held(server)
    assert counts(server)["failed_loads"] == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_other_shapes_share_nothing(server: Server, engines: Start, shape: str) -> None:
    """A rank of another shape holds other bytes under the same tokens."""
    writer = engines(FULL_SPECS, "writer", shape=SHAPES[shape])
    writer.prefill(Request("w", TOKENS))
    for other in SHAPES.values():
        alike = (other.tp, other.pp, other.dcp) == (writer.shape.tp, writer.shape.pp, writer.shape.dcp)
        if not alike:
            reader = engines(FULL_SPECS, f"reader {other}", shape=other)
            assert reader.ask(Request("r", TOKENS + 1)) == (0, False)


def test_bytes_in_common_are_stored_once(server: Server, engines: Start) -> None:
    """Twice the ranks, and no byte more than one rank has."""
    engines(FULL_SPECS, "writer", shape=SHAPES["heads in common"]).prefill(Request("w", TOKENS))
    both = counts(server)["stored_bytes"]
    engines(FULL_SPECS, "alone").prefill(Request("a", TOKENS, prompt=2))
    assert both > 0 and counts(server)["stored_bytes"] == 2 * both
