"""Block ids that no engine should name: out of range, or the null block where something is to be read or written.

Nothing is copied to or from there, no other block is touched, a record of several ranks is whole or not there at all, and
what was not stored or loaded is counted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fakes import packed
from kvasir.vllm.meta import block_ids
from ranks import BLOCKS, Rank
from scripted import CHUNKED_SPECS, LATENT_HYBRID_SPECS, WINDOW_SPECS, Engine, Request, Shape, Spared
from server_status import assert_nothing_held, status
from test_engine_bad_input import assert_failed_once
from test_engine_evictions import hits
from test_engine_requests import HIT, MODELS, NAMED, STATEFUL, TOKENS, offer
from test_native import Server

Start = Callable[..., Engine]

GROUPS = [(model, group) for model, specs in MODELS.items() for group in range(len(specs))]
# Four chunks, for stores.
LONG = 4 * 64
ENDS = range(64, LONG + 1, 64)


class Misled:
    """A rank that takes one block for another, as it would if it alone had heard of another id."""

    def __init__(self, rank: Rank, block: int, other: int) -> None:
        self._rank, self._block, self._other = rank, block, other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rank, name)

    def begin(self, metadata: Any, writes: Any, finished: set[str]) -> None:
        """The rank's, with the block replaced in every run."""
        own = copy.deepcopy(metadata)
        lists = [load.runs for load in own.plan.async_loads]
        if own.plan.stores is not None:
            lists.append(own.plan.stores.runs)
        for runs in lists:
            runs[:] = [run._replace(blocks=[self._replaced(ids) for ids in run.blocks]) for run in runs]
        self._rank.begin(own, writes, finished)

    def _replaced(self, ids: bytes) -> bytes:
        return packed(*(self._other if block == self._block else block for block in block_ids(ids)))


def mislead(engine: Engine, ranks: Sequence[int], block: int, other: int) -> None:
    """These ranks take the block for the other one."""
    for rank in ranks:
        engine.ranks[rank] = Misled(engine.ranks[rank], block, other)  # type: ignore[call-overload]


def recover(engine: Engine) -> None:
    """They do so no longer."""
    engine.ranks = [rank._rank if isinstance(rank, Misled) else rank for rank in engine.ranks]


def seeded(start: Start, model: str, ranks: int = 1) -> Engine:
    """An engine that meets a prompt which another one has stored."""
    writer = start(MODELS[model], "writer", ranks=ranks)
    writer.prefill(Request("w", TOKENS), [64, 128, HIT, TOKENS] if model in STATEFUL else [TOKENS])
    return start(MODELS[model], "reader", ranks=ranks)


def of_ranks(server: Server, name: str) -> dict[int, int]:
    """A counter of every rank, over all engines."""
    found: dict[int, int] = {}
    for client in status(server)["clients"]:
        if client["kind"] == "worker" and client["registered"]:
            rank = client["registered"]["rank"]
            found[rank] = found.get(rank, 0) + client["reported"][name]
    return found


# Loads


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("bad", [BLOCKS, 1 << 40, -5])
@pytest.mark.parametrize(("model", "group"), GROUPS)
def test_block_ids_out_of_range_fail_the_load_and_nothing_is_copied(
    server: Server, engines: Start, spared: Spared, model: str, group: int, bad: int, ranks: int
) -> None:
    engine, request = seeded(engines, model, ranks), Request("r", TOKENS)
    offer(engine, request, model)
    engine.allocate(request, HIT, spoil=lambda table: table[group].__setitem__(-1, bad))
    before = engine.snapshot()
    assert_failed_once(server, engine, request)
    assert engine.changed(before) == {}
    assert of_ranks(server, "loads") == dict.fromkeys(range(ranks), 0)
    assert of_ranks(server, "failed_loads") == dict.fromkeys(range(ranks), NAMED[model])
    assert spared.take("outside") == ranks


