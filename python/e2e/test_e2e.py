"""A real vLLM against a real server.

The yardstick is always a run in which the engine reused KV that it had computed itself: tokens and log
probabilities of a run served by Kvasir must equal it bit for bit. That the comparison can fail is shown by
`test_corrupted_bytes_change_the_output`.
"""

from __future__ import annotations

import time

import pytest

import demo
import models
import process

from conftest import Bench
from kinds import PROMPT_TOKENS, differ, once, small

RECONNECT_S = 60.0

QWEN3 = small("qwen3")

# One model of each family that the connector serves, in engines that run in one process: full attention, sliding
# windows of two kinds and alone, chunked-local, latent attention with both kernels, gated delta, short convolution,
# Mamba-2 with attention and alone.
FAMILIES = (
    "llama",
    "mistral",
    "gemma3",
    "gpt-oss",
    "llama4",
    "deepseek-v2",
    "deepseek-v2-no-amx",
    "qwen3-next",
    "lfm2",
    "falcon-h1",
    "mamba2",
)


def quiet() -> demo.Progress:
    return demo.Progress(6)


def check_phases(bench: Bench, model: models.Model, fresh: bool) -> dict:
    """The demo's phases on a server of their own, and its verdict."""
    server = bench.server()
    phases = demo.run_model(model, bench.starter(model, server, fresh), server, quiet())
    document = demo.report(model, server.chunk_size(), phases)
    assert demo.verdict(model, document) == []
    return document


def test_a_new_engine_process_gets_the_prefix_back(bench: Bench) -> None:
    """The main job, as a user runs it: scheduler and worker in processes of their own. (A hybrid so: test_block_size.)"""
    document = check_phases(bench, QWEN3, fresh=True)
    expected = (PROMPT_TOKENS - 1) // 32 * 32
    assert [phase["cached_tokens"] for phase in document["phases"]] == [0, expected, expected, expected]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(bench: Bench, name: str) -> None:
    check_phases(bench, small(name), fresh=False)


def test_an_engine_that_refuses_says_why(bench: Bench) -> None:
    """What the support table says about architectures that the engine itself cannot run is its own word."""
    model = models.find("jamba")
    start = bench.starter(model, None)
    row = demo.judge_refusal(model, demo.refusal_of(lambda: start(0), model))
    assert row.wrong == []


def test_corrupted_bytes_change_the_output(bench: Bench) -> None:
    """The negative control: what the engine computes depends on the bytes that came from the pool."""
    from kvasir import _native

    server = bench.server()
    unchecked = process.connector_config(server.socket_path, **{"kvasir.checksums": False})
    engine = bench.engine(QWEN3, server, connector=unchecked)
    tokens = demo.prompt(1, PROMPT_TOKENS)
    once(engine, tokens)
    server.settle()
    engine.reset_prefix_cache()
    sound = once(engine, tokens)
    assert sound["cached_tokens"] > 0

    server.settle()
    _native.testing_corrupt_pool(str(server.socket_path), 1)
    engine.reset_prefix_cache()
    corrupted = once(engine, tokens)
    assert corrupted["cached_tokens"] == sound["cached_tokens"], "the corrupted bytes were not even loaded"
    assert corrupted["token_ids"] != sound["token_ids"] or differ(corrupted, sound) > 0.05


