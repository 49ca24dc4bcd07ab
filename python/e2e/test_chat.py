"""What is stored beyond a prompt and what a request may ask for: chats, per-request parameters, new weights."""

from __future__ import annotations

import pytest

import demo

from conftest import Bench
from kinds import APART, PROMPT_TOKENS, patient, run, small, stats

FIRST_TOKENS = 600
ANSWER_TOKENS = 200
STEP = {"qwen3": 32, "gpt-oss": 32, "qwen3.5": 160}


@pytest.mark.parametrize(
    ("name", "store"), [("qwen3", "all"), ("gpt-oss", "all"), ("qwen3.5", "all"), ("qwen3", "prompt"), ("qwen3.5", "prompt")]
)
def test_the_next_turn_of_a_chat(bench: Bench, name: str, store: str) -> None:
    """Generated tokens are stored unless `store` says otherwise, so the next turn hits beyond the first prompt."""
    server = bench.server()
    engine = bench.engine(small(name), server, connector=patient(server, **{"kvasir.store": store}))
    first = demo.prompt(1, FIRST_TOKENS)
    answer = run(engine, first, ANSWER_TOKENS, **APART)["token_ids"]
    second = first + answer + demo.prompt(2, 50)
    if store == "prompt":
        engine.reset_prefix_cache()
        run(engine, first, 1, **APART)
    own = run(engine, second, **APART)  # from the engine's own prefix cache
    assert server.status()["objects"] == 0

    engine.reset_prefix_cache()
    engine.step_order("ledger")
    assert run(engine, first, ANSWER_TOKENS)["token_ids"] == answer
    server.settle()
    computed = engine.step_order("ledger")["computed"]
    engine.reset_prefix_cache()
    served = run(engine, second)
    # The last token of an answer is never computed before the next turn.
    stored = FIRST_TOKENS + ANSWER_TOKENS - 1 if store == "all" else FIRST_TOKENS
    assert served["cached_tokens"] == stored // STEP[name] * STEP[name]
    loaded = engine.step_order("ledger")["loaded"]
    assert loaded and all(digest in computed[block] for block, digest in loaded)
    # The engine keeps no windows and states of generated tokens itself. Where it resumes earlier it computes again, in
    # one piece, what Kvasir has as it was computed token by token, and that rounds differently.
    assert served["cached_tokens"] >= own["cached_tokens"]
    if served["cached_tokens"] == own["cached_tokens"]:
        assert served == own
    else:
        assert (store, name) in {("all", "gpt-oss"), ("all", "qwen3.5")}


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5"])
def test_requests_that_do_not_store_or_load(bench: Bench, name: str) -> None:
    server = bench.server()
    engine = bench.engine(small(name), server, connector=patient(server))
    tokens = demo.prompt(1, PROMPT_TOKENS)
    cold = run(engine, tokens, no_store=True)
    own = run(engine, tokens, no_store=True)
    assert own["cached_tokens"] > 0
    server.settle()
    assert server.status()["objects"] == 0
    engine.reset_prefix_cache()
    assert run(engine, tokens) == cold
    server.settle()
    assert server.status()["objects"] > 0

    engine.reset_prefix_cache()
    assert run(engine, tokens, no_load=True) == cold
    assert stats(engine)["loads"] == 0
    engine.reset_prefix_cache()
    assert run(engine, tokens) == own


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5"])
def test_a_reset_of_the_connector_starts_anew(bench: Bench, name: str) -> None:
    """As after new weights: the next run misses, whatever was stored before, and then hits again."""
    server = bench.server()
    engine = bench.engine(small(name), server, connector=patient(server))
    tokens = demo.prompt(1, PROMPT_TOKENS)
    cold = run(engine, tokens)
    own = run(engine, tokens)
    server.settle()
    engine.reset_prefix_cache()
    assert run(engine, tokens) == own

    engine.reset_prefix_cache(connector=True)
    assert server.status()["objects"] == 0
    assert run(engine, tokens) == cold
    server.settle()
    engine.reset_prefix_cache()
    assert run(engine, tokens) == own
