"""Fixtures of the end-to-end tests: servers on sockets of their own, engines on models of their own.

KVASIR_BINARY names the program under test (default: `kvasir` on the path), KVASIR_MODEL_CACHE a directory that keeps
the models' weights between runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
from typing import Any, Callable, Iterator

import pytest

import models
import process
import weights

pytest.register_assert_rewrite("kinds")


@pytest.fixture(scope="session")
def binary() -> pathlib.Path:
    """The kvasir program."""
    found = os.environ.get("KVASIR_BINARY") or shutil.which("kvasir")
    if not found:
        pytest.fail("no kvasir program: install the package here or set KVASIR_BINARY")
    return pathlib.Path(found)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Where weights are kept."""
    kept = os.environ.get("KVASIR_MODEL_CACHE")
    place = pathlib.Path(kept) if kept else tmp_path_factory.mktemp("models")
    # What engines remember of weights stays out of the user's own.
    os.environ.setdefault("KVASIR_CACHE_DIR", str(place / "digests"))
    return place


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory, cache: pathlib.Path) -> Iterator[process.Nursery]:
    """The parent of in-process engines; importing vLLM once is most of what a start costs."""
    with process.running(process.Nursery(tmp_path_factory.mktemp("nursery"))) as parent:
        yield parent


@dataclasses.dataclass
class Bench:
    """What a test works with: starts servers and engines, all of which end with the test."""

    place: pathlib.Path
    binary: pathlib.Path
    cache: pathlib.Path
    nursery: process.Nursery
    stack: contextlib.ExitStack
    engines: int = 0
    servers: int = 0

    def server(self, *flags: str, socket: str = "kvasir.sock") -> process.Server:
        """A server; a second one on the same socket is as after a restart."""
        self.servers += 1
        log = self.place / f"server-{self.servers}.log"
        flags = flags or ("--pool-size", "1GiB")
        server = process.Server(self.binary, self.place / socket, log, *flags)
        self.stack.callback(server.kill)
        return server

    def starter(
        self,
        model: models.Model,
        server: process.Server | None,
        fresh: bool = False,
        settings: dict[str, Any] | None = None,
        connector: dict[str, Any] | None = None,
        store_fault: dict[str, Any] | None = None,
        strange: bool = False,
    ) -> Callable[[int], process.Engine]:
        """A function that starts an engine on the model: forked from the nursery, or with `fresh` as a new
        interpreter whose scheduler and worker are processes of their own. `settings` are the engine's, in place of
        the model's; `connector` replaces parts of the connector's configuration; `store_fault` is for
        `steps.arm_store_fault`. `strange`: the engine has to find out itself what its weights are."""
        config: dict[str, Any] = {
            "model": str(weights.ensure(model, self.cache)),
            "settings": model.engine_settings | (settings or {}),
            "connector": process.connector_config(server.socket_path) | (connector or {}) if server else None,
            "store_fault": store_fault,
            "strange": strange,
        }

        def start(_number: int) -> process.Engine:
            self.engines += 1
            log = self.place / f"engine-{self.engines}.log"
            return process.Engine.fresh(config, log) if fresh else self.nursery.engine(config, log)

        return start

    def engine(self, model: models.Model, server: process.Server | None, **options: Any) -> process.Engine:
        """One engine, from the nursery unless the options of `starter` say otherwise."""
        engine = self.starter(model, server, **options)(0)
        self.stack.callback(engine.stop)
        return engine


@pytest.fixture
def bench(
    tmp_path: pathlib.Path, binary: pathlib.Path, cache: pathlib.Path, nursery: process.Nursery
) -> Iterator[Bench]:
    """Everything that a test needs; ends what the test started, also when it fails."""
    with contextlib.ExitStack() as stack:
        yield Bench(tmp_path, binary, cache, nursery, stack)
