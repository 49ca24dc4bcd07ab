"""An engine whose ranks use a server each, and the servers hold different lengths of a prompt, or differ in their chunks."""

from __future__ import annotations

import contextlib
import gc
import pathlib
from collections.abc import Callable, Iterator

import pytest

from fakes import objects
from kvasir import _native
from kvasir.vllm.servers import ServersDiffer
from ranks import Rank
from scripted import (
    CHUNKED_SPECS, FULL_SPECS, HYBRID_SPECS, LATENT_HYBRID_SPECS, ONLY_STATE_SPECS, ONLY_WINDOW_SPECS, PAIRED_SPECS,
    WINDOW_SPECS, Engine, Request, Shape, Spared,
)  # fmt: skip
from server_status import assert_nothing_held, counts, status
from test_native import Server, client, eventually

MODELS = {
    "full": FULL_SPECS, "window": WINDOW_SPECS, "chunked": CHUNKED_SPECS, "recurrent": HYBRID_SPECS,
    "latent": LATENT_HYBRID_SPECS, "only window": ONLY_WINDOW_SPECS, "only state": ONLY_STATE_SPECS, "paired": PAIRED_SPECS,
}  # fmt: skip
CHUNKS = 4
TOKENS = CHUNKS * 64


@pytest.fixture
def start(servers: list[Server], spared: Spared) -> Iterator[Callable[..., Engine]]:
    """Starts scripted engines, of two ranks if not told otherwise: one half at the first server, the other at the other."""
    with contextlib.ExitStack() as stack:

        def engine(model: str, name: str, shape: Shape = Shape(ranks=2)) -> Engine:
            one = Engine([server.socket for server in servers], MODELS[model], name, shape=shape)
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


@pytest.mark.parametrize("model", ["full", "window", "chunked", "recurrent", "latent"])
@pytest.mark.parametrize("damaged", [0, 1])
def test_damage_in_the_pool_of_one_server_rejects_the_request_once(
    servers: list[Server], start: Callable[..., Engine], model: str, damaged: int
) -> None:
    ends = range(64, TOKENS + 1, 64)
    start(model, "writer").prefill(Request("w", TOKENS), steps=ends)
    (stored,) = {status(server)["objects"] for server in servers}
    assert _native.testing_corrupt_pool(servers[damaged].socket) >= stored

    reader, request = start(model, "reader"), Request("r", TOKENS + 1)
    assert reader.ask(request) == (TOKENS, True)
    reader.allocate(request, TOKENS, more=64)
    wanted, plan, before = reader.needed(request, TOKENS), reader.plan(), reader.snapshot()
    (load,) = plan.plan.async_loads
    named = len(objects(load.runs))
    reader.run(plan)
    assert reader.wait("r") == {"r"}
    for rank, memory in zip(reader.ranks, before):
        changed = {group: blocks for group, blocks in rank.changed(memory).items() if blocks}
        assert all(blocks <= wanted[group] for group, blocks in changed.items())
        assert rank.number == damaged or changed == wanted

    def said(server: Server) -> tuple[int, ...]:
        reported = counts(server)
        return tuple(reported[name] for name in ("loads", "failed_loads", "corrupt_loads", "stale_loads"))

    assert said(servers[damaged]) == (0, named, named, 0)
    assert said(servers[1 - damaged]) == (named, 0, 0, 0)
    assert status(servers[damaged])["objects"] == 0
    assert status(servers[damaged])["counters"]["discarded"] == named
    assert status(servers[1 - damaged])["objects"] == stored

    reader.free("r")
    assert reader.ask(request) == (0, False), "a failed load is not tried again"
    other = Request("other", TOKENS + 1)
    assert reader.ask(other) == (0, False), "one server has nothing of it"
    reader.finish(other)
    reader.allocate(request, 0, more=TOKENS + 64)
    for end in ends:
        reader.step({"r": (request, end)})
    reader.finish(request)
    assert reader.reported == {"r": 1}
    limbo = {servers[damaged].socket: named}
    for server in servers:
        assert assert_nothing_held(server, limbo.get(server.socket, 0))["objects"] == stored
    # The sound server had it all, and nothing was copied for it.
    assert [counts(servers[at])["stores"] for at in (damaged, 1 - damaged)] == [2 * stored, stored]

    again = Request("again", TOKENS + 1)
    assert reader.ask(again) == (TOKENS, True)
    reader.allocate(again, TOKENS, more=1)
    reader.step()
    assert reader.wait("again") == set() and reader.holds(again, TOKENS)
    reader.finish(again)
    assert said(servers[damaged]) == (named, named, named, 0)
    for server in servers:
        assert_nothing_held(server, limbo.get(server.socket, 0))


