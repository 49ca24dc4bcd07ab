"""What the tests with real engines share: the kinds of models, one request by itself, and the state of rest."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any

import demo
import models
import process

PROMPT_TOKENS = 1490

# Full attention alone is loaded in its step; windows beside it and recurrent state are loaded between steps.
KINDS = ("qwen3", "gpt-oss", "qwen3.5")

# `kv_transfer_params` with which a request has nothing to do with Kvasir.
APART = {"no_load": True, "no_store": True}


def small(name: str) -> models.Model:
    """The model of that name with few and short prompts."""
    model = models.find(name)
    return dataclasses.replace(model, prompts=2, prompt_tokens=min(model.prompt_tokens, PROMPT_TOKENS))


def patient(server: process.Server, deadline: float = 20.0, **extra: Any) -> dict[str, Any]:
    """The connector's settings for a busy machine, on which an answer that takes a second proves nothing."""
    settings = {"kvasir.socket": str(server.socket_path), "kvasir.deadline": deadline, **extra}
    return {"kv_connector_extra_config": settings}


def once(engine: process.Engine, tokens: list[int]) -> dict[str, Any]:
    """One prompt as the demo runs it; the result without its wall time."""
    result = demo.run_once(engine, tokens)
    del result["wall_s"]
    return result


def run(engine: process.Engine, tokens: list[int], max_tokens: int = demo.OUTPUT_TOKENS, **params: Any) -> dict[str, Any]:
    """One request by itself, to its end; `params` are its `kv_transfer_params`."""
    engine.add("only", tokens, max_tokens, **params)
    return engine.step_order("drain")["outputs"]["only"]


def stats(engine: process.Engine) -> dict[str, int]:
    """The worker's own counters."""
    return engine.step_order("client_stats")["worker"]


def errors(log: pathlib.Path) -> list[str]:
    """What the connector logged as an error."""
    lines = log.read_text(errors="replace").splitlines()
    return [line for line in lines if "ERROR" in line and ("Kvasir" in line or "notes.py" in line)]


def check_at_rest(engine: process.Engine, server: process.Server, free_blocks: int) -> None:
    """Nothing is held for requests that are gone: not in the engine, not in the connector, not in the server."""
    server.settle()
    status = server.status()
    pool = status["pool"]
    assert (pool["pinned"], {client["pins"] + client["pin_words"] for client in status["clients"]}) == (0, {0})
    assert (status["incomplete"], status["limbo"], pool["quarantined"]) == (0, 0, 0)
    assert pool["free"] + pool["used"] + pool["granted"] == pool["total"]
    held = engine.step_order("client_stats")
    assert held["requests"] == 0
    assert pool["granted"] == held["worker"]["credit_bytes"]
    assert engine.step_order("look")["free_blocks"] == free_blocks
    assert errors(engine.log) == []


def differ(one: dict, other: dict) -> float:
    """The largest difference of log probabilities; a NaN counts as an infinite one."""
    pairs = zip(map(float.fromhex, one["logprobs"]), map(float.fromhex, other["logprobs"]))
    gaps = [abs(a - b) for a, b in pairs]
    return math.inf if any(math.isnan(gap) for gap in gaps) else max(gaps)
