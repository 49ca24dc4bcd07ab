"""Engines whose ranks are processes of their own, with a client and memory each: they share a record, and may be killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rank_processes import RankGone, RankProcess
from ranks import BLOCKS
from scripted import CHUNKED_SPECS, FULL_SPECS, HYBRID_SPECS, WINDOW_SPECS, Engine, Request, Shape
from server_status import assert_idle, assert_nothing_held, counts, status
from test_native import Server, eventually

Start = Callable[..., Engine]

SHAPES = {"pipeline": Shape(ranks=2, pp=2), "context parallel": Shape(ranks=2, dcp=2)}
MODELS = {"full": FULL_SPECS, "window": WINDOW_SPECS, "chunked": CHUNKED_SPECS, "recurrent": HYBRID_SPECS}
TOKENS = 4 * 64
ENDS = range(64, TOKENS + 1, 64)
# A prompt that nobody has stored.
OTHERS = 99
# What the pool's bytes are.
COUNTED = ("free", "used", "granted", "quarantined", "pinned")


@pytest.fixture
def start(engines: Start) -> Iterator[Start]:
    """Starts engines whose ranks are processes."""

    def engine(*args: Any, **settings: Any) -> Engine:
        return engines(*args, rank_type=RankProcess, **settings)

    yield engine


def assert_loads(reader: Engine, request: Request, tokens: int) -> None:
    """The hit is as long as that, every rank gets exactly its own bytes, and no other byte is written."""
    assert reader.ask(request) == (tokens, True)
    reader.allocate(request, tokens, more=1)
    groups = range(len(reader.geometry.spans))
    for rank in reader.ranks:
        # Blocks that others have used.
        rank.fill([(OTHERS, group, block, block) for group in groups for block in range(1, BLOCKS)])
    before = reader.snapshot()
    assert not reader.holds(request, tokens)
    reader.step()
    assert reader.wait(request.request_id) == set()
    assert reader.holds(request, tokens)
    wanted = reader.needed(request, tokens)
    for rank, memory in zip(reader.ranks, before):
        assert {group: blocks for group, blocks in rank.changed(memory).items() if blocks} == wanted


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_process_gets_back_its_own_bytes(server: Server, start: Start, shape: str, model: str) -> None:
    writer = start(MODELS[model], "writer", shape=SHAPES[shape])
    writer.prefill(Request("w", TOKENS), steps=ENDS)
    stored = status(server)
    assert stored["incomplete"] == 0 < stored["objects"]

    reader = start(MODELS[model], "reader", shape=SHAPES[shape])
    assert len({rank.pid for engine in (writer, reader) for rank in engine.ranks}) == 4
    workers = [client for client in status(server)["clients"] if client["kind"] == "worker"]
    assert sorted(client["registered"]["rank"] for client in workers) == [0, 0, 1, 1]
    for number, end in enumerate(ENDS):
        request = Request(f"to {number}", end + 1)
        assert_loads(reader, request, end)
        reader.finish(request)
    found = assert_nothing_held(server)
    assert found["objects"] == stored["objects"]
    assert (counts(server)["failed_loads"], counts(server)["stale_loads"]) == (0, 0)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_rank_killed_before_its_part_is_stored_leaves_no_half_record(
    server: Server, engines: Start, start: Start, shape: str, model: str, victim: int
) -> None:
    other = engines(MODELS[model], "other", shape=SHAPES[shape])
    other.prefill(Request("o", TOKENS, prompt=2), steps=ENDS)
    before = assert_idle(server)

    engine, request = start(MODELS[model], "engine", shape=SHAPES[shape]), Request("r", TOKENS)
    assert engine.ask(request)[0] == 0
    engine.allocate(request, 0, more=TOKENS)
    scheduled = {"r": (request, 64)}
    metadata, wanted = engine.plan(scheduled), engine._writes(request, 0, 64)
    survivor, victim_rank = engine.ranks[1 - victim], engine.ranks[victim]
    survivor.begin(metadata, wanted, set())
    survivor.end()
    half = status(server)
    assert half["objects"] == before["objects"] and half["incomplete"] == len(MODELS[model])
    assert engine.ask(asked := Request("while", TOKENS)) == (0, False)
    engine.finish(asked)

    victim_rank.kill()
    with pytest.raises(RankGone):
        victim_rank.begin(metadata, wanted, set())
        victim_rank.end()
    eventually("the end of the incomplete objects", lambda: status(server)["incomplete"] == 0)
    assert engine.ask(asked := Request("after", TOKENS)) == (0, False)
    engine.finish(asked)
    engine.finish(request)
    engine.close()
    eventually("the end of the clients", lambda: len(status(server)["clients"]) == len(before["clients"]))
    after = assert_idle(server)
    assert after["objects"] == before["objects"]
    assert {name: after["pool"][name] for name in COUNTED} == {name: before["pool"][name] for name in COUNTED}
    assert after["counters"]["ended_incomplete"] == len(MODELS[model])

    # A new engine stores the whole of it, and what was there before is there still.
    anew = engines(MODELS[model], "anew", shape=SHAPES[shape])
    anew.prefill(Request("a", TOKENS), steps=ENDS)
    assert status(server)["objects"] == 2 * before["objects"]
    reader = engines(MODELS[model], "reader", shape=SHAPES[shape])
    for prompt in (1, 2):
        assert_loads(reader, again := Request(f"prompt {prompt}", TOKENS + 1, prompt=prompt), TOKENS)
        reader.finish(again)
    assert_nothing_held(server)

