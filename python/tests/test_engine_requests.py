"""Requests that end or are preempted at any stage, against real servers: what is reported, written, counted and held."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scripted import (
    CHUNKED_SPECS, FULL_SPECS, HYBRID_SPECS, ONLY_STATE_SPECS, ONLY_WINDOW_SPECS, PAIRED_SPECS, WINDOW_SPECS, Engine,
    Request, Shape, Spared,
)  # fmt: skip
from server_status import assert_nothing_held, counts, pins, status
from test_native import Server

Start = Callable[..., Engine]

MODELS = {
    "full": FULL_SPECS, "window": WINDOW_SPECS, "chunked": CHUNKED_SPECS, "recurrent": HYBRID_SPECS,
    "only window": ONLY_WINDOW_SPECS, "only state": ONLY_STATE_SPECS, "paired": PAIRED_SPECS,
}  # fmt: skip
# Those that keep states, which are there only where a step ends.
STATEFUL = {"recurrent", "only state"}
TOKENS, HIT = 170, 160
# Objects of the prompt that one engine stores, and how many of them a hit of all its boundaries names.
STORED = {"full": 3, "window": 6, "chunked": 6, "recurrent": 6, "only window": 3, "only state": 3, "paired": 6}
NAMED = {"full": 3, "window": 4, "chunked": 5, "recurrent": 4, "only window": 1, "only state": 1, "paired": 4}


class Place:
    """The servers of one deployment, and engines of so many ranks at them, dealt to the servers in order."""

    def __init__(self, servers: list[Server], ranks: int, stack: contextlib.ExitStack) -> None:
        self.servers = servers
        self._ranks = ranks
        self._stack = stack

    def start(self, *args: Any, **settings: Any) -> Engine:
        sockets = [server.socket for server in self.servers]
        engine = Engine(sockets, *args, shape=Shape(ranks=self._ranks), **settings)
        self._stack.callback(engine.close)
        return engine

    def objects(self) -> int:
        """Objects on each of the servers; all have the same, with the parts of their own ranks."""
        (objects,) = {status(server)["objects"] for server in self.servers}
        return objects

    def counts(self) -> dict[str, int]:
        """What the workers of one rank report, which is the same for every rank: each has its part of everything."""
        ranks: dict[tuple[int, int], dict[str, int]] = {}
        for at, server in enumerate(self.servers):
            for client in status(server)["clients"]:
                if client["kind"] == "worker" and client["reported"]:
                    own = ranks.setdefault((at, client["registered"]["rank"]), {})
                    for name in ("loads", "failed_loads", "stale_loads", "stores", "dropped_stores"):
                        own[name] = own.get(name, 0) + client["reported"][name]
        assert len(ranks) == self._ranks
        first, *others = ranks.values()
        assert all(other == first for other in others)
        return first

    def assert_nothing_held(self) -> None:
        """Nothing on any server, and nothing was dropped or given up on the way."""
        for server in self.servers:
            counters = assert_nothing_held(server)["counters"]
            assert counters["dropped_stores"] == counters["ended_incomplete"] == 0


# Servers, and ranks in all.
PLACES = {"one rank": (1, 1), "two ranks": (1, 2), "two servers": (2, 2)}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: pathlib.Path, spared: Spared) -> Iterator[Place]:
    """Every deployment in turn."""
    servers, ranks = PLACES[request.param]
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(servers):
            (tmp_path / str(number)).mkdir()
            one = Server(str(tmp_path / str(number)))
            one.start()
            stack.callback(one.kill)
            found.append(one)
        yield Place(found, ranks, stack)


def seeded(start: Start, model: str) -> Engine:
    """An engine that meets a prompt which another one has stored."""
    writer = start(MODELS[model], "writer")
    writer.prefill(Request("w", TOKENS), [64, 128, HIT, TOKENS] if model in STATEFUL else [TOKENS])
    return start(MODELS[model], "reader")


def offer(engine: Engine, request: Request, model: str) -> None:
    assert engine.ask(request) == (HIT, engine.loads_between_steps)


def load(engine: Engine, request: Request, model: str) -> None:
    """From the offer to the first step after the load."""
    offer(engine, request, model)
    engine.allocate(request, HIT, more=200)
    if not engine.loads_between_steps:
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
def test_an_aborted_request_leaves_nothing_behind_at_any_stage(place: Place, model: str, stage: str) -> None:
    engine, request = seeded(place.start, model), Request("r", TOKENS)
    before = engine.snapshot()
    reach(engine, request, model, stage)
    # An offer is held until the request is told, asked about again or ended, a load within a step until the next is planned.
    held = stage in ("never admitted", "offered", "allocated") or (stage == "loaded" and not engine.loads_between_steps)
    for server in place.servers:
        assert (status(server)["pool"]["pinned"] > 0) == held
    planned = engine.loads_between_steps and stage not in ("never asked", "never admitted", "offered")
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
    reported = place.counts()
    assert (reported["loads"], reported["failed_loads"]) == (NAMED[model] * LOADED.get(stage, 0), 0)
    assert (reported["stale_loads"], reported["dropped_stores"]) == (0, 0)
    place.assert_nothing_held()
    if stage != "decode":
        assert reported["stores"] == place.objects() == STORED[model]
    # Nobody is the worse for it.
    load(engine, other := Request("other", TOKENS), model)
    engine.finish(other)
    place.assert_nothing_held()


@pytest.mark.parametrize("stage", ["never admitted", "offered", "loaded", "decode"])
@pytest.mark.parametrize("model", MODELS)
def test_a_preempted_request_is_served_again(place: Place, model: str, stage: str) -> None:
    engine, request = seeded(place.start, model), Request("r", TOKENS)
    reach(engine, request, model, stage)
    engine.free("r")
    engine.step()
    for round_ in range(1, 3):
        external, between = engine.ask(request)
        assert external is not None and external >= HIT and between == engine.loads_between_steps
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
    place.assert_nothing_held()
    reported = place.counts()
    assert (reported["failed_loads"], reported["stale_loads"], reported["dropped_stores"]) == (0, 0, 0)
    if stage != "decode":
        assert reported["loads"] == NAMED[model] * (2 + LOADED.get(stage, 0))
        assert reported["stores"] == place.objects() == STORED[model]


@pytest.mark.parametrize("model", MODELS)
def test_a_request_may_end_while_its_lookup_is_awaited(place: Place, model: str) -> None:
    seeded(place.start, model)
    engine, request = place.start(MODELS[model], "impatient", lookup_wait=1e-6), Request("r", TOKENS)
    # Of several servers one has answered, and pinned, by then.
    with place.servers[-1].stopped():
        assert engine.ask(request) == (None, False)
        engine.step()
        assert engine.ask(request) == (None, False)
    # The answer, and its pin, may arrive before or after this.
    engine.finish(request)
    engine.step()
    assert engine.reported == {}
    place.assert_nothing_held()


class Gate:
    """A worker's client whose loads wait to be let through."""

    def __init__(self, engine: Engine, rank: int = 0) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        role = engine.ranks[rank].connector._worker
        assert role is not None
        self._client, role._client = role._client, self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def load(self, *arguments: Any) -> list[bool]:
        self.reached.set()
        assert self.open.wait(120.0)
        return self._client.load(*arguments)


