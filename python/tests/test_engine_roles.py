"""`kv_role`: producers store and never load, consumers load and never store, and the two share what they have in common."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from scripted import Engine, Request, Shape
from server_status import assert_nothing_held, status
from test_engine_requests import HIT, MODELS, NAMED, STORED, TOKENS
from test_native import Server

Start = Callable[..., Engine]

ENDS = [64, 128, HIT, TOKENS]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_a_producer_stores_and_never_loads(server: Server, engines: Start, model: str, ranks: int) -> None:
    producer = engines(MODELS[model], "producer", shape=Shape(ranks), role="kv_producer")
    producer.prefill(Request("w", TOKENS), ENDS)
    stored = status(server)["objects"]
    assert stored == STORED[model]

    again = Request("again", TOKENS)
    for _ in range(3):
        assert producer.ask(again) == (0, False)
        producer.step()
    assert status(server)["pool"]["pinned"] == 0, "a producer has nothing to hold"
    # It learns all the same what is there: the same prompt is not copied again.
    before = stored_bytes(status(server))
    producer.prefill(Request("third", TOKENS), ENDS)
    found = assert_nothing_held(server)
    assert found["objects"] == stored
    assert (stored_bytes(found), loads(found)) == (before, 0)

    both, request = engines(MODELS[model], "both", shape=Shape(ranks)), Request("b", TOKENS)
    assert both.ask(request) == (HIT, both.loads_between_steps), "what it stored is for others"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_a_consumer_loads_and_never_stores(server: Server, engines: Start, model: str, ranks: int) -> None:
    producer = engines(MODELS[model], "producer", shape=Shape(ranks), role="kv_producer")
    producer.prefill(Request("w", TOKENS), ENDS)
    consumer, request = engines(MODELS[model], "consumer", shape=Shape(ranks), role="kv_consumer"), Request("r", TOKENS)
    assert consumer.ask(request) == (HIT, consumer.loads_between_steps)
    consumer.allocate(request, HIT, more=200)
    consumer.step()
    if consumer.loads_between_steps:
        assert consumer.wait("r") == set()
        consumer.tell(request, 0)
    assert consumer.holds(request, HIT)
    request.generate(100)
    consumer.step({"r": (request, request.num_tokens)})
    consumer.finish(request)

    other = Request("other", TOKENS, prompt=2)
    consumer.prefill(other, ENDS)
    consumer.finish(other)
    assert consumer.ask(Request("once more", TOKENS, prompt=2))[0] == 0, "nobody has stored it"
    consumer.step()
    found = assert_nothing_held(server)
    assert (found["objects"], found["incomplete"]) == (STORED[model], 0)
    workers = [row for row in found["clients"] if row["kind"] == "worker"]
    loaded = [row for row in workers if row["reported"]["loads"]]
    assert len(workers) == 2 * ranks and len(loaded) == ranks
    for row in loaded:
        assert row["reported"]["loads"] == NAMED[model] and row["reported"]["failed_loads"] == 0
        assert row["reported"]["stores"] == row["reported"]["dropped_stores"] == 0
        assert row["granted"] == 0, "space that it would never write into"


@pytest.mark.parametrize("model", MODELS)
def test_a_consumer_whose_load_fails_computes_and_still_stores_nothing(
    server: Server, engines: Start, model: str
) -> None:
    producer = engines(MODELS[model], "producer", role="kv_producer")
    producer.prefill(Request("w", TOKENS), ENDS)
    consumer, request = engines(MODELS[model], "consumer", role="kv_consumer"), Request("r", TOKENS)
    assert consumer.ask(request)[0] == HIT
    # More than was offered: a load that nothing can be found for.
    consumer.allocate(request, HIT + 32, more=200)
    output = consumer.step()
    if consumer.loads_between_steps:
        assert consumer.wait("r") == {"r"}
        consumer.free("r")
        consumer.prefill(request, ENDS)
    else:
        assert output.bad_blocks == set(consumer.tables["r"][0][: (HIT + 32) // 16])
        consumer.computed["r"] = 0  # the engine goes on from the first bad block
        for end in ENDS:
            consumer.step({"r": (request, end)})
    consumer.finish(request)
    consumer.step()
    found = assert_nothing_held(server)
    assert found["objects"] == STORED[model] and found["counters"]["stored"] == STORED[model]


@pytest.mark.parametrize(
    ("role", "policy", "level", "says"),
    [
        ("kv_producer", "recompute", logging.INFO, "stores only, loads nothing: kv_role is 'kv_producer'"),
        ("kv_producer", "fail", logging.INFO, "stores only, loads nothing: kv_role is 'kv_producer'"),
        ("kv_consumer", "recompute", logging.INFO, "loads only, stores nothing: kv_role is 'kv_consumer'"),
        ("kv_consumer", "fail", logging.WARNING, "neither stores nor loads anything: kv_load_failure_policy is 'fail'"),
        ("kv_both", "fail", logging.WARNING, "stores only, loads nothing: kv_load_failure_policy is 'fail'"),
    ],
)
def test_what_a_role_leaves_out_is_said_at_start(
    server: Server, engines: Start, caplog: pytest.LogCaptureFixture, role: str, policy: str, level: int, says: str
) -> None:
    caplog.set_level(logging.INFO, "vllm.kvasir")
    engine = engines(role=role, policy=policy)
    lines = [(record.levelno, record.message) for record in caplog.records]
    assert any(number == level and says in text for number, text in lines), lines
    # The policy is no concern of an engine that loads nothing anyway.
    assert ("policy" in says) == any("kv_load_failure_policy" in text for _, text in lines)
    assert engine.ask(Request("r", TOKENS)) == (0, False)


def test_a_role_that_nobody_knows_is_refused(server: Server) -> None:
    with pytest.raises(ValueError, match="kv_role is 'kv_neither'.*kv_both, kv_producer, kv_consumer"):
        Engine(server.socket, role="kv_neither")


def stored_bytes(found: dict[str, Any]) -> int:
    """Bytes that all clients have stored."""
    return sum(client["reported"]["stored_bytes"] for client in found["clients"] if client["reported"])


def loads(found: dict[str, Any]) -> int:
    """Objects that all clients have loaded or tried to."""
    reported = [client["reported"] for client in found["clients"] if client["reported"]]
    return sum(counters["loads"] + counters["failed_loads"] for counters in reported)
