"""What keeps an engine from caching, and only the engine knows, is shown by `kvasir status` and found by `kvasir doctor`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import subprocess
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

from fakes import FullAttentionSpec
from kvasir.vllm import weights
from kvasir.vllm.adapters import Adapters
from kvasir.vllm.conditions import Conditions
from kvasir.vllm.notes import Notes
from scripted import HYBRID_SPECS, Engine, Request, Spared
from server_status import status
from test_connector_adapters import LORA, Lora, adapter
from test_connector_identity import config
from test_connector_identity import weights as model
from test_connector_weights import Held, computed, large, settings
from test_native import Server, client, eventually, program
from vllm.lora import worker_manager

Engines = Callable[..., Engine]


def reported(server: Server) -> list[str]:
    """Of all clients together."""
    return [name for client in status(server)["clients"] for name in client["conditions"]]


def printed(server: Server, command: str) -> str:
    done = subprocess.run([program(), command, "--socket", server.socket], capture_output=True, text=True)
    return done.stdout


def findings(server: Server) -> dict[str, str]:
    """Severities by name."""
    command = [program(), "doctor", "--json", "--socket", server.socket]
    found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["findings"]
    return {one["name"]: one["severity"] for one in found}


def local(place: pathlib.Path, cache: pathlib.Path) -> dict[str, object]:
    return {"model": str(place), "weights_id": None, "cache_dir": str(cache / "digests")}


def test_an_engine_that_reads_its_weights_says_so_until_they_are_known(
    tmp_path: pathlib.Path, server: Server, engines: Engines
) -> None:
    place = large(tmp_path / "model")
    held = Held(tmp_path, place)
    engine = engines(**local(place, tmp_path))
    assert reported(server) == ["weights_pending"]
    (row,) = [row for row in status(server)["clients"] if row["conditions"]]
    assert row["kind"] == "scheduler"
    assert "caches nothing yet: its weights are being read" in printed(server, "status")
    assert findings(server)["weights_pending"] == "slow"
    assert "kvasir.weights_id" in printed(server, "doctor")
    # The next server is told too.
    server.kill()
    server.start()
    eventually("the engine", lambda: engine.healthy and reported(server) == ["weights_pending"])
    held.let_go()
    # No request comes.
    eventually("the end of it", lambda: reported(server) == [])
    assert "weights_pending" not in findings(server)
    assert computed(engine, "one") == 0
    eventually("a hit", lambda: engine.ask(Request("look", 170))[0])


def out_of_reach(place: pathlib.Path) -> Callable[[], None]:
    """Has a model's files go, as where a file system is not there, and be there again, unchanged."""
    away = place.with_name("away")
    store = place.with_name("store")
    store.mkdir()
    os.rename(place / "model.safetensors", store / "blob")
    (place / "model.safetensors").symlink_to(store / "blob")
    time.sleep(0.02)
    os.rename(store, away)
    return lambda: os.rename(away, store)


