"""Servers that are full, late, stopped or of another chunk size under engines: said once, never promised, and over by itself."""

from __future__ import annotations

import contextlib
import logging
import types
from collections.abc import Callable
from unittest import mock

import pytest

import vllm.config  # the fake, or the real one
from scripted import FULL_SPECS, Engine, Request, Spared
from server_status import assert_nothing_held, counts, status
from test_engine_servers import MODELS
from test_native import Server, client, eventually

Start = Callable[..., Engine]
CHUNKS = 3
TOKENS = CHUNKS * 64
ENDS = range(64, TOKENS + 1, 64)


def said(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    """Log lines of connectors that have all of these words."""
    return [line for line in caplog.messages if "Kvasir (" in line and all(word in line for word in words)]


def load(engine: Engine, request: Request) -> None:
    """A hit of the whole prompt, loaded with the right bytes."""
    assert engine.ask(request) == (TOKENS, engine.loads_between_steps)
    engine.allocate(request, TOKENS, more=1)
    output = engine.step()
    if engine.loads_between_steps:
        assert engine.wait(request.request_id) == set()
    assert output.bad_blocks == set() and engine.holds(request, TOKENS)


@pytest.mark.parametrize("model", MODELS)
def test_hits_go_on_while_a_stopped_server_takes_no_stores(
    server: Server, engines: Start, caplog: pytest.LogCaptureFixture, model: str
) -> None:
    engine, written = engines(MODELS[model], "engine", deadline=0.5), Request("w", TOKENS)
    engine.prefill(written, ENDS)
    engine.finish(written)
    lost = Request("lost", TOKENS, prompt=2)
    assert engine.ask(lost)[0] == 0
    with server.stopped():
        # The store of this step gets no answer, and the worker drops its connection.
        engine.allocate(lost, 0, more=TOKENS)
        engine.step({"lost": (lost, 64)})
        (worker,) = (rank.connector._client for rank in engine.ranks)
        assert worker.readable and not worker.healthy
        for number in range(5):
            request = Request(f"r {number}", TOKENS + 1)
            load(engine, request)
            engine.finish(request)
        # The next stores are not even tried.
        engine.step({"lost": (lost, 128)})
        assert worker.stats()["failed_loads"] == 0 and worker.stats()["loads"] > 0
        assert len(said(caplog, "worker 0 cannot store", "in time")) == 1
        assert engine.scheduler._client.healthy, "it has asked nothing"
    eventually("recovery", lambda: engine.healthy)
    engine.step({"lost": (lost, 128)})
    assert len(said(caplog, "all workers can load and store again")) == 1
    engine.step({"lost": (lost, TOKENS)})
    engine.finish(lost)
    engine.step()
    load(engine, Request("last", TOKENS + 1))
    if model != "only window":
        # The commit that was not answered may be applied only after the stores that followed it, whose parent was not there
        # then. What they lack is stored by the next who computes it.
        if engine.ask(Request("again", TOKENS + 1, prompt=2))[0] != TOKENS:
            repaired = Request("repaired", TOKENS, prompt=2, kv_transfer_params={"no_load": True})
            engine.prefill(repaired, ENDS)
            engine.finish(repaired)
        again = Request("once more", TOKENS + 1, prompt=2)
        assert engine.ask(again)[0] == TOKENS, "what could not be stored then was stored later"


@pytest.mark.parametrize("model", ["full", "window", "recurrent"])
def test_a_worker_that_is_kept_out_is_known_to_the_scheduler(
    server: Server, engines: Start, caplog: pytest.LogCaptureFixture, model: str
) -> None:
    """The server has room for the scheduler and the writer, and not for this worker."""
    engine = engines(MODELS[model], "engine")
    server.kill()
    eventually("the end", lambda: not engine.any_healthy)
    (worker,) = engine.ranks
    worker_client = worker.connector._client
    worker_client.close()
    server.start()
    eventually("the scheduler's connection", lambda: engine.scheduler._client.healthy)
    engines(MODELS[model], "writer").prefill(Request("w", TOKENS), ENDS)

    first = Request("first", TOKENS + 1)
    assert engine.ask(first)[0] == TOKENS, "nobody has said anything yet"
    engine.allocate(first, TOKENS, more=1)
    output = engine.step()
    if engine.loads_between_steps:
        assert engine.wait("first") == {"first"}
    else:
        assert output.bad_blocks
    assert len(said(caplog, "worker 0 cannot load or store", "nothing is promised", "closed")) == 1
    failed = worker_client.stats()["failed_loads"]
    for number in range(3):
        request = Request(f"r {number}", TOKENS + 1)
        assert engine.ask(request) == (0, False)
        engine.allocate(request, 0, more=TOKENS + 1)
        engine.step({request.request_id: (request, TOKENS)})
        engine.finish(request)
    assert worker_client.stats()["failed_loads"] == failed
    assert len(said(caplog, "worker 0 cannot")) == 1
    engine.finish(first)


def test_an_engine_starts_at_a_full_server_and_has_it_once_there_is_room(
    server: Server, engines: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server.kill()
    server.start("--max-clients", "2")
    first = engines(FULL_SPECS, "first")
    first.prefill(Request("w", TOKENS), ENDS)
    second = engines(FULL_SPECS, "second")
    assert not second.any_healthy
    assert len(said(caplog, "away", "LimitExceeded", "the engine starts without it")) == 2, "of either role"
    for number in range(3):
        request = Request(f"r {number}", TOKENS + 1)
        second.prefill(request, [TOKENS + 1])
        second.finish(request)
    assert len(said(caplog, "Kvasir (scheduler)", "the server at", "LimitExceeded")) == 1, "said when it started"
    assert len(said(caplog, "worker 0 cannot load", "LimitExceeded")) == 1
    first.close()
    eventually("room", lambda: second.healthy)
    second.step()  # in which the worker says so
    load(second, Request("hit", TOKENS + 1))
    assert len(said(caplog, "is back")) == 1


def test_another_chunk_size_under_a_live_engine_is_told_with_both_numbers(
    server: Server, engines: Start, caplog: pytest.LogCaptureFixture
) -> None:
    # A heartbeat that is too late to help.
    engine = engines(FULL_SPECS, "engine", heartbeat_interval=3600)
    engine.prefill(Request("w", TOKENS), ENDS)
    server.kill()
    server.start(chunk_size=128)
    eventually("the refusal", lambda: "128" in engine.scheduler._client.state_text)
    eventually("the worker's", lambda: "128" in engine.ranks[0].connector._client.state_text)
    for number in range(5):
        request = Request(f"r {number}", TOKENS + 1, prompt=10 + number)
        engine.prefill(request, [TOKENS + 1])
        engine.finish(request)
        # The server of before is dead, and what it shared suits this engine as it did.
        request = Request(f"hit {number}", TOKENS + 1)
        load(engine, request)
        engine.finish(request)
    words = ("chunks of 128 tokens", "agreed on 64", "--chunk-size 64")
    assert len(said(caplog, "Kvasir (scheduler)", "the server at", *words)) == 1
    assert len(said(caplog, "worker 0 cannot store", *words)) == 1

    def both() -> bool:
        refused = [row["refused"] for row in status(server)["clients"] if row["refused"]]
        return len(refused) == 2 and all("64" in why and "128" in why for why in refused)

    eventually("both in the status", both)
    with open(server.log) as log:
        assert "client caches nothing: it agreed on chunks of 64 tokens" in log.read()
    server.kill()
    server.start()
    eventually("the right one", lambda: engine.healthy)
    engine.prefill(Request("anew", TOKENS), ENDS)
    load(engine, Request("hit", TOKENS + 1))
    assert len(said(caplog, "is back")) == 1


@pytest.mark.parametrize("model", MODELS)
def test_hits_go_on_after_the_server_was_killed(
    server: Server, engines: Start, caplog: pytest.LogCaptureFixture, model: str
) -> None:
    engine, written = engines(MODELS[model], "engine"), Request("w", TOKENS)
    engine.prefill(written, ENDS)
    engine.finish(written)
    server.kill()
    eventually("the end", lambda: not engine.any_healthy)
    for number in range(5):
        request = Request(f"r {number}", TOKENS + 1)
        load(engine, request)
        engine.finish(request)
    fresh = Request("fresh", TOKENS, prompt=2)
    engine.prefill(fresh, ENDS)
    engine.finish(fresh)
    (worker,) = (rank.connector._client for rank in engine.ranks)
    assert worker.stats()["failed_loads"] == 0 and worker.stats()["loads"] > 0
    assert len(said(caplog, "worker 0 cannot store")) >= 1
    assert len(said(caplog, "the server at", "hits go on from memory and nothing is stored")) >= 1
    assert not said(caplog, "cannot load")
    # The next server has nothing of it, and is used at once.
    server.start()
    eventually("recovery", lambda: engine.healthy)
    engine.step()
    again = Request("again", TOKENS)
    engine.prefill(again, ENDS)
    engine.finish(again)
    load(engine, Request("hit", TOKENS + 1))
    assert len(said(caplog, "is back")) == 1


@pytest.mark.parametrize(
    ("policy", "role", "loads"),
    [("recompute", "kv_both", True), ("fail", "kv_both", False), ("recompute", "kv_producer", False), ("recompute", "kv_consumer", True)],
)
def test_inside_another_connector_the_outer_configuration_counts(
    server: Server, engines: Start, caplog: pytest.LogCaptureFixture, policy: str, role: str, loads: bool
) -> None:
    """A damaged object would fail the request there, or be overwritten after it was loaded."""
    engines(FULL_SPECS, "writer").prefill(Request("w", TOKENS), ENDS)
    outer = types.SimpleNamespace(kv_connector="MultiConnector", kv_load_failure_policy=policy, kv_role=role)
    current = types.SimpleNamespace(kv_transfer_config=outer)
    with mock.patch("kvasir.vllm.engine.get_current_vllm_config_or_none", lambda: current):
        engine = engines(FULL_SPECS, "inner")
    request = Request("r", TOKENS + 1)
    assert engine.ask(request) == ((TOKENS, False) if loads else (0, False))
    warned = said(caplog, "stores only, loads nothing: inside MultiConnector", "Set the outer one to")
    assert len(warned) == (0 if loads else 1)
    if not loads:
        stored = Request("s", TOKENS, prompt=2)
        engine.prefill(stored, ENDS)
        assert status(server)["objects"] == 2 * CHUNKS, "it stores all the same"


def test_a_handshake_of_another_connector_does_not_keep_kvasir_from_its_work(server: Server, engines: Start) -> None:
    """A MultiConnector hands on what its first connector says, whoever it is for."""
    engines(FULL_SPECS, "writer").prefill(Request("w", TOKENS), ENDS)
    with mock.patch.object(Engine, "hand_over", lambda self: self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): object()})):
        engine = engines(FULL_SPECS, "second of two")
    assert engine.ask(Request("before", TOKENS + 1)) == (0, False)
    engine.step()
    load(engine, Request("after", TOKENS + 1))
