"""A server that is stopped under a real engine: hits go on, nothing is promised in vain, and the log says what is not stored."""

from __future__ import annotations

import time

import pytest

import demo

from conftest import Bench
from kinds import KINDS, PROMPT_TOKENS, errors, patient, run, small, stats


@pytest.mark.parametrize("name", KINDS)
def test_hits_go_on_after_a_store_that_a_stopped_server_did_not_answer(bench: Bench, name: str) -> None:
    server = bench.server()
    engine = bench.engine(small(name), server, connector=patient(server, deadline=3.0))
    tokens, other = demo.prompt(1, PROMPT_TOKENS), demo.prompt(2, PROMPT_TOKENS)
    run(engine, tokens)
    own = run(engine, tokens)
    server.settle()
    engine.reset_prefix_cache()
    assert run(engine, tokens) == own
    before = stats(engine)
    each = before["loads"]

    server.pause()
    cold = run(engine, other)  # whose stores get no answer
    assert stats(engine)["dropped_stores"] > before["dropped_stores"]
    for round in range(1, 4):
        engine.reset_prefix_cache()
        result = run(engine, tokens)
        assert (result, result["cached_tokens"]) == (own, own["cached_tokens"])
        found = stats(engine)
        assert (found["loads"], found["failed_loads"]) == ((1 + round) * each, 0)
    log = engine.log.read_text(errors="replace")
    assert log.count("worker 0 cannot store") == 1 and "cannot load" not in log
    # Nothing of it is there: asked and answered without the server, and computed.
    engine.reset_prefix_cache()
    assert run(engine, other) == cold

    server.resume()
    end = time.monotonic() + 120
    while "all workers can load and store again" not in engine.log.read_text(errors="replace"):
        assert time.monotonic() < end, "the worker does not come back"
        time.sleep(0.2)
        run(engine, [1, 2, 3], max_tokens=2)
    engine.reset_prefix_cache()
    assert run(engine, tokens) == own, "nothing was lost"
    engine.reset_prefix_cache()
    assert run(engine, other)["token_ids"] == cold["token_ids"]
    server.settle()
    engine.reset_prefix_cache()
    assert run(engine, other)["cached_tokens"] > 0, "stored now"
    assert stats(engine)["failed_loads"] == 0 and errors(engine.log) == []