def test_weights_that_could_not_be_read_are_read_again(
    tmp_path: pathlib.Path, server: Server, engines: Engines, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(weights, "FIRST_RETRY", 0.05)
    place = model(tmp_path / "model")
    mend = out_of_reach(place)
    engine = engines(**local(place, tmp_path))
    eventually("the condition", lambda: reported(server) == ["weights_unreadable"])
    assert findings(server)["weights_unreadable"] == "silent"
    assert "caches nothing: its weights could not be read" in printed(server, "status")
    assert computed(engine, "one") == 0
    time.sleep(0.5)  # several attempts
    assert len([line for line in caplog.messages if "not caching" in line]) == 1
    mend()
    eventually("the end of it", lambda: reported(server) == [])
    assert "could be read at last" in caplog.text
    assert computed(engine, "two") == 0
    eventually("a hit", lambda: engine.ask(Request("look", 170))[0])


def test_attempts_become_rare(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "FIRST_RETRY", 0.1)
    monkeypatch.setattr(weights, "LAST_RETRY", 0.4)
    clock = [1000.0]
    monkeypatch.setattr(weights.time, "monotonic", lambda: clock[0])
    asked: list[float] = []

    def fail(*_: object) -> None:
        asked.append(clock[0])
        raise OSError("not there")

    monkeypatch.setattr(weights, "remembered_weights", fail)
    monkeypatch.setattr(weights, "WeightsJob", fail)
    search = weights.Search(str(tmp_path), "", settings(tmp_path))
    while clock[0] < 1002.0:
        assert search.poll() is None and search.error is not None
        clock[0] += 0.01
    waits = [round(later - sooner, 1) for sooner, later in zip(asked, asked[1:])]
    assert waits == [0.1, 0.2, 0.4, 0.4, 0.4, 0.4]


def test_weights_that_changed_since_they_were_loaded_are_never_known(
    tmp_path: pathlib.Path, server: Server, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = model(tmp_path / "model")
    monkeypatch.setattr(weights, "load_began_ns", lambda: 0)
    engines(**local(place, tmp_path))
    eventually("the condition", lambda: reported(server) == ["weights_unknown"])
    assert findings(server)["weights_unknown"] == "silent"
    assert "start it again" in printed(server, "doctor")


def test_an_engine_without_loads_says_so(server: Server, engines: Engines) -> None:
    engine = engines(policy="fail")
    assert reported(server) == ["loads_forbidden"]
    assert findings(server)["loads_forbidden"] == "silent"
    assert computed(engine, "one") == 0 and computed(engine, "two") == 0


def test_ranks_that_differ_say_so(server: Server, engines: Engines) -> None:
    engines(ranks=2, odd=(FullAttentionSpec(16, page_size_bytes=1024),))
    assert reported(server) == ["workers_refused"]
    assert findings(server)["workers_refused"] == "silent"


def test_steps_that_end_where_no_state_can_be_resumed_are_said(server: Server, engines: Engines) -> None:
    engine = engines(HYBRID_SPECS)
    cache = engine.scheduler._vllm_config.cache_config
    for block_size, expected in ((24, ["states_unreached"]), (32, [])):
        # The CPU engine sets it anew once the connector is there.
        cache.block_size = block_size
        engine.scheduler.on_new_request(Request("one", 170))
        assert reported(server) == expected


def test_an_engine_whose_adapters_cannot_be_watched_says_so(
    server: Server, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(worker_manager, "WorkerLoRAManager")
    engines(lora_config=LORA, ranks=2)
    (row, *others) = [row for row in status(server)["clients"] if row["conditions"]]
    assert len(others) == 1 and {row["kind"], others[0]["kind"]} == {"worker"}
    assert reported(server) == ["adapter_unknown"] * 2


def test_servers_that_differ_say_so(tmp_path: pathlib.Path, spared: Spared) -> None:
    pair = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        pair.append(Server(str(tmp_path / str(number))))
    with contextlib.ExitStack() as stack:
        # They are away while it starts.
        engine = Engine([server.socket for server in pair], ranks=2)
        stack.callback(engine.close)
        for server, chunk_size in zip(pair, (64, 128)):
            server.start(chunk_size=chunk_size)
            stack.callback(server.kill)
        eventually("the clients", lambda: engine.healthy)
        assert engine.ask(Request("one", 170)) == (0, False)
        assert [reported(server) for server in pair] == [["servers_differ"]] * 2
        assert findings(pair[0])["servers_differ"] == "silent"
    assert not spared.errors


def test_a_chunk_size_that_does_not_suit_the_engine_is_said(tmp_path: pathlib.Path, spared: Spared) -> None:
    """The server that comes later cannot know of the steps in which the engine's scheduler counts."""

    def in_steps_of_48(config: Any) -> None:
        config.cache_config.block_size = 48

    server = Server(str(tmp_path))
    with contextlib.ExitStack() as stack:
        engine = Engine(server.socket, alter=in_steps_of_48)
        stack.callback(engine.close)
        server.start(chunk_size=64)
        stack.callback(server.kill)
        eventually("the clients", lambda: engine.healthy)
        assert engine.ask(Request("one", 170)) == (0, False)
        (row,) = [row for row in status(server)["clients"] if row["conditions"]]
        assert (row["kind"], row["conditions"]) == ("scheduler", ["chunk_refused"])
        assert "caches nothing: the server's chunk size does not suit it" in printed(server, "status")
        assert findings(server)["chunk_refused"] == "silent"
        assert "--chunk-size" in printed(server, "doctor")
    assert not spared.errors


def test_media_that_an_engine_does_not_hash_are_said(server: Server, engines: Engines) -> None:
    class Position:
        offset, length = 3, 5

    class Feature:
        identifier, mm_position = "renderer0-mm-1-image-0", Position

    def without_caches(config: Any) -> None:
        config.model_config.multimodal_config = types.SimpleNamespace(mm_processor_cache_gb=0)
        config.cache_config.enable_prefix_caching = False

    engine = engines(alter=without_caches)
    assert computed(engine, "text") == 0
    assert reported(server) == [], "requests without media are cached"
    assert engine.ask(Request("picture", 170, 2, mm_features=[Feature])) == (0, False)
    (row,) = [row for row in status(server)["clients"] if row["conditions"]]
    assert (row["kind"], row["conditions"]) == ("scheduler", ["media_unhashed"])
    assert "caches no requests with images or other media" in printed(server, "status")
    assert findings(server)["media_unhashed"] == "slow"
    assert "start it with its prefix cache" in printed(server, "doctor")


def test_an_error_that_an_engine_was_spared_is_said(server: Server, engines: Engines, spared: Spared) -> None:
    engine = engines()

    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    engine.ranks[0].connector._worker.start_loads = fail
    assert reported(server) == []
    assert computed(engine, "one") == 0
    assert spared.take("a defect") == 1
    (row,) = [row for row in status(server)["clients"] if row["conditions"]]
    assert (row["kind"], row["conditions"]) == ("worker", ["errors_spared"])
    assert findings(server)["errors_spared"] == "slow"


def test_an_adapter_that_could_not_be_read_is_read_again(
    tmp_path: pathlib.Path, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(weights, "FIRST_RETRY", 0.05)
    place = adapter(tmp_path / "a", b"1")
    os.rename(place / "adapter_model.safetensors", tmp_path / "away")
    (place / "adapter_model.safetensors").symlink_to(tmp_path / "blob")
    one = client(server.socket, "scheduler")
    notes = Notes(logging.getLogger("test"), "scheduler")
    adapters = Adapters(LORA, settings(tmp_path), notes, Conditions(one))
    entry = adapters.entry(Lora(str(place)))
    for _ in range(20):
        assert adapters.of(entry) is None
        time.sleep(0.02)
    assert reported(server) == ["adapter_unknown"] and findings(server)["adapter_unknown"] == "slow"
    assert len([line for line in caplog.messages if "not caching with adapter" in line]) == 1
    os.rename(tmp_path / "away", tmp_path / "blob")
    eventually("the adapter", lambda: adapters.of(entry) is not None)
    assert reported(server) == []
    one.close()


def test_a_condition_that_nobody_knows_is_refused(server: Server) -> None:
    one = client(server.socket, "scheduler")
    one.set_conditions(["weights_pending", "servers_differ"])
    with pytest.raises(ValueError, match='"tired" is no condition'):
        one.set_conditions(["tired"])
    assert reported(server) == ["weights_pending", "servers_differ"]
    one.close()
    eventually("its end", lambda: status(server)["clients"] == [])
    # Its slab is the next one's.
    other = client(server.socket, "scheduler")
    assert reported(server) == []
    other.close()


def test_nothing_is_said_of_the_weights_where_they_are_known_at_once(tmp_path: pathlib.Path, server: Server) -> None:
    one = client(server.socket, "scheduler")
    notes = Notes(logging.getLogger("test"), "scheduler")
    weights.EngineWeights(config("acme/tiny", commit="abc"), settings(tmp_path), notes, Conditions(one))
    assert reported(server) == []
    one.close()
