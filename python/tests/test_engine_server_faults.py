"""Two servers of one engine, and a fault at one of them: a rank that dies, or damaged bytes.

The servers then have different objects of a prompt. A hit is what both can serve, windows and states at that very length,
and no byte of a damaged object passes for what was stored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvasir import _native
from rank_processes import RankGone, RankProcess
from scripted import Engine, Request, Shape, Spared
from server_status import assert_nothing_held, counts, status
from test_engine_evictions import hits
from test_engine_servers import MODELS
from test_native import Server, client, eventually

Start = Callable[..., Engine]

# One rank at each server; two, of which each has its part of every object; two that hold the same attention.
SHAPES = {"single": Shape(ranks=2), "pairs": Shape(ranks=4), "pairs with heads in common": Shape(ranks=4, heads=1)}
# Every rank of these is a process, which takes long to start.
DYING = [("single", model) for model in MODELS]
DYING += [("pairs", model) for model in ("window", "recurrent", "only window", "only state")]
DYING += [("pairs with heads in common", model) for model in ("window", "latent")]
CHUNKS = 4
TOKENS = CHUNKS * 64
ENDS = range(64, TOKENS + 1, 64)
# Object groups, and objects that a hit of four chunks names.
KINDS = {model: 1 if model == "full" or model.startswith("only") else 2 for model in MODELS}
STATEFUL = {"recurrent", "latent", "only state"}
NAMED = {"full": CHUNKS, "only window": 1, "only state": 1}


@pytest.fixture
def start(servers: list[Server], spared: Spared) -> Iterator[Start]:
    """Starts scripted engines at both servers."""
    with contextlib.ExitStack() as stack:

        def engine(model: str, name: str, shape: Shape, **more: Any) -> Engine:
            one = Engine([server.socket for server in servers], MODELS[model], name, shape=shape, **more)
            stack.callback(one.close)
            return one

        yield engine


def objects(servers: list[Server]) -> list[int]:
    """Objects of each server."""
    return [status(server)["objects"] for server in servers]


def reported(servers: list[Server], name: str) -> list[int]:
    """A counter of the workers of each server."""
    return [counts(server)[name] for server in servers]


def grown(after: list[int], before: list[int]) -> list[int]:
    return [now - then for now, then in zip(after, before)]


@pytest.mark.parametrize("victim", [0, -1])
@pytest.mark.parametrize(("shape", "model"), DYING)
def test_a_rank_that_dies_leaves_the_other_server_with_more_and_no_half_record(
    servers: list[Server], start: Start, shape: str, model: str, victim: int
) -> None:
    where, own = SHAPES[shape], victim % 2
    engine, request = start(model, "engine", where, rank_type=RankProcess), Request("r", TOKENS)
    assert engine.ask(request)[0] == 0
    engine.allocate(request, 0, more=TOKENS)
    engine.step({"r": (request, 64)})
    assert objects(servers) == [KINDS[model]] * 2

    scheduled = {"r": (request, 128)}
    metadata, writes = engine.plan(scheduled), engine._writes(request, 64, 128)
    dying, survivors = engine.ranks[victim], [rank for rank in engine.ranks if rank is not engine.ranks[victim]]
    if victim == 0:
        dying.kill()
    for rank in survivors:
        rank.begin(metadata, writes, set())
        rank.end()
    if victim == -1:
        dying.kill()
    with pytest.raises(RankGone):
        dying.begin(metadata, writes, set())
        dying.end()
    engine.finish(request)
    engine.close()
    for server in servers:
        eventually("the end of the incomplete objects", lambda: status(server)["incomplete"] == 0)
        assert_nothing_held(server)
    # Bytes that others hold too are all there; a state is each rank's own.
    missed = 0 if shape == "pairs with heads in common" and victim == -1 and model not in STATEFUL else 1
    found = objects(servers)
    assert found[1 - own] == 2 * KINDS[model] and (found[own] < found[1 - own]) == missed

    # Both have what a resume after one chunk needs, and only one what the second one needs.
    end = 128 - 64 * missed
    assert hits(start(model, "reader", where), 1) == [64, end, end, end]
    # What is computed anew goes where it is missing.
    again, before = Request("again", TOKENS), reported(servers, "stores")
    anew = start(model, "anew", where)
    assert anew.ask(again) == (end, True)
    anew.allocate(again, end, more=TOKENS)
    anew.step()
    assert anew.wait("again") == set() and anew.holds(again, end)
    anew.tell(again, 0)
    for reached in range(end + 64, TOKENS + 1, 64):
        anew.step({"again": (again, reached)})
    anew.finish(again)
    assert objects(servers) == [CHUNKS * KINDS[model]] * 2
    stored = grown(reported(servers, "stores"), before)
    assert (stored[own] > stored[1 - own]) == missed and min(stored) > 0
    assert hits(start(model, "after", where), 1) == list(ENDS)
    for server in servers:
        found = assert_nothing_held(server)
        assert found["counters"]["stored"] == CHUNKS * KINDS[model]
    assert reported(servers, "failed_loads") == reported(servers, "dropped_stores") == [0, 0]


@pytest.mark.parametrize(("damaged", "seed"), [(0, None), (1, 7)])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_damaged_objects_of_one_server_fail_the_load_of_all_ranks_and_are_stored_again(
    servers: list[Server], start: Start, shape: str, model: str, damaged: int, seed: int | None
) -> None:
    where, named = SHAPES[shape], NAMED.get(model, CHUNKS + 1)
    each, alone = where.ranks // 2, model.startswith("only")
    start(model, "writer", where).prefill(Request("w", TOKENS), steps=ENDS)
    before = reported(servers, "stores")
    assert _native.testing_corrupt_pool(servers[damaged].socket, seed) > 0

    reader = start(model, "reader", where)
    # All objects of the damaged server go but those that hang under nothing and were not read.
    left = CHUNKS - 1 if alone else 0
    computed = [end for end in reversed(ENDS) if not load_or_compute(reader, end, servers[damaged], left)]
    # All that hangs under damaged attention has gone with it; what hangs under nothing is found one by one.
    assert computed == (list(reversed(ENDS)) if alone else [TOKENS])
    found = named * len(computed)
    # Ranks with parts of other numbers read attention first, and a state may go with it before it is read.
    least = found - (shape == "pairs with heads in common" and model in ("recurrent", "latent"))
    assert least <= status(servers[damaged])["counters"]["discarded"] <= found
    assert status(servers[1 - damaged])["counters"]["discarded"] == 0
    # Of ranks that read an object, the later ones may find it gone.
    corrupt = reported(servers, "corrupt_loads")
    assert least <= corrupt[damaged] <= each * found and corrupt[1 - damaged] == 0
    failed = reported(servers, "failed_loads")
    assert (failed[damaged], failed[1 - damaged]) == (each * found, 0)
    # What was computed instead went to the damaged server only, and all of it.
    stored = grown(reported(servers, "stores"), before)
    assert (stored[damaged], stored[1 - damaged]) == (before[damaged], 0)
    assert objects(servers) == [CHUNKS * KINDS[model]] * 2
    assert hits(start(model, "after", where), 1) == list(ENDS)
    for server in servers:
        # The damaged ones were still read when they were discarded; what ends that looks at them again.
        with contextlib.closing(client(server.socket, "tool")) as tool:
            assert tool.clear()
        end = assert_nothing_held(server)
        assert (end["objects"], end["counters"]["dropped_stores"]) == (0, 0)
    assert reported(servers, "failed_loads") == failed and reported(servers, "dropped_stores") == [0, 0]


def load_or_compute(engine: Engine, end: int, damaged: Server, left: int) -> bool:
    """Loads a promised prefix, or computes it where that failed; whether it was loaded.

    The damaged server is left with so many objects then. Workers tell it what they have found without waiting for it.
    """
    request, key = Request(f"to {end}", end + 1), f"to {end}"
    assert engine.ask(request) == (end, True)
    engine.allocate(request, end, more=1)
    engine.step()
    loaded = not engine.wait(key)
    assert engine.reported == engine.reported | {key: 1}
    if loaded:
        assert engine.holds(request, end)
    else:
        engine.free(key)
        assert status(damaged)["objects"] == left
        assert engine.ask(request) == (0, False)
        engine.allocate(request, 0, more=end)
        for reached in range(64, end + 1, 64):
            engine.step({key: (request, reached)})
    engine.finish(request)
    return loaded
