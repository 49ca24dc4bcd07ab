"""A hit that continues what the engine's own prefix cache covers."""

from __future__ import annotations

import pytest

import demo

from conftest import Bench
from kinds import APART, KINDS, PROMPT_TOKENS, differ, patient, run, small

FRONT_TOKENS = 700


@pytest.mark.parametrize("name", KINDS)
def test_a_hit_continues_the_engine_s_own(bench: Bench, name: str) -> None:
    """Only what the engine lacks is loaded, exactly as it was computed, and the state of the hit's end with it."""
    server = bench.server()
    engine = bench.engine(small(name), server, connector=patient(server))
    tokens = demo.prompt(1, PROMPT_TOKENS)
    engine.step_order("ledger")
    run(engine, tokens)
    server.settle()
    computed = engine.step_order("ledger")["computed"]
    own = run(engine, tokens, **APART)

    engine.reset_prefix_cache()
    engine.step_order("ledger")
    assert run(engine, tokens) == own
    everything = engine.step_order("ledger")["loaded"]

    engine.reset_prefix_cache()
    assert run(engine, tokens[:FRONT_TOKENS], **APART)["cached_tokens"] == 0
    engine.step_order("ledger")
    continued = run(engine, tokens)
    loaded = engine.step_order("ledger")["loaded"]
    assert 0 < len(loaded) < len(everything)
    assert all(digest in computed[block] for block, digest in loaded)
    assert continued["cached_tokens"] == own["cached_tokens"]
    assert continued["token_ids"] == own["token_ids"]
    # With a block size given there is nothing to warn about; test_block_size.py has the engine without one.
    assert "the engine schedules in blocks of" not in engine.log.read_text()
    if name != "qwen3.5":
        # Its front was computed anew in a shorter step, which rounds differently: the digests above tell wrong bytes.
        assert differ(continued, own) < 0.01


def test_windows_missing_below_a_hit_are_stored_by_whoever_computes_them(bench: Bench) -> None:
    """The engine's own prefix hit has let go of windows that every end of a chunk before it needs."""
    server = bench.server()
    engine = bench.engine(small("gpt-oss"), server, connector=patient(server))
    tokens = demo.prompt(1, PROMPT_TOKENS)

    def objects() -> int:
        server.settle()
        return server.status()["objects"]

    def stored_bytes() -> int:
        return sum(c["reported"]["stored_bytes"] for c in server.status()["clients"] if c["kind"] == "worker")

    run(engine, tokens, **APART)
    run(engine, tokens, no_load=True)
    gaps = objects()
    assert gaps > 0
    for new in (True, False):
        engine.reset_prefix_cache()
        before = stored_bytes()
        run(engine, tokens, no_load=True)
        found = objects()
        assert (found > gaps) == (stored_bytes() > before) == new
        gaps = found
    chunk = server.chunk_size()
    for end in range(chunk, PROMPT_TOKENS, chunk):
        engine.reset_prefix_cache()
        assert run(engine, tokens[: end + 1], no_store=True)["cached_tokens"] == end
