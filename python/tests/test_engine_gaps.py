"""Windows and states that the server lacks below a hit: whoever computes them stores them, and nobody what is there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from fakes import may_exist, objects
from scripted import (
    CHUNKED_SPECS, FULL_SPECS, HYBRID_SPECS, ONLY_STATE_SPECS, ONLY_WINDOW_SPECS, PAIRED_SPECS, WINDOW_SPECS, Engine,
    Request,
)  # fmt: skip
from server_status import assert_nothing_held, counts, status
from test_native import Server, client

Start = Callable[..., Engine]

MODELS = {
    "window": WINDOW_SPECS, "chunked": CHUNKED_SPECS, "recurrent": HYBRID_SPECS, "only window": ONLY_WINDOW_SPECS,
    "only state": ONLY_STATE_SPECS, "paired": PAIRED_SPECS,
}  # fmt: skip
# Those that keep states, which are there only where a step ends, and object groups of each model.
STATEFUL = {"recurrent", "only state"}
GROUPS = {model: 1 if model.startswith("only") else 2 for model in MODELS}
TOKENS = 4 * 64
# Chunk ends whose windows or states the writer's engine no longer has when it stores.
LOST = {model: [64, 128, 192] if model in STATEFUL else [64, 128] for model in MODELS}
# Objects that are not there: of chunked local attention one more, that of a chunk at whose end a piece begins, from where
# nothing before is seen.
MISSING = {model: len(lost) + (model == "chunked") for model, lost in LOST.items()}


def gapped(server: Server, start: Start, model: str, ranks: int) -> None:
    """A prompt of which the server can serve the end, and not what is before."""
    writer, request = start(MODELS[model], "writer", ranks=ranks), Request("w", TOKENS)
    assert writer.ask(request)[0] == 0
    if model not in STATEFUL:
        # The engine's own cache holds three chunks, of the window only what their end can see.
        compute_locally(writer, request, 192)
    else:
        writer.allocate(request, 0, more=TOKENS)
    writer.step({"w": (request, TOKENS)})
    writer.finish(request)
    assert status(server)["objects"] == 4 * GROUPS[model] - MISSING[model]
    assert ends_served(start(MODELS[model], "before", ranks=ranks)) == [
        end for end in range(64, TOKENS + 1, 64) if end not in LOST[model]
    ]


def compute_locally(engine: Engine, request: Request, local: int) -> None:
    """Blocks with what the engine's own cache would have."""
    engine.allocate(request, 0, local=local, more=request.num_tokens)
    for rank in engine.ranks:
        engine._forward(rank, request, 0, local)


def ends_served(engine: Engine) -> list[int]:
    """Chunk ends that are hits, each loaded and compared byte for byte."""
    found = []
    for end in range(64, TOKENS + 1, 64):
        request = Request(f"to {end}", end + 1)
        hit, _ = engine.ask(request)
        if hit == end:
            engine.allocate(request, end, more=1)
            engine.step()
            assert engine.wait(request.request_id) == set() and engine.holds(request, end)
            found.append(end)
        engine.finish(request)
    return found


def check(server: Server, start: Start, model: str, ranks: int, before: dict[str, int], stored: int) -> None:
    """So many objects were copied, by each rank, and every chunk end is a hit."""
    after = counts(server)
    assert after["stores"] - before["stores"] == stored * ranks
    assert after["dropped_stores"] == 0
    assert status(server)["incomplete"] == 0
    assert ends_served(start(MODELS[model], "after", ranks=ranks)) == list(range(64, TOKENS + 1, 64))
    assert_nothing_held(server)


def compute(engine: Engine, request: Request, ends: Iterable[int]) -> None:
    for end in ends:
        engine.step({request.request_id: (request, end)})
    engine.finish(request)


NO_LOAD = {"kv_transfer_params": {"no_load": True}}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("fields", [NO_LOAD, {"skip_reading_prefix_cache": True}])
@pytest.mark.parametrize("model", MODELS)
def test_a_request_that_does_not_load_stores_what_is_missing(
    server: Server, engines: Start, model: str, fields: dict[str, Any], ranks: int
) -> None:
    gapped(server, engines, model, ranks)
    before = counts(server)
    engine, request = engines(MODELS[model], "engine", ranks=ranks), Request("r", TOKENS, **fields)
    assert engine.ask(request)[0] == 0
    engine.allocate(request, 0, more=TOKENS)
    compute(engine, request, range(64, TOKENS + 1, 64))
    check(server, engines, model, ranks, before, MISSING[model])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_a_request_whose_load_failed_stores_what_is_missing(
    server: Server, engines: Start, model: str, ranks: int
) -> None:
    gapped(server, engines, model, ranks)
    before = counts(server)
    engine, request = engines(MODELS[model], "engine", ranks=ranks), Request("r", TOKENS + 70)
    assert engine.ask(request) == (TOKENS, True)
    engine.allocate(request, TOKENS + 64)  # more than was offered
    engine.step()
    assert engine.wait("r") == {"r"}
    engine.free("r")
    assert engine.ask(request)[0] == 0
    engine.allocate(request, 0, more=TOKENS)
    compute(engine, request, range(64, TOKENS + 1, 64))
    check(server, engines, model, ranks, before, MISSING[model])


