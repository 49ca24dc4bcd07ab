"""What an engine must not ask for and may: failed loads are reported once, and no block is written that must not be."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import pytest

import fakes
from scripted import FULL_SPECS, Engine, Request, Spared
from server_status import assert_nothing_held, counts, status
from test_engine_requests import HIT, MODELS, NAMED, STATEFUL, STORED, TOKENS, offer, seeded
from test_native import Server

Start = Callable[..., Engine]


def assert_failed_once(server: Server, engine: Engine, request: Request) -> None:
    """Runs the planned load: it fails by the engine's way, once, and the engine computes the request itself."""
    key = request.request_id
    table = engine.tables[key]
    output = engine.step()
    if not engine.loads_between_steps:
        assert output.bad_blocks and 0 not in output.bad_blocks and output.bad_blocks <= set(table[0])
        assert output.done == set()
    else:
        assert engine.wait(key) == {key} and output.bad_blocks == set()
    for _ in range(3):
        output = engine.step()
        assert not (output.done or output.failed or output.bad_blocks)
    assert engine.reported.get(key, 0) == engine.loads_between_steps
    engine.free(key)
    if engine.loads_between_steps:
        assert engine.ask(request) == (0, False), "a failed load is not tried again"
    engine.finish(request)
    assert_nothing_held(server)


@pytest.mark.parametrize("model", MODELS)
def test_more_tokens_than_offered_fail_the_load(server: Server, engines: Start, model: str) -> None:
    engine, request = seeded(engines, model), Request("r", 2 * TOKENS)
    assert engine.ask(request) == (HIT, model != "full")
    engine.allocate(request, 192)
    before = engine.snapshot()
    assert_failed_once(server, engine, request)
    assert engine.changed(before) == {}
    assert (counts(server)["loads"], counts(server)["failed_loads"]) == (0, 1)


@pytest.mark.parametrize("model", MODELS)
def test_tokens_that_were_never_offered_fail_the_load(server: Server, engines: Start, model: str) -> None:
    engine = seeded(engines, model)
    before = engine.snapshot()
    never = Request("never", TOKENS)
    engine.allocate(never, HIT)
    assert_failed_once(server, engine, never)
    assert engine.changed(before) == {} and counts(server)["loads"] == 0


@pytest.mark.parametrize("model", MODELS)
def test_fewer_tokens_than_offered_are_just_those(server: Server, engines: Start, model: str) -> None:
    engine, request = seeded(engines, model), Request("r", TOKENS)
    offer(engine, request, model)
    before = engine.snapshot()
    engine.allocate(request, 128)
    output = engine.step()
    if model != "full":
        assert engine.wait("r") == set()
    assert output.bad_blocks == set()
    assert engine.changed(before) == engine.needed(request, 128) and engine.holds(request, 128)
    engine.finish(request)
    assert_nothing_held(server)
    expected = {"full": 2, "only window": 1, "only state": 1}.get(model, 3)
    assert (counts(server)["loads"], counts(server)["failed_loads"]) == (expected, 0)


@pytest.mark.parametrize("model", sorted(STATEFUL))
def test_fewer_tokens_than_any_state_was_stored_for_fail_the_load(server: Server, engines: Start, model: str) -> None:
    engine, request = seeded(engines, model), Request("r", TOKENS)
    offer(engine, request, model)
    before = engine.snapshot()
    engine.allocate(request, 96)
    assert_failed_once(server, engine, request)
    assert engine.changed(before) == {}


@pytest.mark.parametrize("model", MODELS)
def test_blocks_that_the_engine_has_itself_are_not_written(server: Server, engines: Start, model: str) -> None:
    engine, request = seeded(engines, model), Request("r", TOKENS)
    local = 96
    external = HIT - local
    assert engine.ask(request, local) == (external, model != "full")
    engine.allocate(request, external, local)
    before = engine.snapshot()
    output = engine.step()
    if model != "full":
        assert engine.wait("r") == set()
    assert output.bad_blocks == set()
    assert engine.changed(before) == engine.needed(request, HIT, local)
    engine.finish(request)
    assert_nothing_held(server)


