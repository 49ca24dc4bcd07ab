"""How many bytes a real engine stores for each byte of KV that it computes for the first time, and whether the figure in
status is what was stored."""

from __future__ import annotations

from typing import Any

import pytest

import demo
import models
import process

from conftest import Bench
from kinds import KINDS, patient, run, small
from test_requests import FEW_BLOCKS, MAX_LEN, STEP_TOKENS

TURNS = 6
FIRST_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 400, 60, 200


def token_bytes(model: models.Model) -> int:
    """KV of one token in a model of attention layers only: keys and values of two bytes."""
    config = model.config
    return config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * config["head_dim"] * 2


def amplification(server: process.Server) -> float:
    """The figure, after finding that it is what clients stored, and that this is what the server keeps account of."""
    server.settle()
    status = server.status()
    reported, counters = status["reported"], status["counters"]
    assert (reported["dropped_stores"], counters["dropped_stores"], counters["evicted"]) == (0, 0, 0)
    assert reported["stored_bytes"] == counters["stored_bytes"] > 0
    assert reported["stores"] == counters["stored"]
    assert status["store_amplification"] == round(reported["stored_bytes"] / reported["new_bytes"], 3)
    print(f"store_amplification {status['store_amplification']}: {reported['stored_bytes']} of {reported['new_bytes']}")
    return status["store_amplification"]


def new_bytes(server: process.Server) -> int:
    return server.status()["reported"]["new_bytes"]


def check_new(name: str, server: process.Server, computed: int, requests: int) -> None:
    """What the engine computed, by its own account: whole alignments of it, and perhaps not the last tokens."""
    if name == "qwen3":
        model = models.find(name)
        each, step = token_bytes(model), model.block_size or 16
        assert (computed - 2 * requests * step) * each <= new_bytes(server) <= computed * each


@pytest.mark.parametrize("name", KINDS)
def test_a_chat_stores_what_it_computes_less_than_twice(bench: Bench, name: str) -> None:
    """Every turn's prompt is all that was said and a new question; the answer comes token by token."""
    server = bench.server()
    engine = bench.engine(small(name), server, connector=patient(server))
    said, computed = demo.prompt(1, FIRST_TOKENS), 0
    for turn in range(TURNS):
        output = run(engine, said, ANSWER_TOKENS)
        computed += len(said) - output["cached_tokens"] + ANSWER_TOKENS - 1
        said = said + output["token_ids"] + demo.prompt(100 + turn, QUESTION_TOKENS)
    figure = amplification(server)
    check_new(name, server, computed, TURNS)
    assert figure < 2
    if name == "qwen3":
        assert figure >= 1, "all that is computed is stored"

    # Said again by an engine that holds nothing, it hits, and what hits is neither new nor stored.
    engine.reset_prefix_cache()
    before = server.status()["reported"]
    hit = run(engine, said[: len(said) - QUESTION_TOKENS], 1)["cached_tokens"]
    server.settle()
    after = server.status()["reported"]
    assert hit > FIRST_TOKENS
    if name == "qwen3":
        rest = len(said) - QUESTION_TOKENS - hit
        assert after["new_bytes"] - before["new_bytes"] <= rest * token_bytes(models.find(name))
    assert amplification(server) < 2


def test_a_chat_of_short_turns_stores_a_tail_with_each(bench: Bench) -> None:
    """The tail of a prompt is stored whole, however little of it is new. So it is a chunk for each request that bounds it."""
    server = bench.server()
    engine = bench.engine(small("qwen3"), server, connector=patient(server))
    turns, question, answer = 12, 20, 12
    said, computed = demo.prompt(1, FIRST_TOKENS), 0
    for turn in range(turns):
        output = run(engine, said, answer)
        computed += len(said) - output["cached_tokens"] + answer - 1
        said = said + output["token_ids"] + demo.prompt(100 + turn, question)
    amplification(server)
    check_new("qwen3", server, computed, turns)
    reported, chunk = server.status()["reported"], server.chunk_size()
    assert reported["stored_bytes"] <= 2 * reported["new_bytes"] + turns * chunk * token_bytes(models.find("qwen3"))


@pytest.mark.parametrize("name", KINDS)
def test_preempted_requests_store_what_they_compute_less_than_twice(bench: Bench, name: str) -> None:
    server = bench.server()
    settings: dict[str, Any] = {
        "max_model_len": MAX_LEN, "max_num_batched_tokens": STEP_TOKENS, "num_gpu_blocks_override": FEW_BLOCKS[name],
    }  # fmt: skip
    engine = bench.engine(small(name), server, settings=settings, connector=patient(server))
    requests, prompt_tokens, new_tokens = 6, 500, 300
    for number in range(requests):
        engine.add(str(number), demo.prompt(number, prompt_tokens), new_tokens)
    last = engine.step_order("drain")
    assert sum(request["preemptions"] for request in last["requests"].values()) > 0
    figure = amplification(server)
    # What a preemption has computed again is not new.
    check_new(name, server, requests * (prompt_tokens + new_tokens - 1), requests)
    assert figure < 2
