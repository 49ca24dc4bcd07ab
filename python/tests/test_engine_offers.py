"""Offers that an engine takes up in a later pass than it got them in, while others store, evict and end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripted import Engine, Request
from server_status import assert_nothing_held, counts, status
from test_engine_servers import MODELS
from test_native import Server

Start = Callable[..., Engine]
CHUNKS = 3
TOKENS = CHUNKS * 64
ENDS = range(64, TOKENS + 1, 64)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("passes", [1, 4])
def test_an_offer_that_is_taken_up_later_is_loaded(
    server: Server, engines: Start, model: str, passes: int
) -> None:
    engines(MODELS[model], "writer").prefill(Request("w", TOKENS), ENDS)
    engine, request = engines(MODELS[model], "reader"), Request("r", TOKENS + 1)
    hit, between = engine.ask(request)
    assert (hit, between) == (TOKENS, engine.loads_between_steps)
    with_tool = engines(MODELS[model], "other")
    for number in range(passes):
        # Steps of other requests, and somebody who clears the cache: what was offered is pinned.
        other = Request(f"other {number}", 128, prompt=10 + number)
        engine.prefill(other, [64, 128])
        engine.finish(other)
        assert with_tool.scheduler.reset_cache()
        assert counts(server, "scheduler")["lookups"] > 0
        assert status(server)["pool"]["pinned"] > 0
    engine.allocate(request, TOKENS, more=1)
    engine.step()
    if engine.loads_between_steps:
        assert engine.wait("r") == set()
    assert engine.holds(request, TOKENS)
    engine.finish(request)
    engine.step()
    engine.step()
    assert counts(server)["failed_loads"] == 0
    assert_nothing_held(server)


@pytest.mark.parametrize("model", ["full", "window", "recurrent"])
def test_an_offer_that_is_never_taken_up_ends_with_its_request(server: Server, engines: Start, model: str) -> None:
    engines(MODELS[model], "writer").prefill(Request("w", TOKENS), ENDS)
    engine = engines(MODELS[model], "reader")
    waiting = [Request(f"waits {number}", TOKENS + 1) for number in range(20)]
    for request in waiting:
        assert engine.ask(request)[0] == TOKENS
    engine.step()
    assert status(server)["pool"]["pinned"] > 0
    for request in waiting[:10]:
        engine.finish(request)
    for request in waiting[10:]:
        # Another connector's hit was taken: told of no load.
        engine.tables[request.request_id] = [[]]
        engine.tell(request, 0)
    assert_nothing_held(server)


def test_offers_that_fill_the_quota_give_way(server: Server, engines: Start) -> None:
    """The pins of one client keep at most a quarter of the pool; a hit is not made shorter by offers nobody takes up."""
    server.kill()
    server.start(pool_size="16MiB")  # 256 frames, of which pins may keep 64; a chunk takes one here
    writer = engines(MODELS["full"], "writer", credit_bytes=1 << 16)
    for prompt in range(1, 10):
        request = Request(f"w {prompt}", 640, prompt=prompt)
        writer.prefill(request)
        writer.finish(request)
    engine = engines(MODELS["full"], "reader", credit_bytes=1 << 16)
    waiting = [Request(f"r {prompt}", 641, prompt=prompt) for prompt in range(1, 10)]
    for request in waiting:
        assert engine.ask(request) == (640, False)
        engine.step()
    offers = engine.scheduler._scheduler._offers
    assert offers.given_up == 3, "nine of ten chunks each in place of six"
    # What gave way and is taken up all the same is a load that fails; what did not is loaded.
    for request in waiting[:1] + waiting[-2:]:
        engine.allocate(request, 640, more=1)
    output = engine.step()
    assert output.bad_blocks == set(engine.tables["r 1"][0][:40])
    assert all(engine.holds(request, 640) for request in waiting[-2:])
