"""Engines in processes of their own whose server restarts: whoever is first, all find their chunk size again."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from test_native import SPANS, Server, eventually

ENGINE = """
import json, sys, kvasir
socket, instance, preferred = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
client = kvasir.Client(socket, "worker", "test", bytes([instance]) * 16, deadline_s=20.0, heartbeat_s=0.1)
size = client.negotiate(16, [tuple(span) for span in json.loads(sys.argv[4])], preferred, binding_domain=bytes.fromhex(sys.argv[5]))
print(json.dumps({"chunk_size": size}), flush=True)
for _ in sys.stdin:
    state = {"healthy": client.healthy, "chunk_size": client.chunk_size, "text": client.state_text}
    print(json.dumps(state), flush=True)
"""
DOMAIN = "5a" * 32


class Process:
    """A client of the library that prefers a chunk size."""

    def __init__(self, socket: str, instance: int, preferred: int) -> None:
        arguments = [socket, str(instance), str(preferred), json.dumps(SPANS), DOMAIN]
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.first_size = self._line()["chunk_size"]

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the engine has ended"
        return json.loads(line)

    def state(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._line()

    def is_healthy(self) -> bool:
        return self.state()["healthy"]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Iterator[Server]:
    server = Server(str(tmp_path))
    yield server
    server.kill()


def start(server: Server, *more: str) -> None:
    server.start("--chunk-size", "auto", *more, chunk_size=None)


@contextlib.contextmanager
def engines(server: Server) -> Iterator[dict[int, Process]]:
    """Two engines that run at 64, by what they prefer."""
    started: dict[int, Process] = {}
    try:
        for instance, preferred in enumerate((64, 256), 1):
            started[preferred] = Process(server.socket, instance, preferred)
            assert started[preferred].first_size == 64
        yield started
    finally:
        for process in started.values():
            process.end()


@pytest.mark.parametrize("scope", ["server", "model"])
@pytest.mark.parametrize("first", [64, 256])
def test_whoever_is_first_after_a_restart_all_go_on(place: Server, first: int, scope: str) -> None:
    start(place, "--chunk-scope", scope)
    with engines(place) as both:
        second = both[64 + 256 - first]
        for _ in range(2):
            # The other sleeps until the first has come back, so that the first alone decides.
            second.signal(signal.SIGSTOP)
            place.kill()
            eventually("the hang-up", lambda: not both[first].is_healthy())
            start(place, "--chunk-scope", scope)
            eventually("the first", both[first].is_healthy)
            second.signal(signal.SIGCONT)
            eventually("the second", second.is_healthy)
            assert [one.state()["chunk_size"] for one in both.values()] == [64, 64]


def test_a_fleet_file_keeps_the_size_from_a_new_engine_that_is_first(place: Server, tmp_path: pathlib.Path) -> None:
    """Nobody can know the size of engines that are away; the record does."""
    record = ("--fleet-file", str(tmp_path / "fleet"))
    start(place, *record)
    with engines(place) as both:
        for process in both.values():
            process.signal(signal.SIGSTOP)
        place.kill()
        start(place, *record)
        new = Process(place.socket, 9, 512)
        assert new.first_size == 64
        for process in both.values():
            process.signal(signal.SIGCONT)
            eventually("an engine of before", process.is_healthy)
        new.end()
