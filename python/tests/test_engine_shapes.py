"""Workers that split the model in other ways than by heads: each gets back exactly the bytes that it computed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import pytest

import fakes
from ranks import Rank
from scripted import (
    CHUNKED_SPECS, FULL_SPECS, HYBRID_SPECS, LATENT_HYBRID_SPECS, ONLY_STATE_SPECS, ONLY_WINDOW_SPECS, PAIRED_SPECS,
    WINDOW_SPECS, Engine, Request, Shape, kv_config,
)  # fmt: skip
from server_status import assert_nothing_held, counts, status
from test_native import Server, eventually

Start = Callable[..., Engine]

SHAPES = {
    "context parallel": Shape(ranks=2, dcp=2),
    "pipeline": Shape(ranks=2, pp=2),
    "pipeline of pairs": Shape(ranks=4, pp=2),
    "heads in common": Shape(ranks=2, heads=1),
    "heads in common of four": Shape(ranks=4, heads=1),
    "stages with heads in common": Shape(ranks=4, pp=2, heads=1),
    "heads in common, context parallel": Shape(ranks=4, dcp=2, heads=1),
    "some heads in common, context parallel": Shape(ranks=8, dcp=2, heads=2),
    "context parallel stages with heads in common": Shape(ranks=8, pp=2, dcp=2, heads=1),
}
LATENT_SPECS = (fakes.MLAAttentionSpec(16, page_size_bytes=512),)
MODELS = {
    "full": FULL_SPECS, "window": WINDOW_SPECS, "chunked": CHUNKED_SPECS, "recurrent": HYBRID_SPECS, "latent": LATENT_SPECS,
    "latent beside states": LATENT_HYBRID_SPECS, "only window": ONLY_WINDOW_SPECS, "only state": ONLY_STATE_SPECS,
    "paired": PAIRED_SPECS,
}  # fmt: skip
TOKENS = 4 * 64


@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_restore_what_they_computed(
    server: Server, engines: Start, shape: str, model: str, last_first: bool
) -> None:
    writer = engines(MODELS[model], "writer", shape=SHAPES[shape])
    if last_first:
        writer.ranks.reverse()
    writer.prefill(Request("w", TOKENS), steps=range(64, TOKENS + 1, 64))
    assert status(server)["incomplete"] == 0 and counts(server)["stores"] > 0 == writer.orphaned

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
    "heads in common of four": (1, [0]),
    "stages with heads in common": (2, [0, 2]),
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


@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("shape", ONCE)
def test_bytes_in_common_are_stored_once_beside_states_of_each_rank(
    server: Server, engines: Start, shape: str, last_first: bool
) -> None:
    writer = engines(LATENT_HYBRID_SPECS, "writer", shape=SHAPES[shape])
    if last_first:
        writer.ranks.reverse()
    writer.prefill(Request("w", TOKENS), steps=range(64, TOKENS + 1, 64))
    assert writer.orphaned == 0
    workers = [client for client in status(server)["clients"] if client["kind"] == "worker"]
    stored = {client["registered"]["rank"]: client["reported"] for client in workers}
    _, lowest = ONCE[shape]
    attention, state = 2 * 512 * 2 // writer.shape.dcp, 2 * 384
    for rank in range(writer.shape.ranks):
        own = (8, 4 * (attention + state)) if rank in lowest else (4, 4 * state)
        assert (stored[rank]["stores"], stored[rank]["stored_bytes"]) == own, rank
    assert (status(server)["objects"], status(server)["incomplete"]) == (8, 0)

    reader, request = engines(LATENT_HYBRID_SPECS, "reader", shape=writer.shape), Request("r", 2 * 64 + 1)
    assert reader.ask(request) == (128, True)
    reader.allocate(request, 128, more=1)
    reader.step()
    assert reader.wait("r") == set() and reader.holds(request, 128)
    # Two chunks of attention and one state, each by every rank.
    assert counts(server)["loads"] == 3 * writer.shape.ranks and counts(server)["failed_loads"] == 0
    reader.finish(request)
    assert_nothing_held(server)


def _die_storing(config: Any, kv_config: Any, shape: Shape, number: int, sent: bool, pipe: Connection) -> None:
    """A rank in a process of its own, killed right before or after it has sent what a step stores."""
    rank = Rank(config, kv_config, number, shape.held(number, LATENT_HYBRID_SPECS))
    rank.register()
    pipe.send(None)
    metadata, prompt, table = pipe.recv()
    role = rank.connector._worker
    assert role is not None
    store = role._client.store

    def killed(*args: Any) -> None:
        if sent:
            store(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    role._client = mock.Mock(wraps=role._client, store=killed)
    rank.connector.bind_connector_metadata(metadata)
    rank.connector.start_load_kv(None)
    for group, ids in enumerate(table):
        for slot, block in enumerate(ids):
            for page, bytes_ in zip(rank.pages(group, block), rank.pattern(prompt, group, slot)):
                page[:] = bytes_
    rank.connector.wait_for_save()
    raise AssertionError("the step stored nothing")


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_while_it_stores_leaves_no_half_object(
    server: Server, engines: Start, victim: int, sent: bool
) -> None:
    shape = Shape(ranks=2, heads=1)
    writer, request = engines(LATENT_HYBRID_SPECS, "writer", shape=shape), Request("w", 64)
    survivor = writer.ranks[1 - victim]
    writer.ranks.pop(victim).connector.shutdown()
    ours, theirs = multiprocessing.Pipe()
    own = (writer.config(victim), kv_config(LATENT_HYBRID_SPECS, shape), shape, victim, sent, theirs)
    process = multiprocessing.get_context("spawn").Process(target=_die_storing, args=own, daemon=True)
    process.start()
    assert ours.poll(60), "the rank did not register"
    ours.recv()
    assert writer.ask(request)[0] == 0
    writer.allocate(request, 0, more=64)
    scheduled = {"w": (request, 64)}
    metadata = writer.plan(scheduled)
    assert writer.ranks == [survivor]
    if not sent:
        writer.run(metadata, scheduled)
        assert status(server)["incomplete"] == 1
    ours.send((metadata, request.prompt, writer.tables["w"]))
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    eventually("the half object", lambda: status(server)["incomplete"] == 0)
    # Attention is whole once rank 0 has stored it; a state of one rank is not.
    whole = int(sent if victim == 0 else not sent)
    found = assert_nothing_held(server)
    assert found["objects"] == whole

    again, reader = engines(LATENT_HYBRID_SPECS, "again", shape=shape), engines(LATENT_HYBRID_SPECS, "r", shape=shape)
    assert reader.ask(Request("none", 65))[0] == 0
    again.prefill(Request("a", 64))
    assert status(server)["objects"] == 2
    request = Request("r", 65)
    assert reader.ask(request) == (64, True)
    reader.allocate(request, 64, more=1)
    reader.step()
    assert reader.wait("r") == set() and reader.holds(request, 64)


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
