"""Groups of one model whose blocks are not of one size, as the engine itself chooses them when nobody names a block size."""

from __future__ import annotations

import dataclasses
from typing import Any

import demo
import models
import process

from conftest import Bench

PROMPT_TOKENS = 600


def test_blocks_of_256_beside_blocks_of_128(bench: Bench) -> None:
    """The same engine and a new one get from Kvasir what the engine itself finds, where it finds it, bit for bit."""
    model = dataclasses.replace(models.find("granite-4"), block_size=None, prompt_tokens=PROMPT_TOKENS)
    server = bench.server()
    tokens = demo.prompt(1, PROMPT_TOKENS)
    engine = bench.engine(model, server)
    # Where a step goes beyond the last boundary it leaves no state there. The engine stops at the boundary once it has
    # seen that another request shares the prefix, so its own first hit may come two requests later.
    outputs = [output(engine, server, tokens) for _ in range(4)]
    own = outputs[-1]
    assert own["cached_tokens"] == PROMPT_TOKENS // 256 * 256
    log = engine.log.read_text()
    assert "kv cache group sizes (128, 128, 256)" in log, "the engine has chosen other blocks"
    assert "hits in steps of 256" in log
    engine.reset_prefix_cache()
    assert output(engine, server, tokens) == own
    engine.stop()
    assert output(bench.engine(model, server), server, tokens) == own


def output(engine: process.Engine, server: process.Server, tokens: list[int]) -> dict[str, Any]:
    """One prompt, also stored; the result without its wall time."""
    result = demo.run_once(engine, tokens)
    del result["wall_s"]
    server.settle()
    return result