def test_windows_from_the_engines_own_cache_count_where_they_are_there(server: Server, engines: Start) -> None:
    gapped(server, engines, "window", 1)
    before = counts(server)
    engine, request = engines(WINDOW_SPECS, "engine"), Request("r", TOKENS, **NO_LOAD)
    assert engine.ask(request, 128)[0] == 0
    compute_locally(engine, request, 128)
    compute(engine, request, range(192, TOKENS + 1, 64))
    # The window at 128 is whole, that at 64 is gone; those above are there.
    assert counts(server)["stores"] - before["stores"] == 1
    assert ends_served(engines(WINDOW_SPECS, "after")) == [128, 192, 256]


def test_states_inside_chunks_are_stored_where_they_are_missing(server: Server, engines: Start) -> None:
    """They are no part of the count of what is there."""
    writer = engines(HYBRID_SPECS, "writer")
    writer.prefill(Request("w", TOKENS), steps=range(64, TOKENS + 1, 64))
    for name, stored in (("first", 8), ("second", 0)):
        before, objects = counts(server), status(server)["objects"]
        engine, request = engines(HYBRID_SPECS, name), Request("r", TOKENS, **NO_LOAD)
        assert engine.ask(request)[0] == 0
        engine.allocate(request, 0, more=TOKENS)
        compute(engine, request, range(32, TOKENS + 1, 32))
        # With the attention up to there, for prompts that end before the chunk does.
        assert counts(server)["stores"] - before["stores"] == stored == status(server)["objects"] - objects
    reader, short = engines(HYBRID_SPECS, "reader"), Request("s", 97)
    assert reader.ask(short) == (96, True)
    reader.allocate(short, 96, more=1)
    reader.step()
    assert reader.wait("s") == set() and reader.holds(short, 96)


@pytest.mark.parametrize("model", [*MODELS, "full"])
def test_what_was_lost_before_a_request_was_preempted_is_stored_again(
    server: Server, engines: Start, model: str
) -> None:
    length = TOKENS + 32  # and a tail
    engine, request = engines({**MODELS, "full": FULL_SPECS}[model], "engine"), Request("r", length)
    ends = [*range(64, TOKENS + 1, 64), length]
    engine.prefill(request, ends)
    before, objects = counts(server), status(server)["objects"]
    for lost in (False, True):
        engine.free("r")
        if lost:
            with contextlib.closing(client(server.socket, "tool")) as tool:
                assert tool.clear()
        scheduler = engine.scheduler._scheduler
        assert scheduler is not None
        scheduler._states["r"].no_load = True
        assert engine.ask(request)[0] == 0
        engine.allocate(request, 0, more=length)
        for end in ends:
            engine.step({"r": (request, end)})
        stored = counts(server)["stores"] - before["stores"]
        assert (stored, status(server)["objects"]) == (objects if lost else 0, objects)
    engine.finish(request)
    assert_nothing_held(server)


@pytest.mark.parametrize("model", MODELS)
def test_what_was_loaded_is_not_offered_again(server: Server, engines: Start, model: str) -> None:
    gapped(server, engines, model, 1)
    before = counts(server)
    engine, request = engines(MODELS[model], "engine"), Request("r", TOKENS + 70)
    assert engine.ask(request) == (TOKENS, True)
    engine.allocate(request, TOKENS, more=200)
    engine.step()
    assert engine.wait("r") == set()
    engine.tell(request, 0)
    plan = engine.plan({"r": (request, TOKENS + 64)})
    stores = plan.plan.stores
    assert [item[3] for item in objects(stores.runs)] == [64] * GROUPS[model] and stores.may_exist == []
    engine.run(plan, {"r": (request, TOKENS + 64)})
    engine.finish(request)
    assert counts(server)["stores"] - before["stores"] == GROUPS[model]


@pytest.mark.parametrize("model", MODELS)
def test_nothing_is_copied_twice_before_the_server_has_answered(server: Server, engines: Start, model: str) -> None:
    """Windows and states are there now or never, so they are planned before anything is known of the prompt."""
    engines(MODELS[model], "writer").prefill(Request("w", TOKENS), steps=range(64, TOKENS + 1, 64))
    before, held = counts(server), status(server)["objects"]
    engine, request = engines(MODELS[model], "engine"), Request("r", TOKENS, **NO_LOAD)
    scheduler = engine.scheduler._scheduler
    assert scheduler is not None
    scheduler._lookups._result = lambda ticket: None  # type: ignore[method-assign]  # no answer in time
    assert engine.ask(request)[0] == 0
    engine.allocate(request, 0, more=TOKENS)
    plan = engine.plan({"r": (request, 64)})
    assert len(objects(plan.plan.stores.runs)) == len(may_exist(plan.plan.stores)) == GROUPS[model]
    engine.run(plan, {"r": (request, 64)})
    assert (counts(server)["stores"], status(server)["objects"]) == (before["stores"], held)