@pytest.mark.parametrize("last_first", [False, True])
def test_each_server_has_what_its_ranks_share_once(
    servers: list[Server], start: Callable[..., Engine], last_first: bool
) -> None:
    shape = Shape(ranks=4, heads=1)
    writer = start("latent", "writer", shape)
    if last_first:
        writer.ranks.reverse()
    writer.prefill(Request("w", TOKENS), steps=range(64, TOKENS + 1, 64))
    assert writer.orphaned == 0
    for server in servers:
        workers = [client for client in status(server)["clients"] if client["kind"] == "worker"]
        stores = {client["registered"]["rank"]: client["reported"]["stores"] for client in workers}
        assert stores == {0: 2 * CHUNKS, 1: CHUNKS}
        # Per chunk two blocks of attention in two layers, and a state of either rank.
        assert counts(server)["stored_bytes"] == CHUNKS * (2 * 2 * 512 + 2 * 2 * 384)

    reader, request = start("latent", "reader", shape), Request("r", TOKENS + 1)
    assert reader.ask(request) == (TOKENS, True)
    reader.allocate(request, TOKENS, more=1)
    reader.step()
    assert reader.wait("r") == set() and reader.holds(request, TOKENS)
    reader.finish(request)
    for server in servers:
        assert_nothing_held(server)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("longer", [0, 1])
def test_the_scheduler_role_refuses_to_start_with_servers_of_different_chunks(
    servers: list[Server], spared: Spared, model: str, longer: int
) -> None:
    """Each worker asks its own server only and finds nothing wrong."""
    servers[longer].kill()
    servers[longer].start(chunk_size=128)
    workers: list[Rank] = []

    def rank(*args: object) -> Rank:
        workers.append(Rank(*args))  # type: ignore[arg-type]
        return workers[-1]

    with pytest.raises(ServersDiffer, match="chunk sizes of their own") as refused:
        Engine([server.socket for server in servers], MODELS[model], shape=Shape(ranks=2), rank_type=rank)
    said = str(refused.value)
    for number, server in enumerate(servers):
        assert f"{server.socket} with {128 if number == longer else 64} tokens" in said
    assert "Start them with one --chunk-size" in said
    assert [one.handshake().report.domain is None for one in workers] == [False, False]
    for one in workers:
        one.close()
    del refused
    gc.collect()
    # The refused role has left no connection behind.
    for server in servers:
        eventually("the end of the clients", lambda: not others(server))


def test_two_paths_of_one_server_are_refused(servers: list[Server], spared: Spared, tmp_path: pathlib.Path) -> None:
    """Ranks of both would be the same rank of one server, and get each other's bytes."""
    also = tmp_path / "also.sock"
    also.symlink_to(servers[0].socket)
    with pytest.raises(ServersDiffer, match="are one server"):
        Engine([servers[0].socket, str(also)], MODELS["full"], shape=Shape(ranks=2))


def others(server: Server) -> list[str]:
    """Clients but for the tool that asks."""
    return [client["kind"] for client in status(server)["clients"] if client["kind"] != "tool"]


def test_a_server_that_comes_later_with_other_chunks_keeps_the_cache_off(
    servers: list[Server], start: Callable[..., Engine], caplog: pytest.LogCaptureFixture
) -> None:
    """At the start it was away, so there was nothing to compare."""
    servers[1].kill()
    engine, request = start("window", "engine"), Request("r", TOKENS)
    assert engine.ask(request) == (0, False)
    servers[1].start(chunk_size=128)
    eventually("the other server", lambda: all(client.healthy for client in engine.scheduler._client._clients))
    for _ in range(2):
        assert engine.ask(request) == (0, False)
    engine.allocate(request, 0, more=TOKENS)
    before = engine.snapshot()
    assert engine.step().done == set() and engine.changed(before) == {}
    engine.step({"r": (request, TOKENS)})
    engine.finish(request)
    said = [line for line in caplog.messages if "not caching: the servers answer differently" in line]
    assert len(said) == 1
    assert f"{servers[0].socket} with 64 tokens, {servers[1].socket} with 128 tokens" in said[0]
    for server in servers:
        assert assert_nothing_held(server)["objects"] == 0
