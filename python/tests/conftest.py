"""What several files of tests share."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from collections.abc import Callable, Iterator

import pytest

from scripted import Engine, Spared
from test_native import Server


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of its own, ready to take stores."""
    with tempfile.TemporaryDirectory() as directory:
        one = Server(directory)
        one.start()
        yield one
        one.kill()


@pytest.fixture
def servers(tmp_path: pathlib.Path) -> Iterator[list[Server]]:
    """Two servers of one deployment."""
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(2):
            place = tmp_path / str(number)
            place.mkdir()
            one = Server(str(place))
            one.start()
            stack.callback(one.kill)
            found.append(one)
        yield found


@pytest.fixture
def spared() -> Iterator[Spared]:
    """What connectors spared their engines; whatever a test does not take from it fails the test."""
    with Spared().watching() as watch:
        yield watch


@pytest.fixture
def engines(server: Server, spared: Spared) -> Iterator[Callable[..., Engine]]:
    """Starts scripted engines at the server."""
    with contextlib.ExitStack() as stack:

        def start(*args: object, **settings: object) -> Engine:
            engine = Engine(server.socket, *args, **settings)  # type: ignore[arg-type]
            stack.callback(engine.close)
            return engine

        yield start
