"""Requests that end or are preempted at any stage, against a real server: what is reported, written, counted and held."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from scripted import CHUNKED_SPECS, FULL_SPECS, HYBRID_SPECS, WINDOW_SPECS, Engine, Request
from server_status import assert_nothing_held, counts, pins, status
from test_native import Server

Start = Callable[..., Engine]

MODELS = {"full": FULL_SPECS, "window": WINDOW_SPECS, "chunked": CHUNKED_SPECS, "recurrent": HYBRID_SPECS}
TOKENS, HIT = 170, 160
# Objects of the prompt that one engine stores, and how many of them a hit of all its boundaries names.
STORED = {"full": 3, "window": 6, "chunked": 6, "recurrent": 6}
NAMED = {"full": 3, "window": 4, "chunked": 5, "recurrent": 4}


def seeded(start: Start, model: str) -> Engine:
    """An engine that meets a prompt which another one has stored."""
    writer = start(MODELS[model], "writer")
    writer.prefill(Request("w", TOKENS), [64, 128, HIT, TOKENS] if model == "recurrent" else [TOKENS])
    return start(MODELS[model], "reader")


def offer(engine: Engine, request: Request, model: str) -> None:
    assert engine.ask(request) == (HIT, model != "full")


def load(engine: Engine, request: Request, model: str) -> None:
    """From the offer to the first step after the load."""
    offer(engine, request, model)
    engine.allocate(request, HIT, more=200)
    if model == "full":
        output = engine.step({request.request_id: (request, request.num_tokens)})
        assert output.bad_blocks == set()
    else:
        engine.step()
        assert engine.wait(request.request_id) == set()
        engine.tell(request, 0)
        engine.step({request.request_id: (request, request.num_tokens)})
    assert engine.holds(request, HIT)


def reach(engine: Engine, request: Request, model: str, stage: str) -> None:
    if stage == "never asked":
        engine.scheduler.on_new_request(request)
    elif stage == "never admitted":
        for _ in range(3):
            offer(engine, request, model)
            engine.step()
    elif stage == "offered":
        offer(engine, request, model)
    elif stage == "allocated":
        offer(engine, request, model)
        engine.allocate(request, HIT, more=200)
    else:
        load(engine, request, model)
    if stage == "decode":
        for _ in range(100):
            request.generate(1)
            engine.step({request.request_id: (request, request.num_tokens)})


LOADED = {"loaded": 1, "decode": 1}
STAGES = ["never asked", "never admitted", "offered", "allocated", "loaded", "decode"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("model", MODELS)
def test_an_aborted_request_leaves_nothing_behind_at_any_stage(
    server: Server, engines: Start, model: str, stage: str
) -> None:
    engine, request = seeded(engines, model), Request("r", TOKENS)
    before = engine.snapshot()
    reach(engine, request, model, stage)
    pinned = status(server)["pool"]["pinned"]
    # A load within a step is held until the next one is planned.
    assert (pinned > 0) == (stage in ("offered", "allocated") or (model, stage) == ("full", "loaded"))
    planned = model != "full" and stage not in ("never asked", "never admitted", "offered")
    engine.finish(request, keep_blocks=planned and stage == "allocated")
    engine.finish(request, keep_blocks=True)  # the engine says so twice
    if planned and stage == "allocated":
        # Its blocks are the engine's again only with the report, so there has to be one, and nothing is copied.
        assert engine.wait("r") == {"r"}
        engine.free("r")
    for _ in range(3):
        assert engine.step().bad_blocks == set()
    assert engine.reported == ({"r": 1} if planned else {})
    if stage not in LOADED:
        assert engine.changed(before) == {}
    reported = counts(server)
    assert (reported["loads"], reported["failed_loads"]) == (NAMED[model] * LOADED.get(stage, 0), 0)
    assert (reported["stale_loads"], reported["dropped_stores"]) == (0, 0)
    if stage != "decode":
        assert reported["stores"] == STORED[model]
    found = assert_nothing_held(server)
    assert found["counters"]["dropped_stores"] == found["counters"]["ended_partials"] == 0
    if stage != "decode":
        assert found["objects"] == STORED[model]
    # Nobody is the worse for it.
    load(engine, other := Request("other", TOKENS), model)
    engine.finish(other)
    assert_nothing_held(server)


@pytest.mark.parametrize("stage", ["never admitted", "offered", "loaded", "decode"])
@pytest.mark.parametrize("model", MODELS)
def test_a_preempted_request_is_served_again(server: Server, engines: Start, model: str, stage: str) -> None:
    engine, request = seeded(engines, model), Request("r", TOKENS)
    reach(engine, request, model, stage)
    engine.free("r")
    engine.step()
    for round_ in range(1, 3):
        external, between = engine.ask(request)
        assert external is not None and external >= HIT and between == (model != "full")
        before = engine.snapshot()
        engine.allocate(request, external, more=100)
        wanted = engine.needed(request, external)
        assert engine.step().bad_blocks == set()
        if between:
            assert engine.wait("r") == set()
        assert engine.changed(before).keys() <= wanted.keys()
        assert all(blocks <= wanted[group] for group, blocks in engine.changed(before).items())
        assert engine.holds(request, external)
        engine.free("r")
        engine.step()
        assert engine.reported.get("r", 0) == (round_ + LOADED.get(stage, 0) if between else 0)
    engine.finish(request)
    found = assert_nothing_held(server)
    reported = counts(server)
    assert (reported["failed_loads"], reported["stale_loads"], reported["dropped_stores"]) == (0, 0, 0)
    if stage != "decode":
        assert reported["loads"] == NAMED[model] * (2 + LOADED.get(stage, 0))
        assert (reported["stores"], found["objects"]) == (STORED[model], STORED[model])


@pytest.mark.parametrize("model", MODELS)
def test_a_request_may_end_while_its_lookup_is_awaited(server: Server, engines: Start, model: str) -> None:
    seeded(engines, model)
    engine, request = engines(MODELS[model], "impatient", lookup_wait=1e-6), Request("r", TOKENS)
    with server.stopped():
        assert engine.ask(request) == (None, False)
        engine.step()
        assert engine.ask(request) == (None, False)
    # The answer, and its pin, may arrive before or after this.
    engine.finish(request)
    engine.step()
    assert engine.reported == {}
    assert_nothing_held(server)


class Gate:
    """A worker's client whose loads wait to be let through."""

    def __init__(self, engine: Engine) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        role = engine.ranks[0].connector._worker
        assert role is not None
        self._client, role._client = role._client, self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def load(self, *arguments: Any) -> list[bool]:
        self.reached.set()
        assert self.open.wait(120.0)
        return self._client.load(*arguments)


