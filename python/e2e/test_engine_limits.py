"""Shapes of engines that the CPU engine itself cannot run, without any connector.

Why those shapes are played by processes (python/tests/test_rank_processes.py) and not run: when one of these fails, the
engine has learnt it, and the shape belongs into test_ranks.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import demo
import models

from conftest import Bench

PIPELINE = {"pipeline_parallel_size": 2}
CONTEXT = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [("qwen3", PIPELINE, "KeyError"), ("deepseek-v2", CONTEXT, "return the softmax LSE")],
    ids=["pipeline", "context"],
)
def test_the_cpu_engine_does_not_run_it(bench: Bench, name: str, settings: dict[str, Any], reason: str) -> None:
    model = dataclasses.replace(models.find(name), prompt_tokens=200)
    start = bench.starter(model, None, settings=settings)
    assert reason in demo.refusal_of(lambda: start(0), model)