@pytest.mark.parametrize("bad", [BLOCKS, -5])
@pytest.mark.parametrize("misled", [0, 1])
@pytest.mark.parametrize(("model", "group"), GROUPS)
def test_a_block_id_out_of_range_on_one_rank_fails_the_load_of_all(
    server: Server, engines: Start, spared: Spared, model: str, group: int, misled: int, bad: int
) -> None:
    engine, request = seeded(engines, model, 2), Request("r", TOKENS)
    offer(engine, request, model)
    table = engine.allocate(request, HIT)
    mislead(engine, [misled], table[group][-1], bad)
    before, wanted = engine.snapshot(), engine.needed(request, HIT)
    assert_failed_once(server, engine, request)
    recover(engine)
    other = 1 - misled
    assert not any(engine.ranks[misled].changed(before[misled]).values())
    # What the other has got is as it should be, and the engine uses it no more than the rest.
    changed = {at: blocks for at, blocks in engine.ranks[other].changed(before[other]).items() if blocks}
    assert changed == wanted
    assert of_ranks(server, "loads") == {misled: 0, other: NAMED[model]}
    assert of_ranks(server, "failed_loads") == {misled: NAMED[model], other: 0}
    assert spared.take("outside") == 1
    # Nobody is the worse for it.
    again = Request("again", TOKENS)
    offer(engine, again, model)
    engine.allocate(again, HIT)
    engine.step()
    assert engine.wait("again") == set() and engine.holds(again, HIT)
    engine.finish(again)
    assert_nothing_held(server)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize(("model", "group"), GROUPS)
def test_a_null_block_where_a_load_has_to_write_fails_it_and_stays_as_it_was(
    server: Server, engines: Start, model: str, group: int, at: int, ranks: int
) -> None:
    """The first or the last of those that a resume there sees."""
    engine, request = seeded(engines, model, ranks), Request("r", TOKENS)
    offer(engine, request, model)

    def spoil(table: list[list[int]]) -> None:
        slots = [slot for slot, block in enumerate(table[group]) if block]
        table[group][slots[at]] = 0

    engine.allocate(request, HIT, spoil=spoil)
    before = engine.snapshot()
    assert_failed_once(server, engine, request)
    assert engine.changed(before) == {}
    # Found by the scheduler role, before any object is named.
    assert of_ranks(server, "loads") == dict.fromkeys(range(ranks), 0)
    assert of_ranks(server, "failed_loads") == dict.fromkeys(range(ranks), 1)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("model", "group"), GROUPS)
def test_a_table_that_is_too_short_fails_the_load(
    server: Server, engines: Start, model: str, group: int, ranks: int
) -> None:
    engine, request = seeded(engines, model, ranks), Request("r", TOKENS)
    offer(engine, request, model)
    engine.allocate(request, HIT, spoil=lambda table: table[group].pop())
    before = engine.snapshot()
    assert_failed_once(server, engine, request)
    assert engine.changed(before) == {}
    assert of_ranks(server, "failed_loads") == dict.fromkeys(range(ranks), 1)


# Stores


def begin(engine: Engine) -> tuple[Request, list[list[int]]]:
    """A request that nobody has stored, and its blocks."""
    request = Request("r", LONG)
    assert engine.ask(request) == (0, False)
    return request, engine.allocate(request, 0, more=LONG)


