"""The worker role on real memory: every load is reported once, failures by the model's way."""

from __future__ import annotations

import ctypes
import logging
import time

import pytest

from fakes import Client, full, hybrid, key, objects, packed, windowed
from kvasir import KvasirError
from kvasir.vllm.geometry import Geometry
from kvasir.vllm.layout import Layout, Page
from kvasir.vllm.meta import Load, LoadRun, StepPlan, StoreRun, Stores
from kvasir.vllm.notes import Notes
from kvasir.vllm.worker import Part, Rank, Results, WorkerRole

PAGE = 256
BLOCKS = 8


class Worker:
    """A worker role with one region of memory."""

    def __init__(self, geometry: Geometry, *parts: Part) -> None:
        """`parts`: by object group; the only one of each if there are none."""
        self.memory = ctypes.create_string_buffer(b"\1" * (PAGE * BLOCKS), PAGE * BLOCKS)
        self.client = Client()
        self.client.set_memory = lambda *args: None  # type: ignore[attr-defined]
        self.registered: list[bytes] = []
        self.refusal: KvasirError | None = None
        self.client.register = self.register  # type: ignore[attr-defined]
        notes = Notes(logging.getLogger("test"), "worker")
        rank = Rank(0, 1, parts or (Part(0, 1, True),) * len(geometry.object_groups))
        self.role = WorkerRole(geometry, self.client, rank, notes)  # type: ignore[arg-type]
        groups = {member: [Page(0, 0, PAGE, PAGE)] for group in geometry.object_groups for member in group.kv_groups}
        layout = Layout([(ctypes.addressof(self.memory), len(self.memory))], BLOCKS, groups, {})
        self.role.register({}, layout, {"weights_id": b"w"})

    def register(self, domain: dict[str, bytes], *_rest: object) -> bytes:
        if self.refusal is not None:
            raise self.refusal
        self.registered.append(domain["weights_id"])
        return b""

    def wait(self, count: int) -> Results:
        """Results of `count` requests; the test's own watchdog ends a wait that never does."""
        done: set[str] = set()
        failed: set[str] = set()
        while len(done) < count:
            results = self.role.take_results()
            assert not done & results.done, "reported twice"
            done |= results.done
            failed |= results.failed
            time.sleep(0.001)
        return Results(done, failed)


ITEM = LoadRun(key("k"), 0, 64, [packed(1, 2, 0, 3)])


def stored(name: str, block: int, parent: str | None = None) -> StoreRun:
    return StoreRun(key(name), key(parent) if parent else None, 0, 64, [packed(block)])


def test_a_synchronous_load_that_went_well_reports_nothing() -> None:
    worker = Worker(full())
    worker.role.start_loads(StepPlan(sync_loads=[Load("r", 1, [ITEM], blocks=[1, 2, 3])]))
    assert worker.role.take_bad_blocks() == set() and worker.client.loaded == [objects([ITEM])]


def test_a_failed_item_reports_its_blocks_and_no_null_block() -> None:
    worker = Worker(full())
    worker.client.load_answer = [[True], [False]]
    other = LoadRun(key("l"), 0, 64, [packed(4, 0, 5)])
    worker.role.start_loads(StepPlan(sync_loads=[Load("r", 1, [ITEM, other], blocks=[1, 2, 3, 4, 5])]))
    assert worker.role.take_bad_blocks() == {4, 5}
    assert worker.role.take_bad_blocks() == set()


def test_a_failed_object_of_a_run_reports_no_block_of_its_neighbours() -> None:
    worker = Worker(windowed())
    run = LoadRun(key("a") + key("b") + key("c"), 1, 64, [packed(0, 1, 2, 3, 4, 5), packed(0, 0, 6, 0, 7, 1)])
    worker.client.load_answer = [[True, False, True]]
    worker.role.start_loads(StepPlan(sync_loads=[Load("r", 1, [run])]))
    assert worker.role.take_bad_blocks() == {2, 3, 6}
    worker.client.load_answer = RuntimeError("no")
    worker.role.start_loads(StepPlan(sync_loads=[Load("r", 1, [run])]))
    assert worker.role.take_bad_blocks() == {1, 2, 3, 4, 5, 6, 7}


