"""Batches: what a load restores is exact, whatever else is in the step.

A batch served by Kvasir may give other last bits than the engine's own prefix hit: loads arrive in other steps than
local hits do, and sums over a batch of another composition round differently (so does the engine by itself, when it
computes one prompt alone and in a batch). The tests take that apart: every restored block has to hold the bytes that
were computed, and the engine's own hits, fed to it in the very same steps, have to give the same output bit for bit.
"""

from __future__ import annotations

import dataclasses

import pytest

import demo
import models
import process

from conftest import Bench
from kinds import patient

SHARED = demo.prompt(4, 1024)
PROMPTS = [SHARED + demo.prompt(10 + number, 100) for number in range(4)] + [demo.prompt(20, 700)]

# Full attention alone is loaded in its step, the others between steps: windows of one group and of five, a recurrence.
MODELS = ("qwen3", "gpt-oss", "gemma3", "qwen3.5")

# Per step the requests in it, each with the tokens computed when it was done.
Trace = list[dict[str, int]]


def small(name: str) -> models.Model:
    return dataclasses.replace(models.find(name), prompts=len(PROMPTS), prompt_tokens=1500)


def run(engine: process.Engine, arrivals: list[int]) -> tuple[list[dict], Trace]:
    """Runs PROMPTS, the n-th of which comes after `arrivals[n]` steps; outputs and what was in each step."""
    trace: Trace = []
    before: dict[str, int] = {}
    while True:
        for number, step in enumerate(arrivals):
            if step == len(trace):
                engine.add(f"prompt-{number}", PROMPTS[number], demo.OUTPUT_TOKENS)
        seen = engine.step_order("step", count=1)["requests"]
        now = {name: request["computed"] for name, request in seen.items() if request["status"] != "WAITING_FOR_REMOTE_KVS"}
        trace.append({name: computed for name, computed in now.items() if computed != before.get(name, 0)})
        before = now
        if len(seen) == len(PROMPTS) and all(r["status"].startswith("FINISHED") for r in seen.values()):
            break
    outputs = engine.step_order("drain")["outputs"]
    return [outputs[f"prompt-{number}"] for number in range(len(PROMPTS))], trace


def first_steps(trace: Trace) -> list[int]:
    """Per prompt the first step that computed any of it."""
    return [next(n for n, step in enumerate(trace) if f"prompt-{i}" in step) for i in range(len(PROMPTS))]


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_gets_back_exactly_what_was_computed(bench: Bench, name: str) -> None:
    server = bench.server()
    engine = bench.engine(small(name), server, connector=patient(server))
    at_once = [0] * len(PROMPTS)
    run(engine, at_once)
    server.settle()
    computed = engine.step_order("ledger")["computed"]

    engine.reset_prefix_cache()
    external, trace = run(engine, at_once)
    server.settle()
    ledger = engine.step_order("ledger")
    groups = {block[-8:] for block in computed}
    assert {block[-8:] for block, _ in ledger["loaded"]} == groups, "a group of the model was not loaded"
    wrong = [block for block, digest in ledger["loaded"] if digest not in computed[block]]
    assert wrong == [], f"{len(wrong)} of {len(ledger['loaded'])} restored blocks hold other bytes than were computed"

    # The blocks are in the engine's own cache now, and came with the bytes of the first run, as just seen.
    own, own_trace = run(engine, first_steps(trace))
    assert engine.step_order("ledger")["loaded"] == []
    start = first_steps(trace)[0]
    assert own_trace[start:] == trace[start:], "the two runs were not in the same steps"
    assert [output["cached_tokens"] for output in external] == [output["cached_tokens"] for output in own]
    assert external == own