@pytest.mark.parametrize("bad", [BLOCKS, -5])
@pytest.mark.parametrize(("ranks", "misled"), [(1, [0]), (2, [0]), (2, [1]), (2, [0, 1])])
@pytest.mark.parametrize(("model", "group"), GROUPS)
def test_block_ids_out_of_range_store_nothing_and_no_rank_leaves_half_a_record(
    server: Server, engines: Start, spared: Spared, model: str, group: int, ranks: int, misled: list[int], bad: int
) -> None:
    engine = engines(MODELS[model], ranks=ranks)
    request, table = begin(engine)
    kinds = len(engine.geometry.object_groups)
    span = engine.geometry.spans[group][1]
    mislead(engine, misled, table[group][64 // span - 1], bad)
    engine.step({"r": (request, 64)})
    recover(engine)
    found = status(server)
    assert (found["objects"], found["incomplete"]) == (0, 0)
    assert spared.take("outside") == len(misled)
    dropped = {rank: kinds * (rank in misled) for rank in range(ranks)}
    assert of_ranks(server, "dropped_stores") == dropped
    assert of_ranks(server, "stores") == {rank: kinds - lost for rank, lost in dropped.items()}
    # A part that was there already goes with the record; one that comes when it is known to be in vain is not kept.
    assert found["counters"]["ended_incomplete"] == (kinds if misled == [1] else 0)

    for end in ENDS[1:]:
        engine.step({"r": (request, end)})
    engine.finish(request)
    found = assert_nothing_held(server)
    # What hangs under attention has had no parent, so the whole chain has come again, with windows that the engine still
    # held; states are there only where a step ends.
    lost = {"only window": 1, "only state": 1, "recurrent": 2}.get(model, 0)
    assert found["objects"] == found["counters"]["stored"] == 4 * kinds - lost
    assert of_ranks(server, "dropped_stores") == dropped
    reader = engines(MODELS[model], "reader", ranks=ranks)
    expected = {"only window": [0, *ENDS[1:]], "only state": [0, *ENDS[1:]], "recurrent": [0, 0, *ENDS[2:]]}
    assert hits(reader, 1) == expected.get(model, list(ENDS))
    assert_nothing_held(server)


@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("misled", range(4))
@pytest.mark.parametrize("group", [0, 1])
def test_a_bad_block_id_where_ranks_hold_different_parts_leaves_no_half_record(
    server: Server, engines: Start, spared: Spared, group: int, misled: int, last_first: bool
) -> None:
    """Two stages of two ranks: one rank of each stores attention, every one its state, the last two in a call of its own."""
    shape = Shape(ranks=4, pp=2, heads=1)
    engine = engines(LATENT_HYBRID_SPECS, shape=shape)
    stores_attention = misled in (0, 2)
    request, table = begin(engine)
    mislead(engine, [misled], table[group][64 // 32 - 1], BLOCKS)
    if last_first:
        engine.ranks.reverse()
    engine.step({"r": (request, 64)})
    recover(engine)
    if group == 0 and not stores_attention:
        lost = 0  # it never reads these blocks
    elif stores_attention and (misled == 0 or group == 0 or last_first):
        lost = 2  # nothing of the step is kept that may still need a part of this rank
    else:
        lost = 1  # the state; all parts of attention had come
    found = status(server)
    assert (found["objects"], found["incomplete"]) == (2 - lost, 0)
    assert spared.take("outside") == (lost > 0)
    for end in ENDS[1:]:
        engine.step({"r": (request, end)})
    engine.finish(request)
    assert_nothing_held(server)
    # A state without its attention had no parent where the step ended, so the next is lost too.
    reader = engines(LATENT_HYBRID_SPECS, "reader", shape=shape)
    assert hits(reader, 1) == [0] * lost + list(ENDS[lost:])
    assert_nothing_held(server)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("model", "group"), GROUPS)
def test_a_null_block_is_never_stored_as_if_it_held_something(
    server: Server, engines: Start, model: str, group: int, ranks: int
) -> None:
    """Of a window or a state its own end cannot be resumed then; all hangs under full attention, where there is any."""
    engine = engines(MODELS[model], ranks=ranks)
    request, table = begin(engine)
    _, kind, _, span = sorted(engine._members())[group]
    table[group][64 // span - 1] = 0
    for end in ENDS:
        engine.step({"r": (request, end)})
    engine.finish(request)
    found = assert_nothing_held(server)
    kinds = len(engine.geometry.object_groups)
    assert found["objects"] == (0 if kind == "full" else 4 * kinds - 1)
    assert of_ranks(server, "dropped_stores") == dict.fromkeys(range(ranks), 0)
    reader = engines(MODELS[model], "reader", ranks=ranks)
    assert hits(reader, 1) == ([0] * 4 if kind == "full" else [0, *ENDS[1:]])
    assert_nothing_held(server)


@pytest.mark.parametrize(("specs", "slot"), [(WINDOW_SPECS, 2), (WINDOW_SPECS, 3), (CHUNKED_SPECS, 0), (CHUNKED_SPECS, 3)])
def test_null_blocks_are_never_stored_as_if_they_held_something(
    server: Server, engines: Start, specs: Sequence[Any], slot: int
) -> None:
    engine, request = engines(specs), Request("r", 128)
    engine.ask(request)
    table = engine.allocate(request, 0, more=128)
    table[0][0] = 0  # full attention sees it from everywhere
    table[1][slot] = 0  # the window at the first chunk's end, or the piece around it, begins or ends there
    engine.step({"r": (request, 128)})
    # Nothing of the first chunk, and what hangs under it has no parent.
    assert status(server)["objects"] == 0
    engine.finish(request)
    assert_nothing_held(server)


@pytest.mark.parametrize(("specs", "slot"), [(WINDOW_SPECS, 2), (CHUNKED_SPECS, 0)])
def test_a_window_without_its_first_block_is_not_stored(
    server: Server, engines: Start, specs: Sequence[Any], slot: int
) -> None:
    engine, request = engines(specs), Request("r", 64)
    engine.ask(request)
    engine.allocate(request, 0, more=64)[1][slot] = 0
    engine.step({"r": (request, 64)})
    assert status(server)["objects"] == 1, "full attention's, and nothing else"
    again = Request("again", 65)
    assert engine.ask(again)[0] == 0
    engine.finish(request)
    engine.finish(again)
    assert_nothing_held(server)
