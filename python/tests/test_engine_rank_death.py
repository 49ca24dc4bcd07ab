"""Ranks in processes of their own that are killed, with models whose objects hang under nothing or hold several groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rank_processes import RankGone, RankProcess
from scripted import Engine, Request, Shape
from server_status import assert_nothing_held, counts, status
from test_engine_evictions import hits
from test_engine_requests import MODELS
from test_native import Server, eventually

TOKENS = 4 * 64
ENDS = range(64, TOKENS + 1, 64)
SHAPES = {"tensor parallel": Shape(ranks=2), "pipeline": Shape(ranks=2, pp=2)}


@pytest.mark.parametrize("killed_first", [False, True])
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("model", ["only window", "only state", "paired"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_killed_rank_leaves_no_half_record(
    server: Server, engines: Callable[..., Engine], shape: str, model: str, victim: int, killed_first: bool
) -> None:
    """Before or after the other has stored its part of the second chunk."""
    engine = engines(MODELS[model], "engine", shape=SHAPES[shape], rank_type=RankProcess)
    kinds, request = len(engine.geometry.object_groups), Request("r", TOKENS)
    assert engine.ask(request) == (0, False)
    engine.allocate(request, 0, more=TOKENS)
    engine.step({"r": (request, 64)})
    assert status(server)["objects"] == kinds
    reader = engines(MODELS[model], "reader", shape=SHAPES[shape])
    assert hits(reader, 1) == [64] * 4

    metadata, writes = engine.plan({"r": (request, 128)}), engine._writes(request, 64, 128)
    dying, survivor = engine.ranks[victim], engine.ranks[1 - victim]
    if killed_first:
        dying.kill()
    survivor.begin(metadata, writes, set())
    survivor.end()
    if not killed_first:
        assert status(server)["incomplete"] == kinds
        dying.kill()
        eventually("the end of the incomplete objects", lambda: status(server)["incomplete"] == 0)
    with pytest.raises(RankGone):
        dying.begin(metadata, writes, set())
        dying.end()
    # A part without its others is never served, and goes with its engine at the latest.
    assert hits(reader, 1) == [64] * 4
    engine.finish(request)
    engine.close()
    eventually("the end of the incomplete objects", lambda: status(server)["incomplete"] == 0)
    assert assert_nothing_held(server)["objects"] == kinds

    # Another engine stores what is missing, and nothing else.
    anew, again = engines(MODELS[model], "anew", shape=SHAPES[shape]), Request("again", TOKENS)
    before = counts(server)["stores"]
    assert anew.ask(again) == (64, True)
    anew.allocate(again, 64, more=TOKENS)
    anew.step()
    assert anew.wait("again") == set() and anew.holds(again, 64)
    anew.tell(again, 0)
    for end in ENDS[1:]:
        anew.step({"again": (again, end)})
    anew.finish(again)
    assert counts(server)["stores"] - before == 2 * 3 * kinds
    assert hits(reader, 1) == list(ENDS)
    assert assert_nothing_held(server)["objects"] == 4 * kinds
    assert counts(server)["failed_loads"] == counts(server)["dropped_stores"] == 0
