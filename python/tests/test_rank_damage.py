"""Parts that one of two ranks finds damaged: the request is rejected once on both, and nobody is promised them again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from fakes import objects
from kvasir import _native
from rank_processes import RankProcess
from ranks import Rank
from scripted import Engine, Request
from server_status import assert_nothing_held, counts, status
from test_engine_requests import HIT, MODELS, NAMED, STORED, TOKENS
from test_native import Server, client, eventually

Start = Callable[..., Engine]

# Models in which everything hangs under full attention, and where the steps of their prefill end.
STEPS = {"full": [TOKENS], "window": [TOKENS], "chunked": [TOKENS], "recurrent": [64, 128, HIT, TOKENS]}
# A hit that ends before the last object of full attention begins.
SOUND = 128


def seeded(engines: Start, model: str) -> tuple[Engine, Engine]:
    """An engine of two ranks that has stored a prompt; and one that meets it, with ranks in processes of their own."""
    writer = engines(MODELS[model], "writer", ranks=2)
    writer.prefill(Request("w", TOKENS), STEPS[model])
    return writer, engines(MODELS[model], "reader", ranks=2, rank_type=RankProcess)


def damage(server: Server, rank: Rank, places: Iterable[tuple[int, int]]) -> int:
    """Flips a bit of this rank's parts that begin with one of these (KV cache group, place in the prompt)."""
    starts = [page.tobytes() for group, place in places for page in rank.pattern(1, group, place)]
    return _native.testing_corrupt_pool(server.socket, starts=starts)


