"""Kvasir inside vLLM's MultiConnector, where the engine goes by the outer configuration: a damaged object fails no request."""

from __future__ import annotations

from typing import Any

import pytest

import demo
import process

from conftest import Bench
from kinds import PROMPT_TOKENS, errors, small
from kvasir import _native

PROMPTS = 4


def inside_another(server: process.Server, **outer: Any) -> dict[str, Any]:
    """The configuration that a `MultiConnector` is given, with a sound one of Kvasir's own in it."""
    own = process.connector_config(server.socket_path, **{"kvasir.deadline": 20.0})
    return {
        "kv_connector": "MultiConnector",
        "kv_connector_module_path": None,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [own]},
    } | outer


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5"])
@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_damaged_objects_fail_no_request(bench: Bench, name: str, policy: str) -> None:
    server = bench.server()
    engine = bench.engine(
        small(name), server, connector=inside_another(server, kv_load_failure_policy=policy)
    )
    prompts = [demo.prompt(number, PROMPT_TOKENS) for number in range(PROMPTS)]

    def generate() -> list[dict[str, Any]]:
        return [engine.generate([tokens], demo.OUTPUT_TOKENS)["outputs"][0] for tokens in prompts]

    cold = generate()
    server.settle()
    assert server.status()["objects"] > 0, "it stores in any case"
    # A hit, also the engine's own, rounds differently than a prompt that is computed in one piece.
    own = generate()
    engine.reset_prefix_cache()
    warm = generate()
    expected = own if policy == "recompute" else cold
    assert [one["token_ids"] for one in warm] == [one["token_ids"] for one in expected]
    served = [one["cached_tokens"] > 0 for one in warm]
    assert served == [policy == "recompute"] * PROMPTS
    loads, failed = server.reported("loads", "failed_loads")
    assert ((loads > 0), failed) == (policy == "recompute", 0)

    server.settle()
    engine.reset_prefix_cache()
    assert _native.testing_corrupt_pool(str(server.socket_path)) > 0
    damaged = generate()
    assert [one["finish_reason"] for one in damaged] == ["length"] * PROMPTS
    assert [one["token_ids"] for one in damaged] == [one["token_ids"] for one in cold]
    (failed,) = server.reported("failed_loads")
    assert (failed > 0) == (policy == "recompute")
    log = engine.log.read_text(errors="replace")
    warned = "inside MultiConnector the engine goes by the outer kv_transfer_config" in log
    assert warned == (policy != "recompute")
    assert errors(engine.log) == []