@pytest.mark.parametrize("cause", ["broken", "exception"])
def test_a_synchronous_load_without_a_result_reports_every_block(cause: str) -> None:
    worker = Worker(full())
    if cause == "exception":
        worker.client.load_answer = RuntimeError("no")
    load = Load("r", 1, [ITEM] if cause == "exception" else [], broken=cause == "broken", blocks=[1, 2, 3, 6])
    worker.role.start_loads(StepPlan(sync_loads=[load]))
    assert worker.role.take_bad_blocks() == {1, 2, 3, 6}


def test_the_null_block_is_never_reported() -> None:
    worker = Worker(full())
    worker.client.load_answer = RuntimeError("no")
    worker.role.start_loads(StepPlan(sync_loads=[Load("r", 1, [ITEM])]))
    assert worker.role.take_bad_blocks() == {1, 2, 3}


def test_asynchronous_loads_are_reported_once_each_with_their_failures() -> None:
    worker = Worker(windowed())
    loads = [Load("good", 1, [ITEM]), Load("broken", 2, [], broken=True)]
    worker.role.start_loads(StepPlan(async_loads=loads))
    results = worker.wait(2)
    assert results.done == {"good", "broken"} and results.failed == {"broken"}
    worker.client.load_answer = RuntimeError("no")
    worker.role.start_loads(StepPlan(async_loads=[Load("raised", 3, [ITEM])]))
    assert worker.wait(1).failed == {"raised"}
    assert worker.role.take_bad_blocks() == set(), "block ids would kill an engine with several groups"


def test_stores_go_out_as_one_message_and_orphans_come_back() -> None:
    worker = Worker(full())
    run = StoreRun(key("b") + key("c"), key("a"), 0, 64, [packed(2, 3)])
    stores = Stores([stored("a", 1), run], ["r", "s"])
    worker.client.outcomes = [["published"], ["exists", "no_parent"]]
    worker.role.save(stores)
    assert worker.client.stored == [[
        (key("a"), None, 0, 64, [[1]]), (key("b"), key("a"), 0, 64, [[2]]), (key("c"), key("b"), 0, 64, [[3]]),
    ]]  # fmt: skip
    report = worker.role.take_report()
    assert report is not None and report.orphaned == {"s"}
    assert worker.role.take_report() is None


def test_what_the_server_has_is_not_copied() -> None:
    worker = Worker(windowed())
    keys = [key(name) for name in "abcd"]
    windows = StoreRun(b"".join(keys), None, 1, 64, [packed(1, 2, 3, 4), packed(5, 6, 7, 8)])
    worker.client.there = {(keys[0], 0), (keys[0], 1), (keys[1], 1), (keys[2], 0), (keys[3], 1)}
    worker.client.outcomes = [["published"], ["exists"] * 2, ["no_parent"], ["exists"]]
    worker.role.save(Stores([stored("a", 1), windows], ["r", "s"], may_exist=[1]))
    assert worker.client.stored == [[
        (keys[0], None, 0, 64, [[1]]), (keys[0], None, 1, 64, []), (keys[1], keys[0], 1, 64, []),
        (keys[2], keys[1], 1, 64, [[3], [7]]), (keys[3], keys[2], 1, 64, []),
    ]]  # fmt: skip
    report = worker.role.take_report()
    assert report is not None and report.orphaned == {"s"}


