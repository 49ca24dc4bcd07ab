"""Loads that fail after the hit was promised: the engine computes, counts once, and does not ask again."""

from __future__ import annotations

from typing import Any

import pytest

import demo
import process

from conftest import Bench
from kinds import KINDS, PROMPT_TOKENS, check_at_rest, errors, patient, run, small, stats


def counts(engine: process.Engine) -> tuple[int, int]:
    """(loads, failed loads)"""
    found = stats(engine)
    return found["loads"], found["failed_loads"]


@pytest.mark.parametrize("name", KINDS)
def test_loads_that_fail_are_computed(bench: Bench, name: str) -> None:
    server = bench.server()
    engine = bench.engine(small(name), server, connector=patient(server, deadline=3.0))
    free = engine.step_order("look")["free_blocks"]
    tokens = demo.prompt(1, PROMPT_TOKENS)
    cold = run(engine, tokens)
    own = run(engine, tokens)
    server.settle()
    engine.reset_prefix_cache()
    assert run(engine, tokens) == own
    objects, failed = counts(engine)
    assert (objects > 0, failed) == (True, 0)

    def run_with(fault: str, argument: Any = None) -> dict[str, Any]:
        engine.reset_prefix_cache()
        engine.step_order("before_load", fault=fault, argument=argument)
        return run(engine, tokens)

    def check_computed(result: dict[str, Any], loads: int, failures: int) -> None:
        assert (result["token_ids"], result["finish_reason"]) == (cold["token_ids"], "length")
        assert result["logprobs"] == cold["logprobs"]
        assert counts(engine) == (loads, failures), "an object was counted twice, or the retry asked again"

    # Somebody clears the cache: what was promised is pinned and still comes.
    assert run_with("clear") == own
    assert counts(engine) == (2 * objects, 0)
    check_at_rest(engine, server, free)

    # What was promised is gone.
    check_computed(run_with("evict"), 2 * objects, objects)
    check_at_rest(engine, server, free)
    # The computed prefix was stored again, so the next request is served.
    engine.reset_prefix_cache()
    assert run(engine, tokens) == own
    assert counts(engine) == (3 * objects, objects)

    # The server stops between lookup and load: nobody needs it for a hit.
    result = run_with("signal", [server.pid, process.STOP])
    server.resume()
    assert result == own
    assert counts(engine) == (4 * objects, objects)
    check_at_rest(engine, server, free)

    # It is killed there: what it held is read on.
    assert run_with("lose", server.pid) == own
    assert counts(engine) == (5 * objects, objects)
    assert engine.step_order("look")["free_blocks"] == free
    assert errors(engine.log) == []


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5"])
def test_a_policy_that_fails_requests_loads_nothing(bench: Bench, name: str) -> None:
    server = bench.server()
    engine = bench.engine(small(name), server, connector=patient(server) | {"kv_load_failure_policy": "fail"})
    tokens = demo.prompt(1, PROMPT_TOKENS)
    cold = run(engine, tokens)
    server.settle()
    assert server.status()["objects"] > 0, "it stores all the same"
    engine.reset_prefix_cache()
    assert run(engine, tokens) == cold
    assert counts(engine) == (0, 0)
    assert 'Set it to "recompute"' in engine.log.read_text(errors="replace")
