"""Weights whose identity is found in the background: nothing waits for it, and everything comes alive with it."""

from __future__ import annotations

import fcntl
import logging
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import fake_vllm  # noqa: F401  (before the connector)
import kvasir.vllm
from fakes import full, objects
from kvasir import WeightsJob, weights_identity
from kvasir.vllm import identity, weights
from kvasir.vllm.meta import RankReport, StepPlan
from kvasir.vllm.notes import Notes
from kvasir.vllm.scheduler import Scheduled
from kvasir.vllm.settings import Settings
from scripted import Engine, Request
from test_connector_identity import config
from test_connector_identity import weights as model
from test_connector_scheduler import DOMAIN, TABLE, hit, request
from test_connector_scheduler import Engine as Role
from test_connector_worker import Worker
from test_native import eventually

NOTES = Notes(logging.getLogger("test"), "scheduler")
LARGE = 40 << 20


def settings(place: pathlib.Path) -> Settings:
    return Settings(("none",), cache_dir=str(place / "digests"))


def lock_of(place: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    """The file by which processes that read this model take turns."""
    looked = directory.stat()
    return place / "digests" / "weights-1" / f"{looked.st_dev:x}-{looked.st_ino:x}.lock"


def large(directory: pathlib.Path) -> pathlib.Path:
    """A model that is worth taking turns for."""
    model(directory)
    with (directory / "model.safetensors").open("wb") as file:
        file.truncate(LARGE)
    return directory


class Held:
    """The turn to read a model, held so that nobody else can."""

    def __init__(self, place: pathlib.Path, directory: pathlib.Path) -> None:
        path = lock_of(place, directory)
        path.parent.mkdir(parents=True, mode=0o700)
        path.parent.parent.chmod(0o700)
        self._file = path.open("w")
        path.chmod(0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def let_go(self) -> None:
        self._file.close()


def known(found: weights.EngineWeights) -> bytes:
    eventually("the identity", lambda: found.poll() is not None)
    one = found.poll()
    assert one is not None
    return one


def test_it_is_what_reading_says_and_a_second_start_reads_nothing(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = config(model(tmp_path / "a", b"w" * 1000))
    assert weights.known_at_once(one, settings(tmp_path)) is None
    for read in (1002, 0):
        found = known(weights.EngineWeights(one, settings(tmp_path), Notes(logging.getLogger("test"), "scheduler")))
        assert found == identity.weights_id(one, None)
        assert f"1002 bytes, of which {read} were read" in caplog.text
    assert weights.known_at_once(one, settings(tmp_path)) == identity.weights_id(one, None)


def test_what_needs_no_reading_is_known_at_once(tmp_path: pathlib.Path) -> None:
    hub = config("acme/tiny", commit="abc")
    assert weights.EngineWeights(hub, settings(tmp_path), NOTES).poll() == b"acme/tiny@abc"
    assert weights.known_at_once(hub, settings(tmp_path)) == b"acme/tiny@abc"
    named = Settings(("none",), weights_id="mine")
    assert weights.EngineWeights(config(tmp_path / "nowhere"), named, NOTES).poll() == b"mine"


@pytest.mark.parametrize("damage", ["no file", "dangling", "no directory"])
def test_what_cannot_be_read_is_said_and_spared(
    tmp_path: pathlib.Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = model(tmp_path / "a")
    (place / "model.safetensors").unlink()
    if damage == "dangling":
        (place / "model.safetensors").symlink_to("gone")
    one = config(tmp_path / "none" if damage == "no directory" else place)
    found = weights.EngineWeights(one, settings(tmp_path), Notes(logging.getLogger("test"), "scheduler"))
    eventually("a reason", lambda: found.poll() is None and "not caching" in caplog.text)
    time.sleep(0.05)
    assert found.poll() is None
    assert len([line for line in caplog.messages if "not caching" in line]) == 1


def test_files_that_changed_after_the_engine_began_to_load_them_prove_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = config(model(tmp_path / "a"))
    time.sleep(0.02)
    began = time.clock_gettime_ns(weights.CLOCK_REALTIME_COARSE)
    time.sleep(0.05)
    monkeypatch.setattr(weights, "load_began_ns", lambda: began)
    found = weights.EngineWeights(one, settings(tmp_path), Notes(logging.getLogger("test"), "scheduler"))
    known(found)
    (tmp_path / "a" / "model.safetensors").write_bytes(b"v")
    late = weights.EngineWeights(one, settings(tmp_path), Notes(logging.getLogger("test"), "scheduler"))
    eventually("a reason", lambda: late.poll() is None and "was changed after this engine began to load" in caplog.text)
    assert late.poll() is None and found.poll() is not None


def __post_init__() -> Any:  # noqa: N807  (as the engine's configuration has it)
    return kvasir.vllm.KvasirConnector


def create_connector() -> Any:
    return __post_init__()


def test_when_an_engine_began_to_load() -> None:
    weights.load_began_ns()
    create_connector()
    assert weights.load_began_ns() == sys.maxsize, "made after the weights were loaded"
    before = time.clock_gettime_ns(weights.CLOCK_REALTIME_COARSE)
    __post_init__()
    time.sleep(0.05)
    __post_init__()
    began = weights.load_began_ns()
    assert before <= began < time.clock_gettime_ns(weights.CLOCK_REALTIME_COARSE) - 40 * 10**6, "the earlier one counts"
    assert weights.load_began_ns() == sys.maxsize, "the next engine has times of its own"


def test_an_engine_in_a_process_of_its_own_began_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = "import time; a = time.time_ns(); from kvasir.vllm import weights; print(a, weights._process_began_ns())"
    before = time.time_ns()
    printed = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    after, began = map(int, printed.split())
    assert before - 20 * 10**6 <= began <= after
    monkeypatch.setattr(weights.multiprocessing, "parent_process", object)
    weights.load_began_ns()
    assert weights.load_began_ns() <= weights._process_began_ns() + 20 * 10**6
    __post_init__()
    assert weights.load_began_ns() > weights._process_began_ns()


class Later:
    """An identity that becomes known when a test says so."""

    def __init__(self) -> None:
        self.found: bytes | None = None

    def poll(self) -> bytes | None:
        return self.found

    def close(self) -> None:
        pass


def pending_role(domain: dict[str, Any]) -> tuple[Role, Later]:
    engine, later = Role(), Later()
    engine.role._weights = later  # type: ignore[assignment]
    engine.role._planner = None
    engine.role.set_ranks({(0, 0): RankReport(0, domain)})
    return engine, later


def test_lookups_answer_0_and_nothing_is_stored_until_it_is_known() -> None:
    engine, later = pending_role(DOMAIN | {"weights_id": b""})
    engine.answer(hit(160))
    one = request()
    assert engine.role.matched(one, 0) == (0, False)
    plan = engine.plan(Scheduled("r", 0, 128, True), tables={"r": TABLE})
    assert plan.stores is None and plan.weights == b"" and not engine.client.asked

    later.found = b"found"
    # By itself, without another request: what is computed from here on is stored, from the start.
    plan = engine.plan(Scheduled("r", 128, 170, True), tables={"r": TABLE})
    assert plan.stores is not None and len(objects(plan.stores.runs)) == 3
    assert plan.weights == b"found"
    assert engine.role.matched(request(name="next"), 0) == (160, False)


def test_other_weights_make_other_keys() -> None:
    keys = []
    for found in (b"one", b"two", b"one"):
        engine, later = pending_role(DOMAIN | {"weights_id": b""})
        later.found = found
        engine.role.matched(request(), 0)
        plan = engine.plan(Scheduled("r", 0, 170, True), tables={"r": TABLE})
        assert plan.stores is not None
        keys.append([item[0] for item in objects(plan.stores.runs)])
    assert keys[0] == keys[2] and set(keys[0]).isdisjoint(keys[1])


def test_ranks_that_know_are_not_told_and_must_agree(caplog: pytest.LogCaptureFixture) -> None:
    engine, later = pending_role(DOMAIN)
    later.found = DOMAIN["weights_id"]  # type: ignore[assignment]
    engine.answer(hit(160))
    assert engine.role.matched(request(), 0) == (160, False)
    assert engine.plan().weights == b""
    engine, later = pending_role(DOMAIN)
    later.found = b"other"
    assert engine.role.matched(request(), 0) == (0, False)
    assert "were changed while the engine started" in caplog.text


def test_a_worker_registers_once_it_is_told() -> None:
    worker = Worker(full())
    layout = worker.role._layout
    assert layout is not None
    worker.registered.clear()
    worker.role.register({}, layout, {"weights_id": b""})
    worker.role.start_loads(StepPlan())
    assert worker.registered == []
    worker.role.start_loads(StepPlan(weights=b"found"))
    worker.role.start_loads(StepPlan(weights=b"found"))
    assert worker.registered == [b"found"]
    worker.role.start_loads(StepPlan(weights=b"found", epoch=b"e" * 16))
    assert worker.registered[1:] != [b"found"] and len(worker.registered) == 2


def computed(engine: Engine, name: str, prompt: int = 1) -> int:
    """One request from its arrival to its end; how much of it was a hit."""
    one = Request(name, 170, prompt)
    external, _ = engine.ask(one)
    engine.allocate(one, external or 0, more=170)
    engine.step({name: (one, 170)})
    assert engine.holds(one, 160)
    engine.finish(one)
    engine.step()
    return external or 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_engine_comes_alive_when_its_weights_are_known(
    tmp_path: pathlib.Path, engines: Callable[..., Engine], ranks: int
) -> None:
    """Real connectors of both roles, a real server: its start does not wait for the reader, nor do its steps."""
    place = large(tmp_path / "model")
    held = Held(tmp_path, place)
    own = {"model": str(place), "weights_id": None, "cache_dir": str(tmp_path / "digests"), "ranks": ranks}
    engine = engines(name="first", **own)
    for prompt in range(3):
        assert computed(engine, str(prompt)) == 0
    held.let_go()
    eventually("the identity", lambda: engine.scheduler._scheduler._weights.poll() is not None)
    assert computed(engine, "unknown before") == 0
    eventually("what was stored", lambda: engine.ask(Request("look", 170))[0])

    # What it has read is remembered: the next one knows at once, in all roles, and hits with its first request.
    second = engines(name="second", **own)
    assert second.scheduler._scheduler._told_weights == b""
    assert engine.scheduler._scheduler._told_weights != b""
    one = Request("first", 170)
    assert second.ask(one)[0] == 160

    # One byte of 40 MiB.
    with (place / "model.safetensors").open("r+b") as file:
        file.seek(LARGE // 2 + 12345)
        file.write(b"1")
    third = engines(name="third", **own)
    eventually("the identity", lambda: third.scheduler._scheduler._weights.poll() is not None)
    assert third.ask(Request("other weights", 170))[0] == 0


READER = """
import sys, time
from kvasir import WeightsJob
job = WeightsJob(sys.argv[1], "", sys.argv[2], 1)
print("begun", flush=True)
while job.result() is None:
    time.sleep(0.01)
print(job.result().bytes_read, flush=True)
"""


def reader(directory: pathlib.Path, cache: pathlib.Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", READER, str(directory), str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_one_process_reads_and_the_others_take_it_over_also_when_it_is_killed(tmp_path: pathlib.Path) -> None:
    place, cache = large(tmp_path / "model"), tmp_path / "digests"
    with (place / "model.safetensors").open("wb") as file:
        file.truncate(2 << 30)  # seconds of reading, no disk
    first = reader(place, cache)
    lock = lock_of(tmp_path, place)
    eventually("progress", lambda: lock.exists() and lock.stat().st_size == 8)
    others = [reader(place, cache) for _ in range(2)]
    time.sleep(0.3)
    assert all(other.poll() is None for other in others)
    first.send_signal(signal.SIGKILL)
    first.wait()
    read = [int(other.communicate()[0].split()[1]) for other in others]
    whole = 2 + (2 << 30)
    # One of them began anew; the configuration may have been remembered by the one that was killed.
    assert sorted(read) in ([0, whole], [0, whole - 2])
    job = WeightsJob(str(place), "", str(cache))
    eventually("the identity", lambda: job.result() is not None)
    result = job.result()
    assert result is not None and result.bytes_read == 0


def test_a_job_that_nobody_waits_for_ends(tmp_path: pathlib.Path) -> None:
    place = large(tmp_path / "model")
    with (place / "model.safetensors").open("wb") as file:
        file.truncate(1 << 40)
    job = WeightsJob(str(place), "", str(tmp_path / "digests"))
    lock = lock_of(tmp_path, place)
    eventually("progress", lambda: lock.exists() and lock.stat().st_size == 8)
    del job
    names = pathlib.Path("/proc/self/task")

    def readers() -> list[str]:
        found = []
        for task in names.iterdir():
            try:
                found.append((task / "comm").read_text().strip())
            except OSError:
                continue
        return [name for name in found if name.startswith(("kvasir-identity", "kvasir-hash"))]

    eventually("its threads are gone", lambda: not readers())


def test_weights_identity_by_itself_remembers_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_CACHE_DIR", str(tmp_path / "cache"))
    place = model(tmp_path / "a")
    assert len(weights_identity(str(place))) == 32
    assert not os.path.exists(tmp_path / "cache")
    job = WeightsJob(str(place))
    eventually("the identity", lambda: job.result() is not None)
    found = job.result()
    assert found is not None and found.identity == weights_identity(str(place)) and found.forgetful is None
    assert os.stat(tmp_path / "cache").st_mode & 0o777 == 0o700
    assert len(os.listdir(tmp_path / "cache" / "weights-1")) == 2
