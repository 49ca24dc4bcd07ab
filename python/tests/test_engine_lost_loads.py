"""Loads whose server or objects go between the lookup and the copy: a load from the dead server's pool, or one failed load; no wrong
byte, and the cache comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from fakes import objects
from scripted import Engine, Request
from server_status import assert_nothing_held, counts, status
from test_engine_bad_input import assert_failed_once
from test_engine_requests import HIT, MODELS, NAMED, STORED, TOKENS, Gate, offer, seeded
from test_native import Server, client, eventually

Start = Callable[..., Engine]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("stage", ["offered", "allocated", "planned"])
@pytest.mark.parametrize("model", MODELS)
def test_a_server_that_dies_between_lookup_and_load(
    server: Server, engines: Start, model: str, stage: str, restarted: bool
) -> None:
    engine, request = seeded(engines, model), Request("r", TOKENS)
    offer(engine, request, model)

    def die() -> None:
        server.kill()
        eventually("the hang-up", lambda: not engine.any_healthy)
        # Until there is another server, what it held can be loaded.
        if restarted:
            server.start()
            eventually("recovery", lambda: engine.healthy)

    if stage == "offered":
        die()
    engine.allocate(request, HIT)
    if stage == "allocated":
        die()
    plan = engine.plan()
    if stage == "planned":
        die()
    before = engine.snapshot()
    table = engine.tables["r"]
    output = engine.run(plan)
    if model == "full":
        assert output.bad_blocks == (set(table[0]) if restarted else set())
    else:
        assert engine.wait("r") == ({"r"} if restarted else set())
    assert engine.changed(before) == ({} if restarted else engine.needed(request, HIT))
    assert restarted or engine.holds(request, HIT)
    for _ in range(3):
        output = engine.step()
        assert not (output.done or output.bad_blocks)
    engine.free("r")
    engine.finish(request)
    if not restarted:
        server.start()
        eventually("recovery", lambda: engine.healthy)
    assert_nothing_held(server)
    # The engine has not been restarted, and stores and hits go on.
    again = Request("again", TOKENS, prompt=3)
    engine.prefill(again, [64, 128, HIT, TOKENS])
    engine.finish(again)
    hit = Request("hit", TOKENS, prompt=3)
    offer(engine, hit, model)
    engine.allocate(hit, HIT)
    engine.step()
    if model != "full":
        assert engine.wait("hit") == set()
    assert engine.holds(hit, HIT)
    engine.finish(hit)
    assert_nothing_held(server)
    # A client takes its counters along to the next server.
    reported = counts(server)
    expected = (NAMED[model], NAMED[model]) if restarted else (2 * NAMED[model], 0)
    assert (reported["loads"], reported["failed_loads"]) == expected


@pytest.mark.parametrize("model", [model for model in MODELS if model != "full"])
def test_a_server_that_dies_while_a_load_is_under_way(server: Server, engines: Start, model: str) -> None:
    engine, request = seeded(engines, model), Request("r", TOKENS)
    gate = Gate(engine)
    offer(engine, request, model)
    engine.allocate(request, HIT)
    engine.step()
    assert gate.reached.wait(120.0)
    server.kill()
    eventually("the hang-up", lambda: not engine.any_healthy)
    before = engine.snapshot()
    gate.open.set()
    assert engine.wait("r") == set() and engine.holds(request, HIT)
    assert engine.changed(before) == engine.needed(request, HIT) and engine.reported == {"r": 1}
    engine.finish(request)
    engine.step()
    assert engine.reported == {"r": 1}


@pytest.mark.parametrize("model", MODELS)
def test_what_was_promised_is_not_evicted(server: Server, engines: Start, model: str) -> None:
    engine, request = seeded(engines, model), Request("r", TOKENS)
    offer(engine, request, model)
    engine.allocate(request, HIT)
    plan = engine.plan()
    with contextlib.closing(client(server.socket, "tool")) as tool:
        assert tool.clear()
    assert 0 < status(server)["objects"] <= STORED[model]
    before = engine.snapshot()
    output = engine.run(plan)
    assert output.bad_blocks == set()
    if model != "full":
        assert engine.wait("r") == set()
    assert engine.holds(request, HIT) and engine.changed(before) == engine.needed(request, HIT)
    engine.finish(request)
    engine.step()
    assert_nothing_held(server)
    assert (counts(server)["loads"], counts(server)["failed_loads"]) == (NAMED[model], 0)


@pytest.mark.parametrize("model", MODELS)
def test_objects_that_were_evicted_although_promised_fail_the_load(server: Server, engines: Start, model: str) -> None:
    engine, request = seeded(engines, model), Request("r", TOKENS)
    offer(engine, request, model)
    engine.allocate(request, HIT)
    # As a client whose pins were lost finds it: nothing holds the objects any more, and they are gone.
    scheduler = engine.scheduler._scheduler
    assert scheduler is not None
    scheduler._client.release([scheduler._states["r"].held_pin])
    scheduler._states["r"].held_pin = 0
    scheduler._step_loads.clear()
    with contextlib.closing(client(server.socket, "tool")) as tool:
        assert tool.clear()
    assert status(server)["objects"] == 0
    before = engine.snapshot()
    assert_failed_once(server, engine, request)
    assert engine.changed(before) == {}
    assert (counts(server)["loads"], counts(server)["failed_loads"]) == (0, NAMED[model])
    assert counts(server)["stale_loads"] == 0


@pytest.mark.parametrize("model", MODELS)
def test_stores_without_a_server_are_dropped_and_counted(server: Server, engines: Start, model: str) -> None:
    engine, request = engines(MODELS[model], deadline=5.0), Request("r", 128)
    assert engine.ask(request)[0] == 0
    engine.allocate(request, 0, more=200)
    plan = engine.plan({"r": (request, 128)})
    planned = len(objects(plan.plan.stores.runs))
    assert planned
    server.kill()
    engine.run(plan, {"r": (request, 128)})
    request.generate(1)
    engine.step({"r": (request, 129)})
    engine.finish(request)
    server.start()
    eventually("recovery", lambda: engine.healthy)
    found = assert_nothing_held(server)
    assert found["objects"] == 0
    eventually("the count", lambda: counts(server)["dropped_stores"] == planned)
