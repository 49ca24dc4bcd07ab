"""The driver of the peer in `cargo xtask bench`: what it times is as cold on this side as on Kvasir's."""

import importlib.util
import pathlib
import sys
import types

import pytest

DRIVER = pathlib.Path(__file__).parents[1] / "benches" / "lmcache_peer.py"


@pytest.fixture
def driver(monkeypatch) -> types.ModuleType:
    """The driver, without the peer: what it needs of that is imported where it is used."""
    import os

    for name in ("LMCACHE_TRACK_USAGE", "LMCACHE_DISABLE_BANNER", "LMCACHE_LOG_LEVEL", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # so that what it sets ends with the test
    spec = importlib.util.spec_from_file_location("lmcache_peer", DRIVER)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lmcache_peer", module)
    spec.loader.exec_module(module)
    return module


class Client:
    """A server that drops everything when it is told to."""

    def __init__(self):
        self.clears = 0

    def clear(self, _force):
        self.clears += 1
        return types.SimpleNamespace(result=lambda timeout: None)


def test_nothing_is_loaded_or_copied_that_was_touched_just_before(driver, monkeypatch):
    calls = []

    class Engine:
        """Writes down what it is told, with the chunks that are touched."""

        def __init__(self, _client, shape, arena):
            self.number, self.count = 0, max(arena // shape.bytes, 2 * driver.CHUNKS)

        def next(self, chunks):
            self.number += 1
            return list(range(chunks)), self.number

        def store(self, places, key):
            calls.append(("store", key))
            return 1.0

        def load(self, places, key):
            calls.append(("load", key))
            return 1.0

        def copy(self, places):
            calls.append(("copy", None))
            return 1.0

        def end(self, key):
            pass

        def close(self):
            pass

    monkeypatch.setattr(driver, "Engine", Engine)
    report = driver.Report()
    driver.throughput(driver.Rounds(), Client(), "1MiB", driver.SMALL, report)
    size = driver.SMALL.bytes * driver.CHUNKS
    loads = [at for at, (what, _) in enumerate(calls) if what == "load"]
    assert len(loads) == 36
    for at in loads:
        stored = calls.index(("store", calls[at][1]))
        assert (at - stored) * size >= 256 << 20, "so much was touched since the store"
    # No copy stands between the stores and loads of its batch.
    kinds = [what for what, _ in calls]
    assert kinds[-108:] == ["store"] * 36 + ["load"] * 36 + ["copy"] * 36
    assert [figure["name"] for figure in report.figures] == ["store_1MiB", "load_1MiB", "copy_1MiB"]


def test_batches_fit_the_pool_and_have_all_calls(driver):
    assert driver.batches(9, 2) == [2, 2, 2, 2, 1]
    assert driver.batches(36, 87) == [36]
    assert driver.BATCH_BYTES < 0.8 * (driver.POOL_GIB << 30), "the peer evicts from there on"


@pytest.mark.parametrize("count", [32, 512])
def test_a_copy_is_of_other_chunks_than_a_store_or_load(driver, count):
    class Chunk:
        def __init__(self, name, touched):
            self.name, self.touched = name, touched

        def copy_(self, source):
            self.touched.append((self.name, source.name))

    touched = []
    engine = object.__new__(driver.Engine)
    engine.own = [Chunk(("own", i), touched) for i in range(count)]
    engine.other = [Chunk(("other", i), touched) for i in range(count)]
    places = [(count - 5 + i) % count for i in range(driver.CHUNKS)]
    assert engine.copy(places) >= 0
    assert len(touched) == driver.CHUNKS
    for target, source in touched:
        assert source[0] == "own" and source[1] not in places
        assert target[0] == "other"
        assert target[1] != source[1], "a load would find there what it should bring"
