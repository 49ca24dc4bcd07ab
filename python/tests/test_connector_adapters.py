"""Adapters go by what they are: by the content of the files that the engine has loaded them from."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import shutil
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

import fake_vllm  # noqa: F401  (before the connector)
from fakes import full, objects, windowed
from kvasir import weights_stamp
from kvasir.vllm.adapters import ADAPTERS_MAX, Adapters
from kvasir.vllm.loaded import LoadedAdapters
from kvasir.vllm.meta import Adapter, Load, Loaded, StepPlan, StepReport, Stores
from kvasir.vllm.notes import Notes
from kvasir.vllm.scheduler import Scheduled
from kvasir.vllm.settings import Settings
from scripted import Engine, Request, WINDOW_SPECS
from test_connector_scheduler import TABLE, hit, request
from test_connector_scheduler import Engine as Role
from test_connector_worker import ITEM, Worker, stored
from test_native import eventually
from vllm.lora import worker_manager

LORA = types.SimpleNamespace(lora_dtype="torch.bfloat16", target_modules=None)


@dataclasses.dataclass
class Lora:
    """The engine's own for a request's adapter."""

    lora_path: str
    lora_int_id: int = 1
    lora_name: str = "tuned"
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


def adapter(directory: pathlib.Path, content: bytes = b"1", config: str = "{}") -> pathlib.Path:
    """Writes an adapter over what is there."""
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text(config)
    (directory / "adapter_model.safetensors").write_bytes(content)
    time.sleep(0.02)  # an engine takes longer to hear of it
    return directory


def notes() -> Notes:
    return Notes(logging.getLogger("test"), "scheduler")


def settings(place: pathlib.Path) -> Settings:
    return Settings(("none",), cache_dir=str(place / "digests"))


class Known:
    """The scheduler role's view of adapters, and a worker that loads them."""

    def __init__(self, place: pathlib.Path) -> None:
        self.adapters = Adapters(LORA, settings(place), notes())
        self.worker = LoadedAdapters(notes())
        self.worker.watch(worker_manager.WorkerLoRAManager)
        self.manager = worker_manager.WorkerLoRAManager()

    def of(self, lora: Lora) -> Adapter | None:
        entry = self.adapters.entry(lora)
        eventually("an answer", lambda: self.adapters.of(entry) is not None or entry.search is None or entry.search.error)
        return self.adapters.of(entry)

    def identity(self, lora: Lora) -> bytes | None:
        known = self.of(lora)
        return known.identity if known is not None else None

    def load(self, lora: Lora) -> bool:
        """The engine loads it and the scheduler role hears of it; whether that replaced anything."""
        assert self.manager._load_adapter(lora) == f"loaded {lora.lora_name}"
        return any([self.adapters.loaded(number, one) for number, one in self.worker.take_news().items()])


def test_the_identity_follows_content_and_nothing_else(tmp_path: pathlib.Path) -> None:
    known = Known(tmp_path)
    one = known.identity(Lora(str(adapter(tmp_path / "a"))))
    assert one is not None and len(one) == 32
    assert known.identity(Lora(str(adapter(tmp_path / "b")), 2, "other name")) == one
    (tmp_path / "b" / "README.md").write_text("words")
    assert known.identity(Lora(str(tmp_path / "b"), 3)) == one
    others = [
        known.identity(Lora(str(adapter(tmp_path / "c", b"2")), 4)),
        known.identity(Lora(str(adapter(tmp_path / "d", config='{"lora_alpha": 32}')), 5)),
        known.identity(Lora(str(tmp_path / "a"), 6, is_3d_lora_weight=True)),
    ]
    narrow = Adapters(types.SimpleNamespace(lora_dtype="auto", target_modules=["k_proj"]), settings(tmp_path), notes())
    entry = narrow.entry(Lora(str(tmp_path / "a")))
    assert narrow.of(entry) is not None, "remembered, so known at once"
    others.append(narrow.of(entry).identity)  # type: ignore[union-attr]
    assert len({one, *others}) == 5 and None not in others


