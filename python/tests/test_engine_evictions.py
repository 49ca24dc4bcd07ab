"""A pool that is too small: what a resume needs is evicted or kept as a whole, and a hit ends where something is missing."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator

import pytest

from scripted import Engine, Request, Spared
from server_status import assert_nothing_held, counts, status
from test_engine_requests import MODELS
from test_native import Server

TOKENS = 4 * 64
ENDS = range(64, TOKENS + 1, 64)
# The hit at the first chunk's end with nothing left but what a resume at the second's needs: attention serves both, a
# window or a state its own end only.
FIRST = {model: 64 * (model == "full") for model in MODELS}
NOTHING = [0] * len(ENDS)
# A prompt that nobody stores.
NOBODYS = 99
# Prompts that are more than the pool holds.
OTHERS = range(2, 66)


@pytest.fixture
def small(spared: Spared) -> Iterator[tuple[Server, Callable[..., Engine]]]:
    """A server of 128 frames, each the least that an object takes, and what starts engines at it."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        server = Server(directory)
        server.start(pool_size="8MiB")
        stack.callback(server.kill)

        def start(model: str, name: str, ranks: int) -> Engine:
            engine = Engine(server.socket, MODELS[model], name, ranks=ranks)
            stack.callback(engine.close)
            return engine

        yield server, start


def store(engine: Engine, prompt: int) -> None:
    request = Request(f"w{prompt}", TOKENS, prompt=prompt)
    engine.prefill(request, ENDS)
    engine.finish(request)
    engine.step()


def load(engine: Engine, request: Request, end: int) -> None:
    """Takes up an offer of so many tokens: they come byte for byte, and nothing else is written."""
    engine.allocate(request, end, more=1)
    wanted = engine.needed(request, end)
    for rank in engine.ranks:
        # They may still have what an earlier request has loaded.
        rank.fill([(NOBODYS, group, block, block) for group, blocks in wanted.items() for block in blocks])
    before = engine.snapshot()
    assert engine.step().bad_blocks == set()
    if engine.loads_between_steps:
        assert engine.wait(request.request_id) == set()
    assert engine.holds(request, end) and engine.changed(before) == wanted


def hits(engine: Engine, prompt: int) -> list[int]:
    """What a request to each chunk end hits and loads."""
    found = []
    for end in ENDS:
        request = Request(f"{prompt} to {end}", end + 1, prompt=prompt)
        hit, _ = engine.ask(request)
        assert hit is not None
        if hit:
            load(engine, request, hit)
        found.append(hit)
        engine.finish(request)
        engine.step()
    return found


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_others_stores_evict_all_but_what_was_promised(
    small: tuple[Server, Callable[..., Engine]], model: str, ranks: int
) -> None:
    server, start = small
    writer, reader = start(model, "writer", ranks), start(model, "reader", ranks)
    store(writer, 1)
    assert hits(reader, 1) == list(ENDS)
    promised = Request("promised", 129)
    assert reader.ask(promised) == (128, reader.loads_between_steps)
    reader.allocate(promised, 128, more=1)
    plan = reader.plan()

    for prompt in OTHERS:
        store(writer, prompt)
    evicted = status(server)["counters"]["evicted"]
    assert evicted > 0
    # The newest is there, the oldest but for the promise is not.
    assert hits(start(model, "newest", ranks), OTHERS[-1]) == list(ENDS)
    assert hits(start(model, "oldest", ranks), OTHERS[0]) == NOTHING
    assert hits(start(model, "meanwhile", ranks), 1) == [FIRST[model], 128, 128, 128]

    before, wanted = reader.snapshot(), reader.needed(promised, 128)
    assert reader.run(plan).bad_blocks == set()
    if reader.loads_between_steps:
        assert reader.wait("promised") == set()
    assert reader.holds(promised, 128) and reader.changed(before) == wanted
    reader.finish(promised)
    reader.step()
    assert counts(server)["failed_loads"] == counts(server)["stale_loads"] == 0

    # Nothing holds it any more.
    for prompt in OTHERS:
        store(writer, 100 + prompt)
    assert hits(start(model, "afterwards", ranks), 1) == NOTHING
    found = assert_nothing_held(server)
    assert found["counters"]["stored"] - found["counters"]["evicted"] == found["objects"]
    assert counts(server)["dropped_stores"] == found["counters"]["dropped_stores"] == 0


@pytest.mark.parametrize("model", MODELS)
def test_an_engine_computes_and_stores_again_what_was_evicted(
    small: tuple[Server, Callable[..., Engine]], model: str
) -> None:
    """Some of the prompt is held, the rest gone; it is computed from the hit on, and no byte is mixed up."""
    server, start = small
    writer, reader = start(model, "writer", 1), start(model, "reader", 1)
    store(writer, 1)
    promised = Request("promised", 129)
    assert reader.ask(promised)[0] == 128
    reader.allocate(promised, 128, more=1)
    for prompt in OTHERS:
        store(writer, prompt)
    before = counts(server)["stores"]

    anew, request = start(model, "anew", 1), Request("r", TOKENS + 1)
    assert anew.ask(request)[0] == 128
    anew.allocate(request, 128, more=TOKENS)
    if anew.loads_between_steps:
        anew.step()
        assert anew.wait("r") == set()
        anew.tell(request, 0)
    for end in (192, 256):
        anew.step({"r": (request, end)})
    assert anew.holds(request, TOKENS)
    anew.finish(request)
    assert counts(server)["stores"] - before == 2 * len(anew.geometry.object_groups)
    # Windows and states of ends below the hit were computed by nobody.
    assert hits(start(model, "after", 1), 1) == [FIRST[model], 128, 192, 256]
    reader.step()
    if reader.loads_between_steps:
        assert reader.wait("promised") == set()
    assert reader.holds(promised, 128)
    reader.finish(promised)
    reader.step()
    assert_nothing_held(server)
