"""How many bytes are stored for each byte of KV that is computed for the first time: in chats, and where a small pool and
a small engine make requests compute twice."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator

import pytest

from scripted import FULL_SPECS, Engine, Request, Spared
from server_status import counts, status
from test_native import Server

CHUNK = 64
TOKEN_BYTES = 2 * 512 // 16
"""Two layers with pages of 512 bytes for 16 tokens."""


@pytest.fixture
def serve(spared: Spared) -> Iterator[Callable[[str], tuple[Server, Engine]]]:
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:

        def start(pool_size: str) -> tuple[Server, Engine]:
            server = Server(directory)
            server.start(pool_size=pool_size)
            stack.callback(server.kill)
            engine = Engine(server.socket, FULL_SPECS, "engine")
            stack.callback(engine.close)
            return server, engine

        yield start


def run(engine: Engine, request: Request, answer: int, preempt_at: frozenset[int] = frozenset()) -> int:
    """Prefill and decode of one request, which starts again where it is preempted. Tokens that were computed in all."""
    computed, done = 0, 0
    while True:
        hit, _ = engine.ask(request)
        assert hit is not None
        engine.allocate(request, hit, more=request.num_prompt_tokens + answer + CHUNK - hit)
        engine.step({request.request_id: (request, request.num_tokens)})
        computed += request.num_tokens - hit
        while done < answer:
            request.generate(1)
            done += 1
            engine.step({request.request_id: (request, request.num_tokens)})
            computed += 1
            if done in preempt_at:
                engine.free(request.request_id)
                break
        else:
            break
        preempt_at -= {done}
    engine.finish(request)
    engine.step()
    return computed


def test_a_chat_stores_what_it_computes_less_than_twice(serve: Callable[[str], tuple[Server, Engine]]) -> None:
    server, engine = serve("64MiB")
    computed, tokens = 0, 150
    for turn in range(6):
        # Every turn's prompt is all that was said before and a new question.
        computed += run(engine, Request(f"turn {turn}", tokens), 100)
        tokens += 100 + 37
    found = counts(server)
    # Whole alignments are counted, and the last tokens of a request may be none.
    assert computed * TOKEN_BYTES - 6 * 16 * TOKEN_BYTES <= found["new_bytes"] <= computed * TOKEN_BYTES
    assert found["new_bytes"] < found["stored_bytes"] < 2 * found["new_bytes"]
    shown = status(server)
    reported = shown["reported"]
    assert shown["store_amplification"] == round(reported["stored_bytes"] / reported["new_bytes"], 3) < 2


def test_requests_that_are_preempted_store_nothing_twice_that_is_still_there(
    serve: Callable[[str], tuple[Server, Engine]]
) -> None:
    server, engine = serve("64MiB")
    rng = random.Random(3)
    computed = 0
    for number in range(12):
        at = frozenset(rng.sample(range(1, 120), 4))
        computed += run(engine, Request(f"r{number}", 200, prompt=number), 120, at)
    found = counts(server)
    assert found["loads"] > 0
    assert found["new_bytes"] <= 12 * 320 * TOKEN_BYTES < computed * TOKEN_BYTES
    assert found["stored_bytes"] < 2 * found["new_bytes"]
    assert status(server)["counters"]["evicted"] == 0


def test_a_prompt_that_does_not_fit_is_stored_as_far_as_it_does_and_hits(
    serve: Callable[[str], tuple[Server, Engine]]
) -> None:
    server, engine = serve("1MiB")
    # 16 frames, each the least that an object takes, and a prompt of 24 chunks.
    tokens = 24 * CHUNK
    hits = []
    for number in range(6):
        request = Request(f"r{number}", tokens + 1)
        hit, _ = engine.ask(request)
        hits.append(hit)
        engine.allocate(request, hit or 0, more=tokens - (hit or 0))
        for end in range((hit or 0) + 256, tokens + 1, 256):
            engine.step({request.request_id: (request, end)})
        engine.finish(request)
        engine.step()
    assert hits[0] == 0
    # A client's pins may keep a quarter of the pool.
    assert hits[1:] == [4 * CHUNK] * 5
    found = status(server)
    assert found["counters"]["evicted"] == 0
    assert found["counters"]["stored"] == found["objects"] <= 16
    assert counts(server)["stored_bytes"] == found["counters"]["stored_bytes"]