@pytest.mark.parametrize("model", ["window", "chunked", "recurrent"])
def test_a_request_may_end_while_its_load_is_under_way(server: Server, engines: Start, model: str) -> None:
    engine, request = seeded(engines, model), Request("r", TOKENS)
    gate = Gate(engine)
    before = engine.snapshot()
    offer(engine, request, model)
    engine.allocate(request, HIT, more=200)
    wanted = engine.needed(request, HIT)
    engine.step()
    assert gate.reached.wait(120.0)
    engine.finish(request, keep_blocks=True)
    for _ in range(3):
        assert engine.step().done == set(), "the copy has not stopped writing"
    gate.open.set()
    assert engine.wait("r") == set()
    assert engine.changed(before) == wanted
    engine.free("r")
    for _ in range(3):
        engine.step()
    assert engine.reported == {"r": 1}
    assert_nothing_held(server)
    assert (counts(server)["loads"], counts(server)["failed_loads"]) == (NAMED[model], 0)


@pytest.mark.parametrize("end", ["abort", "preempt"])
@pytest.mark.parametrize("model", MODELS)
def test_what_a_prefill_had_stored_before_it_ended_is_a_hit(
    server: Server, engines: Start, model: str, end: str
) -> None:
    engine, request = engines(MODELS[model]), Request("r", TOKENS)
    assert engine.ask(request)[0] == 0
    engine.allocate(request, 0, more=TOKENS)
    engine.step({"r": (request, 128)})
    stored = {"full": 2, "window": 4, "chunked": 4, "recurrent": 3}[model]
    assert status(server)["objects"] == stored
    engine.free("r")
    if end == "abort":
        engine.finish(request)
        request = Request("again", TOKENS)
    engine.step()
    assert engine.ask(request) == (128, model != "full")
    engine.allocate(request, 128, more=TOKENS)
    assert engine.step().bad_blocks == set()
    if model != "full":
        assert engine.wait(request.request_id) == set()
    assert engine.holds(request, 128)
    engine.step({request.request_id: (request, TOKENS)})
    engine.finish(request)
    found = assert_nothing_held(server)
    # What is there is not stored twice: only the tail where the prompt ends has come in addition.
    tails = {"full": 1, "window": 2, "chunked": 2, "recurrent": 0}[model]
    assert found["objects"] == counts(server)["stores"] == stored + tails


@pytest.mark.parametrize(("model", "hit"), [("full", 112), ("window", 112), ("chunked", 112), ("recurrent", 64)])
def test_a_prompt_of_whole_chunks_hits_as_far_as_it_may(server: Server, engines: Start, model: str, hit: int) -> None:
    engine = seeded(engines, model)
    # All of the 128 tokens are there, and one has to be left to compute. A state is there for 64 and 128 only.
    request = Request("r", 128)
    assert engine.ask(request) == (hit, model != "full")
    engine.allocate(request, hit, more=64)
    assert engine.step().bad_blocks == set()
    if model != "full":
        assert engine.wait("r") == set()
    assert engine.holds(request, hit)
    engine.finish(request)
    assert_nothing_held(server)


def test_a_request_that_is_loaded_again_before_its_last_load_is_over_keeps_one_pin(
    server: Server, engines: Start
) -> None:
    engine, request = seeded(engines, "full"), Request("r", TOKENS)
    assert engine.scheduler._scheduler is not None
    engine.scheduler._scheduler._steps_under_way = 2
    for _ in range(3):
        offer(engine, request, "full")
        engine.allocate(request, HIT)
        engine.step()
        clients = status(server)["clients"]
        assert sum(pins(client) for client in clients if client["kind"] == "scheduler") == 1
        engine.free("r")
    engine.step()
    assert status(server)["pool"]["pinned"] > 0, "the last load's step may still be running"
    engine.step()
    assert_nothing_held(server)
    engine.finish(request)
