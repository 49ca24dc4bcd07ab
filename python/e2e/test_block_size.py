"""The CPU engine of several processes that was given no block size: it resets its own one after it has sized its cache."""

from __future__ import annotations

import dataclasses

import demo
import models
import process

from conftest import Bench
from kinds import PROMPT_TOKENS, once


def test_the_reset_of_the_block_size_is_noticed(bench: Bench) -> None:
    """The log says what to set. What the engine still finds, it also gets from Kvasir, bit for bit."""
    model = dataclasses.replace(models.find("qwen3.5"), block_size=None, prompt_tokens=PROMPT_TOKENS)
    server = bench.server()
    engine = bench.starter(model, server, fresh=True)(0)
    bench.stack.callback(engine.stop)
    tokens = demo.prompt(1, PROMPT_TOKENS)

    # Steps end every 128 tokens and state is kept every 256: the last boundary of a prompt of 11 times 128 is none. The
    # engine stops at one only when it has seen that a second request shares the prefix.
    assert [output(engine, server, tokens)["cached_tokens"] for _ in range(2)] == [0, 0]
    own = output(engine, server, tokens)
    assert own["cached_tokens"] == 5 * 256
    engine.reset_prefix_cache()
    assert output(engine, server, tokens) == own

    log = engine.log.read_text()
    assert "the engine schedules in blocks of 128 tokens but can resume recurrent state only every 256" in log
    assert "start it with --block-size" in log


def output(engine: process.Engine, server: process.Server, tokens: list[int]) -> dict:
    """One prompt, also stored; the result without its wall time."""
    result = once(engine, tokens)
    server.settle()
    return result
