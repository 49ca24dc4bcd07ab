"""`kv_role` of a real engine: what a producer stores a consumer loads, and neither does the other's work."""

from __future__ import annotations

import dataclasses

import pytest

import demo
import models
import process

from conftest import Bench

PROMPT_TOKENS = 1490


@pytest.mark.parametrize("name", ("qwen3", "qwen3.5"))
def test_a_producer_stores_for_a_consumer(bench: Bench, name: str) -> None:
    """One model that is loaded in its step, and one that is loaded between steps."""
    model = dataclasses.replace(models.find(name), prompts=1, prompt_tokens=PROMPT_TOKENS)
    server = bench.server()
    producer = bench.engine(model, server, connector={"kv_role": "kv_producer"})
    tokens = demo.prompt(1, PROMPT_TOKENS)
    assert run(producer, tokens)["cached_tokens"] == 0
    own = run(producer, tokens)
    assert own["cached_tokens"] > 0, "the engine's own prefix cache"
    server.settle()
    producer.reset_prefix_cache()
    assert run(producer, tokens)["cached_tokens"] == 0, "a producer never loads"

    consumer = bench.engine(model, server, connector={"kv_role": "kv_consumer"})
    assert run(consumer, tokens) == own
    server.settle()
    stored = server.status()
    other = demo.prompt(2, PROMPT_TOKENS)
    for _ in range(2):
        assert run(consumer, other)["cached_tokens"] == 0, "a consumer never stores"
        server.settle()
        consumer.reset_prefix_cache()
    after = server.status()
    assert (after["objects"], after["counters"]["stored"]) == (stored["objects"], stored["counters"]["stored"])
    by_role = {bool(client["reported"]["stores"]): client for client in after["clients"] if client["kind"] == "worker"}
    produced, consumed = by_role[True], by_role[False]
    assert produced["reported"]["loads"] == produced["reported"]["failed_loads"] == 0
    assert consumed["reported"]["loads"] > 0 == consumed["reported"]["failed_loads"]
    assert consumed["granted"] == 0


def test_a_role_that_vllm_does_not_know_is_its_own_refusal(bench: Bench) -> None:
    """Why the connector's own check of the name is never seen on a real engine."""
    server = bench.server()
    with pytest.raises(process.EngineError, match="kv_role"):
        bench.engine(models.find("qwen3"), server, connector={"kv_role": "kv_neither"})


def run(engine: process.Engine, tokens: list[int]) -> dict:
    """One prompt; the result without its wall time."""
    result = demo.run_once(engine, tokens)
    del result["wall_s"]
    return result
