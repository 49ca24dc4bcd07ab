"""Workers that split the model in other ways than by heads: each gets back exactly the bytes that it computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import fakes

from scripted import CHUNKED_SPECS, FULL_SPECS, HYBRID_SPECS, WINDOW_SPECS, Engine, Request, Shape
from server_status import assert_nothing_held, counts, status
from test_native import Server

Start = Callable[..., Engine]

SHAPES = {
    "context parallel": Shape(ranks=2, dcp=2),
    "pipeline": Shape(ranks=2, pp=2),
    "pipeline of pairs": Shape(ranks=4, pp=2),
    "heads in common": Shape(ranks=2, heads=1),
    "heads in common, context parallel": Shape(ranks=4, dcp=2, heads=1),
    "some heads in common, context parallel": Shape(ranks=8, dcp=2, heads=2),
    "context parallel stages with heads in common": Shape(ranks=8, pp=2, dcp=2, heads=1),
}
LATENT_SPECS = (fakes.MLAAttentionSpec(16, page_size_bytes=512),)
MODELS = {"full": FULL_SPECS, "window": WINDOW_SPECS, "chunked": CHUNKED_SPECS, "recurrent": HYBRID_SPECS, "latent": LATENT_SPECS}
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


# Per shape with heads in common: bytes of all distinct shards beside those of a single rank without any parallelism,
# and which ranks store.
ONCE = {
    "heads in common": (1, [0]),
    "heads in common, context parallel": (1, [0, 1]),
    "some heads in common, context parallel": (2, [0, 1, 4, 5]),
    "context parallel stages with heads in common": (2, [0, 1, 4, 5]),
}


@pytest.mark.parametrize("model", ["full", "latent"])
@pytest.mark.parametrize("shape", ONCE)
def test_bytes_in_common_are_stored_once(server: Server, engines: Start, shape: str, model: str) -> None:
    """However many ranks hold a shard, the pool holds it once."""
    writer = engines(MODELS[model], "writer", shape=SHAPES[shape])
    writer.prefill(Request("w", TOKENS))
    workers = [client for client in status(server)["clients"] if client["kind"] == "worker"]
    stored = {client["registered"]["rank"]: client["reported"]["stores"] for client in workers}
    times, lowest = ONCE[shape]
    assert len(stored) == writer.shape.ranks
    assert sorted(rank for rank, stores in stored.items() if stores) == lowest
    together, objects = counts(server)["stored_bytes"], status(server)["objects"]
    engines(MODELS[model], "alone").prefill(Request("a", TOKENS, prompt=2))
    assert status(server)["objects"] == 2 * objects > 0
    assert together == times * (counts(server)["stored_bytes"] - together)


def test_ranks_that_share_bytes_and_ranks_that_do_not_are_kept_apart(server: Server, engines: Start) -> None:
    """The same ranks, but other parts of an object: neither is refused, neither gets the other's bytes."""
    for heads in (1, None):
        writer = engines(LATENT_SPECS, f"writer {heads}", shape=Shape(ranks=4, dcp=2, heads=heads))
        writer.prefill(Request("w", TOKENS))
        reader, request = engines(LATENT_SPECS, f"reader {heads}", shape=writer.shape), Request("r", TOKENS + 1)
        assert reader.ask(request) == (TOKENS, True)
        reader.allocate(request, TOKENS, more=1)
        reader.step()
        assert reader.wait("r") == set() and reader.holds(request, TOKENS)