@pytest.mark.parametrize("gated", [0, -1])
@pytest.mark.parametrize("model", MODELS)
def test_a_request_may_end_while_its_load_is_under_way(place: Place, model: str, gated: int) -> None:
    """On one rank; another may have finished."""
    engine, request = seeded(place.start, model), Request("r", TOKENS)
    if not engine.loads_between_steps:
        pytest.skip("loads of this model on one rank are over when their step is")
    gate = Gate(engine, gated)
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
    place.assert_nothing_held()
    assert (place.counts()["loads"], place.counts()["failed_loads"]) == (NAMED[model], 0)


@pytest.mark.parametrize("end", ["abort", "preempt"])
@pytest.mark.parametrize("model", MODELS)
def test_what_a_prefill_had_stored_before_it_ended_is_a_hit(place: Place, model: str, end: str) -> None:
    engine, request = place.start(MODELS[model]), Request("r", TOKENS)
    assert engine.ask(request)[0] == 0
    engine.allocate(request, 0, more=TOKENS)
    engine.step({"r": (request, 128)})
    stored = {"full": 2, "window": 4, "chunked": 4, "recurrent": 3, "only window": 2, "only state": 1, "paired": 4}[model]
    assert place.objects() == stored
    engine.free("r")
    if end == "abort":
        engine.finish(request)
        request = Request("again", TOKENS)
    engine.step()
    assert engine.ask(request) == (128, engine.loads_between_steps)
    engine.allocate(request, 128, more=TOKENS)
    assert engine.step().bad_blocks == set()
    if engine.loads_between_steps:
        assert engine.wait(request.request_id) == set()
    assert engine.holds(request, 128)
    engine.step({request.request_id: (request, TOKENS)})
    engine.finish(request)
    place.assert_nothing_held()
    # What is there is not stored twice: only the tail where the prompt ends has come in addition.
    tails = {"full": 1, "window": 2, "chunked": 2, "only window": 1, "paired": 2}.get(model, 0)
    assert place.objects() == place.counts()["stores"] == stored + tails


@pytest.mark.parametrize("model", MODELS)
def test_a_prompt_of_whole_chunks_hits_as_far_as_it_may(server: Server, engines: Start, model: str) -> None:
    engine, hit = seeded(engines, model), 64 if model in STATEFUL else 112
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
