"""Ranks of a scripted engine in processes of their own: each has its client and its memory, as an engine's workers have."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import fake_vllm  # noqa: F401  (before the connector)
from kvasir.vllm import engine as engine_module
from ranks import Rank, Step, Write

# Longest wait for a rank's answer: ends a test whose rank hangs, and is no expectation about time.
WATCHDOG_S = 120.0


class RankGone(Exception):
    """The rank's process has ended."""


def serve(pipe: Connection, config: Any, kv_config: Any, number: int, held: Any) -> None:
    """The rank's process: does what it is told until the engine closes it or its pipe ends."""

    def exchange(own: Any) -> Any:
        pipe.send(("exchange", own))
        return pipe.recv()

    engine_module.exchange = exchange  # a fake of the collective between the stages, by way of the engine's process
    rank = Rank(config, kv_config, number, held)
    # Unlike what another process may have at the same place.
    rank.memory[:] = 0xA0 + number
    with contextlib.suppress(EOFError):
        while True:
            name, arguments = pipe.recv()
            try:
                answer = ("answer", getattr(rank, name)(*arguments))
            except Exception as error:
                answer = ("error", f"{type(error).__name__}: {error}")
            pipe.send(answer)
            if name == "close":
                return


class RankProcess:
    """The engine's end of a rank in another process. What `Rank` can do, by message."""

    def __init__(self, config: Any, kv_config: Any, number: int, held: Sequence[Sequence[int]]) -> None:
        self.number = number
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        arguments = (theirs, config, kv_config, number, held)
        self._process = spawn.Process(target=serve, args=arguments, name=f"rank {number}", daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process.pid is not None and self._process.pid != os.getpid()
        return self._process.pid

    def kill(self) -> None:
        """Ends it where it stands."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.join()
        assert self._process.exitcode == -signal.SIGKILL

    def register(self) -> None:
        self._call("register")

    def handshake(self) -> Any:
        return self._call("handshake")

    def begin(self, metadata: Any, writes: Sequence[Write], finished: set[str]) -> None:
        """Starts a step; the ranks of an engine run it at the same time."""
        self._send("begin", metadata, writes, finished)

    def end(self) -> Step:
        self._answer()
        return self._call("end")

    def fill(self, writes: Sequence[Write]) -> None:
        self._call("fill", writes)

    def has(self, writes: Sequence[Write]) -> bool:
        return self._call("has", writes)

    def copy(self) -> np.ndarray:
        return self._call("copy")

    def changed(self, before: np.ndarray) -> dict[int, set[int]]:
        return self._call("changed", before)

    def close(self) -> None:
        """Ends it in order, unless it is gone."""
        with contextlib.suppress(RankGone):
            self._call("close")
        self._process.join()
        self._pipe.close()

    def _call(self, name: str, *arguments: Any) -> Any:
        self._send(name, *arguments)
        return self._answer()

    def _send(self, name: str, *arguments: Any) -> None:
        try:
            self._pipe.send((name, arguments))
        except OSError:
            raise RankGone(f"rank {self.number} has ended before {name}") from None

    def _answer(self) -> Any:
        while True:
            try:
                assert self._pipe.poll(WATCHDOG_S), f"rank {self.number} does not answer"
                kind, value = self._pipe.recv()
            except (EOFError, OSError):
                raise RankGone(f"rank {self.number} has ended") from None
            if kind != "exchange":
                assert kind == "answer", f"rank {self.number}: {value}"
                return value
            self._pipe.send(engine_module.exchange(value))
