"""The scheduler role under a scripted engine: pins, promises, failures, and requests that end at any stage."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest

from fakes import Client, Hit, Request, full, key, may_exist, objects, windowed
from kvasir.vllm.geometry import Geometry
from kvasir.vllm.meta import RankReport, StepPlan, StepReport
from kvasir.vllm.notes import Notes
from kvasir.vllm.scheduler import RESETS_MAX, Scheduled, SchedulerRole
from kvasir.vllm.settings import Settings

DOMAIN: dict[str, str | bytes] = {
    "model": "m", "weights_id": b"w", "kv_dtype": "bfloat16", "fingerprint": bytes(32), "parallel_shape": "tp=1",
}  # fmt: skip
TABLE = [list(range(1, 12))]


class Engine:
    """A scheduler role, the client below it, and the steps of an engine above it."""

    def __init__(self, geometry: Geometry | None = None, serves: bool = True, **settings: Any) -> None:
        self.client = Client()
        self.client.answers = [Hit()]
        notes = Notes(logging.getLogger("test"), "scheduler")
        self.role = SchedulerRole(
            geometry or full(), Settings(("none",), **settings), self.client, serves, 16, notes
        )
        self.role.set_ranks({(0, 0): RankReport(0, DOMAIN)})

    def answer(self, *hits: Hit | None) -> None:
        self.client.answers = list(hits)

    def plan(self, *steps: Scheduled, tables: dict[str, Any] | None = None, handed: Any = None) -> StepPlan:
        return self.role.build_plan(steps, (tables or {}).get, handed or {})

    def output(self, finished: Iterable[str] = (), failed: Iterable[str] = (), orphaned: Iterable[str] = ()) -> None:
        self.role.on_output(finished, failed, StepReport(set(orphaned)) if orphaned else None)


def hit(tokens: int, groups: int = 1) -> Hit:
    """A hit of full chunks of 64 and one tail, in group 0."""
    objects = [(key(chunk), 0, chunk, min(64, tokens - chunk * 64)) for chunk in range(-(-tokens // 64))]
    return Hit(tokens, 0, objects, [tokens] * groups)


def request(tokens: int = 170, name: str = "r", **fields: Any) -> Request:
    return Request(name, range(tokens), **fields)


def test_a_synchronous_hit_is_loaded_and_its_pin_held_until_the_step_is_over() -> None:
    engine, one = Engine(), request()
    engine.answer(hit(160))
    assert engine.role.matched(one, 32) == (128, False)
    engine.role.allocated(one, TABLE, 128)
    plan = engine.plan(Scheduled("r", 160, 170, True), tables={"r": TABLE})
    (load,) = plan.sync_loads
    assert not load.broken and not plan.async_loads
    assert load.blocks == [] and load.runs[0].blocks_of([0, 1]) | load.runs[1].blocks_of([0]) == set(range(3, 11))
    assert objects(load.runs)[0][3] == [[0, 0, 3, 4]]
    engine.output()
    assert engine.client.pinned
    engine.plan()
    assert not engine.client.pinned


def test_pins_outlast_every_step_that_may_be_under_way() -> None:
    engine, one = Engine(), request()
    engine.role._steps_under_way = 2
    engine.answer(hit(160))
    engine.role.matched(one, 0)
    engine.role.allocated(one, TABLE, 160)
    engine.plan()
    engine.plan()
    assert engine.client.pinned
    engine.plan()
    assert not engine.client.pinned


def test_other_models_load_between_steps_and_hold_the_pin_until_all_ranks_have_reported() -> None:
    engine, one = Engine(windowed(32)), request()
    table = [TABLE[0], [0] * 7 + [21, 22, 23, 24], [0] * 7 + [31, 32, 33, 34]]
    answer = hit(128, groups=2)
    answer.objects.append((key(1), 1, 1, 64))
    table[1][6], table[2][6] = 20, 30
    engine.answer(answer)
    assert engine.role.matched(one, 0) == (128, True)
    engine.role.allocated(one, table, 128)
    plan = engine.plan()
    assert [load.broken for load in plan.async_loads] == [False] and not plan.sync_loads
    engine.output()
    assert engine.client.pinned
    engine.output(finished=["r"])
    assert not engine.client.pinned


def test_an_offer_that_is_not_taken_up_leaves_no_pin() -> None:
    engine, one = Engine(), request()
    engine.answer(hit(160))
    for _ in range(3):
        assert engine.role.matched(one, 0) == (160, False)
        assert len(engine.client.pinned) == 1
        engine.plan()
        assert not engine.client.pinned
    assert len(engine.client.asked) == 3, "an answer of the server must not outlive the pass it was given in"


def test_asking_twice_in_a_pass_keeps_one_pin() -> None:
    engine, one = Engine(), request()
    engine.answer(hit(160))
    engine.role.matched(one, 0)
    engine.role.matched(one, 0)
    assert len(engine.client.pinned) == 1


def test_a_hit_leaves_a_token_to_compute() -> None:
    engine, one = Engine(), request(160)
    engine.answer(hit(144))
    assert engine.role.matched(one, 0) == (144, False)
    assert engine.client.asked[0]["cap"] == 144


@pytest.mark.parametrize("tokens", [168, 176])
def test_an_answer_off_the_boundary_or_beyond_the_cap_is_no_hit(tokens: int) -> None:
    engine, one = Engine(), request()
    engine.answer(hit(tokens))
    assert engine.role.matched(one, 0) == (0, False)
    assert not engine.client.pinned


def test_what_the_engine_has_itself_is_no_hit() -> None:
    engine, one = Engine(), request()
    engine.answer(hit(64))
    assert engine.role.matched(one, 64) == (0, False)
    assert not engine.client.pinned


def test_an_unanswered_lookup_defers_the_request_and_is_sent_once() -> None:
    engine, one = Engine(), request()
    engine.answer(None, None, hit(160))
    assert engine.role.matched(one, 0) == (None, False)
    engine.plan()
    assert engine.role.matched(one, 0) == (None, False)
    engine.plan()
    assert engine.role.matched(one, 0) == (160, False)
    assert len(engine.client.asked) == 1


def test_a_prompt_is_asked_about_whole_and_in_steps_of_the_alignment() -> None:
    engine, one = Engine(), request(170)
    engine.answer(hit(96))
    assert engine.role.matched(one, 0) == (96, False)
    assert engine.client.asked == [{"tokens": 170, "step": 16, "cap": 160, "local": 0, "pin": True}]
    engine.plan()
    assert engine.role.matched(one, 0) == (96, False)
    assert len(engine.client.asked) == 2


def test_a_prompt_that_is_not_there_is_asked_about_once() -> None:
    engine = Engine()
    engine.answer(Hit(present_tokens=[0]))
    assert engine.role.matched(request(), 0) == (0, False)
    assert len(engine.client.asked) == 1


def test_a_prompt_of_whole_chunks_may_hit_inside_its_last_one() -> None:
    engine, one = Engine(), request(128)
    engine.answer(hit(112))
    assert engine.role.matched(one, 0) == (112, False)
    assert (engine.client.asked[0]["tokens"], engine.client.asked[0]["cap"]) == (128, 112)


def test_all_offers_of_a_pass_are_released_at_once() -> None:
    engine = Engine()
    engine.answer(hit(160))
    released = []
    release = engine.client.release
    engine.client.release = lambda pins: (released.append(list(pins)), release(pins))  # type: ignore[method-assign, func-returns-value]
    for name in "abc":
        engine.role.matched(request(name=name), 0)
    engine.plan()
    assert [len(pins) for pins in released] == [3] and not engine.client.pinned


def test_more_tokens_than_offered_is_a_failed_load() -> None:
    engine, one = Engine(), request()
    engine.answer(hit(64))
    engine.role.matched(one, 0)
    engine.role.allocated(one, TABLE, 128)
    (load,) = engine.plan().sync_loads
    assert load.broken and load.blocks == list(range(1, 9))
    assert not engine.client.pinned


def test_fewer_tokens_than_offered_load_just_those() -> None:
    engine, one = Engine(), request()
    engine.answer(hit(160))
    engine.role.matched(one, 0)
    engine.role.allocated(one, TABLE, 96)
    (load,) = engine.plan().sync_loads
    assert not load.broken
    assert [block for item in objects(load.runs) for block in item[3][0]] == [*range(1, 7), 0, 0]


def test_fewer_tokens_of_several_groups_are_asked_for_again() -> None:
    engine, one = Engine(windowed(32)), request()
    offered = hit(128, groups=2)
    offered.objects.append((key(1), 1, 1, 64))
    shorter = hit(64, groups=2)
    shorter.objects.append((key(0), 1, 0, 64))
    table = [TABLE[0], [0, 0, 13, 14], [0, 0, 23, 24]]
    engine.answer(offered, shorter)
    engine.role.matched(one, 0)
    engine.role.allocated(one, table, 64)
    (load,) = engine.plan().async_loads
    assert not load.broken and objects(load.runs)[-1][:3] == (key(0), 1, 64)
    assert len(engine.client.pinned) == 1


def test_a_load_is_reported_even_if_its_plan_fails() -> None:
    engine, one = Engine(windowed(32)), request()
    engine.answer(hit(128, groups=2))  # names no window object
    engine.role.matched(one, 0)
    engine.role.allocated(one, [TABLE[0], [1] * 8, [2] * 8], 128)
    (load,) = engine.plan().async_loads
    assert load.broken
    engine.output(finished=["r"], failed=["r"])
    assert not engine.client.pinned
    assert engine.role.matched(one, 0) == (0, False), "a failed request is computed by the engine"


@pytest.mark.parametrize("stage", ["waiting", "offered", "loading", "running"])
def test_a_request_may_end_at_any_stage(stage: str) -> None:
    engine, one = Engine(windowed(32)), request()
    answer = hit(128, groups=2)
    answer.objects.append((key(1), 1, 1, 64))
    table = [TABLE[0], [0] * 6 + [1, 2, 3, 4, 5], [0] * 6 + [1, 2, 3, 4, 5]]
    engine.answer(None if stage == "waiting" else answer)
    engine.role.matched(one, 0)
    if stage in ("loading", "running"):
        engine.role.allocated(one, table, 128)
        engine.plan()
    if stage == "running":
        engine.output(finished=["r"])
    engine.role.finished("r")
    engine.plan()
    engine.output(finished=["r"])  # the load of an aborted request is still reported
    assert not engine.client.pinned and engine.client.ended == [1]
    engine.role.finished("r")
    assert engine.client.ended == [1]


def test_a_lost_chain_is_stored_again_from_what_the_server_has_and_not_for_ever() -> None:
    engine, one = Engine(), request(130)
    tables = {"r": [list(range(1, 40))]}
    engine.role.matched(one, 0)
    stores = engine.plan(Scheduled("r", 0, 130, True), tables=tables).stores
    assert stores is not None and [item[3] for item in objects(stores.runs)] == [64, 64]
    for _ in range(RESETS_MAX + 2):
        engine.output(orphaned=["r"])
        engine.answer(hit(64))
        again = engine.plan(Scheduled("r", 130, 131, True), tables=tables).stores
        if again is not None:
            assert [item[0] for item in objects(again.runs)] == [objects(stores.runs)[1][0]]
    assert engine.client.asked[-1]["pin"] is False
    assert engine.role._states["r"].resets == RESETS_MAX


def test_nothing_is_served_or_stored_before_the_ranks_agree() -> None:
    engine = Engine()
    engine.role._domain, engine.role._planner = None, None
    one = request()
    engine.answer(hit(160))
    assert engine.role.matched(one, 0) == (0, False)
    assert engine.plan(Scheduled("r", 0, 170, True), tables={"r": TABLE}).stores is None
    engine.role.set_ranks({(0, 0): RankReport(0, DOMAIN), (0, 1): RankReport(1, DOMAIN | {"fingerprint": b"x"})})
    assert engine.role.matched(one, 0) == (0, False)
    engine.role.set_ranks({(0, 0): RankReport(0, DOMAIN), (0, 1): RankReport(1, None, "no identity")})
    assert engine.role.matched(one, 0) == (0, False)
    engine.role.set_ranks({(0, 0): RankReport(0, DOMAIN), (0, 1): RankReport(1, dict(DOMAIN))})
    assert engine.role.matched(one, 0) == (160, False)


def test_a_chunk_size_that_comes_late_is_checked_then() -> None:
    engine = Engine()
    engine.role._planner, engine.client.chunk_size = None, None
    assert engine.role.matched(request(), 0) == (0, False)
    engine.client.chunk_size = 72  # no multiple of a block of 16 tokens
    assert engine.role.matched(request(), 0) == (0, False)
    assert not engine.client.asked
    engine.client.chunk_size = 64
    assert engine.role.matched(request(), 0) == (0, False), "what was refused stays refused"


def test_without_a_server_there_are_no_hits_and_no_plans(caplog: pytest.LogCaptureFixture) -> None:
    engine, one = Engine(), request()
    engine.client.healthy = False
    for _ in range(3):
        assert engine.role.matched(one, 0) == (0, False)
    assert engine.plan(Scheduled("r", 0, 170, True), tables={"r": TABLE}).stores is None
    engine.client.healthy = True
    engine.answer(hit(160))
    assert engine.role.matched(one, 0) == (160, False)
    said = [record.message for record in caplog.records if "the server at" in record.message]
    assert ["away" in line for line in said] == [True, False]


def test_the_wrong_failure_policy_stores_and_loads_nothing() -> None:
    engine, one = Engine(serves=False), request()
    engine.answer(hit(64))
    assert engine.role.matched(one, 0) == (0, False)
    stores = engine.plan(Scheduled("r", 0, 170, True), tables={"r": TABLE}).stores
    assert stores is not None and [item[3] for item in objects(stores.runs)] == [64, 32], "the first chunk is there already"


def test_a_consumer_plans_no_stores_and_asks_for_nothing_but_loads() -> None:
    engine, one = Engine(stores=False), request()
    engine.answer(hit(64))
    assert engine.role.matched(one, 0) == (64, False)
    assert engine.plan(Scheduled("r", 64, 170, True), tables={"r": TABLE}).stores is None
    engine = Engine(serves=False, stores=False)
    engine.answer(hit(64))
    assert engine.role.matched(one, 0) == (0, False)
    assert engine.plan(Scheduled("r", 0, 170, True), tables={"r": TABLE}).stores is None
    assert not engine.client.asked


@pytest.mark.parametrize("how", ["no_load", "policy", "local", "skips reading", "loads"])
def test_windows_below_a_hit_that_is_not_loaded_are_offered(how: str) -> None:
    engine = Engine(windowed(32), serves=how != "policy")
    fields: dict[str, dict[str, Any]] = {
        "no_load": {"kv_transfer_params": {"no_load": True}}, "skips reading": {"skip_reading_prefix_cache": True},
    }  # fmt: skip
    one = request(192, **fields.get(how, {}))
    answer = Hit(128, 0, [*hit(128).objects, (key(1), 1, 1, 64)], [128, 0])
    engine.answer(answer)
    local = 128 if how == "local" else 0
    assert engine.role.matched(one, local) == ((128, True) if how == "loads" else (0, False))
    blocks = list(range(1, 13))
    table = [blocks, *[[0] * 6 + blocks[6:] if how in ("local", "loads") else blocks] * 2]
    if how == "loads":
        engine.role.allocated(one, table, 128)
        engine.plan()
        engine.output(finished=["r"])
    stores = engine.plan(Scheduled("r", 128, 192, True), tables={"r": table}).stores
    chain = engine.role._states["r"].chain
    assert stores is not None and chain is not None
    windows = {"local": [1, 2], "loads": [2]}.get(how, [0, 1, 2])
    assert [item[0] for item in objects(stores.runs) if item[2] == 1] == [chain.chunk_key(chunk) for chunk in windows]
    assert [item[0] for item in objects(stores.runs) if item[2] == 0] == [chain.chunk_key(2)]
    assert may_exist(stores) == [(chain.chunk_key(chunk), 1) for chunk in windows[:-1]]


def test_an_error_while_planning_stores_keeps_the_loads() -> None:
    engine, one = Engine(), request()
    engine.answer(hit(160))
    engine.role.matched(one, 0)
    engine.role.allocated(one, TABLE, 160)
    plan = engine.plan(Scheduled("r", 160, 170, True), tables={"r": [None]})
    assert len(plan.sync_loads) == 1 and plan.stores is not None and plan.stores.runs == []


def test_reset_empties_the_server_and_forgets_what_was_there() -> None:
    engine, one = Engine(), request()
    engine.answer(hit(160))
    engine.role.matched(one, 160)
    before = engine.plan()
    assert engine.role.reset() and engine.client.cleared == 1
    after = engine.plan(Scheduled("r", 160, 170, True), tables={"r": TABLE})
    assert after.stores is None, "blocks of the old weights are not stored"
    assert before.epoch == b"" and len(after.epoch) == 16

    # The same prompt has other keys now, and everything of it is stored.
    again = request(name="again")
    engine.answer(hit(0))
    engine.role.matched(again, 0)
    stores = engine.plan(Scheduled("again", 0, 170, True), tables={"again": TABLE}).stores
    assert stores is not None and [item[3] for item in objects(stores.runs)] == [64, 64, 32]
    fresh = Engine()
    other = request(name="other")
    fresh.answer(hit(0))
    fresh.role.matched(other, 0)
    unchanged = fresh.plan(Scheduled("other", 0, 170, True), tables={"other": TABLE}).stores
    assert unchanged is not None and {item[0] for item in objects(stores.runs)}.isdisjoint(
        item[0] for item in objects(unchanged.runs)
    )


def test_an_operator_who_names_the_weights_keeps_the_keys() -> None:
    engine = Engine(weights_id="release-7")
    assert engine.role.reset() and engine.plan().epoch == b""