def test_nothing_computed_from_blocks_that_were_not_loaded_is_stored() -> None:
    worker = Worker(full())
    stores = Stores([stored("a", 1)], ["r"])
    worker.client.load_answer = [[False]]
    worker.role.start_loads(StepPlan(sync_loads=[Load("s", 1, [ITEM], blocks=[1, 2, 3])]))
    worker.role.save(stores)
    report = worker.role.take_report()
    assert worker.client.stored == [] and report is not None and report.orphaned == {"r", "s"}
    worker.role.save(stores)
    assert len(worker.client.stored) == 1


def test_a_rank_with_a_copy_of_the_bytes_stores_nothing() -> None:
    worker = Worker(full(), Part(0, 1, False))
    worker.role.save(Stores([stored("a", 1)], ["r"]))
    assert worker.client.stored == []


def test_each_group_is_stored_and_loaded_as_its_own_part() -> None:
    worker = Worker(hybrid(), Part(0, 1, False), Part(2, 4, True))
    state = StoreRun(key("a"), None, 1, 64, [packed(1), packed(2)])
    worker.client.there = {(key("a"), 0)}
    worker.role.save(Stores([stored("a", 1), state], ["r", "s"], supersedes=[(key("t"), 0)], may_exist=[0, 1]))
    assert worker.client.stored == [[(key("a"), None, 1, 64, [[1], [2]])]]
    assert worker.client.parts == [2, 2] and worker.client.superseded == []
    worker.client.outcomes = [["no_parent"]]
    worker.role.save(Stores([stored("b", 1), state], ["r", "s"]))
    report = worker.role.take_report()
    assert report is not None and report.orphaned == {"s"}
    worker.client.parts.clear()
    states = LoadRun(key("a"), 1, 64, [packed(4), packed(5)])
    worker.client.load_answer = [[False]]
    worker.role.start_loads(StepPlan(sync_loads=[Load("r", 1, [states, ITEM])]))
    assert worker.client.parts == [2, 0] and worker.client.loaded == [objects([states]), objects([ITEM])]
    assert worker.role.take_bad_blocks() == {1, 2, 3, 4, 5}


def test_full_attention_goes_first_and_only_awaited_parts_are_skipped() -> None:
    worker = Worker(hybrid(), Part(0, 1, True), Part(2, 4, True))
    state = StoreRun(key("a"), None, 1, 64, [packed(1), packed(2)])
    stores = Stores([state, stored("a", 1)], ["s", "r"], supersedes=[(key("t"), 0)])
    worker.client.outcomes = [["published"]]
    worker.role.save(stores)
    assert worker.client.parts == [0, 2] and worker.client.superseded == [(key("t"), 0)]
    assert worker.client.stored == [[(key("a"), None, 0, 64, [[1]])], [(key("a"), None, 1, 64, [[1], [2]])]]
    worker.client.load_answer = [[False]]
    worker.role.start_loads(StepPlan(sync_loads=[Load("s", 1, [ITEM], blocks=[1, 2, 3])]))
    worker.role.save(stores)
    assert worker.client.stored[2:] == [[(key("a"), None, 1, 64, [])]]


def test_a_new_weight_epoch_registers_another_domain_once() -> None:
    worker = Worker(full())
    worker.role.start_loads(StepPlan())
    assert worker.registered == [b"w"]
    for epoch in (b"1" * 16, b"1" * 16, b"2" * 16):
        worker.role.start_loads(StepPlan(epoch=epoch))
    assert len(worker.registered) == 3 and len(set(worker.registered)) == 3


def test_nothing_goes_under_old_keys_when_new_weights_are_refused() -> None:
    worker = Worker(full())
    worker.refusal = KvasirError("refused")
    worker.refusal.kind, worker.refusal.numbers = "RegistrationConflict", []
    plan = StepPlan(sync_loads=[Load("r", 1, [ITEM], blocks=[1, 2, 3])], epoch=b"1" * 16)
    worker.role.start_loads(plan)
    assert worker.role.take_bad_blocks() == {1, 2, 3} and worker.client.loaded == []
    worker.role.save(Stores([stored("k", 1)], ["r"]))
    assert worker.client.stored == []
