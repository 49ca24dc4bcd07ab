"""Requests that do not run straight through: preempted, or aborted at every stage."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import pytest

import demo
import process

from conftest import Bench
from kinds import APART, KINDS, PROMPT_TOKENS, check_at_rest, patient, run, small, stats

STEP_TOKENS = 480
STEPS_MAX = 2000

# Just above what the engine asks for to admit one request of MAX_LEN tokens.
MAX_LEN = 1600
FEW_BLOCKS = {"qwen3": 56, "gpt-oss": 76, "qwen3.5": 24}
NEW_TOKENS = 300


@pytest.mark.parametrize("name", KINDS)
def test_preempted_requests(bench: Bench, name: str) -> None:
    """Blocks for hardly more than one request: what was preempted comes back from Kvasir, and output is right.

    Restored blocks have to hold what was computed, whatever the batch. Tokens are compared in float32, where the sums
    of another batch differ too little to change one; the CPU engine computes gated delta in bfloat16 only.
    """
    dtype = "bfloat16" if name == "qwen3.5" else "float32"
    server = bench.server()
    settings = {
        "max_model_len": MAX_LEN,
        "max_num_batched_tokens": STEP_TOKENS,
        "num_gpu_blocks_override": FEW_BLOCKS[name],
    }
    engine = bench.engine(
        dataclasses.replace(small(name), dtype=dtype), server, settings=settings, connector=patient(server)
    )
    free = engine.step_order("look")["free_blocks"]
    prompts = {str(number): demo.prompt(number, 500) for number in range(3)}
    expected = {number: run(engine, tokens, NEW_TOKENS, **APART) for number, tokens in prompts.items()}
    engine.step_order("ledger")
    engine.reset_prefix_cache()

    for number, tokens in prompts.items():
        engine.add(number, tokens, NEW_TOKENS)
    last = engine.step_order("drain")
    assert sum(request["preemptions"] for request in last["requests"].values()) > 0
    for number, output in last["outputs"].items():
        assert (len(output["token_ids"]), output["finish_reason"]) == (NEW_TOKENS, "length")
        if dtype == "float32":
            assert output["token_ids"] == expected[number]["token_ids"]
            assert gap(output, expected[number]) < 1e-3
    assert stats(engine)["loads"] > 0, "nothing was loaded for a request that was preempted"
    assert stats(engine)["failed_loads"] == 0
    ledger = engine.step_order("ledger")
    assert ledger["loaded"] and all(digest in ledger["computed"].get(block, ()) for block, digest in ledger["loaded"])
    check_at_rest(engine, server, free)


def gap(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of log probabilities."""
    return max(abs(float.fromhex(a) - float.fromhex(b)) for a, b in zip(one["logprobs"], other["logprobs"], strict=True))


def reported(server: process.Server) -> tuple[int, int]:
    """(loads, failed loads) of the worker as `kvasir status` shows them; they start anew with every connection."""
    (worker,) = (client for client in server.status()["clients"] if client["kind"] == "worker")
    return worker["reported"]["loads"], worker["reported"]["failed_loads"]


def step_until(engine: process.Engine, reached: Callable[[dict[str, Any]], bool]) -> None:
    """Steps until the request `victim` is where it should be."""
    for _ in range(STEPS_MAX):
        victim = engine.step_order("step", count=1)["requests"]["victim"]
        if reached(victim):
            return
        assert not victim["status"].startswith("FINISHED"), victim
    pytest.fail(f"the request did not get there in {STEPS_MAX} steps: {victim}")


@pytest.mark.parametrize("name", KINDS)
def test_aborts_at_every_stage(bench: Bench, name: str) -> None:
    """The next request is right each time, nothing stays held, and loads are counted exactly."""
    server = bench.server()
    settings = {"max_num_batched_tokens": STEP_TOKENS}
    engine = bench.engine(small(name), server, settings=settings, connector=patient(server, deadline=3.0))
    free = engine.step_order("look")["free_blocks"]
    tokens = demo.prompt(1, PROMPT_TOKENS)
    run(engine, tokens)
    own = run(engine, tokens)
    assert stats(engine)["loads"] == 0
    engine.reset_prefix_cache()
    assert run(engine, tokens) == own
    objects = stats(engine)["loads"]
    assert objects > 0

    def check(loaded: int) -> None:
        """After an abort that itself loaded or failed to load so many objects."""
        engine.step_order("drain")
        check_at_rest(engine, server, free)
        engine.reset_prefix_cache()
        before, (loads, failed) = stats(engine), reported(server)
        assert before["loads"] + before["failed_loads"] == done + loaded
        assert run(engine, tokens) == own
        after = stats(engine)
        assert (after["loads"], after["failed_loads"]) == (before["loads"] + objects, before["failed_loads"])
        check_at_rest(engine, server, free)
        assert reported(server) == (loads + objects, failed)

    # Before any step has looked at it.
    done = objects
    engine.reset_prefix_cache()
    engine.add("victim", tokens, 8)
    engine.step_order("abort", names=["victim"])
    check(loaded=0)

    if name != "qwen3":
        # A load that is under way cannot be called back: its blocks are held until it is over.
        done += objects
        engine.reset_prefix_cache()
        engine.step_order("before_load", fault="hold", argument=None)
        engine.add("victim", tokens, 8)
        step_until(engine, lambda victim: victim["status"] == "WAITING_FOR_REMOTE_KVS")
        held = engine.step_order("abort", names=["victim"])["free_blocks"]
        assert held < free, "the blocks went back while the load may still write to them"
        engine.step_order("let_go")
        check(loaded=objects)
        done += objects

    for stage, (prompt, where) in enumerate(
        {
            "prefill": (demo.prompt(50, PROMPT_TOKENS), lambda victim: 0 < victim["computed"] < PROMPT_TOKENS),
            "decode": (demo.prompt(51, PROMPT_TOKENS), lambda victim: victim["tokens"] > PROMPT_TOKENS + 3),
            "decode after a hit": (tokens, lambda victim: victim["tokens"] > PROMPT_TOKENS + 3),
        }.values()
    ):
        loads_now = objects if prompt is tokens else 0
        done = stats(engine)["loads"] + stats(engine)["failed_loads"]
        engine.reset_prefix_cache()
        engine.add("victim", prompt, 100)
        step_until(engine, where)
        engine.step_order("abort", names=["victim"])
        check(loaded=loads_now)
