"""`--chunk-scope model` with real engines: models whose alignments have no common chunk share one server."""

from __future__ import annotations

import dataclasses

import pytest

import demo
import models
import process

from conftest import Bench
from kinds import PROMPT_TOKENS, once


def of(name: str, block_size: int) -> models.Model:
    """The model with another block size."""
    return dataclasses.replace(models.find(name), block_size=block_size, prompts=1, prompt_tokens=PROMPT_TOKENS)


# Two of them are one model with the same weights and differ in their block size alone; nothing but the chunk size
# keeps their keys apart.
ALIGNMENTS = {256: of("qwen3", 32), 544: of("qwen3.5", 544), 640: of("qwen3.5", 640)}


def test_they_do_not_fit_one_chunk_size(bench: Bench) -> None:
    """Why the setting exists: without it the second model is refused at start, with the numbers."""
    server = bench.server()
    bench.engine(ALIGNMENTS[256], server)
    with pytest.raises(process.EngineError, match="cannot serve this model.*256.*544"):
        bench.engine(ALIGNMENTS[544], server)
    assert server.chunk_sizes() == [256]


def test_three_alignments_share_a_server(bench: Bench) -> None:
    """All three run the same prompt at the same time; each finds what it stored itself and nothing else."""
    server = bench.server("--pool-size", "1GiB", "--chunk-scope", "model")
    tokens = demo.prompt(1, PROMPT_TOKENS)
    engines = [bench.engine(model, server) for model in ALIGNMENTS.values()]
    assert server.chunk_sizes() == list(ALIGNMENTS)

    own = []
    for engine in engines:
        assert demo.run_once(engine, tokens)["cached_tokens"] == 0, "found what another model stored"
        server.settle()
        own.append(once(engine, tokens))
        server.settle()
    assert [hit["cached_tokens"] for hit in own] == [(PROMPT_TOKENS - 1) // 32 * 32, 2 * 544, 2 * 640]

    for engine in engines:
        engine.reset_prefix_cache()
    assert [once(engine, tokens) for engine in engines] == own
    assert server.chunk_sizes() == list(ALIGNMENTS)