@pytest.mark.parametrize("name", ("qwen3", "gemma3", "qwen3.5"))
def test_corrupted_objects_are_never_used(bench: Bench, name: str) -> None:
    """One bit of every frame flipped: the engine computes the prompt itself, once, and then has it again."""
    from kvasir import _native

    model = small(name)
    server = bench.server()
    engine = bench.engine(model, server)
    tokens = demo.prompt(1, model.prompt_tokens)
    cold = once(engine, tokens)
    server.settle()
    engine.reset_prefix_cache()
    sound = once(engine, tokens)
    assert sound["cached_tokens"] > 0

    server.settle()
    counters = ("loads", "failed_loads", "corrupt_loads", "stale_loads", "dropped_stores")
    named = server.reported("loads")[0]
    assert server.reported(*counters) == (named, 0, 0, 0, 0) and named > 0
    assert _native.testing_corrupt_pool(str(server.socket_path)) > 0
    engine.reset_prefix_cache()
    damaged = once(engine, tokens)
    # (The engine goes on counting the tokens of a load that failed in its step as cached.)
    assert (damaged["token_ids"], damaged["logprobs"]) == (cold["token_ids"], cold["logprobs"])
    server.settle()
    # Every object of the hit once, whichever way the engine was told; and the retry asked for none of them again.
    assert server.reported(*counters) == (named, named, named, 0, 0)
    assert server.status()["counters"]["discarded"] == named

    engine.reset_prefix_cache()
    assert once(engine, tokens) == sound
    assert server.reported(*counters) == (2 * named, named, named, 0, 0)


def test_a_known_prefix_with_a_new_end(bench: Bench) -> None:
    """The hit ends where the prompts part; the yardstick is an engine that has never heard of Kvasir."""
    prefix = demo.prompt(2, PROMPT_TOKENS)
    longer = prefix + demo.prompt(3, 150)

    alone = bench.engine(QWEN3, None)
    once(alone, prefix)
    expected = once(alone, longer)
    assert expected["cached_tokens"] == PROMPT_TOKENS // 32 * 32
    alone.stop()

    server = bench.server()
    engine = bench.engine(QWEN3, server)
    once(engine, prefix)
    server.settle()
    engine.reset_prefix_cache()
    assert once(engine, longer) == expected


def test_a_batch_with_a_shared_prefix(bench: Bench) -> None:
    """Several requests of one step hit the same objects, and each also brings tokens of its own."""
    server = bench.server()
    engine = bench.engine(QWEN3, server)
    shared = demo.prompt(4, 1024)
    prompts = [shared + demo.prompt(10 + number, 100) for number in range(4)] + [demo.prompt(20, 700)]
    cold = engine.generate(prompts, demo.OUTPUT_TOKENS)["outputs"]
    server.settle()
    engine.reset_prefix_cache()
    warm = engine.generate(prompts, demo.OUTPUT_TOKENS)["outputs"]
    assert [output["token_ids"] for output in warm] == [output["token_ids"] for output in cold]
    assert [output["cached_tokens"] for output in warm] == [(len(tokens) - 1) // 32 * 32 for tokens in prompts]


def test_the_engine_outlives_its_server(bench: Bench) -> None:
    """Killed: the engine reads on what there was. Started again: the engine comes back by itself, to an empty cache."""
    server = bench.server()
    engine = bench.engine(QWEN3, server)
    tokens = demo.prompt(5, PROMPT_TOKENS)
    before = once(engine, tokens)
    server.settle()
    server.kill()
    engine.reset_prefix_cache()
    without = once(engine, tokens)
    assert (without["token_ids"], without["finish_reason"]) == (before["token_ids"], "length")
    assert without["cached_tokens"] == (PROMPT_TOKENS - 1) // 32 * 32

    bench.server()
    deadline = time.monotonic() + RECONNECT_S
    number = 100
    while time.monotonic() < deadline:
        tokens = demo.prompt(number, PROMPT_TOKENS)
        once(engine, tokens)
        engine.reset_prefix_cache()
        if once(engine, tokens)["cached_tokens"] > 0:
            return
        number += 1
        time.sleep(0.5)
    pytest.fail(f"the engine did not use the restarted server within {RECONNECT_S:.0f} s")


def test_a_stopped_server_does_not_stop_the_engine(bench: Bench) -> None:
    """SIGSTOP: every call of the engine ends at its deadline, and output is right with and without hits."""
    server = bench.server()
    engine = bench.engine(QWEN3, server)
    tokens = demo.prompt(6, PROMPT_TOKENS)
    before = once(engine, tokens)
    server.settle()
    server.pause()
    try:
        engine.reset_prefix_cache()
        during = once(engine, tokens)
    finally:
        server.resume()
    assert (during["token_ids"], during["finish_reason"]) == (before["token_ids"], "length")
