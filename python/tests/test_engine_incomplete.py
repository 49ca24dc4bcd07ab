"""Steps of which one of two ranks has stored its part: nobody is served half an object, whatever becomes of the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scripted import FULL_SPECS, Engine, Request, Spared
from server_status import assert_idle, assert_nothing_held, counts, status
from test_engine_requests import HIT, MODELS, STORED, TOKENS
from test_native import Server, eventually
from test_rank_damage import STEPS

Start = Callable[..., Engine]

# What the pool's bytes are.
COUNTED = ("free", "used", "granted", "quarantined", "pinned")


class FailingOnce:
    """A worker's client whose first store raises, as for a fault that nobody has thought of."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def store(self, part: int, runs: list[Any], supersedes: list[Any]) -> list[list[str]]:
        """The client's, but for the first call."""
        if not self._failed:
            self._failed = True
            raise RuntimeError("a fault of the test")
        return self._client.store(part, runs, supersedes)


def test_a_rank_that_cannot_store_leaves_no_part_of_the_others_waiting(
    server: Server, engines: Start, spared: Spared
) -> None:
    """What the engine computes anew later must not be completed with what another rank has stored before."""
    engine, request = engines(FULL_SPECS, ranks=2), Request("r", TOKENS)
    worker = engine.ranks[1].connector._worker
    assert worker is not None
    worker._client = FailingOnce(worker._client)  # type: ignore[assignment]
    engine.prefill(request)
    assert spared.take("a fault of the test") == 1
    found = status(server)
    assert (found["objects"], found["incomplete"]) == (0, 0)
    engine.finish(request)
    assert_nothing_held(server)

    again = Request("again", TOKENS)
    engine.prefill(again)
    engine.finish(again)
    assert status(server)["objects"] == STORED["full"]
    assert_nothing_held(server)


@pytest.mark.parametrize("fate", ["stores", "cannot store", "goes"])
@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("model", STEPS)
def test_a_request_is_aborted_when_one_of_two_ranks_has_stored(
    server: Server, engines: Start, spared: Spared, model: str, late: int, fate: str
) -> None:
    """The abort itself ends nothing: the other rank has its step yet to run, and what becomes of that decides."""
    asker, objects = engines(MODELS[model], "asker", ranks=2), len(MODELS[model])
    before = assert_idle(server)
    engine, request = engines(MODELS[model], ranks=2), Request("r", TOKENS)
    assert engine.ask(request) == (0, False)
    engine.allocate(request, 0, more=TOKENS)
    plan, writes = engine.plan({"r": (request, 64)}), engine._writes(request, 0, 64)
    early_rank, late_rank = engine.ranks[1 - late], engine.ranks[late]
    early_rank.begin(plan, writes, set())
    early_rank.end()
    engine.finish(request)

    def assert_unseen(when: str) -> None:
        for one in (engine, asker):
            assert one.ask(asked := Request(when, TOKENS)) == (0, False)
            one.finish(asked)

    half = status(server)
    assert (half["objects"], half["incomplete"], half["counters"]["ended_incomplete"]) == (0, objects, 0)
    assert half["pool"]["used"] == before["pool"]["used"]
    assert counts(server)["stores"] == objects
    assert_unseen("half of it is there")

    if fate == "goes":
        late_rank.close()
        eventually("the end of the incomplete objects", lambda: status(server)["incomplete"] == 0)
    else:
        worker = late_rank.connector._worker
        assert worker is not None
        if fate == "cannot store":
            worker._client = FailingOnce(worker._client)  # type: ignore[assignment]
        late_rank.begin(plan, writes, set())
        late_rank.end()
        assert spared.take("a fault of the test") == (fate == "cannot store")
    found = status(server)
    assert (found["incomplete"], found["counters"]["dropped_stores"], counts(server)["dropped_stores"]) == (0, 0, 0)
    if fate == "stores":
        assert (found["objects"], found["counters"]["stored"]) == (objects, objects)
        assert (found["counters"]["ended_incomplete"], counts(server)["stores"]) == (0, 2 * objects)
        assert_loads(asker, 64)
        assert_nothing_held(server)
        return

    assert (found["objects"], found["counters"]["stored"]) == (0, 0)
    assert (found["counters"]["ended_incomplete"], counts(server)["stores"]) == (objects, objects)
    assert_unseen("nothing of it is there")
    engine.close()
    eventually("the end of the clients", lambda: len(status(server)["clients"]) == len(before["clients"]))
    after = assert_idle(server)
    assert {name: after["pool"][name] for name in COUNTED} == {name: before["pool"][name] for name in COUNTED}

    # It is stored whole by the next one that computes it.
    anew = engines(MODELS[model], "anew", ranks=2)
    anew.prefill(again := Request("again", TOKENS), STEPS[model])
    anew.finish(again)
    stored = assert_nothing_held(server)
    assert stored["objects"] == stored["counters"]["stored"] == STORED[model]
    assert stored["counters"]["ended_incomplete"] == objects
    assert_loads(asker, HIT)
    assert_nothing_held(server)


def assert_loads(engine: Engine, hit: int) -> None:
    """A hit of that length, of which every rank gets its own bytes."""
    request = Request(f"a hit of {hit}", TOKENS)
    assert engine.ask(request) == (hit, True)
    engine.allocate(request, hit, more=64)
    engine.step()
    assert engine.wait(request.request_id) == set() and engine.holds(request, hit)
    engine.finish(request)