def test_a_file_overwritten_under_the_same_name_and_path_is_another_adapter(tmp_path: pathlib.Path) -> None:
    place = adapter(tmp_path / "a", b"1" * 5000)
    before = Known(tmp_path).identity(Lora(str(place)))
    adapter(place, b"2" * 5000)
    assert Known(tmp_path).identity(Lora(str(place))) not in (before, None)
    adapter(place, b"1" * 5000)
    assert Known(tmp_path).identity(Lora(str(place))) == before


def test_what_the_engine_has_loaded_decides(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Overwritten after it was loaded: the engine goes on with the old one, and nobody can read that any more."""
    known, place = Known(tmp_path), adapter(tmp_path / "a", b"1")
    lora = Lora(str(place))
    assert not known.load(lora)
    adapter(place, b"2")
    assert known.of(lora) is None
    assert "changed after the engine had loaded it" in caplog.text
    # Loaded again, as after the engine has dropped it, or in place.
    known.load(lora)
    two = known.of(lora)
    assert two is not None and known.worker.has(two)
    assert known.adapters.is_mixed(known.adapters.entry(lora)), "the engine's own cache has blocks of both"


def test_a_load_from_other_files_ends_what_was_known(tmp_path: pathlib.Path) -> None:
    known, place = Known(tmp_path), adapter(tmp_path / "a", b"1")
    lora = Lora(str(place))
    one = known.of(lora)
    assert one is not None and not known.worker.has(one), "not loaded yet"
    assert not known.load(lora) and known.worker.has(one)
    assert not known.load(lora) and known.worker.has(one), "the same files again"
    adapter(place, b"2")
    assert known.of(lora) == one and known.worker.has(one), "the engine has the old one still"
    assert not known.worker.will_have(one), "but not for certain"
    assert known.adapters.loaded(1, known.worker.take_news()[1]) and known.of(lora) is None
    known.load(lora)
    two = known.of(lora)
    assert two is not None and two.identity != one.identity
    assert not known.worker.has(one) and known.worker.has(two)


def test_files_that_change_while_they_are_loaded_prove_nothing(tmp_path: pathlib.Path) -> None:
    known, place = Known(tmp_path), adapter(tmp_path / "a", b"1")

    class Slow(worker_manager.WorkerLoRAManager):
        def _load_adapter(self, lora_request: Lora) -> str:
            adapter(place, b"2")
            return "loaded"

    known.worker.watch(Slow)
    lora = Lora(str(place))
    assert Slow()._load_adapter(lora) == "loaded"
    (news,) = known.worker.take_news().values()
    assert news == Loaded(str(place), b"")
    known.adapters.entry(lora)
    known.adapters.loaded(1, news)
    assert known.of(lora) is None


def test_a_number_that_goes_to_another_path_is_another_adapter(tmp_path: pathlib.Path) -> None:
    known = Known(tmp_path)
    first, second = (Lora(str(adapter(tmp_path / name, name.encode()))) for name in ("a", "b"))
    one = known.of(first)
    known.load(first)
    two = known.of(second)
    known.load(second)
    assert one is not None and two is not None and one.identity != two.identity
    assert known.of(first) is None and known.of(second) == two
    assert known.worker.has(two) and not known.worker.has(one)
    known.load(first)
    back = known.of(first)
    assert back is not None and back.identity == one.identity and known.of(second) is None


def test_a_name_that_has_had_several_adapters_is_mixed(tmp_path: pathlib.Path) -> None:
    known = Known(tmp_path)
    first = Lora(str(adapter(tmp_path / "a", b"1")))
    same = Lora(str(adapter(tmp_path / "b", b"1")), 2)
    known.of(first), known.of(same)
    assert not known.adapters.is_mixed(known.adapters.entry(same))
    other = Lora(str(adapter(tmp_path / "c", b"2")), 3)
    known.of(other)
    assert all(known.adapters.is_mixed(known.adapters.entry(lora)) for lora in (first, same, other))
    elsewhere = Lora(str(tmp_path / "c"), 4, "own name")
    known.of(elsewhere)
    assert not known.adapters.is_mixed(known.adapters.entry(elsewhere))


def test_adapters_that_cannot_be_read_are_said_once_and_spared(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = Known(tmp_path)
    for _ in range(3):
        assert known.of(Lora(str(tmp_path / "nowhere"))) is None
        assert known.of(Lora("acme/on-the-hub", 2)) is None
    assert len([line for line in caplog.messages if "not caching with adapter" in line]) == 1
    # The engine's own error is the engine's.
    known.manager._load_adapter = lambda _lora: 1 / 0
    with pytest.raises(ZeroDivisionError):
        known.manager._load_adapter(Lora(str(tmp_path / "nowhere")))
    known = Known(tmp_path)
    assert known.manager._load_adapter(Lora(str(tmp_path / "nowhere"))) == "loaded tuned"
    assert known.worker.take_news()[1].stamp == b""


def test_an_adapter_of_the_hub_is_known_once_the_engine_has_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, place = Known(tmp_path), adapter(tmp_path / "snapshot")
    monkeypatch.setattr("kvasir.vllm.loaded._snapshot", lambda name: str(place))
    lora = Lora("acme/on-the-hub")
    assert known.of(lora) is None
    known.load(lora)
    found = known.of(lora)
    assert found is not None and found.path == str(place) and known.worker.has(found)
    assert found.identity == known.identity(Lora(str(place), 9))


def test_workers_that_loaded_different_files_have_loaded_nothing_known() -> None:
    one = StepReport(adapters={1: Loaded("a", b"1"), 2: Loaded("b", b"1")})
    one.merge(StepReport(adapters={1: Loaded("a", b"2"), 2: Loaded("b", b"1"), 3: Loaded("c", b"1")}))
    assert one.adapters == {1: Loaded("a", b""), 2: Loaded("b", b"1"), 3: Loaded("c", b"1")}


def test_adapters_of_an_engine_are_bounded(tmp_path: pathlib.Path) -> None:
    adapters = Adapters(LORA, settings(tmp_path), notes())
    for number in range(1, ADAPTERS_MAX + 10):
        adapters.entry(Lora("acme/nobody-has-it", number, str(number)))
    assert len(adapters._entries) == ADAPTERS_MAX == len(adapters._by_name)
    assert adapters.is_mixed(adapters.entry(Lora("acme/nobody-has-it", 1, "1"))), "what was forgotten is not trusted"


# The scheduler role


def known_role(place: pathlib.Path) -> Role:
    return Role(cache_dir=str(place / "digests"))


def planned(role: Role, name: str, lora: Lora) -> list[bytes]:
    """The keys of what a request with this adapter stores."""
    one = request(name=name, lora_request=lora)
    role.role.matched(one, 0)
    plan = role.plan(Scheduled(name, 0, 170, True), tables={name: TABLE})
    assert plan.stores is None or set(plan.stores.adapters) == {name}
    return [item[0] for item in objects(plan.stores.runs)] if plan.stores is not None else []


def test_keys_follow_what_the_adapter_is(tmp_path: pathlib.Path) -> None:
    place = adapter(tmp_path / "a", b"1")
    role = known_role(tmp_path)
    lora = Lora(str(place))
    role.answer(hit(160))
    one = request(lora_request=lora)
    assert role.role.matched(one, 0) == (0, False) and not role.client.asked, "not known yet"
    eventually("it is known", lambda: role.role.matched(one, 0) == (160, False))
    role.answer(hit(0))
    keys = planned(role, "x", lora)
    assert keys
    adapter(tmp_path / "b", b"1"), adapter(tmp_path / "c", b"2")
    found = {}
    for name in ("b", "c"):
        other = Lora(str(tmp_path / name), 2 + ord(name), "elsewhere " + name)
        eventually("it is known", lambda: role.role._adapters.of(role.role._adapters.entry(other)) is not None)
        found[name] = planned(role, name, other)
    assert found["b"] == keys and set(found["c"]).isdisjoint(keys) and found["c"]
    bare = role.plan(Scheduled("bare", 0, 170, True), tables={"bare": TABLE}).stores
    assert bare is None
    role.role.matched(request(name="bare"), 0)
    bare = role.plan(Scheduled("bare", 0, 170, True), tables={"bare": TABLE}).stores
    assert bare is not None and {item[0] for item in objects(bare.runs)}.isdisjoint(keys) and not bare.adapters


def test_blocks_that_the_engine_found_under_a_mixed_name_are_neither_continued_nor_stored(tmp_path: pathlib.Path) -> None:
    role = known_role(tmp_path)
    role.answer(hit(160))
    first, other = (Lora(str(adapter(tmp_path / name, name.encode())), ord(name)) for name in ("a", "b"))
    for lora in (first, other):
        eventually("it is known", lambda: role.role._adapters.of(role.role._adapters.entry(lora)) is not None)
    assert role.role.matched(request(name="new", lora_request=other), 0) == (160, False)
    stale = request(name="stale", lora_request=other)
    assert role.role.matched(stale, 64) == (0, False)
    assert role.plan(Scheduled("stale", 64, 170, True), tables={"stale": TABLE}).stores is None


def test_a_running_request_whose_adapter_is_replaced_stores_no_more(tmp_path: pathlib.Path) -> None:
    role, place = known_role(tmp_path), adapter(tmp_path / "a", b"1")
    role.answer(hit(0))
    lora = Lora(str(place))
    eventually("it is known", lambda: role.role._adapters.of(role.role._adapters.entry(lora)) is not None)
    one, two = request(name="one", lora_request=lora), request(name="two")
    role.role.matched(one, 0), role.role.matched(two, 0)
    stamp = weights_stamp(str(place))[0]
    role.role.on_output((), (), StepReport(adapters={1: Loaded(str(place), stamp)}))
    tables = {"one": TABLE, "two": TABLE}
    plan = role.plan(Scheduled("one", 0, 64, True), Scheduled("two", 0, 64, True), tables=tables)
    assert plan.stores is not None and plan.stores.owners == ["one", "two"]
    role.role.on_output((), (), StepReport(adapters={1: Loaded(str(place), b"other")}))
    plan = role.plan(Scheduled("one", 64, 170, True), Scheduled("two", 64, 170, True), tables=tables)
    assert plan.stores is not None and set(plan.stores.owners) == {"two"}


def test_a_request_that_began_before_its_adapter_was_known_stores_once_a_worker_confirms_it(tmp_path: pathlib.Path) -> None:
    role, place = known_role(tmp_path), adapter(tmp_path / "a", b"1")
    role.answer(hit(0))
    one = request(name="one", lora_request=Lora(str(place)))
    assert role.role.matched(one, 0) == (0, False)
    tables = {"one": TABLE}
    eventually("it is known", lambda: role.role._adapters.of(role.role._states["one"].adapter_entry) is not None)
    assert role.plan(Scheduled("one", 0, 64, True), tables=tables).stores is None
    role.role.on_output((), (), StepReport(adapters={1: Loaded(str(place), weights_stamp(str(place))[0])}))
    stores = role.plan(Scheduled("one", 64, 170, True), tables=tables).stores
    assert stores is not None and len(objects(stores.runs)) == 3


# The worker role


def test_a_worker_neither_loads_nor_stores_for_an_adapter_that_it_has_not_loaded(tmp_path: pathlib.Path) -> None:
    place = adapter(tmp_path / "a")
    stamp = weights_stamp(str(place))[0]
    mine, other = (Adapter(1, str(place), b"i" * 32, one) for one in (stamp, b"other"))
    for geometry in (full(), windowed()):
        worker = Worker(geometry)
        loaded = worker.role._adapters = LoadedAdapters(notes())
        loaded.watch(worker_manager.WorkerLoRAManager)
        worker_manager.WorkerLoRAManager()._load_adapter(Lora(str(place)))
        worker.role.start_loads(
            StepPlan(sync_loads=[Load("good", 1, [ITEM], adapter=mine), Load("bad", 1, [ITEM], adapter=other)])
        )
        assert len(worker.client.loaded) == 1 and worker.role.take_bad_blocks() == {1, 2, 3}
        worker.role.start_loads(
            StepPlan(async_loads=[Load("good", 1, [ITEM], adapter=mine), Load("bad", 1, [ITEM], adapter=other)])
        )
        results = worker.wait(2)
        assert results.failed == {"bad"} and len(worker.client.loaded) == 2
        runs = [stored("a", 1), stored("b", 2), stored("c", 3)]
        worker.role._suspect_steps = 0
        worker.role.save(Stores(runs, ["good", "bad", "bare"], adapters={"good": mine, "bad": other}))
        assert [item[0][:1] for item in worker.client.stored[-1]] == [b"a", b"c"]
        report = worker.role.take_report()
        assert report is not None and report.adapters == {1: Loaded(str(place), stamp)}


def test_an_engine_without_a_watcher_caches_nothing_with_adapters() -> None:
    worker = Worker(full())
    mine = Adapter(1, "/a", b"i" * 32, b"s")
    worker.role.save(Stores([stored("a", 1)], ["good"], adapters={"good": mine}))
    assert worker.client.stored == []
    worker.role.start_loads(StepPlan(async_loads=[Load("good", 1, [ITEM], adapter=mine)]))
    assert worker.wait(1).failed == {"good"}


# Everything together


def run(engine: Engine, name: str, lora: Lora, prompt: int = 1) -> int:
    """One request as the engine runs it: how much of it was a hit that came."""
    one = Request(name, 170, prompt, lora_request=lora)
    external, between = engine.ask(one)
    engine.allocate(one, external or 0, more=170)
    failed = engine.wait(name) if between and external else set()
    manager = worker_manager.WorkerLoRAManager()
    if lora.load_inplace or lora.lora_int_id not in has_loaded(engine):
        manager._load_adapter(lora)
    output = engine.step({name: (one, 170)})
    engine.finish(one)
    engine.step()
    return 0 if output.bad_blocks or failed else external or 0


def know(engine: Engine, lora: Lora) -> None:
    """Waits until the engine's scheduler role knows what the adapter is."""
    adapters = engine.scheduler._scheduler._adapters
    eventually("what it is", lambda: adapters.of(adapters.entry(lora)) is not None)


def has_loaded(engine: Engine) -> set[int]:
    return set(engine.ranks[0].connector._worker._adapters._loaded)


@pytest.mark.parametrize("specs", [None, WINDOW_SPECS])
def test_a_replaced_adapter_is_never_served(
    tmp_path: pathlib.Path, engines: Callable[..., Engine], specs: Any
) -> None:
    """Real connectors and server: the same name, path and number, in a new engine, in the same, and in place."""
    place = adapter(tmp_path / "a", b"1" * 3000)
    more: dict[str, Any] = {"lora_config": LORA, "cache_dir": str(tmp_path / "digests")}
    if specs is not None:
        more["specs"] = specs

    def until_hit(engine: Engine, lora: Lora) -> None:
        count = iter(range(1000))
        eventually("a hit", lambda: run(engine, f"again {next(count)}", lora) == 160)

    lora = Lora(str(place))
    first = engines(name="first", **more)
    assert run(first, "a", lora) == 0
    until_hit(first, lora)
    first.close()
    # What is remembered hits at once.
    second = engines(name="second", **more)
    assert run(second, "a", lora) == 160
    # Overwritten while it is loaded: what the engine has is still the first.
    adapter(place, b"2" * 3000)
    run(second, "with the old one", lora, prompt=2)
    second.close()

    third = engines(name="third", **more)
    know(third, lora)
    assert run(third, "what the old one stored", lora, prompt=2) == 0
    assert run(third, "what the first one stored", lora) == 0
    until_hit(third, lora)
    # In place.
    adapter(place, b"3" * 3000)
    assert run(third, "in place", Lora(str(place), load_inplace=True)) == 0
    third.close()
    # Back again under another name and path.
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(adapter(place, b"1" * 3000), elsewhere)
    time.sleep(0.02)  # as after every write: an engine takes longer to hear of it
    fourth = engines(name="fourth", **more)
    other = Lora(str(elsewhere), 5, "renamed")
    until_hit(fourth, other)