@pytest.mark.parametrize("change", [{"page_size_bytes": 768}, {"block_size": 32, "page_size_bytes": 1024}])
def test_engines_with_other_pages_share_nothing(server: Server, engines: Start, change: dict[str, int]) -> None:
    seeded(engines, "full")
    other, request = engines([fakes.FullAttentionSpec(**{"block_size": 16, **change})], "other"), Request("r", TOKENS)
    before = other.snapshot()
    assert other.ask(request) == (0, False)
    other.allocate(request, 0, more=TOKENS)
    other.step()
    assert other.changed(before) == {}
    other.step({"r": (request, TOKENS)})
    assert status(server)["domains"] == 2 and status(server)["objects"] == 2 * STORED["full"]
    other.finish(request)
    assert_nothing_held(server)


def test_a_page_size_that_changed_since_registration_is_refused_with_both_numbers(
    server: Server, engines: Start
) -> None:
    engine, request = seeded(engines, "full"), Request("r", TOKENS)
    rank = engine.ranks[0]
    rank.kv_config.kv_cache_groups[0].kv_cache_spec.page_size_bytes = 768
    with pytest.raises(ValueError, match="pages of 768 bytes.*of 512"):
        rank.register()
    # Nothing came of it: the engine's old tensors go on being served.
    offer(engine, request, "full")
    engine.allocate(request, HIT)
    assert engine.step().bad_blocks == set() and engine.holds(request, HIT)
    engine.finish(request)
    assert status(server)["domains"] == 1
    assert_nothing_held(server)


