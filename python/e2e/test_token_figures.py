"""The figures of `kvasir status` in tokens, against the engine's own metrics."""

from __future__ import annotations

from typing import Any

import pytest

import demo
import process

from conftest import Bench
from kinds import APART, KINDS, PROMPT_TOKENS, patient, run, small
from test_requests import FEW_BLOCKS, MAX_LEN, NEW_TOKENS, STEP_TOKENS

FRONT_TOKENS = 700
LOG_STATS = {"disable_log_stats": False}


def compare(engine: process.Engine, server: process.Server) -> dict[str, Any]:
    """Both count the same; what was promised has been loaded, or has failed."""
    theirs = engine.step_order("metrics")
    ours = server.status()["tokens"]
    assert ours["asked"] == theirs["vllm:external_prefix_cache_queries"]
    assert ours["hit"] == theirs["vllm:external_prefix_cache_hits"]
    assert ours["held"] == theirs["vllm:prefix_cache_hits"]
    assert ours["asked"] + ours["held"] == theirs["vllm:prefix_cache_queries"]
    assert ours["hit"] + ours["preempted_hit"] == ours["loaded"] + ours["failed"]
    return ours


def since(before: dict[str, Any], now: dict[str, Any]) -> tuple[int, int, int, int, int]:
    """(asked, held, hit, loaded, failed) since then."""
    names = ("asked", "held", "hit", "loaded", "failed")
    return tuple(now[name] - before[name] for name in names)  # type: ignore[return-value]


@pytest.mark.parametrize("name", KINDS)
def test_figures_are_those_of_the_engine(bench: Bench, name: str) -> None:
    server = bench.server()
    model = small(name)
    engine = bench.engine(model, server, connector=patient(server, deadline=3.0), settings=LOG_STATS)
    tokens = demo.prompt(1, PROMPT_TOKENS)

    # Cold: everything is asked for, nothing is there.
    run(engine, tokens)
    cold = compare(engine, server)
    assert (cold["requests"], cold["asked"], cold["held"], cold["hit"]) == (1, PROMPT_TOKENS, 0, 0)
    assert cold["hit_percent"] == 0.0

    # The engine holds it: that is no hit of Kvasir's.
    cached = run(engine, tokens)["cached_tokens"]
    local = compare(engine, server)
    assert since(cold, local) == (PROMPT_TOKENS - cached, cached, 0, 0, 0) and cached > 1000

    # Kvasir holds it.
    engine.reset_prefix_cache()
    hit = run(engine, tokens)["cached_tokens"]
    whole = compare(engine, server)
    assert since(local, whole) == (PROMPT_TOKENS, 0, hit, hit, 0) and hit > 1000

    # The engine holds the front, Kvasir the rest.
    engine.reset_prefix_cache()
    run(engine, tokens[:FRONT_TOKENS], **APART)
    front = compare(engine, server)
    assert since(whole, front) == (FRONT_TOKENS, 0, 0, 0, 0)
    both = run(engine, tokens)["cached_tokens"]
    partly = compare(engine, server)
    asked, held, found, loaded, failed = since(front, partly)
    assert (asked + held, held + found, loaded, failed) == (PROMPT_TOKENS, both, found, 0)
    assert found > 0 and (held > 0 or name == "qwen3.5")

    # More requests than run at a time are asked about in every step, and counted once.
    engine.reset_prefix_cache()
    count = 12
    for number in range(count):
        engine.add(str(number), demo.prompt(100 + number, 400), 3)
    engine.step_order("drain")
    waited = compare(engine, server)
    assert since(partly, waited)[0] == count * 400 and waited["requests"] - partly["requests"] == count

    # A load that fails was a hit, and is computed.
    engine.reset_prefix_cache()
    engine.step_order("before_load", fault="evict", argument=None)
    run(engine, tokens)
    lost = compare(engine, server)
    asked, held, found, loaded, failed = since(waited, lost)
    assert found == loaded + failed and failed > 0

    # Requests that are aborted, waiting and running and with their loads on the way.
    for number in range(count):
        engine.add(str(number), tokens if number % 2 else demo.prompt(200 + number, 400), 8)
    engine.step_order("step", count=2)
    engine.step_order("abort", names=[str(number) for number in range(0, count, 3)])
    engine.step_order("drain")
    aborted = compare(engine, server)

    # One row for the model, which is all there was.
    (row,) = server.status()["models"]
    assert row["model"] and row["domain"] and row["tokens"] == aborted
    text = server.table()
    assert f"{aborted['asked']} asked, {aborted['hit']} hit ({aborted['hit_percent']:.1f} %)" in text


@pytest.mark.parametrize("name", KINDS)
def test_preempted_requests_are_counted_apart(bench: Bench, name: str) -> None:
    """As the engine does: what comes back after a preemption is no query of its metrics."""
    server = bench.server()
    settings = LOG_STATS | {
        "max_model_len": MAX_LEN, "max_num_batched_tokens": STEP_TOKENS, "num_gpu_blocks_override": FEW_BLOCKS[name],
    }  # fmt: skip
    engine = bench.engine(small(name), server, settings=settings, connector=patient(server))
    for number in range(3):
        engine.add(str(number), demo.prompt(number, 500), NEW_TOKENS)
    last = engine.step_order("drain")
    found = compare(engine, server)
    assert sum(request["preemptions"] for request in last["requests"].values()) > 0
    assert (found["requests"], found["asked"] + found["held"]) == (3, 3 * 500)
    assert found["preempted_asked"] >= found["preempted_hit"] > 0