def places(engine: Engine, groups: Iterable[int], first_token: int = 0) -> list[tuple[int, int]]:
    """Every (KV cache group, place in the prompt) from a token on."""
    spans = dict(engine.geometry.spans)
    return [(group, place) for group in groups for place in range(first_token // spans[group], TOKENS // spans[group])]


def of_rank(server: Server, rank: int) -> tuple[int, ...]:
    """What workers of a rank have reported: loads, failed loads, and among those the corrupt and the stale ones."""
    workers = [client for client in status(server)["clients"] if client["kind"] == "worker"]
    own = [client["reported"] for client in workers if client["registered"]["rank"] == rank and client["reported"]]
    names = ("loads", "failed_loads", "corrupt_loads", "stale_loads")
    return tuple(sum(reported[name] for reported in own) for name in names)


def discarded(server: Server) -> int:
    return status(server)["counters"]["discarded"]


def lead(engine: Engine, first: int, holds: Callable[[], bool]) -> None:
    """In the steps to come a rank goes ahead, and the other one follows once this holds."""
    engine.ranks.sort(key=lambda rank: rank.number != first)
    follower = engine.ranks[-1]
    begin = follower.begin

    def late(*arguments: Any) -> None:
        eventually("the other rank's load", holds)
        begin(*arguments)

    follower.begin = late  # type: ignore[method-assign]


def assert_written(rank: Any, before: Any, wanted: dict[int, set[int]], whole: bool) -> None:
    """No block outside the load's has other bytes; with `whole`, all of the load's have."""
    changed = {group: blocks for group, blocks in rank.changed(before).items() if blocks}
    assert all(blocks <= wanted.get(group, set()) for group, blocks in changed.items())
    assert not whole or changed == wanted


def compute(engine: Engine, request: Request, model: str) -> None:
    """The request after its rejection: asked again it gets nothing, and the engine computes it to its end."""
    engine.free(request.request_id)
    assert engine.ask(request) == (0, False), "a failed load is not tried again"
    engine.allocate(request, 0, more=TOKENS + 64)
    for end in STEPS[model]:
        assert engine.step({request.request_id: (request, end)}).done == set()
    engine.finish(request)


def load(engine: Engine, request: Request, hit: int) -> None:
    """A hit of that length, loaded with the right bytes."""
    assert engine.ask(request) == (hit, True)
    engine.allocate(request, hit, more=64)
    engine.step()
    assert engine.wait(request.request_id) == set()
    assert engine.holds(request, hit)
    engine.finish(request)


def assert_all_goes(server: Server, limbo: int) -> None:
    """Nothing is held, and when space is needed the damaged objects' comes back too."""
    assert_nothing_held(server, limbo)
    with contextlib.closing(client(server.socket, "tool")) as tool:
        assert tool.clear()
    found = assert_nothing_held(server)
    assert (found["objects"], found["pool"]["used"]) == (0, 0)


@pytest.mark.parametrize("ahead", ["the damaged", "the sound"])
@pytest.mark.parametrize("damaged", [0, 1])
@pytest.mark.parametrize("model", STEPS)
def test_parts_of_one_rank_are_damaged(
    server: Server, engines: Start, model: str, damaged: int, ahead: str
) -> None:
    writer, engine = seeded(engines, model)
    groups = range(len(MODELS[model]))
    assert damage(server, writer.ranks[damaged], places(writer, groups)) == STORED[model]
    named, sound = NAMED[model], 1 - damaged
    first = damaged if ahead == "the damaged" else sound

    def first_is_done() -> bool:
        # What it found damaged is gone when the other one looks for it.
        return sum(of_rank(server, first)[:2]) >= named and discarded(server) >= named * (first == damaged)

    lead(engine, first, first_is_done)
    request = Request("r", TOKENS)
    assert engine.ask(request) == (HIT, True), "nobody has read them yet"
    engine.allocate(request, HIT, more=64)
    wanted, before = engine.needed(request, HIT), engine.snapshot()
    engine.step()
    assert engine.wait("r") == {"r"}

    ranks = {rank.number: (rank, memory) for rank, memory in zip(engine.ranks, before)}
    assert_written(*ranks[damaged], wanted, whole=False)
    assert_written(*ranks[sound], wanted if first == sound else {}, whole=True)
    assert of_rank(server, damaged) == (0, named, named, 0)
    assert of_rank(server, sound) == ((named, 0, 0, 0) if first == sound else (0, named, 0, 0))
    assert (discarded(server), status(server)["objects"]) == (named, 0)

    compute(engine, request, model)
    assert engine.reported == {"r": 1}
    found = assert_nothing_held(server, limbo=named)
    assert (found["objects"], discarded(server)) == (STORED[model], named)
    reported = counts(server)
    assert (reported["stores"], reported["dropped_stores"]) == (2 * 2 * STORED[model], 0)
    assert found["counters"]["stored"] == 2 * STORED[model]

    load(engine, Request("again", TOKENS), HIT)
    assert of_rank(server, damaged) == (named, named, named, 0)
    assert discarded(server) == named
    assert_all_goes(server, limbo=named)


@pytest.mark.parametrize("local", [0, 96])
@pytest.mark.parametrize("model", STEPS)
def test_what_lies_before_a_damaged_part_is_served_on(
    server: Server, engines: Start, model: str, local: int
) -> None:
    """And the blocks that the engine kept itself, with `local` tokens, are as they were."""
    writer, engine = seeded(engines, model)
    assert damage(server, writer.ranks[1], places(writer, [0], SOUND)) == 1
    request = Request("r", TOKENS)
    assert engine.ask(request, local) == (HIT - local, True)
    engine.allocate(request, HIT - local, local, more=64)
    wanted, plan, before = engine.needed(request, HIT, local), engine.plan(), engine.snapshot()
    (planned,) = plan.plan.async_loads
    named = len(objects(planned.runs))
    lead(engine, 0, lambda: sum(of_rank(server, 0)[:2]) >= named)
    engine.run(plan)
    assert engine.wait("r") == {"r"}
    for rank, memory in zip(engine.ranks, before):
        assert_written(rank, memory, wanted, whole=rank.number == 0)
    assert (of_rank(server, 0), of_rank(server, 1)) == ((named, 0, 0, 0), (named - 1, 1, 1, 0))
    assert discarded(server) == 1
    engine.free("r")
    assert engine.ask(request, local) == (0, False)
    engine.finish(request)
    # With it went what hung under it.
    gone = len(MODELS[model])
    assert assert_nothing_held(server, limbo=gone)["objects"] == STORED[model] - gone

    load(engine, other := Request("other", TOKENS), SOUND)
    assert engine.reported == {"r": 1, other.request_id: 1}
    assert of_rank(server, 0)[1:] == (0, 0, 0) and of_rank(server, 1)[1:] == (1, 1, 0)
    assert discarded(server) == 1
    assert_all_goes(server, limbo=gone)