@pytest.mark.parametrize("model", MODELS)
def test_memory_that_is_not_what_was_registered_fails_loads_and_stores(
    server: Server, engines: Start, spared: Spared, model: str
) -> None:
    engine, request = seeded(engines, model), Request("r", TOKENS)
    role = engine.ranks[0].connector._worker
    assert role is not None and role._layout is not None
    layout = role._layout
    for group, pages in layout.groups.items():
        layout.groups[group] = [dataclasses.replace(page, page_bytes=page.page_bytes // 2) for page in pages]
    role._client.set_memory(layout.regions, layout.object_layouts(engine.geometry), layout.num_blocks)
    offer(engine, request, model)
    engine.allocate(request, HIT)
    before = engine.snapshot()
    assert_failed_once(server, engine, request)
    assert engine.changed(before) == {}
    assert counts(server)["loads"] == 0 and counts(server)["failed_loads"] == NAMED[model]
    other = Request("other", 64, prompt=2)
    engine.prefill(other)
    assert status(server)["objects"] == STORED[model] and counts(server)["dropped_stores"] > 0
    engine.finish(other)
    assert spared.take("layout is not usable") == 2
    assert_nothing_held(server)


@pytest.mark.parametrize("odd", [[fakes.FullAttentionSpec(16, 768)], [fakes.MLAAttentionSpec(16, 512)]])
def test_a_rank_with_another_shape_keeps_the_cache_off(server: Server, engines: Start, odd: list[object]) -> None:
    engine, request = engines(FULL_SPECS, ranks=2, odd=odd), Request("r", TOKENS)
    assert engine.ask(request) == (0, False)
    engine.allocate(request, 0, more=TOKENS)
    engine.step({"r": (request, TOKENS)})
    engine.finish(request)
    again = Request("again", TOKENS)
    assert engine.ask(again) == (0, False)
    engine.finish(again)
    found = assert_nothing_held(server)
    assert (found["objects"], found["incomplete"], found["counters"]["lookups"]) == (0, 0, 0)
    assert found["reported"]["lookups"] == 0


def test_two_ranks_load_their_own_parts_and_report_together(server: Server, engines: Start) -> None:
    writer = engines(FULL_SPECS, "writer", ranks=2)
    writer.prefill(Request("w", TOKENS))
    engine, request = engines(FULL_SPECS, "reader", ranks=2), Request("r", TOKENS)
    assert engine.ask(request) == (HIT, True)
    before = engine.snapshot()
    engine.allocate(request, HIT)
    engine.step()
    assert engine.wait("r") == set() and engine.reported == {"r": 1}
    assert engine.holds(request, HIT) and engine.changed(before) == engine.needed(request, HIT)
    engine.finish(request)
    assert_nothing_held(server)
    assert counts(server)["loads"] == 2 * STORED["full"]


def test_a_load_that_one_of_two_ranks_cannot_do_fails_as_a_whole(server: Server, engines: Start) -> None:
    engines(FULL_SPECS, "writer", ranks=2).prefill(Request("w", TOKENS))
    engine, request = engines(FULL_SPECS, "reader", ranks=2), Request("r", TOKENS)
    assert engine.ask(request) == (HIT, True)
    role = engine.ranks[1].connector._worker
    assert role is not None
    role._layout = None  # as after a refused registration
    before = engine.snapshot()
    engine.allocate(request, HIT)
    wanted = engine.needed(request, HIT)
    engine.step()
    assert engine.wait("r") == {"r"} and engine.reported == {"r": 1}
    assert engine.ranks[0].changed(before[0]) == wanted
    assert not any(engine.ranks[1].changed(before[1]).values())
    engine.free("r")
    assert engine.ask(request) == (0, False)
    engine.finish(request)
    assert_nothing_held(server)
    # Each rank counts its own: one read all objects, the other none of them.
    assert (counts(server)["loads"], counts(server)["failed_loads"]) == (STORED["full"], STORED["full"])


@pytest.mark.parametrize("model", MODELS)
def test_hooks_answer_whatever_they_are_told(server: Server, engines: Start, model: str) -> None:
    engine = seeded(engines, model)
    before = engine.snapshot()
    scheduler, worker = engine.scheduler, engine.ranks[0].connector
    for tokens, local in ((0, 0), (1, 0), (TOKENS, TOKENS), (TOKENS, 10**6)):
        odd = Request(f"odd {tokens} {local}", tokens)
        assert engine.ask(odd, local) == (0, False)
        engine.finish(odd)
    # Requests that it has never heard of.
    unknown = types.SimpleNamespace(
        finished_recving={"nobody"}, failed_recving={"nobody"}, kv_connector_worker_meta=object()
    )
    scheduler.update_connector_output(unknown)
    assert scheduler.request_finished(Request("nobody", 5), []) == (False, None)
    for external in (0, -16):
        scheduler.update_state_after_alloc(Request("nobody", 5), None, external)
    # A step without block tables, of a request that has none, and with states where none are kept.
    request = Request("r", TOKENS, prompt=2)
    engine.ask(request)
    engine.tables["r"], engine.computed["r"] = [[] for _ in MODELS[model]], 0
    odd_step = types.SimpleNamespace(
        num_scheduled_tokens={"r": TOKENS, "ghost": 3},
        scheduled_spec_decode_tokens={},
        scheduled_new_reqs=[types.SimpleNamespace(req_id=key, num_computed_tokens=0) for key in ("r", "ghost")],
        scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        kv_connector_block_state=None,
    )
    assert scheduler.build_connector_meta(odd_step).plan.stores is None
    stateless = [9, *(at for at, spec in enumerate(MODELS[model]) if not isinstance(spec, fakes.MambaSpec))]
    odd_step.kv_connector_block_state = types.SimpleNamespace(
        get_block_ids=engine.tables.get,
        boundary_state_offloads={"r": [(group, 1, 64) for group in stateless], "ghost": [(0, 1, 64)]},
    )
    # Its tokens are counted, and nothing of them is stored.
    stores = scheduler.build_connector_meta(odd_step).plan.stores
    assert stores is not None and (stores.runs, stores.new_tokens) == ([], TOKENS)
    # A worker without metadata.
    worker.clear_connector_metadata()
    worker.start_load_kv(None)
    worker.wait_for_save()
    assert worker.get_transfer_results({"nobody"}).finished_recving == set()
    assert worker.get_block_ids_with_load_errors() == set()
    assert list(worker.build_connector_worker_meta().report.ranks) == [0], "who it is, once"
    assert worker.build_connector_worker_meta() is None
    assert engine.step().done == set()
    engine.finish(request)
    assert engine.changed(before) == {} and engine.reported == {}
    found = assert_nothing_held(server)
    assert found["objects"] == STORED[model]
